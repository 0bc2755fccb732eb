"""`Store`: every finished stage of a prompt, durable at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Connection, Integer, Select, Table, func, insert, select, update
from sqlalchemy.exc import OperationalError

from langchain_cfc._version import __version__
from langchain_cfc.collect.stages import ModelCalls, Paid, Stage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.configuration import OF_RECORDS, refuse_other
from langchain_cfc.collect.store.database import Database
from langchain_cfc.collect.store.rows import Row
from langchain_cfc.collect.store.tables import table
from langchain_cfc.collect.store.writes import (
    ADD_CALLS,
    ADD_DRAWS,
    ADD_LABELS,
    ADD_PROMPTS,
    ADD_SCORES,
    Write,
    Writes,
    execute,
)
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import StoreError
from langchain_cfc.records import Example, PromptRecord, Provenance
from langchain_cfc.sampling import Draw

if TYPE_CHECKING:
    from typing_extensions import Self

# Prompts that are read or added at a time.
PAGE = 500
# What only the responses tell, and what may drift behind its name.
_VERSION = "model_version"
_prompts, _draws, _scores, _labels, _calls = (
    schema.prompts,
    schema.draws,
    schema.scores,
    schema.labels,
    schema.calls,
)


@dataclass(frozen=True)
class Work:
    """A prompt that is not finished.

    Attributes:
        position: Its place in the store.
        example: What is known of it.
        draws: Its candidates, where they are drawn.
        scores: Their scores, where they are scored.
    """

    position: int
    example: Example
    draws: Sequence[Draw] | None
    scores: Sequence[float] | None


@dataclass(frozen=True)
class Failure:
    """A prompt that failed.

    Attributes:
        id: The prompt.
        stage: The one that failed.
        error: Why.
    """

    id: str
    stage: Stage
    error: str


class Store:
    """The prompts of a collection with all that was made for them.

    Args:
        where: Path of an SQLite file, or the URL of a PostgreSQL database.
        create: Whether to make it where it is not there.

    Raises:
        StoreError: If it cannot be opened, is not there, is no store or one of another release.
    """

    def __init__(self, where: str | os.PathLike[str], *, create: bool = False) -> None:
        self._database = Database(where)
        self.name = self._database.name
        if self._database.embedded and not create and not self._database.path.is_file():
            msg = f"there is no store at {self.name}"
            raise StoreError(msg)
        try:
            if create:
                self._create()
            self._check_version()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; everything written is on disk already."""
        self._database.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from working on it.

        Raises:
            StoreError: If another run is at work.
        """
        with self._database.locked():
            yield

    @property
    def without_nul(self) -> bool:
        """Whether its texts cannot hold the character U+0000."""
        return not self._database.embedded

    # What it was made with

    @property
    def configuration(self) -> dict[str, Any]:
        """What its records are made with; empty in a new store."""
        found: dict[str, Any] = self._fact("configuration") or {}
        return found

    def settle(self, configuration: Mapping[str, Any]) -> None:
        """Say what its records are made with from now on.

        Args:
            configuration: By name, plain data: `n` and the fingerprints of the parts, and whatever else
                makes other records.

        Raises:
            StoreError: If it holds records that were made with something else.
        """
        self._set_fact("configuration", {**self.configuration, **self.check(configuration)})

    def check(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse what its records were not made with.

        Args:
            configuration: As in `settle`.

        Returns:
            The same as it is stored.

        Raises:
            StoreError: If it holds records that were made with something else.
        """
        given: dict[str, Any] = json.loads(rows.written(configuration))
        if known := self.configuration:
            refuse_other(self.name, known, given)
        return given

    def provenance(self) -> Provenance:
        """Where its records come from.

        Returns:
            The header, with what the models that drew call themselves as the generator's `model_version`.

        Raises:
            StoreError: If nothing was collected yet.
        """
        known = self.configuration
        if not known:
            msg = f"nothing was collected in {self.name} yet"
            raise StoreError(msg)
        generator, versions = known.get("generator"), self.versions()
        if versions:
            said = versions[0] if len(versions) == 1 else versions
            generator = {**(generator or {}), _VERSION: said}
        return Provenance(
            n=known["n"],
            generator=generator,
            verifier=known.get("verifier"),
            labeler=known.get("labeler"),
            answer=known.get("answer"),
        )

    def versions(self) -> list[str]:
        """What the models that drew call themselves, in alphabetical order."""
        query = select(_calls.c.model).where(_calls.c.drew, _calls.c.model != "").distinct()
        with self._database.reading() as connection:
            return sorted(connection.execute(query).scalars())

    # Prompts in

    def add(self, examples: Iterable[Example]) -> int:
        """Add those examples that it does not hold yet.

        Args:
            examples: In any order; they are worked on in this one.

        Returns:
            How many are new.

        Raises:
            StoreError: If it holds another prompt under the same id.
        """
        return self._added((example, None) for example in examples)

    def add_records(self, records: Iterable[PromptRecord], provenance: Provenance | None) -> int:
        """Add finished records that were made elsewhere.

        Args:
            records: Labelled records.
            provenance: What they were made with.

        Returns:
            How many are new.

        Raises:
            StoreError: If it holds another prompt under the same id, or records made with something else.
        """
        found = iter(records)
        first = next(found, None)
        if first is None:
            msg = "there are no records to add"
            raise StoreError(msg)
        said = provenance or Provenance(n=len(first.candidates))
        configuration = {name: getattr(said, name) for name in OF_RECORDS}
        version = (said.generator or {}).get(_VERSION)
        if configuration["generator"] is not None:
            configuration["generator"] = {
                name: value for name, value in configuration["generator"].items() if name != _VERSION
            }
        self.settle(configuration)
        versions = version if isinstance(version, list) else [version] if version is not None else []
        return self._added(((record, record) for record in (first, *found)), versions)

    def _added(
        self, items: Iterable[tuple[Example, PromptRecord | None]], versions: Sequence[str] = ()
    ) -> int:
        """Add all, or none: what cannot be used shall leave no half of a dataset behind."""
        new, stream = 0, iter(items)
        with self._database.writing() as connection:
            last = connection.execute(select(func.max(_prompts.c.position))).scalar()
            position = 0 if last is None else last + 1
            while page := list(islice(stream, PAGE)):
                known = _known(connection, [example.id for example, _ in page])
                writes = Writes()
                for example, record in page:
                    row = rows.of_example(position, example)
                    if example.id in known:
                        self._check_same(row, known[example.id])
                        continue
                    if record is not None:
                        self._add_record(writes, row, record, versions)
                    writes.add(ADD_PROMPTS, [row])
                    position, new = position + 1, new + 1
                execute(connection, writes.all())
        return new

    def _add_record(self, writes: Writes, row: Row, record: PromptRecord, versions: Sequence[str]) -> None:
        position = row["position"]
        draws, scores, labels = rows.of_record(position, record)
        row["stage"] = int(Stage.LABELLED)
        writes.add(ADD_DRAWS, rows.of_draws(position, draws, without_nul=self.without_nul))
        writes.add(ADD_SCORES, rows.of_scores(position, scores))
        writes.add(ADD_LABELS, rows.of_labels(position, labels, without_nul=self.without_nul))
        paid = Paid.drawn_by(versions)
        writes.add(ADD_CALLS, rows.of_calls(position, Stage.DRAWN, paid))

    def _check_same(self, row: Row, known: Any) -> None:
        differing = [
            name
            for name in ("input", "reference", "metadata", "cluster")
            if row[name] != getattr(known, name)
        ]
        if differing:
            msg = (
                f"the prompt {row['id']!r} has another {' and '.join(differing)} in {self.name}: the dataset "
                "has changed. Collect it into a store of its own, or give changed prompts new ids"
            )
            raise StoreError(msg)

    # Work out

    def unfinished(self) -> Iterator[Work]:
        """Prompts that are not finished and did not fail, in their order, a page at a time."""
        after = -1
        while True:
            page = self._page(
                _prompts.c.stage < Stage.LABELLED, _prompts.c.error.is_(None), _prompts.c.position > after
            )
            if not page:
                return
            after = page[-1].position
            drawn = [row.position for row in page if row.stage >= Stage.DRAWN]
            draws = self._by_prompt(_draws, drawn)
            scores = self._by_prompt(_scores, drawn)
            for row in page:
                yield Work(
                    row.position,
                    rows.as_example(row),
                    [rows.as_draw(one) for one in draws[row.position]] if row.position in draws else None,
                    [one.score for one in scores[row.position]] if row.position in scores else None,
                )

    def write(self, writes: Iterable[Write]) -> None:
        """Write rows in one transaction, durable when this returns.

        Raises:
            StoreError: If that cannot be done; then nothing of it was.
        """
        with self._database.writing() as connection:
            execute(connection, writes)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that is given up at the end unless it was committed.

        Raises:
            StoreError: If it cannot be carried out.
        """
        with self._database.uncommitted() as connection:
            yield connection

    def retry_failed(self) -> int:
        """Make prompts that failed unfinished ones again.

        Returns:
            How many.
        """
        with self._database.writing() as connection:
            query = update(_prompts).where(_prompts.c.error.is_not(None)).values(error=None)
            return int(connection.execute(query).rowcount)

    # Results out

    def records(self) -> Iterator[PromptRecord]:
        """The finished prompts in their order, a page at a time."""
        after = -1
        while page := self._page(_prompts.c.stage == Stage.LABELLED, _prompts.c.position > after):
            first, after = page[0].position, page[-1].position
            candidates = self._grouped(_CANDIDATES.where(_draws.c.prompt.between(first, after)))
            for row in page:
                yield rows.as_record(row, candidates[row.position])

    def table(self, names: Sequence[str] = ()) -> LabelledDraws:
        """The finished prompts as arrays, which `calibrate` and `evaluate` take as they take records.

        Args:
            names: Verifiers whose raw outputs are wanted, to combine them.

        Returns:
            The draws with their labels, prompts in their order; no object is made for a candidate.

        Raises:
            StoreError: If no prompt is finished, or a candidate lacks one of the raw outputs.
        """
        return table(self._database, self.provenance().n, names)

    def failures(self) -> list[Failure]:
        """The prompts that failed, in their order."""
        query = (
            select(_prompts.c.id, _prompts.c.stage, _prompts.c.error)
            .where(_prompts.c.error.is_not(None))
            .order_by(_prompts.c.position)
        )
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        return [Failure(row.id, Stage(row.stage + 1), _said(row.error)) for row in found]

    def stages(self) -> dict[Stage, int]:
        """How many prompts have come how far, those that failed included."""
        query = select(_prompts.c.stage, func.count()).group_by(_prompts.c.stage)
        with self._database.reading() as connection:
            found = {int(stage): int(count) for stage, count in connection.execute(query)}
        return {stage: found.get(stage, 0) for stage in Stage}

    def paid(self) -> Paid:
        """What models took for all prompts."""
        query = select(
            _calls.c.model,
            func.max(_calls.c.drew.cast(Integer)),
            # PostgreSQL adds whole numbers up to a decimal one.
            func.sum(_calls.c.input_tokens).cast(BigInteger),
            func.sum(_calls.c.output_tokens).cast(BigInteger),
        ).group_by(_calls.c.model)
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        return Paid(tuple(ModelCalls(model, bool(drew), *taken) for model, drew, *taken in found))

    def seen(self) -> tuple[int, dict[bool, tuple[int, float]]]:
        """What the labels say so far.

        Returns:
            How many finished prompts have a correct candidate; for each label the number of candidates and
            the sum of their scores.
        """
        covered = select(func.count(_labels.c.prompt.distinct())).where(_labels.c.correct)
        sums = (
            select(_labels.c.correct, func.count(), func.sum(_scores.c.score))
            .join_from(_labels, _scores, _same(_labels, _scores))
            .group_by(_labels.c.correct)
        )
        with self._database.reading() as connection:
            by_label = {bool(label): (count, total) for label, count, total in connection.execute(sums)}
            return connection.execute(covered).scalar_one(), by_label

    def _page(self, *conditions: Any) -> Sequence[Any]:
        query = select(_prompts).where(*conditions).order_by(_prompts.c.position).limit(PAGE)
        with self._database.reading() as connection:
            return connection.execute(query).all()

    def _by_prompt(self, table: Table, positions: Sequence[int]) -> dict[int, list[Any]]:
        if not positions:
            return {}
        return self._grouped(
            select(table).where(table.c.prompt.in_(positions)).order_by(table.c.prompt, table.c.slot)
        )

    def _grouped(self, query: Select[Any]) -> dict[int, list[Any]]:
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        return {prompt: list(group) for prompt, group in groupby(found, key=lambda row: row.prompt)}

    # Facts

    def _create(self) -> None:
        with self._database.writing() as connection:
            schema.metadata.create_all(connection)
        if self._fact("format") is None:
            created = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
            for name, value in (
                ("version", schema.VERSION),
                ("created_at", created),
                ("library_version", __version__),
                ("format", schema.FORMAT),
            ):
                self._set_fact(name, value)

    def _check_version(self) -> None:
        try:
            found, version = self._fact("format"), self._fact("version")
        except StoreError as error:
            if not self._database.embedded and isinstance(error.__cause__, OperationalError):
                raise  # nobody answers there, which says nothing about what it holds
            msg = f"{self.name} is no store of a collection: {error}"
            raise StoreError(msg) from error
        if found != schema.FORMAT:
            msg = f"{self.name} is no store of a collection"
            raise StoreError(msg)
        if version != schema.VERSION:
            msg = (
                f"{self.name} is a store of version {version}, and this release reads version "
                f"{schema.VERSION}: export its records with the release that made it, and import them here"
            )
            raise StoreError(msg)

    def _fact(self, name: str) -> Any:
        query = select(schema.facts.c.value).where(schema.facts.c.name == name)
        with self._database.reading() as connection:
            value = connection.execute(query).scalar()
        return None if value is None else json.loads(value)

    def _set_fact(self, name: str, value: Any) -> None:
        with self._database.writing() as connection:
            connection.execute(schema.facts.delete().where(schema.facts.c.name == name))
            connection.execute(insert(schema.facts), {"name": name, "value": rows.written(value)})


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    return {row.id: row for row in connection.execute(select(_prompts).where(_prompts.c.id.in_(ids)))}


def _same(one: Any, other: Any) -> Any:
    return (one.c.prompt == other.c.prompt) & (one.c.slot == other.c.slot)


_CANDIDATES = (
    select(
        _draws.c.prompt,
        _draws.c.text,
        _draws.c.data,
        _scores.c.score,
        _scores.c.outputs,
        _labels.c.correct,
        _labels.c.answer,
    )
    .join_from(_draws, _scores, _same(_draws, _scores))
    .join(_labels, _same(_draws, _labels))
    .order_by(_draws.c.prompt, _draws.c.slot)
)


def _said(error: str) -> str:
    found = json.loads(error)
    return f"{found['kind']}: {found['said']}"

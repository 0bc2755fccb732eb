"""`Store`: every finished stage of a prompt, durable at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, select, update

from langchain_cfc._internal.database import Database
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.collect.stages import Stage, Usage
from langchain_cfc.collect.store import results, rows, schema
from langchain_cfc.collect.store.facts import OF_RECORDS, Facts
from langchain_cfc.collect.store.integrity import (
    Contents,
    check_draws,
    check_prompt,
    check_scores,
    damage_reported,
    verified_contents,
)
from langchain_cfc.collect.store.results import Failure, History, history, table
from langchain_cfc.collect.store.writes import (
    Write,
    add,
    execute,
    together,
)
from langchain_cfc.errors import StoreError
from langchain_cfc.records import Example, PromptRecord, Provenance
from langchain_cfc.sampling import DrawnCandidate

if TYPE_CHECKING:
    from typing_extensions import Self


# What only the responses tell, and what may drift behind its name.
_VERSION = "model_version"
_prompts = schema.prompts


@dataclass(frozen=True)
class Work:
    """A prompt that is not finished.

    Attributes:
        position: Its place in the store.
        example: What is known of it.
        draws: Its candidates, where they are drawn.
        scores: Their scores, where they are scored.
        partial: Those candidates that are there by slot, where not all are.
        context: Digest of what was prepared for the requests that drew these.
    """

    position: int
    example: Example
    draws: Sequence[DrawnCandidate] | None
    scores: Sequence[float] | None
    partial: Mapping[int, DrawnCandidate] = field(default_factory=dict)
    context: str | None = None


class Store:
    """The prompts of a collection with all that was made for them.

    Args:
        where: Path of an SQLite file, or the URL of a PostgreSQL database.
        create: Whether to make it where it is not there.

    Raises:
        StoreError: If it cannot be opened, is not there, is damaged, is no store or one of another release.
    """

    def __init__(self, where: str | os.PathLike[str], *, create: bool = False) -> None:
        self._database = Database(where)
        self.name = self._database.name
        if self._database.embedded and not create and not self._database.path.is_file():
            msg = f"there is no store at {self.name}"
            raise StoreError(msg)
        try:
            with damage_reported(self.name):
                self._open(create=create)
        except BaseException:
            self.close()
            raise

    def _open(self, *, create: bool) -> None:
        if self._database.embedded and self._database.path.is_file():
            self._database.check_pages()
        self._facts = Facts(self._database, create=create)
        self._contents()

    def _contents(self) -> Contents:
        """What it holds, compared with its seal."""
        with self._database.reading() as connection:
            return verified_contents(self.name, connection)

    def check(self) -> None:
        """Check everything that it holds: SQLite's pages and indexes, and each prompt against its digests.

        Raises:
            StoreError: If something is damaged.
        """
        with damage_reported(self.name):
            self._database.check_pages(thoroughly=True)
            for _ in results.records(self._database):
                pass
            for _ in self._prompts():
                pass

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
    def embedded(self) -> bool:
        """Whether it is a file, and not on a server."""
        return self._database.embedded

    @property
    def without_nul(self) -> bool:
        """Whether its texts cannot hold the character U+0000."""
        return self._database.without_nul

    @property
    def configuration(self) -> dict[str, Any]:
        """What its records are made with; empty in a new store."""
        with damage_reported(self.name):
            return self._facts.configuration

    def settle(self, configuration: Mapping[str, Any]) -> None:
        """Say what its records are made with from now on.

        Args:
            configuration: By name, plain data: `n` and the fingerprints of the parts, and whatever else
                makes other records.

        Raises:
            StoreError: If it holds records that were made with something else.
        """
        self._facts.settle(configuration)

    def check_configuration(self, configuration: Mapping[str, Any]) -> None:
        """Refuse what its records were not made with.

        Args:
            configuration: As in `settle`.

        Raises:
            StoreError: If it holds records that were made with something else.
        """
        self._facts.check(configuration)

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
        return add(self._database, ((example, None) for example in examples))

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
        return add(self._database, ((record, record) for record in (first, *found)), versions)

    # Work out

    def unfinished(self) -> Iterator[Work]:
        """Prompts that are not finished and did not fail, in their order, a page at a time.

        Raises:
            StoreError: If one is not what was written.
        """
        with damage_reported(self.name):
            yield from self._prompts(_prompts.c.stage < Stage.LABELLED, _prompts.c.error.is_(None))

    def _prompts(self, *conditions: Any) -> Iterator[Work]:
        after = -1
        while True:
            page = results.page(self._database, _prompts.c.position > after, *conditions)
            if not page:
                return
            after = page[-1].position
            positions = [row.position for row in page]
            draws = _by_prompt(self._database, schema.draws, positions)
            scores = _by_prompt(self._database, schema.scores, positions)
            for row in page:
                yield self._work(row, draws.get(row.position, []), scores.get(row.position, []))

    def _work(self, prompt: Any, drawn: Sequence[Any], scored: Sequence[Any]) -> Work:
        check_prompt(self.name, prompt)
        check_draws(self.name, prompt, drawn)
        if prompt.stage >= Stage.SCORED:
            check_scores(self.name, prompt, scored)
        draws = {one.slot: rows.as_draw(one) for one in drawn}
        return Work(
            prompt.position,
            rows.as_example(prompt),
            list(draws.values()) if prompt.stage >= Stage.DRAWN else None,
            [one.score for one in scored] if prompt.stage >= Stage.SCORED else None,
            {} if prompt.stage >= Stage.DRAWN else draws,
            prompt.context,
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

    def table(self, names: Sequence[str] = ()) -> LabelledBatch:
        """The finished prompts as arrays, which `calibrate` and `evaluate` take as they take records.

        Args:
            names: Verifiers whose raw outputs are wanted, to combine them.

        Returns:
            The draws with their labels, prompts in their order; no object is made for a candidate.

        Raises:
            StoreError: If no prompt is finished, or a candidate lacks one of the raw outputs.
        """
        with damage_reported(self.name):
            return table(self._database, self.provenance().n, names)

    def records(self) -> Generator[PromptRecord, None, None]:
        """The finished prompts in their order, a page at a time."""
        with damage_reported(self.name):
            yield from results.records(self._database)

    def failures(self) -> list[Failure]:
        """The prompts that failed, in their order."""
        with damage_reported(self.name):
            return results.failures(self._database)

    def versions(self) -> list[str]:
        """What the models that drew call themselves, in alphabetical order."""
        with damage_reported(self.name):
            return list(self._contents().seal.models)

    def stages(self) -> dict[Stage, int]:
        """How many prompts have come how far, those that failed included."""
        with damage_reported(self.name):
            return results.stages(self._database)

    def paid(self) -> Usage:
        """What models took for all prompts."""
        with damage_reported(self.name):
            return results.paid(self._database)

    def history(self) -> History:
        """What the requests of earlier runs took, stage by stage."""
        with damage_reported(self.name):
            return history(self._database)

    def seen(self) -> tuple[int, dict[bool, tuple[int, float]]]:
        """What the labels say so far.

        Returns:
            How many finished prompts have a correct candidate; for each label the number of candidates and
            the sum of their scores.
        """
        with damage_reported(self.name):
            return results.seen(self._database)


def _by_prompt(database: Database, table: Table, positions: Sequence[int]) -> dict[int, list[Any]]:
    if not positions:
        return {}
    return results.grouped(
        database, select(table).where(table.c.prompt.in_(positions)).order_by(table.c.prompt, table.c.slot)
    )


class Writer:
    """Writes to a store from one event loop.

    While a transaction is made durable, writes gather for the next one. Each is on disk when its caller goes
    on, and a disk that takes long for that does so for all at once.

    Args:
        store: Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[list[Write], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        # Always the same thread, whose connection the pool then hands out again.
        self._thread = ThreadPoolExecutor(1, "cfc-store")

    async def write(self, writes: list[Write]) -> None:
        """Write, and wait until it is durable.

        Raises:
            StoreError: If it could not be written.
        """
        await self.submit(writes)

    def submit(self, writes: list[Write]) -> asyncio.Future[None]:
        """Write soon, after everything that was submitted before.

        Returns:
            What is done once it is durable. Whoever does not wait for it learns from `flushed` of an error.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(self._note)
        self._last = done
        self._waiting.append((writes, done))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._write_all())
        return done

    async def flushed(self) -> None:
        """Wait until everything that was submitted is durable.

        Raises:
            StoreError: If something could not be written, now or before.
        """
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        if self._error is not None:
            raise self._error

    def _note(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            self._error = done.exception()

    async def close(self) -> None:
        """Wait for whatever is still being written."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def _written(self, writes: list[Write]) -> None:
        loop = asyncio.get_running_loop()
        if not self._store.embedded:
            # Each statement waits for the server.
            await loop.run_in_executor(self._thread, self._store.write, writes)
            return
        with self._store.transaction() as connection:
            execute(connection, writes)
            # Only this waits for the disk; threads that compute would wait for each other.
            await loop.run_in_executor(self._thread, connection.commit)

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # whoever is about to write takes part
            batch, self._waiting = self._waiting, []
            error: Exception | None = None
            try:
                await self._written(together(one for one, _ in batch))
            except Exception as failure:  # noqa: BLE001 - whoever waits is told
                error = failure
            for _, done in batch:
                if done.cancelled():  # nobody waits any more; it is written all the same
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

"""`Store`: the database of a collection, in which every finished stage is durable at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, func, select, update

from langchain_cfc.candidates import Unit
from langchain_cfc.claims import Span
from langchain_cfc.errors import StoreError
from langchain_cfc.records import (
    ClaimsRecord,
    Example,
    LabelledRecord,
    PromptRecord,
    Provenance,
    require_candidates,
    require_claims,
)
from langchain_cfc.records.schema import MODEL_VERSION, PROVENANCE_FIELDS, make_provenance
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.support import __version__
from langchain_cfc.support.database import DatabaseStore
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc_collect.costs import ModelCalls, RequestHistory, Stage, Usage
from langchain_cfc_collect.store import batches, schema
from langchain_cfc_collect.store.configurations import explain_differences, is_changed
from langchain_cfc_collect.store.dataset import add_prompts, make_record_writes
from langchain_cfc_collect.store.rows import (
    PAGE_SIZE,
    combine_writes,
    execute_writes,
    read_claims_record,
    read_draw,
    read_example,
    read_record,
)
from langchain_cfc_collect.store.schema import Write
from langchain_cfc_collect.store.tables import (
    SELECT_ANSWERS,
    SELECT_CANDIDATES,
    SELECT_CLAIMS,
    is_same_slot,
    read_history,
)

# Keys that a configuration has only if their option is used, so that a missing key is a difference.
_OPTIONAL_KEYS = ("unit", "splitter", "draws", "endpoint")
_prompts, _draws, _scores, _labels = schema.prompts, schema.draws, schema.scores, schema.labels
_claims, _calls = schema.claims, schema.calls


@dataclass(frozen=True)
class StoredPrompt:
    """Prompt with its stored candidates, claims and scores, from which its stages continue."""

    position: int
    example: Example
    draws: Sequence[DrawnCandidate] | None  # None if they are not complete
    claims: Sequence[Span] | None  # claims of the first answer; None if it is not split, or has none
    scores: Sequence[float] | None  # None if the prompt is not scored
    partial: Mapping[int, DrawnCandidate]  # stored candidates by slot, while they are not complete
    context: str | None  # digest of the prepared input that these were drawn for


@dataclass(frozen=True)
class Failure:
    """Failed prompt, with the stage that failed and the reason."""

    id: str
    stage: Stage
    error: str


class Store(DatabaseStore):
    """Database of a collection: its prompts with their candidates, scores, labels and usage.

    Args:
        where: Path of an SQLite file, or the URL of a PostgreSQL database.
        create: Whether to create the store if it does not exist.

    Raises:
        StoreError: If the store cannot be opened, does not exist, is damaged, is not a store or has an
            unknown version.
    """

    _facts = schema.facts
    _format = schema.FORMAT
    _version = schema.VERSION
    _missing_message = "there is no store at"
    _wrong_format_message = "is no store of a collection"
    _wrong_version_advice = "export its records with the release that made it, and import them here"

    def _open(self, *, create: bool) -> None:
        with schema.report_damage(self.name):
            self.check_pages()
            super()._open(create=create)
            self._verify_seal()

    def _list_first_facts(self) -> dict[str, str]:
        """Return the facts of a new store, with their seal."""
        facts = super()._list_first_facts() | {
            "created_at": canonical_json(datetime.now(tz=timezone.utc).isoformat(timespec="seconds")),
            "library_version": canonical_json(__version__),
        }
        return {**facts, schema.SEAL_FACT: schema.Seal().with_facts(facts).to_json()}

    def _verify_seal(self) -> tuple[schema.Seal, list[int]]:
        """Compare the content with the seal; return the seal and the positions of finished prompts."""
        with self.begin_read() as connection:
            return schema.verify_seal(self.name, connection)

    def check(self) -> None:
        """Check everything in the store: SQLite's pages and indexes, and each prompt against its digests.

        Raises:
            StoreError: If something is damaged.
        """
        with schema.report_damage(self.name):
            self.check_pages(thoroughly=True)
            for _ in self.read_all():
                pass
            for _ in self._read_stored_prompts():
                pass

    # Configuration

    @property
    def configuration(self) -> dict[str, Any]:
        """Configuration that the records are made with; empty in a new store."""
        with schema.report_damage(self.name):
            known: dict[str, Any] = self._read_fact("configuration") or {}
            return known

    @property
    def unit(self) -> Unit:
        """What is scored and labelled: whole answers, or the claims of one answer per prompt."""
        return "claims" if self.configuration.get("unit") == "claims" else "answers"

    @property
    def has_batches(self) -> bool:
        """Whether calls of this collection go through providers' batches."""
        return self.configuration.get("endpoint") == "batch"

    def set_configuration(self, configuration: Mapping[str, Any]) -> None:
        """Store the configuration of records: `n`, fingerprints, and everything else that affects records.

        Raises `StoreError` if the store already has another configuration.
        """
        settled = canonical_json({**self.configuration, **self.check_configuration(configuration)})
        with self.begin_write() as connection:
            if configuration.get("unit") == "claims":
                _claims.create(connection, checkfirst=True)
            if configuration.get("endpoint") == "batch":
                batches.create_tables(connection)
            self.write_facts(connection, {"configuration": settled})
            schema.seal_facts(connection)

    def check_configuration(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration in its stored form; raises `StoreError` if the store has another one.

        Keys that only one of the two has are not compared, except those of the provenance and the endpoint.
        """
        given: dict[str, Any] = json.loads(canonical_json(configuration))
        known = schema.add_given_ids(self.configuration, given)
        if not known:
            return given
        different = [name for name in known if name in given and is_changed(name, known, given)]
        different += [
            name
            for name in (*PROVENANCE_FIELDS, "endpoint")
            if name not in known and given.get(name) is not None
        ]
        different += [name for name in _OPTIONAL_KEYS if name in known and name not in given]
        if different:
            raise StoreError(explain_differences(self.name, known, given, different))
        return given

    def read_provenance(self) -> Provenance:
        """Return the provenance of the records.

        Returns:
            The provenance; the generator's `model_version` names the models that drew candidates.

        Raises:
            StoreError: If nothing was collected yet.
        """
        known = self.configuration
        if not known:
            msg = f"nothing has been collected in {self.name} yet"
            raise StoreError(msg)
        return make_provenance(known, self.read_models())

    # Input

    def add(self, examples: Iterable[Example]) -> int:
        """Add the examples that are not stored yet, and return the number added.

        Raises `StoreError` if another prompt is stored under the same id.
        """
        with self.begin_write() as connection:
            return add_prompts(self, connection, ((example, None) for example in examples))

    def add_records(self, records: Iterable[PromptRecord], provenance: Provenance | None) -> int:
        """Add finished records that were made elsewhere.

        Args:
            records: Labelled records.
            provenance: Provenance of the records; None if it is not known.

        Returns:
            The number of new prompts.

        Raises:
            StoreError: If another prompt is stored under the same id, or the store holds records that were
                made with another configuration.
        """
        stream = iter(records)
        first = next(stream, None)
        if first is None:
            msg = "there are no records to add"
            raise StoreError(msg)
        header = provenance or Provenance(n=len(first.candidates))
        configuration = header.model_dump(include={*PROVENANCE_FIELDS, "separate_scores"})
        # Records do not state whether calls went through batches, so take that from the store.
        configuration.update({"endpoint": "batch"} if self.has_batches else {})
        version = (configuration["generator"] or {}).pop(MODEL_VERSION, None)
        self.set_configuration(configuration)
        models = version if isinstance(version, list) else [version] if version is not None else []
        with self.begin_write() as connection:
            make_writes = partial(make_record_writes, models, forbids_nul=self.forbids_nul)
            return add_prompts(
                self, connection, ((one, partial(make_writes, one)) for one in (first, *stream))
            )

    # Work

    def read_unfinished(self) -> Iterator[StoredPrompt]:
        """Yield the prompts that are neither finished nor failed, in order, a page at a time."""
        with schema.report_damage(self.name):
            yield from self._read_stored_prompts(
                _prompts.c.stage < Stage.LABELLED, _prompts.c.error.is_(None)
            )

    def read_finished(self, stage: Stage = Stage.LABELLED, first: int = 0) -> Iterator[StoredPrompt]:
        """Yield the prompts that have finished a stage in order from position `first`, without labels."""
        with schema.report_damage(self.name):
            yield from self._read_stored_prompts(_prompts.c.stage >= stage, _prompts.c.position >= first)

    def _read_stored_prompts(self, *conditions: Any) -> Iterator[StoredPrompt]:
        after = -1
        while page := self._read_prompt_rows(_prompts.c.position > after, *conditions):
            after = page[-1].position
            positions = [row.position for row in page]
            groups = [
                self._read_grouped_rows(
                    select(table).where(table.c.prompt.in_(positions)).order_by(table.c.prompt, table.c.slot)
                )
                for table in (_draws, _scores, *((_claims,) if self.unit == "claims" else ()))
            ]
            for row in page:
                yield self._make_stored_prompt(row, *(group.get(row.position, []) for group in groups))

    def _make_stored_prompt(
        self,
        prompt: Any,
        draw_rows: Sequence[Any],
        score_rows: Sequence[Any],
        claim_rows: Sequence[Any] = (),
    ) -> StoredPrompt:
        schema.check_prompt(self.name, prompt)
        schema.check_draws(self.name, prompt, draw_rows)
        schema.check_claims(self.name, prompt, claim_rows)
        if prompt.stage >= Stage.SCORED:
            schema.check_scores(self.name, prompt, score_rows)
        draws = {one.slot: read_draw(one) for one in draw_rows}
        return StoredPrompt(
            prompt.position,
            read_example(prompt),
            list(draws.values()) if prompt.stage >= Stage.DRAWN else None,
            [Span(one.start, one.stop, one.text) for one in claim_rows] or None,
            [one.score for one in score_rows] if prompt.stage >= Stage.SCORED else None,
            {} if prompt.stage >= Stage.DRAWN else draws,
            prompt.context,
        )

    def _read_prompt_rows(self, *conditions: Any) -> Sequence[Any]:
        """Return the rows of the first page of prompts that satisfy the conditions."""
        return self.read_rows(
            select(_prompts).where(*conditions).order_by(_prompts.c.position).limit(PAGE_SIZE)
        )

    def _read_grouped_rows(self, query: Select[Any]) -> dict[int, list[Any]]:
        """Return the rows of a query that is ordered by prompt, grouped by the position of the prompt."""
        groups = groupby(self.read_rows(query), key=lambda row: row.prompt)
        return {prompt: list(group) for prompt, group in groups}

    def write(self, writes: Iterable[Write]) -> None:
        """Write rows in one transaction, durable on return; on failure, nothing is written."""
        with self.begin_write() as connection:
            execute_writes(connection, writes)

    def retry_failed(self) -> int:
        """Mark all failed prompts as unfinished, and return their number."""
        with self.begin_write() as connection:
            query = update(_prompts).where(_prompts.c.error.is_not(None)).values(error=None)
            return int(connection.execute(query).rowcount)

    # Results

    def read_records(self) -> Generator[PromptRecord, None, None]:
        """Yield the records of finished prompts in order, read a page at a time.

        For claims, see `read_claims`.

        Raises:
            StoreError: If a prompt was damaged or lost.
            InputError: If the store holds claims.
        """
        for record in self.read_all():
            yield require_candidates(record)

    def read_claims(self) -> Generator[ClaimsRecord, None, None]:
        """Yield the records of finished prompts whose answer has claims, in order, read a page at a time.

        Raises:
            StoreError: If a prompt was damaged or lost.
            InputError: If the store holds candidates.
        """
        for record in self.read_all():
            yield require_claims(record)

    def read_all(self) -> Generator[LabelledRecord, None, None]:
        """Yield the records of finished prompts in order, of candidates or of claims."""
        with schema.report_damage(self.name):
            read_page = self._read_claims_page if self.unit == "claims" else self._read_page
            _, finished = self._verify_seal()
            for start in range(0, len(finished), PAGE_SIZE):
                positions = finished[start : start + PAGE_SIZE]
                within = _prompts.c.position.between(positions[0], positions[-1])
                rows = self._read_prompt_rows(_prompts.c.stage == Stage.LABELLED, within)
                known = {row.position: row for row in rows}
                yield from read_page([known[position] for position in positions])

    def _read_page(self, rows: Sequence[Any]) -> Iterator[PromptRecord]:
        """Yield the records of finished prompts, given their rows."""
        within = _draws.c.prompt.between(rows[0].position, rows[-1].position)
        candidates = self._read_grouped_rows(SELECT_CANDIDATES.where(within))
        for row in rows:
            of_prompt = candidates[row.position]
            schema.check_finished(self.name, row, of_prompt, of_prompt)
            yield read_record(row, of_prompt)

    def _read_claims_page(self, rows: Sequence[Any]) -> Iterator[ClaimsRecord]:
        """Yield the records of finished prompts, given their rows, except for answers without claims."""
        first, last = rows[0].position, rows[-1].position
        answers = self._read_grouped_rows(SELECT_ANSWERS.where(_draws.c.prompt.between(first, last)))
        claims = self._read_grouped_rows(SELECT_CLAIMS.where(_claims.c.prompt.between(first, last)))
        for row in rows:
            of_prompt = claims.get(row.position, [])
            schema.check_claims(self.name, row, of_prompt)
            schema.check_finished(self.name, row, answers[row.position], of_prompt)
            if of_prompt:
                yield read_claims_record(row, answers[row.position][0].text, of_prompt)

    def read_failures(self) -> list[Failure]:
        """Return the failed prompts in order."""
        query = select(_prompts).where(_prompts.c.error.is_not(None)).order_by(_prompts.c.position)
        with schema.report_damage(self.name):
            return [
                Failure(row.id, Stage(row.stage + 1), "{kind}: {said}".format(**json.loads(row.error)))
                for row in self.read_rows(query)
            ]

    def read_models(self) -> list[str]:
        """Return the names of the models that drew candidates, sorted."""
        with schema.report_damage(self.name):
            return list(self._verify_seal()[0].models)

    def count_stages(self) -> dict[Stage, int]:
        """Return the number of prompts at each stage, failed prompts included."""
        query = select(_prompts.c.stage, func.count()).group_by(_prompts.c.stage)
        with schema.report_damage(self.name):
            counts = {int(stage): int(count) for stage, count in self.read_rows(query)}
            return {stage: counts.get(stage, 0) for stage in Stage}

    def count_draws(self) -> int:
        """Return the number of stored candidates, including those of unfinished and failed prompts."""
        with schema.report_damage(self.name):
            return int(self.read_rows(select(func.count()).select_from(_draws))[0][0])

    def read_usage(self) -> Usage:
        """Return the usage of models for all prompts, including stored answers of batches."""
        query = select(
            _calls.c.model,
            func.max(_calls.c.drew.cast(Integer)),
            # In PostgreSQL, sums of integers are decimal numbers.
            func.sum(_calls.c.input_tokens).cast(BigInteger),
            func.sum(_calls.c.output_tokens).cast(BigInteger),
        ).group_by(_calls.c.model)
        with schema.report_damage(self.name):
            rows = self.read_rows(query)
            known = Usage(tuple(ModelCalls(model, bool(drew), *tokens) for model, drew, *tokens in rows))
            return sum(self._read_held_usage(), known)

    def read_batched_usage(self) -> Usage:
        """Return the part of the usage that is charged at batch prices."""
        if not self.has_batches:
            return Usage()
        with schema.report_damage(self.name), self.begin_read() as connection:
            return self._read_held_usage()[0] + batches.read_batched_usage(connection)

    def _read_held_usage(self) -> tuple[Usage, Usage]:
        """Return the usage of stored answers: that of batches, and that of live calls."""
        if not self.has_batches:
            return Usage(), Usage()
        with self.begin_read() as connection:
            return batches.read_held_usage(connection)

    def count_labels(self) -> tuple[int, dict[bool, tuple[int, float]]]:
        """Return the number of prompts with a correct candidate, and by label the count and sum of scores."""
        covered = select(func.count(_labels.c.prompt.distinct())).where(_labels.c.correct)
        sums = (
            select(_labels.c.correct, func.count(), func.sum(_scores.c.score))
            .join_from(_labels, _scores, is_same_slot(_labels, _scores))
            .group_by(_labels.c.correct)
        )
        with schema.report_damage(self.name):
            by_label = {label: (count, total) for label, count, total in self.read_rows(sums)}
            if None in by_label:  # no label could be read, which counts as wrong
                (count, total), (wrong, sum_of_wrong) = by_label.pop(None), by_label.get(False, (0, 0.0))
                by_label[False] = (count + wrong, total + sum_of_wrong)
            return self.read_rows(covered)[0][0], by_label

    def count_without_labels(self) -> int:
        """Return the number of finished prompts without labels, because their answers have no claims."""
        has_labels = select(_labels.c.prompt).where(_labels.c.prompt == _prompts.c.position).exists()
        query = select(func.count()).where(_prompts.c.stage == Stage.LABELLED, ~has_labels)
        with schema.report_damage(self.name):
            return int(self.read_rows(query)[0][0])

    def read_request_history(self) -> RequestHistory:
        """Return the requests of all runs so far and their usage, by stage."""
        with schema.report_damage(self.name), self.begin_read() as connection:
            return read_history(connection)


class Writer:
    """Writer to a store from one event loop, which groups concurrent writes into transactions.

    While one transaction is committed, new writes gather for the next one. Each write is on disk when its
    caller continues, and a slow disk delays all callers together instead of one after the other.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._waiting: list[tuple[list[Write], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        # A single thread, so that the pool always hands out the same connection.
        self._thread = ThreadPoolExecutor(1, "cfc-store")

    async def write(self, writes: list[Write]) -> None:
        """Write and wait until the writes are durable; raises `StoreError` if that fails."""
        await self.submit(writes)

    def submit(self, writes: list[Write]) -> asyncio.Future[None]:
        """Schedule writes after all earlier ones, and return a future for them.

        The future is done once they are durable; `flush` reports errors to callers that do not await it.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(self._save_error)
        self._last = done
        self._waiting.append((writes, done))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._write_batches())
        return done

    async def flush(self) -> None:
        """Wait until all submitted writes are durable; raises `StoreError` if one failed, now or before."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        if self._error is not None:
            raise self._error

    def _save_error(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            self._error = done.exception()

    async def close(self) -> None:
        """Wait for pending writes, and end the thread."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def _write_batch(self, writes: list[Write]) -> None:
        loop = asyncio.get_running_loop()
        if not self.store.is_sqlite:
            # Each statement waits for the server, so run all of them in the thread.
            await loop.run_in_executor(self._thread, self.store.write, writes)
            return
        with self.store.transaction() as connection:
            execute_writes(connection, writes)
            # Only the commit waits for the disk; statements in a thread would only compete for the GIL.
            await loop.run_in_executor(self._thread, connection.commit)

    async def _write_batches(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let callers that are about to write join this batch
            batch, self._waiting = self._waiting, []
            error: Exception | None = None
            try:
                await self._write_batch(combine_writes(writes for writes, _ in batch))
            except Exception as failure:  # noqa: BLE001 - raised for every caller of the batch
                error = failure
            for _, done in batch:
                if done.cancelled():  # the caller was cancelled; the writes were made nevertheless
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

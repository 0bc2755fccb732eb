"""`Store`: the database of a collection, and the `Writer` that groups what a run writes to it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Dialect, func, select, update
from sqlalchemy.exc import SQLAlchemyError

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
from langchain_cfc.support.database import DatabaseStore, StoreBusyError
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.support.units import Unit
from langchain_cfc_collect.costs import Budget, BudgetTracker, Stage, Usage
from langchain_cfc_collect.stages import StoredPrompt, make_record
from langchain_cfc_collect.store import calls, rows, schema
from langchain_cfc_collect.store.configurations import (
    CHOICE,
    IMPORTED,
    MODEL_VERSION,
    PROVENANCE_FIELDS,
    add_given_ids,
    explain_differences,
    make_provenance,
)
from langchain_cfc_collect.store.dataset import add_prompts, make_record_writes
from langchain_cfc_collect.store.rows import PAGE_SIZE, read_prompt
from langchain_cfc_collect.store.schema import PROMPTS_FACT, Statement, Write, report_damage

# Keys that a configuration has only if their option is used, so that a missing key is a difference.
_OPTIONAL_KEYS = ("unit", "splitter", "draws", "endpoint")
# Fact with the names of the models that drew candidates.
_MODELS_FACT = "models"
_SELECT_MODELS = f"SELECT value FROM {schema.facts.name} WHERE name = '{_MODELS_FACT}'"  # noqa: S608 - constants
# Time in which writes join a transaction; a model's answer takes far longer.
_GATHERING_SECONDS = 0.003
# Time after which the disk has what was committed.
_SYNC_SECONDS = 1.0
_prompts, _draws = schema.prompts, schema.draws


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
        with report_damage(self.name):
            self.check_pages()
            super()._open(create=create)
            self._check_state()

    def _list_first_facts(self) -> dict[str, str]:
        """Return the facts of a new store."""
        return super()._list_first_facts() | {PROMPTS_FACT: "0"}

    def write_facts(self, connection: Connection, facts: Mapping[str, str]) -> None:
        """Write facts, as JSON by name, and the digest of all facts."""
        super().write_facts(connection, facts)
        known = dict(map(tuple, connection.execute(select(schema.facts))))
        super().write_facts(connection, {schema.DIGEST_FACT: schema.digest_facts(known)})

    def _check_state(self) -> None:
        """Raise `StoreError` if prompts or facts were lost or changed."""
        schema.check_state(self.name, self.read_rows(schema.SELECT_STATE))

    def check(self) -> None:
        """Check everything in the store: SQLite's pages and indexes, and each prompt against its digests.

        Raises:
            StoreError: If something is damaged.
        """
        with report_damage(self.name):
            self.check_pages(thoroughly=True)
            self._check_state()
            for prompt in self._read_prompts():
                make_record(prompt)

    # Configuration

    @property
    def configuration(self) -> dict[str, Any]:
        """Configuration that the records are made with; empty in a new store."""
        with report_damage(self.name):
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
            self.write_facts(connection, {"configuration": settled})

    def check_configuration(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration in its stored form; raises `StoreError` if the store has another one.

        Keys that only one of the two has are not compared, except those of the provenance and the endpoint.
        """
        given: dict[str, Any] = json.loads(canonical_json(configuration))
        known = add_given_ids(self.configuration, given)
        if not known:
            return given
        compared = [name for name in known if name in given and name not in {IMPORTED, CHOICE}]
        different = [name for name in compared if known[name] != given[name]]
        different += [
            name
            for name in (*PROVENANCE_FIELDS, "endpoint")
            # Imported answers may not be scored or labelled yet.
            if name not in known and IMPORTED not in known and given.get(name) is not None
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
        return self.add_with_stages((example, None) for example in examples)

    def add_with_stages(self, items: Iterable[tuple[Example, Any]]) -> int:
        """Add examples with the functions that make the writes of their stages, as in `add_prompts`."""
        with self.begin_write() as connection:
            added = add_prompts(self.name, connection, self.execute, items)
            self.count_prompts(connection)
            return added

    def count_prompts(self, connection: Connection) -> None:
        """Update the number of prompts among the facts; refuse new ones beside imported answers."""
        if IMPORTED in self.configuration:
            query = select(_prompts).where(_prompts.c.stage == int(Stage.OPEN))
            if new := connection.execute(query).all():
                msg = (
                    f"{self.name} holds imported answers, and none to {len(new)} prompts of the dataset, "
                    f"such as {rows.read_example(self.name, new[0]).input!r:.80}: a model would have to draw "
                    "them. Use the columns and the prompt that the answers were imported with"
                )
                raise StoreError(msg)
        total = connection.execute(select(func.count()).select_from(_prompts)).scalar_one()
        self.write_facts(connection, {PROMPTS_FACT: str(total)})

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
        make_writes = partial(make_record_writes, models)
        return self.add_with_stages((one, partial(make_writes, one)) for one in (first, *stream))

    # Work

    def read_unfinished(self) -> Iterator[StoredPrompt]:
        """Yield the prompts that are neither finished nor failed, in order, a page at a time."""
        for prompt in self._read_prompts(_prompts.c.stage < Stage.LABELLED):
            if prompt.error is None:
                yield prompt

    def read_finished(
        self, stage: Stage = Stage.LABELLED, *, messages: bool = True
    ) -> Iterator[StoredPrompt]:
        """Yield the prompts that have finished a stage, in order."""
        return self._read_prompts(_prompts.c.stage >= stage, messages=messages)

    def _read_prompts(self, *conditions: Any, messages: bool = True) -> Iterator[StoredPrompt]:
        """Yield the prompts that satisfy conditions in order, with their messages if these are wanted."""
        after = -1
        with report_damage(self.name):
            while page := self.read_rows(
                select(_prompts)
                .where(_prompts.c.position > after, *conditions)
                .order_by(_prompts.c.position)
                .limit(PAGE_SIZE)
            ):
                after = page[-1].position
                found: dict[int, list[Any]] = {}
                if messages:
                    positions = [row.position for row in page]
                    of_page = _draws.c.number.between(*map(schema.number_draw, (positions[0], after + 1)))
                    query = select(_draws).where(of_page, _draws.c.prompt.in_(positions))
                    kept = self.read_rows(query.order_by(_draws.c.number))
                    found = {at: list(group) for at, group in groupby(kept, key=lambda row: row.prompt)}
                yield from (read_prompt(self.name, row, found.get(row.position, ())) for row in page)

    def write(self, writes: Iterable[Write]) -> None:
        """Write rows in one transaction, durable on return; on failure, nothing is written."""
        with self.begin_write() as connection:
            self.execute(connection, writes)

    def execute(self, connection: Connection, writes: Iterable[Write]) -> None:
        """Write rows in the transaction of a connection, in a valid order.

        Rows go to the driver directly: SQLAlchemy's processing would take longer than the write.
        """
        cursor = connection.connection.cursor()
        models: set[str] = set()
        for statement, parameters in rows.group_writes(writes):
            cursor.executemany(_compile_sql(statement, connection.dialect, tuple(parameters[0])), parameters)
            if statement in rows.STAGE_UPDATES and cursor.rowcount != len(parameters):
                msg = f"cannot write {self.name}: a stage was written before, or the one before it was not"
                raise StoreError(msg)
            if statement is calls.ADD_CALLS:
                models |= {row["model"] for row in parameters if row["drew"] and row["model"]}
        if models:
            cursor.execute(_SELECT_MODELS)
            found = cursor.fetchone()
            known = set(json.loads(found[0])) if found else set()
            if models - known:
                self.write_facts(connection, {_MODELS_FACT: canonical_json(sorted(known | models))})
        cursor.close()

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
        with report_damage(self.name):
            self._check_state()
            for prompt in self.read_finished(messages=False):
                if (record := make_record(prompt)) is not None:
                    yield record

    def read_failures(self) -> list[Failure]:
        """Return the failed prompts in order."""
        failed = self._read_prompts(_prompts.c.error.is_not(None), messages=False)
        return [Failure(one.example.id, Stage(one.row.stage + 1), str(one.error)) for one in failed]

    def read_models(self) -> list[str]:
        """Return the names of the models that drew candidates, sorted."""
        with report_damage(self.name):
            self._check_state()
            return list(self._read_fact(_MODELS_FACT) or [])

    def count_stages(self) -> dict[Stage, int]:
        """Return the number of prompts at each stage, failed prompts included."""
        query = select(_prompts.c.stage, func.count()).group_by(_prompts.c.stage)
        with report_damage(self.name):
            counts = {int(stage): int(count) for stage, count in self.read_rows(query)}
            return {stage: counts.get(stage, 0) for stage in Stage}

    def read_usage(self, *, batched: bool = False) -> Usage:
        """Return the usage of models for all prompts, or the part of it that is charged at batch prices."""
        with report_damage(self.name), self.begin_read() as connection:
            return calls.read_usage(connection, batched=batched)

    def track_budget(self, budget: Budget) -> BudgetTracker:
        """Return the tracker of a budget, which counts all requests so far."""
        last = max((stage for stage, count in self.count_stages().items() if count), default=Stage.OPEN)
        finished = (stage for stage in Stage if Stage.OPEN < stage <= last)
        tracker = BudgetTracker(budget, self.read_usage(), self.read_usage(batched=True), finished)
        with report_damage(self.name), self.begin_read() as connection:
            for stage, usage, lost in calls.read_stages(connection):
                tracker.add_earlier(stage, usage, lost)
        return tracker

    def connect_without_sync(self) -> Connection:
        """Return a connection of its own, whose commits do not wait for the disk in SQLite.

        They survive a kill of the process, since the operating system has them, and a power cut after `sync`.
        """
        connection = self.engine.connect()
        if self.is_sqlite:
            connection.detach()  # so that it does not return to the pool with this setting
            connection.connection.cursor().execute("PRAGMA synchronous = NORMAL")
        return connection

    def sync(self) -> None:
        """Wait until the disk has everything that is committed to an SQLite file."""
        try:
            with Path(f"{self.path.resolve()}-wal").open("rb+") as journal:
                os.fsync(journal.fileno())
        except OSError as error:
            msg = f"cannot write {self.name}: {error.strerror}"
            raise StoreError(msg) from error

    def is_in_use(self) -> bool:
        """Return whether a run holds the store's lock now."""
        try:
            with self.lock():
                return False
        except StoreBusyError:
            return True
        except StoreError:  # a store that cannot be written has no run
            return False


@cache
def _compile_sql(statement: Statement, dialect: Dialect, names: tuple[str, ...]) -> str:
    return str(statement.compile(dialect=dialect, column_keys=names, for_executemany=True))


class _Transaction(asyncio.Event):
    """A transaction that callers wait for."""

    callers = 0  # that wait before their next call


class Writer:
    """Writer to a store from one event loop, which groups writes into transactions.

    Writes that follow each other within milliseconds, or while a transaction is committed, share the next
    one. In SQLite, a commit does not wait for the disk: a killed process loses nothing that is committed, and
    a power cut at most the commits of the last second. `write` and `close` wait for the disk.

    Args:
        store: The store.
        calls: Number of calls that can be in progress at a time. Once as many callers wait, nothing more can
            arrive, and the transaction begins at once; None to always wait those milliseconds.
    """

    def __init__(self, store: Store, calls: int | None = None) -> None:
        self.store = store
        self._calls = calls
        self._gathered = asyncio.Event()
        self._waiting: list[list[Write] | Callable[[], list[Write]]] = []
        self._task: asyncio.Future[None] | None = None
        self._last = _Transaction()  # that of the last writes
        self._last.set()
        self._error: Exception | None = None
        self._connection: Connection | None = None  # kept, because opening one takes as long as a write
        self._thread = ThreadPoolExecutor(1, "cfc-store")
        self._has_commits = False  # whether there is something that the disk may not have
        self._next_sync: asyncio.Future[None] | None = None

    def submit(self, writes: list[Write] | Callable[[], list[Write]]) -> None:
        """Schedule writes, or a function that returns them, after all earlier ones.

        `flush` waits for them and reports errors. A function is called when the transaction begins.
        """
        if not self._waiting:
            self._last = _Transaction()
        self._waiting.append(writes)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._write_transactions())

    async def write(self, writes: list[Write]) -> None:
        """Write and wait until the writes survive a power cut; errors as in `flush`."""
        self.submit(writes)
        await self.flush()
        await self._sync()

    async def flush(self) -> None:
        """Wait until all submitted writes are committed; raises `StoreError` if one failed, now or before."""
        transaction = self._last
        if not transaction.is_set():
            transaction.callers += 1
            if transaction.callers == self._calls:
                self._gathered.set()
        await transaction.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Wait until pending writes are on the disk, and end the thread."""
        try:
            if self._task is not None:
                await self._task
            await self._sync()
        finally:
            if self._next_sync is not None:
                self._next_sync.cancel()
            self._thread.shutdown()
            if self._connection is not None:
                self._connection.close()

    async def _write_transactions(self) -> None:
        while self._waiting:
            gathering = asyncio.get_running_loop().call_later(_GATHERING_SECONDS, self._gathered.set)
            await self._gathered.wait()
            gathering.cancel()
            self._gathered.clear()
            waiting, self._waiting, transaction = self._waiting, [], self._last
            try:
                made = (one() if callable(one) else one for one in waiting)
                await self._write([write for writes in made for write in writes])
            except Exception as failure:  # noqa: BLE001 - raised for every caller that waits
                self._error = failure
            finally:
                transaction.set()

    async def _write(self, writes: list[Write]) -> None:
        with self.store.explain_errors("write"):
            try:
                if self.store.is_sqlite:  # a thread would only compete for the GIL
                    self._execute(writes)
                else:  # each statement waits for the server
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._execute, writes)
            except Exception:
                if self._connection is not None:
                    with suppress(SQLAlchemyError), self._connection as failed:
                        failed.rollback()
                    self._connection = None
                raise
        if self.store.is_sqlite:
            self._has_commits = True
            if self._next_sync is None:
                self._next_sync = asyncio.ensure_future(self._sync_later())

    def _execute(self, writes: list[Write]) -> None:
        if self._connection is None:
            self._connection = self.store.connect_without_sync()
        with self._connection.begin():
            self.store.execute(self._connection, writes)

    async def _sync_later(self) -> None:
        await asyncio.sleep(_SYNC_SECONDS)
        self._next_sync = None
        with suppress(StoreError):  # `flush` raises it
            await self._sync()

    async def _sync(self) -> None:
        """Wait until the disk has everything that is committed."""
        if not self._has_commits:
            return
        try:  # the thread ends one at a time
            await asyncio.get_running_loop().run_in_executor(self._thread, self.store.sync)
        except StoreError as failure:
            self._error = failure
            raise

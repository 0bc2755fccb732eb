"""`MonitorStore`: results, labels and failures from many processes, and the state of the tests.

**Digests.** Each row holds a digest of its values. One fact, the tally, holds the number and the sum of these
digests by table, and a digest of each state of the tests. Every transaction that writes updates it, and every
reading compares it with the rows, so that rows that were changed, removed or added in another way are found.
This detects damage and edits by hand, not forgery, and not an earlier copy of the whole store.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    ForeignKey,
    MetaData,
    Select,
    SmallInteger,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import CFCWarning, InputError, StoreError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.database import ROW_NUMBER, DatabaseStore, define_facts
from langchain_cfc.support.text import join_names
from langchain_cfc_monitor.observed import ANSWERED, DAY, FLAGGED, Label, ObservedResult
from langchain_cfc_monitor.sequential_tests import BLOCK_SIZE, CoverageTest, DriftTest, LabelSamplingTest

# Most rows per query and transaction, and the number of latest results that figures are about.
_PAGE_SIZE = 1000
# Most points of a curve; beyond that, half of them are dropped.
MAX_POINTS = 400
_LIST_FIELDS = ("scores", "accepted", "features", "codes", "lengths", "models")
# Most results that an error or warning names.
_MOST_LISTED = 5

_metadata = MetaData()


# Holds the tally, and the state of each artifact's tests under its digest, among other facts.
_facts = define_facts("monitor_facts", _metadata)

_results = Table(
    "monitor_results",
    _metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("alpha", Text, nullable=False),
    Column("outcome", SmallInteger, nullable=False),
    Column("withheld", Boolean, nullable=False),
    Column("max_wrong_rate", Text),
    Column("max_wrong_of_all", Text),
    Column("threshold", Double, nullable=False),
    Column("scores", Text, nullable=False),  # JSON, like the next ones
    Column("accepted", Text, nullable=False),
    Column("features", Text, nullable=False),
    Column("codes", Text, nullable=False),
    Column("lengths", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("binding", Text, nullable=False),
    Column("seconds", Double),
    Column("digest", Text, nullable=False),
)

_labels = Table(
    "monitor_labels",
    _metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("result", Text, ForeignKey("monitor_results.id"), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("correct", Text, nullable=False),  # JSON
    Column("probability", Double, nullable=False),
    Column("digest", Text, nullable=False),
)

# Prompts that could not be served.
_failures = Table(
    "monitor_failures",
    _metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("error", Text, nullable=False),  # name of its type only, because its message may quote a prompt
    Column("digest", Text, nullable=False),
)

_IS_LABELLED = _labels.c.result == _results.c.id
# Results, each with its label if it has one: `label` is the label's number, `labelled_at` its time.
_labelled_results = select(
    _results,
    _labels.c.number.label("label"),
    _labels.c.at.label("labelled_at"),
    _labels.c.correct,
    _labels.c.probability,
    _labels.c.digest.label("label_digest"),
).join_from(_results, _labels, _IS_LABELLED, isouter=True)


@dataclass(frozen=True)
class Curve:
    """Logarithms of the wealth of m tests, recorded every `step` outcomes."""

    step: int = 1  # number of outcomes between two points; doubled whenever there are too many points
    outcomes: int = 0  # number of outcomes so far
    # Number of outcomes, time, and the m logarithms to three decimals
    points: Sequence[Sequence[Any]] = ()

    def update(self, log: FloatArray, now: float) -> Curve:
        """Return the curve after one more outcome."""
        outcomes, step, points = self.outcomes + 1, self.step, self.points
        if outcomes % step == 0:
            points = (*points, (outcomes, now, log.round(3).tolist()))
        if len(points) > MAX_POINTS:
            step *= 2
            points = [one for one in points if one[0] % step == 0]
        return Curve(step, outcomes, points)


@dataclass(frozen=True)
class Failure:
    """A prompt that could not be served: when, by which artifact, and the name of the error's type."""

    at: float
    artifact: str
    error: str


@dataclass(frozen=True)
class ResultCounts:
    """Counts and figures about an artifact's results in a store."""

    results: int
    answered: int  # number of results that were answered
    flagged: int  # number of results that are not certifiable
    # Numbers of results and of answered ones by certified wrong-answer rate, without results under none
    by_rate: Mapping[str, tuple[int, int]]
    labels: int
    failures: int  # number of prompts that could not be served
    failing: float | None  # share of the latest prompts that could not be served; None without any
    models: tuple[str, ...]  # distinct model names that the latest results report
    # Share of the latest results whose components could not be verified; None without any
    unverified: float | None
    # Median and 99th percentile of the seconds that the latest results took; None if not measured
    seconds: tuple[float, float] | None


@dataclass(frozen=True)
class Evidence:
    """The state of the tests of an artifact."""

    drift: DriftTest  # do prompts look as they did?
    kept: CoverageTest  # do certified rates hold?
    sampled: LabelSamplingTest  # do labelled results look like the others?
    last_result: int  # number of the last result that `drift` has seen
    last_label: int  # number of the last label that `kept` has seen
    last_sampled: int  # number of the last result that `sampled` has seen
    drifted: Curve  # wealth of the drift tests over time
    broken: Curve  # wealth of the tests of certified rates over time

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> Evidence:
        """Return the state before any result."""
        drift, kept = DriftTest.start(artifact, now), CoverageTest.start(artifact, now)
        return cls(drift, kept, LabelSamplingTest.start(artifact, now), 0, 0, 0, Curve(), Curve())

    def add_result(self, one: ObservedResult) -> Evidence:
        """Return the state after one more result."""
        drift = self.drift.update(one)
        return replace(self, drift=drift, drifted=self.drifted.update(drift.wealth.log, one.at))

    def add_label(self, one: ObservedResult, label: Label, now: float, least: float) -> Evidence:
        """Return the state after one more label; for `least` see `Label.is_sampled`."""
        kept = self.kept.update(one, label, now, least)
        return replace(self, kept=kept, broken=self.broken.update(kept.wealth.log, now))

    def to_data(self) -> dict[str, Any]:
        """Return the state as plain data."""
        tests = {name: getattr(self, name).to_data() for name in ("drift", "kept", "sampled")}
        lasts = {name: getattr(self, name) for name in ("last_result", "last_label", "last_sampled")}
        return {**tests, **lasts, "drifted": vars(self.drifted), "broken": vars(self.broken)}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Evidence:
        """Restore what `to_data` returned."""
        return cls(
            DriftTest.from_data(artifact, data["drift"]),
            CoverageTest.from_data(artifact, data["kept"]),
            LabelSamplingTest.from_data(artifact, data["sampled"]),
            data["last_result"],
            data["last_label"],
            data["last_sampled"],
            Curve(**data["drifted"]),
            Curve(**data["broken"]),
        )


class MonitorStore(DatabaseStore):
    """The tables of a monitor, in an SQLite file or at the URL of a PostgreSQL database.

    Every method raises a StoreError if the database cannot be used.
    """

    _facts = _facts
    _format = "langchain-cfc/monitor"
    _version = 6
    _missing_message = "there is no monitor at"
    _wrong_format_message = "is not the store of a monitor"
    _wrong_version_advice = "use a new store, or the release that made it"

    def add(self, results: Sequence[ObservedResult], failures: Sequence[Failure] = ()) -> None:
        """Write results and failures in one transaction; results whose id is stored already are skipped."""
        with self._begin_turn() as (connection, tally):
            new: dict[str, Any] = {}
            for one in results:
                new.setdefault(one.id, vars(one))
            for row in list(_read_named(connection, select(_results.c.id), _results.c.id, new)):
                del new[row.id]
            tally.insert(connection, _results, list(new.values()))
            tally.insert(connection, _failures, [vars(one) for one in failures])

    def label(self, labels: Iterable[Label], now: float, *, leave_out_unfit: bool = False) -> int:
        """Write labels, all or none, and return how many were new; a result keeps its first label.

        A label that does not fit its result is an error, or with `leave_out_unfit` a warning. A later label
        that contradicts the first one is a warning.
        """
        labels = list(labels)
        given: dict[str, Label] = {}
        for one in labels:
            given.setdefault(one.id, one)
        if not given:
            return 0
        with self._begin_turn() as (connection, tally):
            rows = _read_named(connection, select(_results), _results.c.id, given)
            known = {row.id: _read_result(row) for row in rows}
            missing = [name for name in given if name not in known]
            if missing:
                listed = join_names(list(map(repr, missing)), _MOST_LISTED)
                msg = (
                    f"{self.name} holds no result {listed}: a label names the run that gave the result; the "
                    "latest results may not be written yet (flush)"
                )
                raise InputError(msg)
            given = dict(_select_fitting_labels(given, known, leave_out_unfit=leave_out_unfit))
            labelled = _read_named(connection, _labelled_results, _labels.c.result, given)
            first = {row.id: _read_label(row) for row in labelled}
            new = [
                {"result": one.id, "at": now, "correct": one.correct, "probability": one.probability}
                for one in given.values()
                if one.id not in first
            ]
            tally.insert(connection, _labels, new)
            _warn_of_changes([one for one in labels if one.id in given], given | first, known)
            return len(new)

    def update_evidence(
        self, artifact: CalibrationArtifact, now: float, *, least: float = 1.0, label_days: float = 14.0
    ) -> Evidence:
        """Update the tests of an artifact with all new results and labels, and return their state.

        Concurrent processes take turns, so that each result and label is seen once. Results older than
        `label_days` are assumed to have all labels that they will ever get.
        """
        self.check()
        while True:
            with self._begin_turn() as (connection, tally):
                state = tally.read_state(connection, artifact.digest)
                seen = Evidence.from_data(artifact, state) if state else Evidence.start(artifact, now)
                if results := _read_next(connection, artifact, _results, seen.last_result):
                    for row in results:
                        seen = seen.add_result(_read_result(row))
                    seen = replace(seen, last_result=results[-1].number)
                elif labels := _read_next(connection, artifact, _labels, seen.last_label):
                    for row in labels:
                        seen = seen.add_label(_read_result(row), _read_label(row), row.labelled_at, least)
                    seen = replace(seen, last_label=labels[-1].label)
                elif block := _read_block(connection, artifact, seen.last_sampled, now - label_days * DAY):
                    found = [(_read_result(row), row) for row in block]
                    chosen = [
                        (one, row.label is not None and _read_label(row).is_sampled(one, least))
                        for one, row in found
                    ]
                    seen = replace(seen, sampled=seen.sampled.update(chosen), last_sampled=block[-1].number)
                else:
                    return seen
                tally.write_state(connection, artifact.digest, seen.to_data())

    def read_results(self, digest: str, since: float) -> tuple[list[ObservedResult], dict[str, Label]]:
        """Return the results of an artifact since a time, in their order, and their labels."""
        self.check()
        wanted = (_results.c.artifact == digest) & (_results.c.at >= since)
        rows = self.read_rows(_labelled_results.where(wanted).order_by(_results.c.number))
        labels = {row.id: _read_label(row) for row in rows if row.label is not None}
        return [_read_result(row) for row in rows], labels

    def list_unlabelled(self, digest: str) -> list[str]:
        """Return the ids of an artifact's results that have no label, in their order."""
        self.check()
        wanted = (_results.c.artifact == digest) & _labels.c.number.is_(None)
        query = _labelled_results.with_only_columns(_results.c.id).where(wanted).order_by(_results.c.number)
        return [row.id for row in self.read_rows(query)]

    def count_results(self, digest: str) -> ResultCounts:
        """Count the results, labels and failures of an artifact; `update_evidence` has checked them."""
        ours = _results.c.artifact == digest
        columns = (_results.c.max_wrong_rate, _results.c.outcome, _results.c.withheld)
        outcomes = select(*columns, func.count()).where(ours).group_by(*columns)
        wanted = (_results.c.at, _results.c.models, _results.c.binding, _results.c.seconds)
        latest = select(*wanted).where(ours).order_by(_results.c.number.desc()).limit(_PAGE_SIZE)
        labelled = select(func.count()).join_from(_labels, _results, _IS_LABELLED)
        failed = select(func.count()).where(_failures.c.artifact == digest)
        with self.begin_read() as connection:
            counted = connection.execute(outcomes).all()
            rows = connection.execute(latest).all()
            since = min((row.at for row in rows), default=0.0)
            latest_failures = int(connection.execute(failed.where(_failures.c.at >= since)).scalar_one())
            labels = int(connection.execute(labelled.where(ours)).scalar_one())
            failures = int(connection.execute(failed).scalar_one())
        took = [row.seconds for row in rows if row.seconds is not None]
        models = dict.fromkeys(model for row in rows for model in json.loads(row.models))
        by_rate: dict[str | None, tuple[int, int]] = {}
        for rate, outcome, withheld, count in counted:
            results, answered = by_rate.get(rate, (0, 0))
            answers = count if outcome == ANSWERED and not withheld else 0
            by_rate[rate] = results + count, answered + answers
        return ResultCounts(
            results=sum(results for results, _ in by_rate.values()),
            answered=sum(answered for _, answered in by_rate.values()),
            flagged=sum(count for _, outcome, _, count in counted if outcome == FLAGGED),
            by_rate={rate: counts for rate, counts in by_rate.items() if rate is not None},
            labels=labels,
            failures=failures,
            failing=compute_share(latest_failures, latest_failures + len(rows)),
            models=tuple(models),
            unverified=compute_share(sum(row.binding == "unverified" for row in rows), len(rows)),
            seconds=(float(np.median(took)), float(np.quantile(took, 0.99))) if took else None,
        )

    def reset_after_fork(self) -> None:
        """Drop the connections inherited from the parent process, without closing them."""
        self.engine.dispose(close=False)

    def delete_before(self, before: float) -> None:
        """Delete old failures, and old results with their labels once the tests have seen both."""
        with self._begin_turn() as (connection, tally):
            tally.delete(connection, _failures, _failures.c.at < before)
            for digest in tally.states:
                state = tally.read_state(connection, digest)
                waiting = select(_labels.c.result).where(_labels.c.number > state["last_label"])
                old = (
                    (_results.c.artifact == digest)
                    & (_results.c.at < before)
                    & (_results.c.number <= state["last_result"])
                    & _results.c.id.not_in(waiting)
                )
                tally.delete(connection, _labels, _labels.c.result.in_(select(_results.c.id).where(old)))
                tally.delete(connection, _results, old)

    def check(self) -> None:
        """Raise a StoreError unless the store holds the rows that were written, and no others."""
        with self.begin_read() as connection:
            # Other processes may write meanwhile: read one state of the database.
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN")
            else:
                connection.execution_options(isolation_level="REPEATABLE READ")
            tally = _Tally.read(connection)
            for table in (_results, _labels, _failures):
                count, total = _add_up_rows(connection, table)
                if [count, total] != tally.rows[table.name][1:]:
                    msg = (
                        f"{table.name} in {self.name} does not hold the rows that were written: some were "
                        "removed or added by hand. Restore a backup, or use a new store"
                    )
                    raise StoreError(msg)

    @contextmanager
    def _begin_turn(self) -> Iterator[tuple[Connection, _Tally]]:
        """Open a transaction after those of all other processes that write, and update the tally with it."""
        with self.begin_write() as connection:
            tally_row = update(_facts).where(_facts.c.name == _TALLY)
            connection.execute(tally_row.values(value=_facts.c.value))  # locks the row until the commit
            tally = _Tally.read(connection)
            yield connection, tally
            connection.execute(tally_row.values(value=tally.to_text()))

    def _open(self, *, create: bool) -> None:
        super()._open(create=create)
        self.check_pages(thoroughly=True)

    def _list_first_facts(self) -> dict[str, str]:
        return {**super()._list_first_facts(), _TALLY: _Tally().to_text()}


def compute_share(count: int, of: int) -> float | None:
    """Return a count as a share of all; None of nothing."""
    return count / of if of else None


def _read_result(row: Any) -> ObservedResult:
    _check_row(_results, row[: len(_results.c)])
    fields = {name: getattr(row, name) for name in ObservedResult.__dataclass_fields__}
    fields |= {name: json.loads(fields[name]) for name in (*_LIST_FIELDS, "metadata")}
    return ObservedResult(**fields | {name: tuple(fields[name]) for name in _LIST_FIELDS})


def _read_label(row: Any) -> Label:
    values = (row.label, row.id, row.labelled_at, row.correct, row.probability, row.label_digest)
    _check_row(_labels, values)
    return Label(row.id, json.loads(row.correct), row.probability)


def _select_fitting_labels(
    given: Mapping[str, Label], known: Mapping[str, ObservedResult], *, leave_out_unfit: bool
) -> Iterator[tuple[str, Label]]:
    """Yield the labels that fit their results."""
    unfit = []
    for name, one in given.items():
        try:
            one.judge(known[name])
        except InputError as error:  # noqa: PERF203 - every label is checked
            if not leave_out_unfit:
                raise
            unfit.append(str(error))
        else:
            yield name, one
    if unfit:
        msg = f"{len(unfit)} labels do not fit their results and are left out; the first: {unfit[0]}"
        warnings.warn(msg, CFCWarning, stacklevel=4)


def _warn_of_changes(
    labels: Iterable[Label], first: Mapping[str, Label], known: Mapping[str, ObservedResult]
) -> None:
    """Warn about labels that contradict the first label of their result, which is the one used."""
    changed = []
    for one in labels:
        with suppress(InputError):  # a label that does not fit contradicts nothing
            said = zip(first[one.id].judge(known[one.id]), one.judge(known[one.id]), strict=True)
            if any(None not in pair and pair[0] != pair[1] for pair in said):
                changed.append(one.id)
    if changed:
        listed = join_names(list(map(repr, dict.fromkeys(changed))), _MOST_LISTED)
        msg = (
            f"labels of {listed} contradict earlier ones of the same results and are left out: the first "
            "label counts, because tests have used it"
        )
        warnings.warn(msg, CFCWarning, stacklevel=4)


def _read_named(
    connection: Connection, query: Select[Any], column: Column[Any], names: Iterable[str]
) -> Iterator[Any]:
    """Yield the rows of a query whose column holds one of the names, which are asked for in pages."""
    wanted = list(names)
    for start in range(0, len(wanted), _PAGE_SIZE):
        yield from connection.execute(query.where(column.in_(wanted[start : start + _PAGE_SIZE])))


def _read_next(
    connection: Connection, artifact: CalibrationArtifact, table: Table, last: int
) -> Sequence[Any]:
    """Return the next rows of results, or of labels, after the last one that the tests have seen."""
    following = (_results.c.artifact == artifact.digest) & (table.c.number > last)
    query = _labelled_results.where(following).order_by(table.c.number).limit(_PAGE_SIZE)
    return connection.execute(query).all()


def _read_block(
    connection: Connection, artifact: CalibrationArtifact, last: int, before: float
) -> Sequence[Any]:
    """Return the next block of results old enough to have all their labels; empty if there are too few."""
    due = (_results.c.artifact == artifact.digest) & (_results.c.number > last) & (_results.c.at < before)
    rows = connection.execute(
        _labelled_results.where(due).order_by(_results.c.number).limit(BLOCK_SIZE)
    ).all()
    return rows if len(rows) == BLOCK_SIZE else ()


# Digests

_TALLY = "tally"  # name of the fact
_JSON_COLUMNS = {*_LIST_FIELDS, "metadata", "correct"}
_DIGITS = 16
_MODULUS = 16**_DIGITS


@dataclass
class _Tally:
    """What was written to a store, without what was deleted."""

    # Of each table the last row number ever given, the number of rows, and the sum of their digests
    rows: dict[str, list[int]] = field(
        default_factory=lambda: {table.name: [0, 0, 0] for table in (_results, _labels, _failures)}
    )
    states: dict[str, str] = field(default_factory=dict)  # digest of the state of the tests, by artifact

    @classmethod
    def read(cls, connection: Connection) -> _Tally:
        """Read the tally of a store; raise a StoreError if it is damaged."""
        text = _read_fact(connection, _TALLY)
        if _hash(text[_DIGITS:]) != text[:_DIGITS]:
            msg = "the tally of the monitor's store is damaged: restore a backup, or use a new store"
            raise StoreError(msg)
        return cls(**json.loads(text[_DIGITS:]))

    def to_text(self) -> str:
        """Return its digest and its JSON."""
        text = json.dumps(vars(self))
        return _hash(text) + text

    def insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows with the next numbers and with their digests; mappings and sequences become JSON."""
        last, count, total = self.rows[table.name]
        sealed = []
        for number, values in enumerate(rows, last + 1):
            row = {"number": number, **values}
            for column in table.c:
                if column.name in _JSON_COLUMNS:
                    row[column.name] = json.dumps(row[column.name])
                elif isinstance(column.type, Double) and row[column.name] is not None:
                    row[column.name] = float(row[column.name])  # as the database returns it
            digest = _hash_row(table, [row[column.name] for column in table.c if column.name != "digest"])
            sealed.append({**row, "digest": digest})
            total += int(digest, 16)
        if sealed:
            connection.execute(insert(table), sealed)
        self.rows[table.name] = [last + len(sealed), count + len(sealed), total % _MODULUS]

    def delete(self, connection: Connection, table: Table, where: ColumnElement[bool]) -> None:
        """Delete rows; a damaged one is an error, because it may not be meant."""
        count, total = _add_up_rows(connection, table, where)
        connection.execute(delete(table).where(where))
        last, counted, sum_ = self.rows[table.name]
        self.rows[table.name] = [last, counted - count, (sum_ - total) % _MODULUS]

    def read_state(self, connection: Connection, digest: str) -> Any:
        """Return the state of the tests of an artifact; None before the first."""
        if digest not in self.states:
            return None
        text = _read_fact(connection, digest)
        if _hash(text) != self.states[digest]:
            msg = f"the state of {digest[:20]} is damaged (its digest differs): use a new store"
            raise StoreError(msg)
        return json.loads(text)

    def write_state(self, connection: Connection, digest: str, data: Any) -> None:
        """Write the state of the tests of an artifact."""
        text = json.dumps(data)
        connection.execute(delete(_facts).where(_facts.c.name == digest))
        connection.execute(insert(_facts), {"name": digest, "value": text})
        self.states[digest] = _hash(text)


def _read_fact(connection: Connection, name: str) -> str:
    return str(connection.execute(select(_facts.c.value).where(_facts.c.name == name)).scalar())


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()


def _hash_row(table: Table, values: Sequence[Any]) -> str:
    return _hash(json.dumps([table.name, *values]))


def _check_row(table: Table, row: Sequence[Any]) -> None:
    """Raise a StoreError unless the last value of a row is the digest of the others."""
    try:
        is_intact = _hash_row(table, row[:-1]) == row[-1]
    except (TypeError, ValueError):  # a value of another type
        is_intact = False
    if not is_intact:
        msg = f"a row of {table.name} is damaged (its digest differs): restore a backup, or use a new store"
        raise StoreError(msg)


def _add_up_rows(connection: Connection, table: Table, *where: ColumnElement[bool]) -> tuple[int, int]:
    """Check rows, and return their number and the sum of their digests."""
    count = total = 0
    for row in connection.execute(select(table).where(*where).execution_options(yield_per=_PAGE_SIZE)):
        _check_row(table, row)
        count, total = count + 1, total + int(row.digest, 16)
    return count, total % _MODULUS

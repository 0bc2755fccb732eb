"""`MonitorStore`: results, labels and failures from many processes, and the state of the tests."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import (
    Column,
    Connection,
    Select,
    Table,
    func,
    select,
    update,
)

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import CFCWarning, InputError, StoreError
from langchain_cfc.support.database import DatabaseStore
from langchain_cfc.support.text import join_names
from langchain_cfc_monitor.evidence import Evidence
from langchain_cfc_monitor.observed import ANSWERED, DAY, FLAGGED, Label, ObservedResult
from langchain_cfc_monitor.sequential_tests import BLOCK_SIZE
from langchain_cfc_monitor.tables import (
    FACTS,
    FAILURES,
    LABELS,
    LIST_FIELDS,
    PAGE_SIZE,
    RESULTS,
    TALLY,
    Tally,
    add_up_rows,
    check_row,
)

# Most results that an error or warning names.
_MOST_LISTED = 5

_IS_LABELLED = LABELS.c.result == RESULTS.c.id
# Results, each with its label if it has one: `label` is the label's number, `labelled_at` its time.
_labelled_results = select(
    RESULTS,
    LABELS.c.number.label("label"),
    LABELS.c.at.label("labelled_at"),
    LABELS.c.correct,
    LABELS.c.probability,
    LABELS.c.digest.label("label_digest"),
).join_from(RESULTS, LABELS, _IS_LABELLED, isouter=True)


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


class MonitorStore(DatabaseStore):
    """The tables of a monitor, in an SQLite file or at the URL of a PostgreSQL database.

    Every method raises a StoreError if the database cannot be used.
    """

    _facts = FACTS
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
            for row in list(_read_named(connection, select(RESULTS.c.id), RESULTS.c.id, new)):
                del new[row.id]
            tally.insert(connection, RESULTS, list(new.values()))
            tally.insert(connection, FAILURES, [vars(one) for one in failures])

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
            rows = _read_named(connection, select(RESULTS), RESULTS.c.id, given)
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
            labelled = _read_named(connection, _labelled_results, LABELS.c.result, given)
            first = {row.id: _read_label(row) for row in labelled}
            new = [
                {"result": one.id, "at": now, "correct": one.correct, "probability": one.probability}
                for one in given.values()
                if one.id not in first
            ]
            tally.insert(connection, LABELS, new)
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
                if results := _read_next(connection, artifact, RESULTS, seen.last_result):
                    for row in results:
                        seen = seen.add_result(_read_result(row))
                    seen = replace(seen, last_result=results[-1].number)
                elif labels := _read_next(connection, artifact, LABELS, seen.last_label):
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
        wanted = (RESULTS.c.artifact == digest) & (RESULTS.c.at >= since)
        rows = self.read_rows(_labelled_results.where(wanted).order_by(RESULTS.c.number))
        labels = {row.id: _read_label(row) for row in rows if row.label is not None}
        return [_read_result(row) for row in rows], labels

    def list_unlabelled(self, digest: str) -> list[str]:
        """Return the ids of an artifact's results that have no label, in their order."""
        self.check()
        wanted = (RESULTS.c.artifact == digest) & LABELS.c.number.is_(None)
        query = _labelled_results.with_only_columns(RESULTS.c.id).where(wanted).order_by(RESULTS.c.number)
        return [row.id for row in self.read_rows(query)]

    def count_results(self, digest: str) -> ResultCounts:
        """Count the results, labels and failures of an artifact; `update_evidence` has checked them."""
        ours = RESULTS.c.artifact == digest
        columns = (RESULTS.c.max_wrong_rate, RESULTS.c.outcome, RESULTS.c.withheld)
        outcomes = select(*columns, func.count()).where(ours).group_by(*columns)
        wanted = (RESULTS.c.at, RESULTS.c.models, RESULTS.c.binding, RESULTS.c.seconds)
        latest = select(*wanted).where(ours).order_by(RESULTS.c.number.desc()).limit(PAGE_SIZE)
        labelled = select(func.count()).join_from(LABELS, RESULTS, _IS_LABELLED)
        failed = select(func.count()).where(FAILURES.c.artifact == digest)
        with self.begin_read() as connection:
            counted = connection.execute(outcomes).all()
            rows = connection.execute(latest).all()
            since = min((row.at for row in rows), default=0.0)
            latest_failures = int(connection.execute(failed.where(FAILURES.c.at >= since)).scalar_one())
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
            tally.delete(connection, FAILURES, FAILURES.c.at < before)
            for digest in tally.states:
                state = tally.read_state(connection, digest)
                waiting = select(LABELS.c.result).where(LABELS.c.number > state["last_label"])
                old = (
                    (RESULTS.c.artifact == digest)
                    & (RESULTS.c.at < before)
                    & (RESULTS.c.number <= state["last_result"])
                    & RESULTS.c.id.not_in(waiting)
                )
                tally.delete(connection, LABELS, LABELS.c.result.in_(select(RESULTS.c.id).where(old)))
                tally.delete(connection, RESULTS, old)

    def check(self) -> None:
        """Raise a StoreError unless the store holds the rows that were written, and no others."""
        with self.begin_read() as connection:
            # Other processes may write meanwhile: read one state of the database.
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN")
            else:
                connection.execution_options(isolation_level="REPEATABLE READ")
            tally = Tally.read(connection)
            for table in (RESULTS, LABELS, FAILURES):
                count, total = add_up_rows(connection, table)
                if [count, total] != tally.rows[table.name][1:]:
                    msg = (
                        f"{table.name} in {self.name} does not hold the rows that were written: some were "
                        "removed or added by hand. Restore a backup, or use a new store"
                    )
                    raise StoreError(msg)

    @contextmanager
    def _begin_turn(self) -> Iterator[tuple[Connection, Tally]]:
        """Open a transaction after those of all other processes that write, and update the tally with it."""
        with self.begin_write() as connection:
            tally_row = update(FACTS).where(FACTS.c.name == TALLY)
            connection.execute(tally_row.values(value=FACTS.c.value))  # locks the row until the commit
            tally = Tally.read(connection)
            yield connection, tally
            connection.execute(tally_row.values(value=tally.to_text()))

    def _open(self, *, create: bool) -> None:
        super()._open(create=create)
        self.check_pages(thoroughly=True)

    def _list_first_facts(self) -> dict[str, str]:
        return {**super()._list_first_facts(), TALLY: Tally().to_text()}


def compute_share(count: int, of: int) -> float | None:
    """Return a count as a share of all; None of nothing."""
    return count / of if of else None


def _read_result(row: Any) -> ObservedResult:
    check_row(RESULTS, row[: len(RESULTS.c)])
    fields = {name: getattr(row, name) for name in ObservedResult.__dataclass_fields__}
    fields |= {name: json.loads(fields[name]) for name in (*LIST_FIELDS, "metadata")}
    return ObservedResult(**fields | {name: tuple(fields[name]) for name in LIST_FIELDS})


def _read_label(row: Any) -> Label:
    values = (row.label, row.id, row.labelled_at, row.correct, row.probability, row.label_digest)
    check_row(LABELS, values)
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
    for start in range(0, len(wanted), PAGE_SIZE):
        yield from connection.execute(query.where(column.in_(wanted[start : start + PAGE_SIZE])))


def _read_next(
    connection: Connection, artifact: CalibrationArtifact, table: Table, last: int
) -> Sequence[Any]:
    """Return the next rows of results, or of labels, after the last one that the tests have seen."""
    following = (RESULTS.c.artifact == artifact.digest) & (table.c.number > last)
    query = _labelled_results.where(following).order_by(table.c.number).limit(PAGE_SIZE)
    return connection.execute(query).all()


def _read_block(
    connection: Connection, artifact: CalibrationArtifact, last: int, before: float
) -> Sequence[Any]:
    """Return the next block of results old enough to have all their labels; empty if there are too few."""
    due = (RESULTS.c.artifact == artifact.digest) & (RESULTS.c.number > last) & (RESULTS.c.at < before)
    rows = connection.execute(_labelled_results.where(due).order_by(RESULTS.c.number).limit(BLOCK_SIZE)).all()
    return rows if len(rows) == BLOCK_SIZE else ()

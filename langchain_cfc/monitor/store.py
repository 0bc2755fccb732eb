"""`MonitorStore`: results, labels and failures of many processes, and what the tests made of them."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Insert,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    delete,
    false,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc._internal.database import Database
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import CFCWarning, InputError, StoreError
from langchain_cfc.monitor.observed import ANSWERED, FLAGGED, Observed
from langchain_cfc.monitor.sequential_tests import BLOCK, CoverageTest, Drift, Label, LabelSamplingTest

if TYPE_CHECKING:
    from typing_extensions import Self


FORMAT = "langchain-cfc/monitor"
# Of the tables below; another release may read only what it knows.
VERSION = 2

metadata = MetaData()
_NUMBER = BigInteger().with_variant(Integer, "sqlite")

# `format` and `version`; and of each artifact what has been seen of it, as JSON.
facts = Table(
    "monitor_facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

results = Table(
    "monitor_results",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("alpha", Text, nullable=False),
    Column("outcome", SmallInteger, nullable=False),
    Column("withheld", Boolean, nullable=False),
    Column("bot", Boolean, nullable=False),
    Column("threshold", Double, nullable=False),
    Column("scores", Text, nullable=False),  # JSON, like all lists and objects
    Column("accepted", Text, nullable=False),
    Column("features", Text, nullable=False),
    Column("codes", Text, nullable=False),
    Column("lengths", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("outputs", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("binding", Text, nullable=False),
    Column("seconds", Double),
    # Whether the tests have seen it. They take results as they find them: one that another process was still
    # writing when a later one was seen comes after it.
    Column("seen", Boolean, nullable=False, server_default=false()),
)
Index(
    "monitor_results_unseen", results.c.number, sqlite_where=~results.c.seen, postgresql_where=~results.c.seen
)

labels = Table(
    "monitor_labels",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("result", Text, ForeignKey("monitor_results.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("correct", Text, nullable=False),
    Column("probability", Double, nullable=False),
    Column("seen", Boolean, nullable=False, server_default=false()),
)
Index("monitor_labels_unseen", labels.c.number, sqlite_where=~labels.c.seen, postgresql_where=~labels.c.seen)

# Prompts that could not be served.
failures = Table(
    "monitor_failures",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("error", Text, nullable=False),  # name of its type; its message may quote a prompt
)


# Of a curve; half of them are dropped when there are more.
MOST = 400


@dataclass(frozen=True)
class Curve:
    """Logarithms of the capital of m tests, after every so many outcomes.

    Attributes:
        step: Number of outcomes from one point to the next; doubled whenever there are too many points.
        outcomes: Number of outcomes so far.
        points: Of each, the number of outcomes, the time, and the m logarithms to three decimals.
    """

    step: int = 1
    outcomes: int = 0
    points: tuple[tuple[int, float, list[float]], ...] = ()

    def after(self, log: FloatArray, now: float) -> Curve:
        """With one more outcome."""
        outcomes, step, points = self.outcomes + 1, self.step, self.points
        if outcomes % step == 0:
            points = (*points, (outcomes, now, log.round(3).tolist()))
        if len(points) > MOST:
            step *= 2
            points = tuple(one for one in points if one[0] % step == 0)
        return Curve(step, outcomes, points)

    def to_data(self) -> dict[str, Any]:
        """All of it, to be stored."""
        return {"step": self.step, "outcomes": self.outcomes, "points": [list(one) for one in self.points]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Curve:
        """What `to_data` was made of."""
        points = tuple((int(outcomes), float(at), list(logs)) for outcomes, at, logs in data["points"])
        return cls(int(data["step"]), int(data["outcomes"]), points)


# Results that one transaction shows to the tests.
PAGE = 1000
_LISTS = ("scores", "accepted", "features", "codes", "lengths", "models")
_JSON = (*_LISTS, "metadata", "outputs")
_SHOWN = 5
_DAY = 86_400.0
# Seconds to wait for another process that makes the tables, and between two looks.
_PATIENCE, _AGAIN = 30.0, 0.05
_results, _labels, _failures, _facts = results, labels, failures, facts


@dataclass(frozen=True)
class Failed:
    """A prompt that could not be served: when, by which artifact, and the name of the error's type."""

    at: float
    artifact: str
    error: str


@dataclass(frozen=True)
class ResultCounts:
    """What a store holds of an artifact.

    Attributes:
        results: Number of results.
        answered: How many of them had an answer set that is not empty.
        flagged: How many were not certifiable.
        labels: Number of labels.
        failures: Number of prompts that could not be served.
        failing: Share of the latest prompts that could not be served; None without any.
        models: What the models of the latest results call themselves.
        unverified: Share of these that were served by parts that nothing vouches for; None without any.
        seconds: Median and 99th percentile of how long they took; None where nobody measured.
    """

    results: int
    answered: int
    flagged: int
    labels: int
    failures: int
    failing: float | None
    models: tuple[str, ...]
    unverified: float | None
    seconds: tuple[float, float] | None

    def share(self, count: int) -> float | None:
        """Of the results; None if there are none."""
        return _share(count, self.results)


@dataclass(frozen=True)
class Evidence:
    """What the tests of an artifact have seen.

    Attributes:
        drift: Do prompts look as they did?
        kept: Are certified rates kept?
        sampled: Are labelled results like the others?
        drifted: How the capital of the first went.
        broken: How that of the second did.
    """

    drift: Drift
    kept: CoverageTest
    sampled: LabelSamplingTest
    drifted: Curve
    broken: Curve

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> Evidence:
        """Nothing seen yet."""
        parts = (
            Drift.begun(artifact, now),
            CoverageTest.begun(artifact, now),
            LabelSamplingTest.begun(artifact, now),
        )
        return cls(*parts, Curve(), Curve())

    def after(self, one: Observed) -> Evidence:
        """With one more result."""
        drift = self.drift.after(one)
        return replace(self, drift=drift, drifted=self.drifted.after(drift.capital.log, one.at))

    def after_label(self, one: Observed, label: Label, now: float, least: float) -> Evidence:
        """With one more label; see `Kept.after`."""
        kept = self.kept.after(one, label, now, least)
        return replace(self, kept=kept, broken=self.broken.after(kept.capital.log, now))

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored."""
        return {name: getattr(self, name).to_data() for name in self.__dataclass_fields__}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Evidence:
        """What `to_data` was made of."""
        return cls(
            Drift.from_data(artifact, data["drift"]),
            CoverageTest.from_data(artifact, data["kept"]),
            LabelSamplingTest.from_data(artifact, data["sampled"]),
            Curve.from_data(data["drifted"]),
            Curve.from_data(data["broken"]),
        )


class MonitorStore:
    """The tables of a monitor.

    Args:
        where: Path of an SQLite file, or the URL of a PostgreSQL database.
        create: Whether to make it where it is not there.

    Raises:
        StoreError: If it cannot be opened, is not there, or is none of this release.
    """

    def __init__(self, where: str | os.PathLike[str], *, create: bool = False) -> None:
        self._database = Database(where)
        self.name = self._database.name
        try:
            self._open(create=create)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._database.close()

    def add(self, results: Sequence[Observed], failures: Sequence[Failed] = ()) -> None:
        """Write in one transaction; a result that is there already, by its id, is not written again.

        Raises:
            StoreError: If it could not be written; then nothing was.
        """
        with self._database.begin_write() as connection:
            if results:
                connection.execute(self._once(_results), [_row(one) for one in results])
            if failures:
                connection.execute(insert(_failures), [asdict(one) for one in failures])

    def label(self, labels: Iterable[Label], now: float, *, leave_out_unfit: bool = False) -> int:
        """Write labels, all or none; one for a result that has one already is passed over.

        Args:
            labels: The labels.
            now: When they came, in seconds since 1970.
            leave_out_unfit: Whether to warn of labels that do not fit their result, and write the others.

        Returns:
            How many were new.

        Raises:
            InputError: If one speaks of no result that is there, or does not fit it.
            StoreError: If they could not be written.
        """
        given: dict[str, Label] = {}
        for one in labels:
            given.setdefault(one.id, one)
        if not given:
            return 0
        with self._database.begin_write() as connection:
            known = {one.id: one for one in _found(connection, list(given))}
            missing = [name for name in given if name not in known]
            if missing:
                more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
                msg = (
                    f"{self.name} holds no result {', '.join(map(repr, missing[:_SHOWN]))}{more}: a label "
                    "names the run that gave the result; those that came last may not be written yet (flush)"
                )
                raise InputError(msg)
            given = dict(_fitting(given, known, leave_out_unfit=leave_out_unfit))
            if not given:
                return 0
            before = _count(connection, _labels)
            rows = [
                {
                    "result": one.id,
                    "at": now,
                    "correct": json.dumps(one.correct),
                    "probability": one.probability,
                }
                for one in given.values()
            ]
            connection.execute(self._once(_labels), rows)
            return _count(connection, _labels) - before

    def evidence(
        self, artifact: CalibrationArtifact, now: float, *, least: float = 1.0, label_days: float = 14.0
    ) -> Evidence:
        """Show the tests whatever they have not seen, and say what they have.

        Processes that do so at the same time take turns; each result and label is seen once.

        Args:
            artifact: The artifact; results of others are left alone.
            now: The time, in seconds since 1970: where tests begin that have seen nothing.
            least: See `Kept.after`.
            label_days: Days after which a result gets no label any more that is compared with the others.

        Raises:
            StoreError: If the database cannot be used.
        """
        while True:
            with self._database.begin_write() as connection:
                self._take_turn(connection)
                seen = _evidence(connection, artifact, now)
                results = _unseen_results(connection, artifact.digest)
                labels = [] if results else _unseen_labels(connection, artifact.digest)
                block = [] if results or labels else _block(connection, seen.sampled, now - label_days * _DAY)
                if not results and not labels and not block:
                    return seen
                for _, one in results:
                    seen = seen.after(one)
                for _, one, label, at in labels:
                    seen = seen.after_label(one, label, at, least)
                if block:
                    chosen = [(one, label is not None and label.fair(one, least)) for _, one, label in block]
                    seen = replace(seen, sampled=seen.sampled.after(chosen, block[-1][0]))
                _mark(connection, _results, [number for number, _ in results])
                _mark(connection, _labels, [number for number, *_ in labels])
                _remember(connection, artifact.digest, seen.to_data())

    def results(self, digest: str, since: float) -> tuple[list[Observed], dict[str, Label]]:
        """The results of an artifact that came since a time, in their order, and the labels of these.

        Raises:
            StoreError: If the database cannot be used.
        """
        wanted = (_results.c.artifact == digest) & (_results.c.at >= since)
        query = (
            select(_results, _labels.c.correct, _labels.c.probability)
            .join_from(_results, _labels, _labels.c.result == _results.c.id, isouter=True)
            .where(wanted)
            .order_by(_results.c.number)
        )
        with self._database.begin_read() as connection:
            rows = connection.execute(query).all()
        labels = {
            row.id: Label(row.id, json.loads(row.correct), row.probability)
            for row in rows
            if row.correct is not None
        }
        return [_observed(row) for row in rows], labels

    def unlabelled(self, digest: str, since: float) -> list[str]:
        """The ids of an artifact's results that came since a time and have no label, in their order.

        Raises:
            StoreError: If the database cannot be used.
        """
        query = (
            select(_results.c.id)
            .join_from(_results, _labels, _labels.c.result == _results.c.id, isouter=True)
            .where(_results.c.artifact == digest, _results.c.at >= since, _labels.c.number.is_(None))
            .order_by(_results.c.number)
        )
        with self._database.begin_read() as connection:
            return list(connection.execute(query).scalars())

    def standing(self, digest: str) -> ResultCounts:
        """What there is of an artifact.

        Raises:
            StoreError: If the database cannot be used.
        """
        ours = _results.c.artifact == digest
        outcomes = select(_results.c.outcome, func.count()).where(ours).group_by(_results.c.outcome)
        wanted = (_results.c.at, _results.c.models, _results.c.binding, _results.c.seconds)
        latest = select(*wanted).where(ours).order_by(_results.c.number.desc()).limit(PAGE)
        labelled = select(func.count()).join_from(_labels, _results, _labels.c.result == _results.c.id)
        failed = select(func.count()).where(_failures.c.artifact == digest)
        with self._database.begin_read() as connection:
            counts = {int(outcome): int(count) for outcome, count in connection.execute(outcomes)}
            rows = connection.execute(latest).all()
            since = min((row.at for row in rows), default=0.0)
            latest_failures = int(connection.execute(failed.where(_failures.c.at >= since)).scalar_one())
            labels = int(connection.execute(labelled.where(ours)).scalar_one())
            failures = int(connection.execute(failed).scalar_one())
        took = [row.seconds for row in rows if row.seconds is not None]
        models = dict.fromkeys(model for row in rows for model in json.loads(row.models))
        return ResultCounts(
            results=sum(counts.values()),
            answered=counts.get(ANSWERED, 0),
            flagged=counts.get(FLAGGED, 0),
            labels=labels,
            failures=failures,
            failing=_share(latest_failures, latest_failures + len(rows)),
            models=tuple(models),
            unverified=_share(sum(row.binding == "unverified" for row in rows), len(rows)),
            seconds=(float(np.median(took)), float(np.quantile(took, 0.99))) if took else None,
        )

    def forked(self) -> None:
        """Forget connections that a parent process holds as well."""
        self._database.engine.dispose(close=False)

    def forget(self, before: float) -> int:
        """Delete results that came before a time and that the tests have seen, with their labels.

        What the tests have learnt stays.

        Returns:
            How many.
        """
        old = (_results.c.at < before) & _results.c.seen
        waiting = select(_labels.c.result).where(~_labels.c.seen)
        with self._database.begin_write() as connection:
            connection.execute(delete(_failures).where(_failures.c.at < before))
            return connection.execute(delete(_results).where(old, _results.c.id.not_in(waiting))).rowcount

    def _open(self, *, create: bool) -> None:
        if self._database.is_sqlite and not create and not self._database.path.is_file():
            msg = f"there is no monitor at {self.name}"
            raise StoreError(msg)
        if create:
            self._create()
        known = self._known()
        if known.get("format") != FORMAT:
            msg = f"{self.name} is no monitor's"
            raise StoreError(msg)
        if known.get("version") != VERSION:
            msg = (
                f"{self.name} was made by another release (its tables are of version "
                f"{known.get('version')}, this one reads {VERSION}): watch into a new one, or go back"
            )
            raise StoreError(msg)

    def _create(self) -> None:
        """Make the tables where there are none; processes that begin together take turns."""
        end = time.monotonic() + _PATIENCE
        while not self._known():
            try:
                with self._database.hold_lock():
                    self._make()
            except StoreError:  # noqa: PERF203 - another process is at it
                if time.monotonic() > end:
                    raise
                time.sleep(_AGAIN)
            else:
                return

    def _make(self) -> None:
        others = self._database.list_tables() - set(metadata.tables)
        if self._known() or (others and self._database.is_sqlite):
            return
        self._database.create_tables(metadata)
        written = {"version": VERSION, "turn": 0, "format": FORMAT}
        rows = [{"name": name, "value": json.dumps(value)} for name, value in written.items()]
        with self._database.begin_write() as connection:
            connection.execute(insert(_facts), rows)

    def _known(self) -> dict[str, Any]:
        """What the store says of itself; nothing where it is not there, or being made."""
        if _facts.name not in self._database.list_tables():
            return {}
        query = select(_facts).where(_facts.c.name.in_(["format", "version"]))
        with self._database.begin_read() as connection:
            return {name: json.loads(value) for name, value in connection.execute(query)}

    def _once(self, table: Any) -> Insert:
        """Insert rows, but for those that are there already."""
        dialect: Any = sqlite if self._database.is_sqlite else postgresql
        made: Insert = dialect.insert(table).on_conflict_do_nothing()
        return made

    def _take_turn(self, connection: Connection) -> None:
        """Wait for others that show results to the tests: a row that they wrote is theirs to the end."""
        connection.execute(update(_facts).where(_facts.c.name == "turn").values(value=_facts.c.value))


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _row(one: Observed) -> dict[str, Any]:
    # Fields as they are: `asdict` would copy every list.
    row = dict(one.__dict__)
    return row | {name: json.dumps(row[name]) for name in _JSON}


def _observed(row: Any) -> Observed:
    fields = {name: getattr(row, name) for name in Observed.__dataclass_fields__}
    read = {name: json.loads(fields[name]) for name in _JSON}
    return Observed(**fields | read | {name: tuple(read[name]) for name in _LISTS})


def _fitting(
    given: Mapping[str, Label], known: Mapping[str, Observed], *, leave_out_unfit: bool
) -> Iterator[tuple[str, Label]]:
    """The labels that fit their results."""
    unfit = []
    for name, one in given.items():
        try:
            one.of(known[name])
        except InputError as error:  # noqa: PERF203 - each is told of by itself
            if not leave_out_unfit:
                raise
            unfit.append(str(error))
        else:
            yield name, one
    if unfit:
        msg = f"{len(unfit)} labels do not fit their results and are left out; the first: {unfit[0]}"
        warnings.warn(msg, CFCWarning, stacklevel=4)


def _found(connection: Connection, names: Sequence[str]) -> Iterable[Observed]:
    for start in range(0, len(names), PAGE):
        query = select(_results).where(_results.c.id.in_(names[start : start + PAGE]))
        yield from map(_observed, connection.execute(query))


def _count(connection: Connection, table: Any) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _unseen_results(connection: Connection, digest: str) -> list[tuple[int, Observed]]:
    unseen = (_results.c.artifact == digest) & ~_results.c.seen
    query = select(_results).where(unseen).order_by(_results.c.number).limit(PAGE)
    return [(row.number, _observed(row)) for row in connection.execute(query)]


def _unseen_labels(connection: Connection, digest: str) -> list[tuple[int, Observed, Label, float]]:
    query = (
        select(_results, _labels.c.number.label("label"), _labels.c.at.label("said"), _labels.c.correct)
        .add_columns(_labels.c.probability)
        .join_from(_labels, _results, _labels.c.result == _results.c.id)
        .where(_results.c.artifact == digest, ~_labels.c.seen)
        .order_by(_labels.c.number)
        .limit(PAGE)
    )
    return [
        (row.label, _observed(row), Label(row.id, json.loads(row.correct), row.probability), row.said)
        for row in connection.execute(query)
    ]


def _block(
    connection: Connection, sampled: LabelSamplingTest, before: float
) -> list[tuple[int, Observed, Label | None]]:
    """The next results whose labels have come, each with its label; none where there are too few yet."""
    query = (
        select(_results, _labels.c.correct, _labels.c.probability)
        .join_from(_results, _labels, _labels.c.result == _results.c.id, isouter=True)
        .where(
            _results.c.artifact == sampled.artifact.digest,
            _results.c.seen,
            _results.c.number > sampled.last,
            _results.c.at < before,
        )
        .order_by(_results.c.number)
        .limit(BLOCK)
    )
    rows = connection.execute(query).all()
    if len(rows) < BLOCK:
        return []
    return [
        (
            row.number,
            _observed(row),
            None if row.correct is None else Label(row.id, json.loads(row.correct), row.probability),
        )
        for row in rows
    ]


def _mark(connection: Connection, table: Any, numbers: Sequence[int]) -> None:
    if numbers:
        connection.execute(update(table).where(table.c.number.in_(numbers)).values(seen=True))


def _evidence(connection: Connection, artifact: CalibrationArtifact, now: float) -> Evidence:
    value = connection.execute(select(_facts.c.value).where(_facts.c.name == artifact.digest)).scalar()
    if value is None:
        return Evidence.begun(artifact, now)
    try:
        return Evidence.from_data(artifact, json.loads(value))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        msg = f"what tests have seen of {artifact.digest[:15]} is damaged ({error!r}): watch into a new store"
        raise StoreError(msg) from error


def _remember(connection: Connection, digest: str, data: Mapping[str, Any]) -> None:
    connection.execute(delete(_facts).where(_facts.c.name == digest))
    connection.execute(insert(_facts), {"name": digest, "value": json.dumps(data)})

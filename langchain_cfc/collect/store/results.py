"""What a store holds: finished records, failures, and the numbers that people look at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Connection, Integer, Select, func, select

from langchain_cfc._internal.database import Database
from langchain_cfc.candidates import JsonMetadata, LabelledBatch, kinds_of_json_prompts
from langchain_cfc.collect.stages import ModelCalls, Stage, Usage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.integrity import check_finished, verified_contents
from langchain_cfc.errors import StoreError
from langchain_cfc.records import PromptRecord

# Prompts that are read at a time.
PAGE = 500

_prompts, _draws, _scores, _labels, _calls = (
    schema.prompts,
    schema.draws,
    schema.scores,
    schema.labels,
    schema.calls,
)


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


def records(database: Database) -> Iterator[PromptRecord]:
    """The finished prompts in their order, a page at a time.

    Raises:
        StoreError: If one is not what was written, or was lost.
    """
    with database.reading() as connection:
        finished = verified_contents(database.name, connection).finished
    for some in pages(finished, PAGE):
        within = _prompts.c.position.between(some[0], some[-1])
        found = page(database, _prompts.c.stage == Stage.LABELLED, within)
        candidates = grouped(database, CANDIDATES.where(_draws.c.prompt.between(some[0], some[-1])))
        known = {row.position: row for row in found}
        for position in some:
            row, of_prompt = known[position], candidates[position]
            check_finished(database.name, row, list(zip(*of_prompt, strict=True)))
            yield rows.as_record(row, of_prompt)


def pages(positions: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Split positions into pages."""
    return (positions[start : start + size] for start in range(0, len(positions), size))


def failures(database: Database) -> list[Failure]:
    """The prompts that failed, in their order."""
    query = (
        select(_prompts.c.id, _prompts.c.stage, _prompts.c.error)
        .where(_prompts.c.error.is_not(None))
        .order_by(_prompts.c.position)
    )
    with database.reading() as connection:
        found = connection.execute(query).all()
    return [Failure(row.id, Stage(row.stage + 1), _said(row.error)) for row in found]


def stages(database: Database) -> dict[Stage, int]:
    """How many prompts have come how far, those that failed included."""
    query = select(_prompts.c.stage, func.count()).group_by(_prompts.c.stage)
    with database.reading() as connection:
        found = {int(stage): int(count) for stage, count in connection.execute(query)}
    return {stage: found.get(stage, 0) for stage in Stage}


def paid(database: Database) -> Usage:
    """What models took for all prompts."""
    query = select(
        _calls.c.model,
        func.max(_calls.c.drew.cast(Integer)),
        # PostgreSQL adds whole numbers up to a decimal one.
        func.sum(_calls.c.input_tokens).cast(BigInteger),
        func.sum(_calls.c.output_tokens).cast(BigInteger),
    ).group_by(_calls.c.model)
    with database.reading() as connection:
        found = connection.execute(query).all()
    return Usage(tuple(ModelCalls(model, bool(drew), *taken) for model, drew, *taken in found))


def seen(database: Database) -> tuple[int, dict[bool, tuple[int, float]]]:
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
    with database.reading() as connection:
        by_label = {bool(label): (count, total) for label, count, total in connection.execute(sums)}
        return connection.execute(covered).scalar_one(), by_label


def page(database: Database, *conditions: Any) -> Sequence[Any]:
    """The first prompts for which some conditions hold, in their order."""
    query = select(_prompts).where(*conditions).order_by(_prompts.c.position).limit(PAGE)
    with database.reading() as connection:
        return connection.execute(query).all()


def grouped(database: Database, query: Select[Any]) -> dict[int, list[Any]]:
    """What a query finds, ordered by prompt, by the position of the prompt."""
    with database.reading() as connection:
        found = connection.execute(query).all()
    return {prompt: list(group) for prompt, group in groupby(found, key=lambda row: row.prompt)}


def _same(one: Any, other: Any) -> Any:
    return (one.c.prompt == other.c.prompt) & (one.c.slot == other.c.slot)


# The columns that finished prompts are checked by, in the order that `checks.check_finished` takes them in.
CANDIDATES = (
    select(
        _draws.c.prompt,
        _draws.c.slot,
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


# Prompts whose candidates become arrays at a time.
_PAGE = 2000


def table(database: Database, n: int, names: Sequence[str]) -> LabelledBatch:
    """The finished prompts as arrays, without an object per candidate.

    Args:
        database: The store's.
        n: Number of candidates of each prompt.
        names: Verifiers whose raw outputs are wanted.

    Returns:
        The (N, n) draws with their labels, prompts in their order.

    Raises:
        StoreError: If no prompt is finished, one is not what was written or was lost, or a candidate lacks
            one of the raw outputs.
    """
    with database.snapshot() as connection:
        finished = verified_contents(database.name, connection).finished
        parts = [_part(database.name, connection, some, n, names) for some in pages(finished, _PAGE)]
    if not parts:
        msg = f"no prompt of {database.name} is finished yet"
        raise StoreError(msg)
    return LabelledBatch.joined(parts)


def _part(
    store: str, connection: Connection, positions: Sequence[int], n: int, names: Sequence[str]
) -> LabelledBatch:
    within = (
        _prompts.c.stage == int(Stage.LABELLED),
        _prompts.c.position.between(positions[0], positions[-1]),
    )
    rows = connection.execute(select(_prompts).where(*within).order_by(_prompts.c.position)).all()
    joined = CANDIDATES.join(_prompts, _prompts.c.position == _draws.c.prompt).where(*within)
    columns = list(zip(*connection.execute(joined), strict=True))
    if [row.position for row in rows] != list(positions) or len(columns[0]) != n * len(rows):
        msg = f"{store} is damaged: candidates of some of its prompts are gone"
        raise StoreError(msg)
    for number, row in enumerate(rows):
        check_finished(store, row, [column[number * n : (number + 1) * n] for column in columns])
    _, _, texts, _, scores, outputs, correct, extracted = columns
    shape = (len(rows), n)
    made = {answer is not None for answer in extracted}
    answers = [text if answer is None else answer for text, answer in zip(texts, extracted, strict=True)]
    return LabelledBatch.of(
        [row.id for row in rows],
        np.fromiter(scores, np.float64, len(scores)).reshape(shape),
        np.fromiter(correct, np.bool_, len(correct)).reshape(shape),
        [answers[start : start + n] for start in range(0, len(answers), n)],
        clusters=[row.cluster for row in rows],
        metadata=JsonMetadata.of(_metadata(row) for row in rows),
        raw=_raw(outputs, shape, names),
        extracted=made.pop() if len(made) == 1 else None,
        prompt_kinds=kinds_of_json_prompts(row.input for row in rows),
    )


def _metadata(row: Any) -> str:
    """JSON of both; what the metadata function says holds."""
    if row.described is None:
        text: str = row.metadata
        return text
    return json.dumps({**json.loads(row.metadata), **json.loads(row.described)})


def _raw(outputs: Sequence[str | None], shape: tuple[int, int], names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}
    parsed = [json.loads(one) if one is not None else {} for one in outputs]
    missing = next((name for name in names if any(name not in one for one in parsed)), None)
    if missing is not None:
        known = ", ".join(sorted(parsed[0])) or "none"
        msg = f"not every candidate has a raw output of {missing!r}; there are those of {known}"
        raise StoreError(msg)
    return {name: np.array([one[name] for one in parsed], dtype=np.float64).reshape(shape) for name in names}


_announced = schema.announced


@dataclass(frozen=True)
class History:
    """What the requests of a store took.

    Attributes:
        unanswered: Number of requests by stage that were announced and of which no answer was received.
        requests: Most requests that a stage of a prompt took.
        finished: Stages that a prompt has finished.
        prompts: Most that each model took for a stage of a prompt.
        calls: Most that each model took for a request of a stage, on the average over those counted together.
    """

    unanswered: Mapping[Stage, int]
    requests: Mapping[Stage, int]
    finished: frozenset[Stage]
    prompts: Mapping[Stage, Sequence[ModelCalls]]
    calls: Mapping[Stage, Sequence[ModelCalls]]


def history(database: Database) -> History:
    """Sum up the requests of a store.

    Args:
        database: The store's.
    """
    of_prompt = (
        select(
            _calls.c.stage,
            _calls.c.prompt,
            _calls.c.model,
            func.sum(_calls.c.input_tokens).label("input_tokens"),
            func.sum(_calls.c.output_tokens).label("output_tokens"),
            func.sum(_calls.c.answered).label("answered"),
        )
        .group_by(_calls.c.stage, _calls.c.prompt, _calls.c.model)
        .subquery()
    )
    most = [
        func.max(of_prompt.c.input_tokens),
        func.max(of_prompt.c.output_tokens),
        func.max(of_prompt.c.answered),
    ]
    prompts = select(of_prompt.c.stage, of_prompt.c.model, *most).group_by(
        of_prompt.c.stage, of_prompt.c.model
    )
    calls = (
        select(
            _calls.c.stage,
            _calls.c.model,
            func.max(1.0 * _calls.c.input_tokens / _calls.c.answered),
            func.max(1.0 * _calls.c.output_tokens / _calls.c.answered),
        )
        .where(_calls.c.answered > 0)
        .group_by(_calls.c.stage, _calls.c.model)
    )
    answered = select(_calls.c.stage, _calls.c.prompt, (-_calls.c.answered).label("requests"))
    both = (
        select(_announced.c.stage, _announced.c.prompt, _announced.c.requests).union_all(answered).subquery()
    )
    # What one prompt took beyond what was announced says nothing of another.
    open_ = (
        select(both.c.stage, func.sum(both.c.requests).label("requests"))
        .group_by(both.c.stage, both.c.prompt)
        .having(func.sum(both.c.requests) > 0)
        .subquery()
    )
    unanswered = select(open_.c.stage, func.sum(open_.c.requests)).group_by(open_.c.stage)
    with database.reading() as connection:
        last = connection.execute(select(func.max(_prompts.c.stage))).scalar() or 0
        by_prompt = connection.execute(prompts).all()
        by_call = connection.execute(calls).all()
        left = connection.execute(unanswered).all()
    requests: dict[Stage, int] = {}
    of_prompts: dict[Stage, list[ModelCalls]] = {}
    of_calls: dict[Stage, list[ModelCalls]] = {}
    for stage, model, *taken in by_prompt:
        into, out, count = map(int, taken)
        requests[Stage(stage)] = requests.get(Stage(stage), 0) + count
        of_prompts.setdefault(Stage(stage), []).append(ModelCalls(model, False, into, out))
    for stage, model, *each in by_call:
        into, out = (-int(-one // 1) for one in each)
        of_calls.setdefault(Stage(stage), []).append(ModelCalls(model, False, into, out))
    return History(
        {Stage(stage): int(count) for stage, count in left},
        requests,
        frozenset(stage for stage in Stage if Stage.OPEN < stage <= last),
        of_prompts,
        of_calls,
    )

"""What a store holds: finished records, failures, and the numbers that people look at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, func, select

from langchain_cfc.collect.stages import ModelCalls, Paid, Stage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.checks import check_finished
from langchain_cfc.collect.store.seal import verified_contents
from langchain_cfc.database import Database
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


def paid(database: Database) -> Paid:
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
    return Paid(tuple(ModelCalls(model, bool(drew), *taken) for model, drew, *taken in found))


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

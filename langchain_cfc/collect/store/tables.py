"""The finished prompts of a store as arrays: only numbers travel, and answers for as long as a page lasts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, func, select

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import schema
from langchain_cfc.database import Database
from langchain_cfc.draws import JsonMetadata, LabelledDraws
from langchain_cfc.errors import StoreError

# Prompts whose candidates become arrays at a time.
_PAGE = 2000

_prompts, _draws, _scores, _labels = schema.prompts, schema.draws, schema.scores, schema.labels
_CANDIDATES = (
    select(
        _scores.c.score,
        _labels.c.correct,
        func.coalesce(_labels.c.answer, _draws.c.text),
        _labels.c.answer.is_not(None),
        _scores.c.outputs,
    )
    .join_from(_draws, _scores, (_draws.c.prompt == _scores.c.prompt) & (_draws.c.slot == _scores.c.slot))
    .join(_labels, (_draws.c.prompt == _labels.c.prompt) & (_draws.c.slot == _labels.c.slot))
    .join(_prompts, _prompts.c.position == _draws.c.prompt)
    .order_by(_draws.c.prompt, _draws.c.slot)
)


def table(database: Database, n: int, names: Sequence[str]) -> LabelledDraws:
    """The finished prompts as arrays, without an object per candidate.

    Args:
        database: The store's.
        n: Number of candidates of each prompt.
        names: Verifiers whose raw outputs are wanted.

    Returns:
        The (N, n) draws with their labels, prompts in their order.

    Raises:
        StoreError: If no prompt is finished, or a candidate lacks one of the raw outputs.
    """
    with database.reading() as connection:
        parts = list(_parts(connection, n, names))
    if not parts:
        msg = f"no prompt of {database.name} is finished yet"
        raise StoreError(msg)
    return LabelledDraws.joined(parts)


def _parts(connection: Connection, n: int, names: Sequence[str]) -> Iterator[LabelledDraws]:
    finished = _prompts.c.stage == int(Stage.LABELLED)
    query = select(
        _prompts.c.position, _prompts.c.id, _prompts.c.cluster, _prompts.c.metadata, _prompts.c.described
    )
    after = -1
    while True:
        page = query.where(finished, _prompts.c.position > after).order_by(_prompts.c.position).limit(_PAGE)
        rows = connection.execute(page).all()
        if not rows:
            return
        first, after = rows[0].position, rows[-1].position
        within = _CANDIDATES.where(finished, _draws.c.prompt.between(first, after))
        yield _part(rows, _columns(connection, within), n, names)


def _columns(connection: Connection, query: Select[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*connection.execute(query), strict=True))


def _part(
    rows: Sequence[Any], columns: Sequence[Sequence[Any]], n: int, names: Sequence[str]
) -> LabelledDraws:
    scores, correct, answers, extracted, outputs = columns
    shape = (len(rows), n)
    made = set(map(bool, extracted))
    return LabelledDraws.of(
        [row.id for row in rows],
        np.fromiter(scores, np.float64, len(scores)).reshape(shape),
        np.fromiter(correct, np.bool_, len(correct)).reshape(shape),
        [answers[start : start + n] for start in range(0, len(answers), n)],
        clusters=[row.cluster for row in rows],
        metadata=JsonMetadata.of(_metadata(row) for row in rows),
        raw=_raw(outputs, shape, names),
        extracted=made.pop() if len(made) == 1 else None,
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

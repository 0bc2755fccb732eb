"""The finished prompts of a store as arrays: only numbers travel, and answers for as long as a page lasts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import schema
from langchain_cfc.collect.store.checks import check_finished
from langchain_cfc.collect.store.results import CANDIDATES, pages
from langchain_cfc.collect.store.seal import verified_contents
from langchain_cfc.database import Database
from langchain_cfc.draws import JsonMetadata, LabelledDraws, kinds_of_json_prompts
from langchain_cfc.errors import StoreError

# Prompts whose candidates become arrays at a time.
_PAGE = 2000

_prompts, _draws = schema.prompts, schema.draws


def table(database: Database, n: int, names: Sequence[str]) -> LabelledDraws:
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
    return LabelledDraws.joined(parts)


def _part(
    store: str, connection: Connection, positions: Sequence[int], n: int, names: Sequence[str]
) -> LabelledDraws:
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
    return LabelledDraws.of(
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

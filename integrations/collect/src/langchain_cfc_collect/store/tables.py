"""Queries on a store: finished candidates and claims, arrays of many candidates, and past requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
from sqlalchemy import Connection, case, func, select

from langchain_cfc._internal.metadata import JsonMetadata
from langchain_cfc.candidates import LabelledBatch, find_json_prompt_kinds
from langchain_cfc.errors import StoreError
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc_collect.costs import ModelCalls, RequestHistory, Stage, Usage
from langchain_cfc_collect.store import schema

_prompts, _draws, _claims = schema.prompts, schema.draws, schema.claims
_scores, _labels, _calls, _announced = schema.scores, schema.labels, schema.calls, schema.announced


def is_same_slot(one: Any, other: Any) -> Any:
    """Return the condition that rows of two tables belong to the same candidate or claim."""
    return (one.c.prompt == other.c.prompt) & (one.c.slot == other.c.slot)


# Columns of finished candidates, in the order that `check_finished` expects.
SELECT_CANDIDATES = (
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
    .join_from(_draws, _scores, is_same_slot(_draws, _scores))
    .join(_labels, is_same_slot(_draws, _labels))
    .order_by(_draws.c.prompt, _draws.c.slot)
)
# Finished claims, and all answers, the first of which were split into these claims.
SELECT_CLAIMS = (
    select(*_claims.c, _scores.c.score, _scores.c.outputs, _labels.c.correct, _labels.c.answer)
    .join_from(_claims, _scores, is_same_slot(_claims, _scores))
    .join(_labels, is_same_slot(_claims, _labels))
    .order_by(_claims.c.prompt, _claims.c.slot)
)
SELECT_ANSWERS = select(_draws.c.prompt, _draws.c.slot, _draws.c.text, _draws.c.data).order_by(
    _draws.c.prompt, _draws.c.slot
)


def read_batch(store: str, connection: Connection, positions: Sequence[int], n: int) -> LabelledBatch:
    """Return the candidates of the finished prompts at some positions as arrays."""
    within = (
        _prompts.c.stage == int(Stage.LABELLED),
        _prompts.c.position.between(positions[0], positions[-1]),
    )
    rows = connection.execute(select(_prompts).where(*within).order_by(_prompts.c.position)).all()
    joined = SELECT_CANDIDATES.join(_prompts, _prompts.c.position == _draws.c.prompt).where(*within)
    columns = list(zip(*connection.execute(joined), strict=True))
    if [row.position for row in rows] != list(positions) or len(columns[0]) != n * len(rows):
        msg = f"{store} is damaged: candidates of some prompts are missing"
        raise StoreError(msg)
    for number, row in enumerate(rows):
        schema.check_finished(store, row, [column[number * n : (number + 1) * n] for column in columns])
    _, _, texts, _, scores, _, correct, extracted = columns
    shape = (len(rows), n)
    is_extracted = {answer is not None for answer in extracted}
    answers = [text if answer is None else answer for text, answer in zip(texts, extracted, strict=True)]
    table = LabelledBatch.from_arrays(
        [row.id for row in rows],
        np.fromiter(scores, np.float64, len(scores)).reshape(shape),
        np.fromiter(map(bool, correct), np.bool_, len(correct)).reshape(shape),
        [answers[start : start + n] for start in range(0, len(answers), n)],
        clusters=[row.cluster for row in rows],
        metadata=JsonMetadata.of(_merge_metadata(row) for row in rows),
        extracted=is_extracted.pop() if len(is_extracted) == 1 else None,
        prompt_kinds=find_json_prompt_kinds(row.input for row in rows),
    )
    return replace(table, inputs=digest_inputs(json.loads(row.input) for row in rows))


def _merge_metadata(row: Any) -> str:
    """Return the dataset's metadata as JSON, updated by the output of the metadata function."""
    if row.described is None:
        text: str = row.metadata
        return text
    return json.dumps({**json.loads(row.metadata), **json.loads(row.described)})


def count_unscored(connection: Connection, *, has_claims: bool) -> dict[str, Any]:
    """Count what was not judged, as arguments of `describe_unscored`.

    `counts` are the drawn candidates that are no answer, by kind, and the candidates or claims without a
    verdict or without a readable label; `total` is the number of all drawn candidates.
    """
    kind = case((_draws.c.data.startswith('"'), _draws.c.data), (_draws.c.text == "", '"blank"'))
    kinds = select(kind, func.count()).where(kind.is_not(None)).group_by(kind)
    unjudged = select(func.count()).where(_scores.c.outputs == "null")
    if not has_claims:
        unjudged = unjudged.join_from(_scores, _draws, is_same_slot(_scores, _draws)).where(kind.is_(None))
    counts = {json.loads(name): count for name, count in connection.execute(kinds)}
    if no_verdict := connection.execute(unjudged).scalar():
        counts["no_verdict"] = no_verdict
    unread = select(func.count()).select_from(_labels).where(_labels.c.correct.is_(None))
    if no_label := connection.execute(unread).scalar():
        counts["no_label"] = no_label
    total = connection.execute(select(func.count()).select_from(_draws)).scalar()
    return {"counts": counts, "total": total}


def read_history(connection: Connection) -> RequestHistory:
    """Read the requests of all runs so far and their usage, by stage."""
    tokens, answered = (_calls.c.input_tokens, _calls.c.output_tokens), _calls.c.answered
    of_prompt = (
        select(
            _calls.c.stage,
            _calls.c.model,
            *(func.sum(one).label(one.name) for one in (*tokens, answered)),
            *(func.max(1.0 * one / func.nullif(answered, 0)).label(f"mean_{one.name}") for one in tokens),
        )
        .group_by(_calls.c.stage, _calls.c.prompt, _calls.c.model)
        .subquery()
    )
    of, counts = (of_prompt.c.stage, of_prompt.c.model), list(of_prompt.c)[2:]
    prompts: dict[Stage, Usage] = {}
    calls: dict[Stage, Usage] = {}
    for stage, model, *largest in connection.execute(select(*of, *map(func.max, counts)).group_by(*of)):
        # The means are null if no request was answered.
        tokens_in, tokens_out, requests, *means = (ceil(one or 0) for one in largest)
        one = Usage((ModelCalls(model, False, tokens_in, tokens_out),), requests)
        prompts[Stage(stage)] = prompts.get(Stage(stage), Usage()) + one
        calls[Stage(stage)] = calls.get(Stage(stage), Usage()) + Usage((ModelCalls(model, False, *means),))
    answers = select(_calls.c.stage, _calls.c.prompt, (-_calls.c.answered).label("requests"))
    both = (
        select(_announced.c.stage, _announced.c.prompt, _announced.c.requests).union_all(answers).subquery()
    )
    # Count per prompt: unannounced requests of one prompt must not offset unanswered ones of another.
    unanswered = (
        select(both.c.stage, func.sum(both.c.requests).label("requests"))
        .group_by(both.c.stage, both.c.prompt)
        .having(func.sum(both.c.requests) > 0)
        .subquery()
    )
    by_stage = select(unanswered.c.stage, func.sum(unanswered.c.requests)).group_by(unanswered.c.stage)
    last = connection.execute(select(func.max(_prompts.c.stage))).scalar() or 0
    return RequestHistory(
        {Stage(stage): int(count) for stage, count in connection.execute(by_stage)},
        frozenset(stage for stage in Stage if Stage.OPEN < stage <= last),
        prompts,
        calls,
    )

"""Queries on a store: finished candidates and claims, arrays of many candidates, and past requests."""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from sqlalchemy import Connection, case, func, select

from langchain_cfc_collect.costs import ModelCalls, RequestHistory, Stage, Usage
from langchain_cfc_collect.store import schema

_prompts, _draws, _claims = schema.prompts, schema.draws, schema.claims
_scores, _labels, _calls, _announced = schema.scores, schema.labels, schema.calls, schema.announced


def is_same_slot(one: Any, other: Any) -> Any:
    """Return the condition that rows of two tables belong to the same candidate or claim."""
    return (one.c.prompt == other.c.prompt) & (one.c.slot == other.c.slot)


# Finished candidates.
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

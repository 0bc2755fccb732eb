"""What the requests of all runs have used, and how many of them were never answered."""

from __future__ import annotations

from math import ceil

from sqlalchemy import Connection, func, select

from langchain_cfc.collect.costs import ModelCalls, RequestHistory, Stage, Usage
from langchain_cfc.collect.store import schema

_prompts, _calls, _announced = schema.prompts, schema.calls, schema.announced


def read_history(connection: Connection) -> RequestHistory:
    """Read the usage of the requests of all runs so far, by stage."""
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
    # Requests of one prompt beyond those announced must not hide unanswered ones of another.
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

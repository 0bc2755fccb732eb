"""Requests and usage of the stages of a store: what was announced, answered and paid for."""

from __future__ import annotations

from math import ceil
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, Select, func, insert, select

from langchain_cfc_collect.costs import ModelCalls, RequestHistory, Stage, Usage
from langchain_cfc_collect.store import schema
from langchain_cfc_collect.store.schema import Write

_calls = schema.calls.c
ADD_CALLS = insert(schema.calls)


def insert_calls(position: int, stage: Stage, usage: Usage, *, batched: bool = False) -> list[Write]:
    """Return the writes that store usage of a stage, or the part of it that is at batch prices."""
    if not usage:
        return []
    of = {"prompt": position, "stage": int(stage), "announced": 0, "batched": batched}
    return [(ADD_CALLS, [{**of, **vars(one)} for one in usage.calls])]


def announce_requests(position: int, stage: Stage, requests: int) -> list[Write]:
    """Return the writes that announce requests, or take back those that were not made (if negative)."""
    if not requests:
        return []
    (statement, [row]) = insert_calls(position, stage, Usage((ModelCalls("", False, 0, 0),)))[0]
    return [(statement, [{**row, "announced": requests}])]


def read_usage(connection: Connection, *, batched: bool = False) -> Usage:
    """Read the usage of all stages, or the part of it that is at batch prices, by model."""
    query: Select[Any] = (
        select(
            _calls.model,
            func.max(_calls.drew.cast(Integer)),
            # In PostgreSQL, sums of integers are decimal numbers.
            *(func.sum(one).cast(BigInteger) for one in (_calls.input_tokens, _calls.output_tokens)),
            func.sum(_calls.answered).cast(Integer),
        )
        .where(_calls.announced == 0, _calls.batched.is_(batched))
        .group_by(_calls.model)
    )
    rows = connection.execute(query)
    return Usage(tuple(ModelCalls(model, bool(drew), *counts) for model, drew, *counts in rows))


def read_history(connection: Connection) -> RequestHistory:
    """Read the requests of all runs so far and their usage, by stage."""
    tokens = (_calls.input_tokens, _calls.output_tokens)
    of_prompt = (
        select(
            _calls.stage,
            _calls.model,
            *(func.sum(one).label(one.name) for one in (*tokens, _calls.answered)),
            *(
                func.max(1.0 * one / func.nullif(_calls.answered, 0)).label(f"mean_{one.name}")
                for one in tokens
            ),
        )
        .where(_calls.announced == 0, _calls.batched.is_(False))
        .group_by(_calls.stage, _calls.prompt, _calls.model)
        .subquery()
    )
    of, counts = (of_prompt.c.stage, of_prompt.c.model), list(of_prompt.c)[2:]
    prompts: dict[Stage, Usage] = {}
    calls: dict[Stage, Usage] = {}
    for stage, model, *largest in connection.execute(select(*of, *map(func.max, counts)).group_by(*of)):
        # The means are null if no request was answered.
        tokens_in, tokens_out, requests, *means = (ceil(one or 0) for one in largest)
        one = Usage((ModelCalls(model, False, tokens_in, tokens_out, requests),))
        prompts[Stage(stage)] = prompts.get(Stage(stage), Usage()) + one
        calls[Stage(stage)] = calls.get(Stage(stage), Usage()) + Usage((ModelCalls(model, False, *means),))
    # Count per prompt: unannounced requests of one prompt must not offset unanswered ones of another.
    left = func.sum(_calls.announced - _calls.answered)
    unanswered = (
        select(_calls.stage, left.label("requests"))
        .where(_calls.batched.is_(False))
        .group_by(_calls.stage, _calls.prompt)
        .having(left > 0)
        .subquery()
    )
    by_stage = select(unanswered.c.stage, func.sum(unanswered.c.requests)).group_by(unanswered.c.stage)
    last = connection.execute(select(func.max(schema.prompts.c.stage))).scalar() or 0
    return RequestHistory(
        {Stage(stage): int(count) for stage, count in connection.execute(by_stage)},
        frozenset(stage for stage in Stage if Stage.OPEN < stage <= last),
        prompts,
        calls,
    )

"""Requests and usage of the stages of a store: what was announced, answered and paid for."""

from __future__ import annotations

from collections import Counter
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
    by_prompt = (_calls.stage, _calls.prompt, _calls.model)
    query = select(
        *by_prompt,
        *map(func.sum, (_calls.announced, *tokens, _calls.answered)),
        # Null if no request was answered.
        *(func.max(1.0 * one / func.nullif(_calls.answered, 0)) for one in tokens),
    ).where(_calls.batched.is_(False))
    # Counted per prompt: unannounced requests of one prompt must not offset unanswered ones of another.
    left: Counter[tuple[Stage, int]] = Counter()
    largest: dict[tuple[Stage, str], list[int]] = {}
    for stage, prompt, model, announced, *counts in connection.execute(query.group_by(*by_prompt)):
        tokens_in, tokens_out, answered, *means = (ceil(one or 0) for one in counts)
        left[Stage(stage), prompt] += int(announced) - answered
        if answered:
            known = largest.setdefault((Stage(stage), model), [0] * len(counts))
            known[:] = map(max, known, (tokens_in, tokens_out, answered, *means))
    unanswered: Counter[Stage] = Counter()
    for (stage, _), requests in (+left).items():
        unanswered[stage] += requests
    prompts: dict[Stage, Usage] = {}
    calls: dict[Stage, Usage] = {}
    for (stage, model), (tokens_in, tokens_out, answered, *means) in largest.items():
        one = Usage((ModelCalls(model, False, tokens_in, tokens_out, answered),))
        prompts[stage] = prompts.get(stage, Usage()) + one
        calls[stage] = calls.get(stage, Usage()) + Usage((ModelCalls(model, False, *means),))
    last = connection.execute(select(func.max(schema.prompts.c.stage))).scalar() or 0
    finished = frozenset(stage for stage in Stage if Stage.OPEN < stage <= last)
    return RequestHistory(unanswered, finished, prompts, calls)

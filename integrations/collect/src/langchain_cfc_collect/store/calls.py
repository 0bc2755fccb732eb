"""Requests and usage of the stages of a store: what was announced, answered and paid for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, Select, func, insert, select

from langchain_cfc_collect.costs import ModelCalls, Stage, Usage
from langchain_cfc_collect.store import schema
from langchain_cfc_collect.store.schema import Write

_calls = schema.calls.c
ADD_CALLS = insert(schema.calls)


def insert_calls(position: int, stage: Stage, usage: Usage, *, batched: bool = False) -> list[Write]:
    """Return the writes that store usage of a stage, or the part of it that is at batch prices."""
    of = {"prompt": position, "stage": int(stage), "announced": 0, "batched": batched}
    return [(ADD_CALLS, {**of, **vars(one)}) for one in usage.calls]


def announce_requests(position: int, stage: Stage, requests: int) -> list[Write]:
    """Return the writes that announce requests, or take back those that were not made (if negative)."""
    if not requests:
        return []
    ((statement, row),) = insert_calls(position, stage, Usage((ModelCalls("", False, 0, 0),)))
    return [(statement, {**row, "announced": requests})]


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


def read_stages(connection: Connection) -> Iterator[tuple[Stage, Usage, int]]:
    """Yield the usage of each stage of each prompt, with the number of its requests without an answer."""
    keys = (_calls.stage, _calls.prompt, _calls.model)
    sums = map(func.sum, (_calls.announced, _calls.input_tokens, _calls.output_tokens, _calls.answered))
    query = select(*keys, *sums).where(_calls.batched.is_(False)).group_by(*keys).order_by(*keys)
    for (stage, _), rows in groupby(connection.execute(query).all(), lambda row: row[:2]):
        announced, calls = 0, []
        for _, _, model, requests, *counts in rows:
            announced += int(requests)
            if any(counts):
                calls.append(ModelCalls(model, False, *map(int, counts)))
        usage = Usage(tuple(calls))
        yield Stage(stage), usage, max(0, announced - usage.answered)

"""What requests took so far, stage by stage, and which of them were never answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from langchain_cfc.collect.stages import ModelCalls, Stage
from langchain_cfc.collect.store import schema
from langchain_cfc.database import Database

_prompts, _calls = schema.prompts, schema.calls
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

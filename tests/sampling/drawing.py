"""Candidates drawn from a generator by sync and by async calls, and their texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from langchain_cfc.sampling import DrawnCandidate, Sampler, SamplingName, resolve_generator

PROMPT = "where?"

Draw: TypeAlias = Callable[..., list[DrawnCandidate]]


def draw_sync(
    generator: Any,
    n: int = 3,
    sampling: SamplingName = "requests",
    *,
    prompt: Any = PROMPT,
    config: RunnableConfig | None = None,
) -> list[DrawnCandidate]:
    """Candidates by the sync path."""
    return Sampler(resolve_generator(generator), sampling).draw(prompt, n, config)


def draw_async(
    generator: Any,
    n: int = 3,
    sampling: SamplingName = "requests",
    *,
    prompt: Any = PROMPT,
    config: RunnableConfig | None = None,
) -> list[DrawnCandidate]:
    """Candidates by the async path."""
    return asyncio.run(Sampler(resolve_generator(generator), sampling).adraw(prompt, n, config))


def sorted_texts(draws: list[DrawnCandidate]) -> list[str]:
    """Their texts in a fixed order: requests at the same time are numbered in any order."""
    return sorted(one.text for one in draws)


def numbered_answers(count: int) -> list[str]:
    """The first answers of a model that numbers them."""
    return [f"answer {number}" for number in range(count)]

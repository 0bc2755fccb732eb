"""`CFCRunnable` beside the same calls by hand, everything in memory."""

from __future__ import annotations

import asyncio

from benchmarks.alternate import Ratio, in_turn, in_turn_async
from benchmarks.in_memory import (
    FEATURES,
    FEW,
    InMemoryModel,
    N,
    by_hand,
    by_hand_async,
    calibrated,
    doubled,
    in_memory_judge,
)
from benchmarks.serving_results import Overhead, Way
from langchain_cfc import CFCRunnable
from langchain_cfc.verifiers import pointwise


class Pair:
    """The two ways to serve a prompt.

    Args:
        chain: Ours; its model and judge are the ones called by hand.
        model: The model.
    """

    def __init__(self, chain: CFCRunnable, model: InMemoryModel) -> None:
        self._chain, self._model, self._judge = chain, model, in_memory_judge()

    def check(self) -> None:
        """Refuse to time ways that do not do the same.

        Raises:
            AssertionError: If their scores differ; slots may, for threads take answers as they come.
        """
        prompt = _prompt(0)
        served = sorted(one.score for one in self._chain.invoke(prompt).candidates)
        if served != sorted(by_hand(self._model, self._judge, prompt)):
            msg = "what is served and what is made by hand have different scores"
            raise AssertionError(msg)

    def plain(self, rounds: int) -> list[list[float]]:
        """Seconds of ours, by hand, and by hand again."""

        def ours(number: int) -> object:
            return self._chain.invoke(_prompt(number))

        def hand(number: int) -> object:
            return by_hand(self._model, self._judge, _prompt(number))

        return in_turn([ours, hand, hand], rounds)

    def awaited(self, rounds: int) -> list[list[float]]:
        """The same, asynchronously."""

        async def ours(number: int) -> object:
            return await self._chain.ainvoke(_prompt(number))

        async def hand(number: int) -> object:
            return await by_hand_async(self._model, self._judge, _prompt(number))

        return asyncio.run(in_turn_async([ours, hand, hand], rounds))


def overhead(rounds: int) -> list[Overhead]:
    """Every row: plain and async, all candidates distinct and few of them.

    Args:
        rounds: How often each way is timed.
    """
    artifact = calibrated(doubled(), FEATURES)
    rows: list[Overhead] = []
    for distinct in (N, FEW):
        model = InMemoryModel(distinct=distinct)
        chain = CFCRunnable(generator=model, verifier=pointwise(in_memory_judge()), artifact=artifact)
        pair = Pair(chain, model)
        pair.check()
        rows += [
            _row("invoke", distinct, pair.plain(rounds)),
            _row("ainvoke", distinct, pair.awaited(rounds)),
        ]
    return rows


def _row(way: Way, distinct: int, taken: list[list[float]]) -> Overhead:
    ours, hand, again = taken
    return Overhead(way=way, distinct=distinct, ratio=Ratio.of(ours, hand), control=Ratio.of(again, hand))


def _prompt(number: int) -> str:
    return f"question {abs(number)}"

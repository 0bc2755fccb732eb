"""One prompt over real HTTP, against the ideal: one latency to draw and one to verify."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI

from benchmarks.alternate import Ratio, in_turn, in_turn_async
from benchmarks.in_memory import FEATURES, FEW, N, by_hand, by_hand_async, calibrated, doubled
from benchmarks.serving_results import Http, Requests, Way
from benchmarks.slow_server import JUDGE, counted, slow_server
from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.verifiers import pointwise

WARM = 1  # rounds before any counts: connections are made then
BOUNDS = (None, N)


class Line:
    """Clients of the server, and both ways to use them.

    Args:
        base_url: Address of the server.
        artifact: The artifact.
        distinct: Number of different answers.
    """

    def __init__(self, base_url: str, artifact: CalibrationArtifact, distinct: int) -> None:
        client: dict[str, Any] = {"base_url": base_url, "api_key": "none", "max_retries": 0}
        self._model = ChatOpenAI(model=f"distinct-{distinct}", **client)
        self._judge: Runnable[Any, float] = (
            RunnableLambda(_question) | ChatOpenAI(model=JUDGE, **client) | RunnableLambda(_number)
        )
        self._chain = CFCRunnable(generator=self._model, verifier=pointwise(self._judge), artifact=artifact)

    def invoke(self, number: int, config: RunnableConfig | None = None) -> object:
        """Ours."""
        return self._chain.invoke(f"question {number}", config)

    def hand(self, number: int, config: RunnableConfig | None = None) -> object:
        """By hand."""
        return by_hand(self._model, self._judge, f"question {number}", config)

    async def ainvoke(self, number: int, config: RunnableConfig | None = None) -> object:
        """Ours, asynchronously."""
        return await self._chain.ainvoke(f"question {number}", config)

    async def ahand(self, number: int, config: RunnableConfig | None = None) -> object:
        """By hand, asynchronously."""
        return await by_hand_async(self._model, self._judge, f"question {number}", config)


def over_http(rounds: int, draw: float, verify: float) -> tuple[list[Http], list[Requests]]:
    """Times and numbers of requests.

    Args:
        rounds: How often each way is timed.
        draw: Seconds until the server sends a candidate.
        verify: Seconds until it sends a judgement.
    """
    os.environ["NO_PROXY"] = "127.0.0.1"
    artifact = calibrated(doubled(), FEATURES)
    with slow_server(draw, verify) as base_url:
        lines = {distinct: Line(base_url, artifact, distinct) for distinct in (N, FEW)}
        rows = [_plain(lines[N], bound, rounds, draw + verify) for bound in BOUNDS]
        counts = [_requests(base_url, line, distinct) for distinct, line in lines.items()]
        # One event loop for all, for connections live in it.
        arows, acounts = asyncio.run(_awaited(base_url, lines, rounds, draw + verify))
    return rows + arows, counts + acounts


def _plain(line: Line, bound: int | None, rounds: int, ideal: float) -> Http:
    config = _config(bound)
    taken = in_turn(
        [lambda number: line.invoke(number, config), lambda number: line.hand(number, config)], rounds, WARM
    )
    return _row("invoke", bound, taken, ideal)


async def _awaited(
    base_url: str, lines: dict[int, Line], rounds: int, ideal: float
) -> tuple[list[Http], list[Requests]]:
    line, rows = lines[N], []
    for bound in BOUNDS:
        config = _config(bound)
        calls = [
            lambda number, config=config: line.ainvoke(number, config),
            lambda number, config=config: line.ahand(number, config),
        ]
        rows.append(_row("ainvoke", bound, await in_turn_async(calls, rounds, WARM), ideal))
    return rows, [await _arequests(base_url, line, distinct) for distinct, line in lines.items()]


def _row(way: Way, bound: int | None, taken: list[list[float]], ideal: float) -> Http:
    ours, hand = (Ratio.of(seconds, [ideal] * len(seconds)) for seconds in taken)
    return Http(way=way, max_concurrency=bound, ours=ours, by_hand=hand)


def _requests(base_url: str, line: Line, distinct: int) -> Requests:
    counted(base_url)
    line.invoke(1, _config(N))
    ours = counted(base_url)
    line.hand(1, _config(N))
    return _counts("invoke", distinct, ours, counted(base_url))


async def _arequests(base_url: str, line: Line, distinct: int) -> Requests:
    counted(base_url)
    await line.ainvoke(1, _config(N))
    ours = counted(base_url)
    await line.ahand(1, _config(N))
    return _counts("ainvoke", distinct, ours, counted(base_url))


def _counts(way: Way, distinct: int, ours: dict[str, int], hand: dict[str, int]) -> Requests:
    drawn = sum(count for model, count in ours.items() if model != JUDGE)
    return Requests(way=way, distinct=distinct, drawn=drawn, judged=ours[JUDGE], judged_by_hand=hand[JUDGE])


def _config(bound: int | None) -> RunnableConfig:
    return RunnableConfig() if bound is None else RunnableConfig(max_concurrency=bound)


def _question(pair: dict[str, str]) -> str:
    return f"How wrong is {pair['candidate']!r} as an answer to {pair['prompt']!r}, from 0 to 1?"


def _number(message: Any) -> float:
    return float(message.text)

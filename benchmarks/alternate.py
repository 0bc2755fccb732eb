"""Two ways of doing the same thing, timed in turn, so that whatever slows the machine slows both."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from benchmarks.ours import quiet, seconds_of
from benchmarks.results import Part

WARM = 3  # rounds before any counts
LEAST = 6  # rounds that an interval needs
OUTSIDE = 0.05  # chance that an interval misses


class Ratio(Part):
    """One time over another, round by round.

    Attributes:
        median: Median of the rounds' ratios.
        low: Lower end of an interval around the ratios' true median.
        high: Upper end.
        rounds: Number of rounds.
        seconds: Median seconds of the one.
        other: Median seconds of the other.
    """

    median: float
    low: float
    high: float
    rounds: int
    seconds: float
    other: float

    @classmethod
    def of(cls, seconds: Sequence[float], other: Sequence[float]) -> Ratio:
        """From the seconds of both in each round.

        The interval runs between two order statistics. Were the rounds independent, it would miss the median
        in at most one run of twenty, whatever the law of the ratios (the sign test's).
        """
        ratios = np.sort(np.array(seconds) / np.array(other))
        rank = _rank(len(ratios))
        return cls(
            median=float(np.median(ratios)),
            low=float(ratios[rank - 1]),
            high=float(ratios[-rank]),
            rounds=len(ratios),
            seconds=float(np.median(seconds)),
            other=float(np.median(other)),
        )


def in_turn(calls: Sequence[Callable[[int], object]], rounds: int, warm: int = WARM) -> list[list[float]]:
    """Seconds of each call in each round; every other round runs backwards.

    Args:
        calls: What to time, given the number of the round.
        rounds: How many rounds count.
        warm: How many come before.

    Returns:
        A list of seconds for each call.
    """
    found: list[list[float]] = [[] for _ in calls]
    with quiet():
        for number in range(-warm, rounds):
            for which in _order(len(calls), number):
                taken = seconds_of(lambda call=calls[which], number=number: call(number))  # type: ignore[misc]
                if number >= 0:
                    found[which].append(taken)
    return found


async def in_turn_async(
    calls: Sequence[Callable[[int], Awaitable[object]]], rounds: int, warm: int = WARM
) -> list[list[float]]:
    """The same for calls that are awaited."""
    found: list[list[float]] = [[] for _ in calls]
    with quiet():
        for number in range(-warm, rounds):
            for which in _order(len(calls), number):
                start = time.perf_counter()
                await calls[which](number)
                taken = time.perf_counter() - start
                if number >= 0:
                    found[which].append(taken)
    return found


def _order(count: int, number: int) -> range:
    return range(count) if number % 2 == 0 else range(count - 1, -1, -1)


def _rank(rounds: int) -> int:
    """The largest rank k, from 1, with 2 P(Binomial(rounds, 1/2) < k) at most `OUTSIDE`."""
    if rounds < LEAST:
        msg = f"{rounds} rounds give no interval: at least {LEAST} are needed"
        raise ValueError(msg)
    rank, below = 0, 0.0
    while 2 * (below + math.comb(rounds, rank) / 2**rounds) <= OUTSIDE:
        below += math.comb(rounds, rank) / 2**rounds
        rank += 1
    return rank

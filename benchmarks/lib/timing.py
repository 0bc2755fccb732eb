"""Timing of alternatives in turn, so that whatever slows the machine slows all of them."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.lib.tables import format_number

WARM_ROUNDS = 3  # rounds that do not count
LEAST_ROUNDS = 6  # rounds that an interval needs
MISS_PROBABILITY = 0.05  # of an interval


class Data(BaseModel):
    """Base of what a benchmark finds: strict and immutable. Times are in seconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Times(Data):
    """The seconds that repeated calls have taken.

    Attributes:
        p50: Median.
        p90: 90 % quantile.
        count: Number of calls.
    """

    p50: float
    p90: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Summarize the seconds of at least one call."""
        return cls(p50=float(np.median(seconds)), p90=float(np.quantile(seconds, 0.9)), count=len(seconds))


class Ratio(Data):
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
        """Compute the ratios of both times in each round.

        The interval runs between two order statistics. Were the rounds independent, it would miss the median
        in at most one run of twenty, whatever the law of the ratios (the sign test's).
        """
        ratios = np.sort(np.array(seconds) / np.array(other))
        rank = _find_rank(len(ratios))
        return cls(
            median=float(np.median(ratios)),
            low=float(ratios[rank - 1]),
            high=float(ratios[-rank]),
            rounds=len(ratios),
            seconds=float(np.median(seconds)),
            other=float(np.median(other)),
        )

    def __str__(self) -> str:
        """Format the median and its interval for a table."""
        median, low, high = map(format_number, (self.median, self.low, self.high))
        return f"{median} [{low}, {high}]"

    def invert(self) -> Ratio:
        """Return the ratio of the other time over the one."""
        return Ratio(
            median=1 / self.median,
            low=1 / self.high,
            high=1 / self.low,
            rounds=self.rounds,
            seconds=self.other,
            other=self.seconds,
        )


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Collect garbage now, and none while something is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def time_in_turn(
    calls: Sequence[Callable[[int], object]], rounds: int, warm: int = WARM_ROUNDS
) -> list[list[float]]:
    """Return the seconds of each call in each round; calls take the number of the round.

    Every other round runs backwards, and the warm rounds that come first do not count.
    """
    found: list[list[float]] = [[] for _ in calls]
    with pause_garbage_collection():
        for number, which in _order_calls(len(calls), rounds, warm):
            start = time.perf_counter()
            calls[which](number)
            taken = time.perf_counter() - start
            if number >= 0:
                found[which].append(taken)
    return found


async def time_in_turn_async(
    calls: Sequence[Callable[[int], Awaitable[object]]], rounds: int, warm: int = WARM_ROUNDS
) -> list[list[float]]:
    """Do the same with calls that are awaited."""
    found: list[list[float]] = [[] for _ in calls]
    with pause_garbage_collection():
        for number, which in _order_calls(len(calls), rounds, warm):
            start = time.perf_counter()
            await calls[which](number)
            taken = time.perf_counter() - start
            if number >= 0:
                found[which].append(taken)
    return found


def _order_calls(count: int, rounds: int, warm: int) -> Iterator[tuple[int, int]]:
    for number in range(-warm, rounds):
        for which in range(count) if number % 2 == 0 else reversed(range(count)):
            yield number, which


def _find_rank(rounds: int) -> int:
    """Return the largest rank k, from 1, with 2 P(Binomial(rounds, 1/2) < k) at most `MISS_PROBABILITY`."""
    if rounds < LEAST_ROUNDS:
        msg = f"{rounds} rounds give no interval: at least {LEAST_ROUNDS} are needed"
        raise ValueError(msg)
    rank, below = 0, 0.0
    while 2 * (below + math.comb(rounds, rank) / 2**rounds) <= MISS_PROBABILITY:
        below += math.comb(rounds, rank) / 2**rounds
        rank += 1
    return rank

"""What a run of `load.py` found, with times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLED = 1000
SEED = 8

# From the numbers of rounds, some of them several times, to a figure.
Figure: TypeAlias = Callable[[NDArray[np.integer[Any]]], float]


@dataclass(frozen=True)
class Round:
    """The latencies of one side in one round.

    Attributes:
        seconds: From due to answered, of every request.
        own: Cores that its processes kept busy.
        others: Cores that whatever else runs on the machine kept busy meanwhile.
        load: Load average of the minute before its end.
    """

    seconds: tuple[float, ...]
    own: float
    others: float
    load: float


@dataclass(frozen=True)
class Saturation:
    """Answers a second when every client asks again as soon as it is answered.

    Attributes:
        server: In each round.
        chain: Likewise, of the chain itself.
    """

    server: tuple[float, ...]
    chain: tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """A figure with an interval around it, 95 % if rounds were independent.

    Attributes:
        value: The figure.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Load:
    """The results of one run of the benchmark.

    Attributes:
        seconds: Of one side in one round.
        saturation: What was reached at most.
        rounds: For every side, its rounds.
    """

    seconds: float
    saturation: Saturation
    rounds: dict[str, tuple[Round, ...]]

    def compute_quantile(self, name: str, share: float) -> Interval:
        """Return a quantile of a side's latencies over all rounds."""
        return self._resample(lambda chosen: _quantile(self.rounds[name], chosen, share))

    def compare_quantiles(self, name: str, share: float, to: str = "chain") -> Interval:
        """Return how much larger a side's quantile is than another's; a bootstrap over rounds, in pairs."""
        return self._resample(
            lambda chosen: (
                _quantile(self.rounds[name], chosen, share) - _quantile(self.rounds[to], chosen, share)
            )
        )

    def _resample(self, figure: Figure) -> Interval:
        count = len(self.rounds["chain"])
        draw = np.random.default_rng(SEED)
        values = [figure(draw.integers(count, size=count)) for _ in range(RESAMPLED)]
        low, high = np.quantile(values, [0.025, 0.975])
        return Interval(value=figure(np.arange(count)), low=float(low), high=float(high))


def _quantile(rounds: Sequence[Round], chosen: NDArray[np.integer[Any]], share: float) -> float:
    """Return a quantile of all latencies of some rounds together."""
    return float(np.quantile(np.concatenate([rounds[number].seconds for number in chosen]), share))

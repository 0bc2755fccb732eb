"""What a run of `load.py` found, as strict data: times in seconds, nothing that names a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.timing import Data

RESAMPLED = 1000
SEED = 8

# From the numbers of rounds, some of them several times, to a figure.
Figure: TypeAlias = Callable[[NDArray[np.integer[Any]]], float]


class Round(Data):
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


class Saturation(Data):
    """Answers a second when every client asks again as soon as it is answered.

    Attributes:
        server: In each round.
        chain: Likewise, of the chain itself.
    """

    server: tuple[float, ...]
    chain: tuple[float, ...]


class Interval(Data):
    """A figure with an interval around it, 95 % if rounds were independent.

    Attributes:
        value: The figure.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


class Load(Data):
    """The results of one run of the benchmark.

    Attributes:
        versions: Python and packages.
        machine: System, processor architecture and number of cores.
        seconds: Of one side in one round.
        saturation: What was reached at most.
        rounds: For every side, its rounds.
    """

    versions: dict[str, str]
    machine: str
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

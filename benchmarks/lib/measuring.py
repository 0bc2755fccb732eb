"""What every benchmark needs: one BLAS thread, timing of alternatives in turn, and tables for the terminal.

Needs neither NumPy nor our package when imported, because threads must be limited before either is.
"""

from __future__ import annotations

import gc
import importlib.metadata
import math
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
WARM_ROUNDS = 3  # rounds that do not count
LEAST_ROUNDS = 6  # rounds that an interval needs
MISS_PROBABILITY = 0.05  # of an interval
# BLAS with two threads on 3 x 3 matrices costs milliseconds.
VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def limit_threads() -> None:
    """Limit this process and its children to one thread; to be called before NumPy is imported."""
    if "numpy" in sys.modules and any(os.environ.get(name) != "1" for name in VARIABLES[:2]):
        msg = f"NumPy was imported before the threads were limited: set {' and '.join(VARIABLES[:2])} to 1"
        raise SystemExit(msg)
    os.environ.update(dict.fromkeys(VARIABLES, "1"))


def read_memory(what: str) -> int | None:
    """Return the bytes of `VmRSS`, resident now, or `VmHWM`, the peak; None where Linux does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what + ":")), None)


@dataclass(frozen=True)
class Ratio:
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
        ratios = sorted(one / two for one, two in zip(seconds, other, strict=True))
        rank = _find_rank(len(ratios))
        return cls(
            median(ratios), ratios[rank - 1], ratios[-rank], len(ratios), median(seconds), median(other)
        )

    def __str__(self) -> str:
        """Format the median and its interval for a table."""
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def list_cells(self) -> tuple[str, str, str]:
        """Return the ratio and both times for a table."""
        return str(self), format_seconds(self.seconds), format_seconds(self.other)


RATIO_HEADINGS = ("ratio", "the one", "the other")


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


def format_seconds(seconds: float) -> str:
    """Format a time in the unit that reads best.

    >>> format_seconds(3.456e-5), format_seconds(0.0123), format_seconds(4.5)
    ('34.6 us', '12.3 ms', '4.5 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:  # noqa: PLR2004 - else the next unit
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""
) -> None:
    """Print a table; outside a terminal it is wide enough for every column."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=note, box=None, title_justify="left")
    table.caption_justify = "left"
    for place, heading in enumerate(headings):
        is_numeric = any(str(row[place])[:1].isdigit() for row in rows)
        table.add_column(heading, justify="right" if is_numeric else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console = Console()
    console = console if console.is_terminal else Console(width=200)
    console.print(table)
    console.print()


def describe_run(packages: Sequence[str]) -> str:
    """Return system, architecture, cores and versions; nothing that identifies the machine."""
    machine = f"{platform.system()} on {platform.machine()} with {os.cpu_count()} cores"
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return ", ".join([machine, f"python {platform.python_version()}", *versions])

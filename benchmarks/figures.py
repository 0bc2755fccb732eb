"""The figures to reach, beside what a run measured; the worst over the kinds of problems counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks.results import Agreement, Cell, PeerFigures, Results

SMALL, MIDDLE, LARGE, HUGE = 1_000, 10_000, 100_000, 1_000_000


@dataclass(frozen=True)
class Found:
    """A measured figure.

    Attributes:
        value: The figure.
        where: What it was measured on.
        at_least: It is only a lower bound, for a peer was stopped.
    """

    value: float
    where: str
    at_least: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure to reach.

    Attributes:
        name: What it says.
        limit: The bound.
        found: What was measured, over problems; empty if nothing was.
        most: Whether the bound is an upper one.
        unit: Put behind numbers.
    """

    name: str
    limit: float
    found: tuple[Found, ...]
    most: bool = True
    unit: str = ""

    @property
    def worst(self) -> Found | None:
        """The measurement that is furthest from the bound's good side."""
        choose = max if self.most else min
        return choose(self.found, key=lambda found: found.value) if self.found else None

    @property
    def verdict(self) -> str:
        """Met, not met, or not measured."""
        worst = self.worst
        if worst is None:
            return "not measured"
        met = worst.value <= self.limit if self.most else worst.value >= self.limit
        if not met and worst.at_least:
            return "unknown: the peer was stopped"
        return "met" if met else "not met"


def prepared(peer: PeerFigures) -> tuple[float, bool] | None:
    """Seconds of the base regression, and whether they are only what it takes at least."""
    if peer.prepare is not None:
        return peer.prepare, False
    return None if peer.at_least is None else (peer.at_least, True)


def asked(peer: PeerFigures) -> tuple[float, bool] | None:
    """Median seconds of a threshold, and whether they are only what it takes at least."""
    if peer.query is not None:
        return peer.query.p50, False
    return None if peer.prepare is None or peer.at_least is None else (peer.at_least, True)


def _ratios(
    cells: Iterable[Cell],
    name: str,
    step: Callable[[PeerFigures], tuple[float, bool] | None],
    ours: Callable[[Cell], float | None],
) -> Iterator[Found]:
    for cell in cells:
        seconds = step(cell.peers[name]) if name in cell.peers else None
        mine = ours(cell)
        if seconds is not None and mine:
            yield Found(seconds[0] / mine, place(cell), seconds[1])


def place(cell: Cell) -> str:
    """A cell in words."""
    return f"{cell.kind}, d = {cell.d}, N = {cell.n:,}" + (f", ridge {cell.ridge:g}" if cell.ridge else "")


def _calibrate(cell: Cell) -> float:
    return cell.ours.calibrate.p50


def _cold(cell: Cell) -> float:
    return cell.ours.cold.p50


def _amortised(cell: Cell) -> float | None:
    return None if cell.ours.batch_cold is None else cell.ours.batch_cold / cell.ours.batch


def _growth(results: Results) -> Iterator[Found]:
    small = {(cell.kind, cell.d): _cold(cell) for cell in results.at(n=SMALL)}
    for cell in results.at(n=HUGE):
        if (cell.kind, cell.d) in small:
            yield Found(_cold(cell) / small[cell.kind, cell.d], place(cell))


def _atoms(results: Results, d: int) -> Iterator[Found]:
    """A batch where scores have atoms, relative to one where they are continuous."""
    cells = {(cell.kind, cell.n): cell for cell in results.cells if cell.d == d and cell.ridge == 0}
    for (kind, n), cell in cells.items():
        other = cells.get(("continuous", n))
        if kind == "atoms" and other is not None and cell.ours.batch_cold and other.ours.batch_cold:
            yield Found(cell.ours.batch_cold / other.ours.batch_cold, place(cell))


def oracle(cell: Cell) -> Agreement | None:
    """Agreement with SciPy's HiGHS (its ipm where its simplex is too slow), with ridge with Clarabel."""
    names = ("cvxpy ridge",) if cell.ridge else ("scipy", "scipy ipm")
    found = (cell.peers[name].agreement for name in names if name in cell.peers)
    return next((agreement for agreement in found if agreement is not None), None)


def _judged(results: Results, ridge: bool) -> Iterator[tuple[str, Agreement]]:
    for cell in results.cells:
        agreement = oracle(cell)
        if agreement is not None and (cell.ridge > 0) == ridge:
            yield place(cell), agreement


def _agreement(results: Results) -> Iterator[Figure]:
    rows = [row for row in results.exactness if row.method == "ours"]
    known = [(f"{row.kind}, N = {row.n}", row.agreement) for row in rows]
    known += _judged(results, ridge=False)
    count = sum(one.compared for _, one in known)
    yield Figure(
        "largest difference from HiGHS", 1e-9, tuple(Found(one.largest, where) for where, one in known)
    )
    yield Figure(
        "infinite for one of the two only", 0, tuple(Found(one.infinities, where) for where, one in known)
    )
    total = (Found(count, "all"),) if known else ()
    yield Figure("prompts compared with HiGHS", 10_000, total, most=False)
    found = tuple(Found(one.largest, where) for where, one in _judged(results, ridge=True))
    yield Figure("ridge: largest difference from Clarabel at 1e-12", 1e-8, found)


def _memory(cell: Cell) -> float | None:
    peaks = [peak for peak in (cell.ours.peak_traced, cell.ours.peak_resident) if peak is not None]
    return max(peaks) / cell.ours.input if peaks else None


def figures(results: Results) -> list[Figure]:
    """Every figure of the specification that a run can measure."""
    made = list(_agreement(results))

    def against(peer: str, limit: float, n: int, d: int, step: str) -> None:
        steps = {
            "calibration": (prepared, _calibrate),
            "cold query": (asked, _cold),
            "query in a batch": (asked, _amortised),
        }
        found = tuple(_ratios(results.at(n=n, d=d), peer, *steps[step]))
        name = {"scipy": "SciPy's HiGHS", "conditionalconformal exact": "conditionalconformal, exact"}[peer]
        made.append(
            Figure(
                f"{step}, times faster than {name}, d = {d}, N = {n:,}", limit, found, most=False, unit="x"
            )
        )

    against("scipy", 200, LARGE, 3, "calibration")
    against("scipy", 100, LARGE, 10, "calibration")
    for d, limit in ((3, 15), (10, 30)):
        cells = results.at(n=HUGE, d=d)
        found = tuple(Found(_calibrate(cell) / cell.ours.sort.p50, place(cell)) for cell in cells)
        made.append(Figure(f"calibration, times np.sort, d = {d}, N = {HUGE:,}", limit, found, unit="x"))
    made.append(
        Figure(f"cold query, N = {HUGE:,} against N = {SMALL:,}", 1.5, tuple(_growth(results)), unit="x")
    )
    made.append(Figure("batch, atoms against continuous, d = 3", 3, tuple(_atoms(results, 3)), unit="x"))
    against("scipy", 700, MIDDLE, 3, "cold query")
    against("scipy", 400, MIDDLE, 10, "cold query")
    against("conditionalconformal exact", 15, LARGE, 3, "cold query")
    against("conditionalconformal exact", 200, LARGE, 10, "cold query")
    against("conditionalconformal exact", 1000, LARGE, 3, "query in a batch")
    linear = [cell for cell in results.cells if cell.ridge == 0]
    warm = tuple(Found(cell.ours.warm.p50 / cell.ours.reference.p50, place(cell)) for cell in linear)
    made.append(Figure("warm query, times the least possible", 3, warm, unit="x"))
    for d, limit in ((3, 60), (10, 150)):
        sizes = tuple(Found(cell.ours.artifact / 1e3, place(cell)) for cell in linear if cell.d == d)
        made.append(Figure(f"artifact of one level, d = {d}", limit, sizes, unit=" KB"))
    memory = [(place(cell), _memory(cell)) for cell in results.at(n=HUGE)]
    peaks = tuple(Found(value, where) for where, value in memory if value is not None)
    made.append(Figure(f"peak memory of calibration, times the input, N = {HUGE:,}", 3, peaks, unit="x"))
    return made

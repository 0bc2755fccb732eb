"""The tables and the page of a run of `thresholds.py`, and the targets that it should meet.

Of every target the worst over the kinds of problems counts.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from benchmarks.lib.peers import LINEAR_PEERS, RIDGE_PEERS
from benchmarks.lib.tables import (
    Measurement,
    Sheet,
    Target,
    format_number,
    format_seconds,
    make_target_sheet,
)
from benchmarks.lib.threshold_results import Agreement, Cell, Exactness, PeerFigures, Results

Step = Callable[[PeerFigures], tuple[float, bool] | None]
SMALL_N, MIDDLE_N, LARGE_N, HUGE_N = 1_000, 10_000, 100_000, 1_000_000
# Names for headings; c.c. is conditionalconformal.
_PEER_NAMES = {
    "ours": "ours",
    "scipy": "SciPy HiGHS",
    "scipy ipm": "SciPy HiGHS ipm",
    "highspy": "highspy warm",
    "cvxpy": "cvxpy",
    "cvxpy ridge": "cvxpy Clarabel",
    "sklearn": "sklearn",
    "conditionalconformal exact": "c.c. exact",
    "conditionalconformal bisection": "c.c. bisection",
    "mapie exact": "MAPIE exact",
    "mapie bisection": "MAPIE bisection",
}
PICTURE = "cost.svg"
_HEAD = """\
# What exact conditional thresholds cost

Written by `benchmarks/thresholds.py` from one run; do not edit. Every process had one BLAS thread. Times are
of one machine with {cores} cores; the ratios, all from the same run, are what counts.

- Here: {versions}
- The peers' own environment: {peer_versions}

![Cost against the number of calibration prompts, ours and the peers]({picture})

MAPIE runs the same algorithm as conditionalconformal and is left out of the picture; its times are below.
A line ends where its method became too slow. Scores are success scores with cap 2, alpha is 0.1, and five
prompts of a hundred have no correct candidate (none under "no atoms"). "Tied" has scores on a grid of 0.1,
"groups" a constant and d - 1 overlapping indicators, "tied groups" both, "atoms" d hat functions of one
number and most scores 0. HiGHS is asked with theta = tau - 1e-8 and feasibility tolerances of 1e-10, at which
it takes as long as at its defaults. `c.c.` is the package conditionalconformal.
"""


def _format_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "none"


def make_page(results: Results) -> str:
    """Make the page of a run as Markdown."""
    head = _HEAD.format(
        cores=results.cores,
        versions=_format_versions(results.versions),
        peer_versions=_format_versions(results.peer_versions),
        picture=PICTURE,
    )
    return "\n".join([head, *(sheet.to_markdown() for sheet in make_sheets(results))])


def _list_sheets(results: Results) -> Iterator[Sheet | None]:
    yield make_target_sheet(list_targets(results), "The worst over all kinds counts.")
    if results.failures:
        rows = tuple((text,) for text in results.failures)
        yield Sheet("Our failures", "Problems that our rule did not answer.", ("what",), rows)
    for (ridge, kind), group in itertools.groupby(sorted(results.cells, key=_get_series), _get_series):
        cells, title = list(group), kind + (f", ridge {ridge:g}" if ridge else "")
        yield _make_calibration_sheet(f"Calibration, {title}", cells)
        note = "Peers: the model and the base regression (sklearn: fit), as multiples of ours."
        yield _make_ratio_sheet(
            f"Calibration beside peers, {title}",
            cells,
            get_prepare_time,
            get_calibrate_time,
            note,
        )
        yield _make_query_sheet(f"Queries, {title}", cells)
        note = "Medians of one threshold, as multiples of our cold query."
        yield _make_ratio_sheet(f"Queries beside peers, {title}", cells, get_query_time, get_cold_time, note)
    if results.cells:
        yield _make_agreement_sheet(results.cells)
    if results.exactness:
        yield _make_exactness_sheet(results)
    yield _make_stopped_sheet(results)


def make_sheets(results: Results) -> list[Sheet]:
    """Make all tables of a run."""
    return [sheet for sheet in _list_sheets(results) if sheet is not None]


def get_prepare_time(peer: PeerFigures) -> tuple[float, bool] | None:
    """Return the seconds of the base regression, and whether they are only a lower bound."""
    if peer.prepare is not None:
        return peer.prepare, False
    return None if peer.at_least is None else (peer.at_least, True)


def get_query_time(peer: PeerFigures) -> tuple[float, bool] | None:
    """Return the median seconds of a threshold, and whether they are only a lower bound."""
    if peer.query is not None:
        return peer.query.p50, False
    return None if peer.prepare is None or peer.at_least is None else (peer.at_least, True)


def _list_ratios(
    cells: Iterable[Cell],
    name: str,
    step: Step,
    ours: Callable[[Cell], float | None],
) -> Iterator[Measurement]:
    for cell in cells:
        seconds = step(cell.peers[name]) if name in cell.peers else None
        mine = ours(cell)
        if seconds is not None and mine:
            yield Measurement(seconds[0] / mine, describe_cell(cell), seconds[1])


def describe_cell(cell: Cell) -> str:
    """Describe the problem of a cell in words."""
    return f"{cell.kind}, d = {cell.d}, N = {cell.n:,}" + (f", ridge {cell.ridge:g}" if cell.ridge else "")


def get_calibrate_time(cell: Cell) -> float:
    """Return our median seconds of `fit` and a first threshold."""
    return cell.ours.calibrate.p50


def get_cold_time(cell: Cell) -> float:
    """Return our median seconds of a threshold with nothing remembered."""
    return cell.ours.cold.p50


def get_batch_time(cell: Cell) -> float | None:
    """Return our seconds per threshold of a batch; None if it would have taken too long."""
    return None if cell.ours.batch_cold is None else cell.ours.batch_cold / cell.ours.batch


def _compare_growth(results: Results) -> Iterator[Measurement]:
    small = {(cell.kind, cell.d): get_cold_time(cell) for cell in results.select_cells(n=SMALL_N)}
    for cell in results.select_cells(n=HUGE_N):
        if (cell.kind, cell.d) in small:
            yield Measurement(get_cold_time(cell) / small[cell.kind, cell.d], describe_cell(cell))


def _compare_atoms(results: Results) -> Iterator[Measurement]:
    """Compare a batch where scores have atoms with one where they are continuous, for d = 3."""
    cells = {(cell.kind, cell.n): cell for cell in results.cells if (cell.d, cell.ridge) == (3, 0)}
    for (kind, n), cell in cells.items():
        other = cells.get(("continuous", n))
        if kind == "atoms" and other is not None and cell.ours.batch_cold and other.ours.batch_cold:
            yield Measurement(cell.ours.batch_cold / other.ours.batch_cold, describe_cell(cell))


def find_reference(cell: Cell) -> Agreement | None:
    """Return the agreement with SciPy's HiGHS (ipm if simplex is too slow), or Clarabel with ridge."""
    names = ("cvxpy ridge",) if cell.ridge else ("scipy", "scipy ipm")
    found = (cell.peers[name].agreement for name in names if name in cell.peers)
    return next((agreement for agreement in found if agreement is not None), None)


def _list_references(results: Results, ridge: bool) -> Iterator[tuple[str, Agreement]]:
    for cell in results.cells:
        agreement = find_reference(cell)
        if agreement is not None and (cell.ridge > 0) == ridge:
            yield describe_cell(cell), agreement


def _list_agreement_targets(results: Results) -> Iterator[Target]:
    rows = [row for row in results.exactness if row.method == "ours"]
    known = [(f"{row.kind}, N = {row.n}", row.agreement) for row in rows]
    known += _list_references(results, ridge=False)
    count = sum(one.compared for _, one in known)
    yield Target(
        "largest difference from HiGHS", 1e-9, tuple(Measurement(one.largest, where) for where, one in known)
    )
    yield Target(
        "infinite for one of the two only",
        0,
        tuple(Measurement(one.infinities, where) for where, one in known),
    )
    total = (Measurement(count, "all"),) if known else ()
    yield Target("prompts compared with HiGHS", 10_000, total, most=False)
    found = tuple(Measurement(one.largest, where) for where, one in _list_references(results, ridge=True))
    yield Target("ridge: largest difference from Clarabel at 1e-12", 1e-8, found)


def _compare_memory(cell: Cell) -> float | None:
    peaks = [peak for peak in (cell.ours.peak_traced, cell.ours.peak_resident) if peak is not None]
    return max(peaks) / cell.ours.input if peaks else None


def list_targets(results: Results) -> list[Target]:
    """List every target of the specification that a run can measure."""
    targets = list(_list_agreement_targets(results))

    def add_target(peer: str, limit: float, n: int, d: int, step: str) -> None:
        steps = {
            "calibration": (get_prepare_time, get_calibrate_time),
            "cold query": (get_query_time, get_cold_time),
            "query in a batch": (get_query_time, get_batch_time),
        }
        found = tuple(_list_ratios(results.select_cells(n=n, d=d), peer, *steps[step]))
        name = {"scipy": "SciPy's HiGHS", "conditionalconformal exact": "conditionalconformal, exact"}[peer]
        targets.append(
            Target(
                f"{step}, times faster than {name}, d = {d}, N = {n:,}", limit, found, most=False, unit="x"
            )
        )

    add_target("scipy", 200, LARGE_N, 3, "calibration")
    add_target("scipy", 100, LARGE_N, 10, "calibration")
    for d, limit in ((3, 15), (10, 30)):
        cells = results.select_cells(n=HUGE_N, d=d)
        found = tuple(
            Measurement(get_calibrate_time(cell) / cell.ours.sort.p50, describe_cell(cell)) for cell in cells
        )
        targets.append(Target(f"calibration, times np.sort, d = {d}, N = {HUGE_N:,}", limit, found, unit="x"))
    targets.append(
        Target(
            f"cold query, N = {HUGE_N:,} against N = {SMALL_N:,}",
            1.5,
            tuple(_compare_growth(results)),
            unit="x",
        )
    )
    targets.append(
        Target("batch, atoms against continuous, d = 3", 3, tuple(_compare_atoms(results)), unit="x")
    )
    add_target("scipy", 700, MIDDLE_N, 3, "cold query")
    add_target("scipy", 400, MIDDLE_N, 10, "cold query")
    add_target("conditionalconformal exact", 15, LARGE_N, 3, "cold query")
    add_target("conditionalconformal exact", 200, LARGE_N, 10, "cold query")
    add_target("conditionalconformal exact", 1000, LARGE_N, 3, "query in a batch")
    linear = [cell for cell in results.cells if cell.ridge == 0]
    warm = tuple(
        Measurement(cell.ours.warm.p50 / cell.ours.reference.p50, describe_cell(cell)) for cell in linear
    )
    targets.append(Target("warm query, times the least possible", 3, warm, unit="x"))
    for d, limit in ((3, 60), (10, 150)):
        sizes = tuple(
            Measurement(cell.ours.artifact / 1e3, describe_cell(cell)) for cell in linear if cell.d == d
        )
        targets.append(Target(f"artifact of one level, d = {d}", limit, sizes, unit=" KB"))
    memory = [(describe_cell(cell), _compare_memory(cell)) for cell in results.select_cells(n=HUGE_N)]
    peaks = tuple(Measurement(value, where) for where, value in memory if value is not None)
    targets.append(Target(f"peak memory of calibration, times the input, N = {HUGE_N:,}", 3, peaks, unit="x"))
    return targets


def _format_size(cell: Cell) -> tuple[str, str]:
    return str(cell.d), f"{cell.n:,}"


def _make_calibration_sheet(title: str, cells: list[Cell]) -> Sheet:
    rows = []
    for cell in cells:
        ours = cell.ours
        peaks = (
            "-" if peak is None else f"{format_number(peak / ours.input)}x"
            for peak in (ours.peak_traced, ours.peak_resident)
        )
        sort = f"{format_number(ours.calibrate.p50 / ours.sort.p50)}x"
        times = (format_seconds(ours.calibrate.p50), format_seconds(ours.fit.p50), sort)
        rows.append(
            (
                *_format_size(cell),
                *times,
                *peaks,
                format_seconds(ours.restore.p50),
                f"{ours.artifact / 1e3:,.1f} KB",
            )
        )
    headings = ("d", "N", "calibrate", "fit", "/ np.sort", "allocated", "resident", "restore", "artifact")
    note = (
        "Calibrate: fit and a first answer; beside np.sort on the scores. Allocated, resident: peak memory"
        " beyond the input, in multiples of the input. Restore: a rule from its state. Artifact: one level."
    )
    return Sheet(title, note, headings, tuple(rows))


def _make_query_sheet(title: str, cells: list[Cell]) -> Sheet:
    rows = []
    for cell in cells:
        ours = cell.ours
        batches = (
            "too slow" if seconds is None else format_seconds(seconds / ours.batch)
            for seconds in (ours.batch_cold, ours.batch_again)
        )
        times = (ours.first.p50, ours.cold.p50, ours.cold.p90, ours.fresh.p50, ours.warm.p50)
        least = f"{format_number(ours.warm.p50 / ours.reference.p50)}x"
        rows.append((*_format_size(cell), *map(format_seconds, times), least, *batches, str(ours.refused)))
    own = ("first", "cold p50", "p90", "later", "seen before", "/ least", "in a batch", "again", "refused")
    sizes = ", ".join(sorted({f"{cell.ours.batch:,}" for cell in cells}))
    note = (
        "One threshold. First: of a rule just restored, which prepares its windows then. Cold: by a search"
        " from the base fit, nothing remembered. Later: a new prompt for a rule that has answered many, whose"
        " vertices it remembers. Least: asarray, one"
        f" d x d product, a box check, a dot product. In a batch: per prompt of {sizes}, by a rule just"
        " restored, and again. Refused: prompts of the batch that the artifact cannot decide."
    )
    return Sheet(title, note, ("d", "N", *own), tuple(rows))


def _make_ratio_sheet(
    title: str, cells: list[Cell], step: Step, ours: Callable[[Cell], float], note: str
) -> Sheet | None:
    """Make the table of peers' times as multiples of ours; None if no peer has any."""
    tried = (name for name in (*LINEAR_PEERS, *RIDGE_PEERS) if any(name in cell.peers for cell in cells))
    names = [name for name in tried if any(name in cell.peers and step(cell.peers[name]) for cell in cells)]
    rows = []
    for cell in cells:
        mine = ours(cell)
        said = (_format_ratio(step, cell.peers.get(name), mine) for name in names)
        rows.append((*_format_size(cell), format_seconds(mine), *said))
    return (
        Sheet(title, note, ("d", "N", "ours", *(_PEER_NAMES[name] for name in names)), tuple(rows))
        if names
        else None
    )


def _format_ratio(step: Step, peer: PeerFigures | None, ours: float) -> str:
    if peer is None:
        return "-"
    seconds = step(peer)
    if seconds is not None and not seconds[1]:
        return f"{format_number(seconds[0] / ours)}x"
    return "too slow" if peer.stopped is not None and peer.stopped.startswith("too slow") else "-"


def _format_agreement(agreement: Agreement | None) -> str:
    if agreement is None:
        return "-"
    wrong = f" ({agreement.beyond} of {agreement.compared})" if agreement.beyond else ""
    return format_number(agreement.largest) + wrong


def _make_agreement_sheet(cells: list[Cell]) -> Sheet:
    names = [
        name
        for name in (*LINEAR_PEERS, *RIDGE_PEERS)
        if any(name in cell.peers and cell.peers[name].agreement is not None for cell in cells)
    ]
    rows = []
    for cell in cells:
        found = {name: cell.peers[name].agreement for name in names if name in cell.peers}
        judge = find_reference(cell)
        infinities = "-" if judge is None else str(judge.infinities)
        count = "-" if judge is None else str(judge.compared)
        mine = (_format_agreement(cell.ours.batch_agreement), str(cell.ours.differ_restored))
        kind = cell.kind + (f", ridge {cell.ridge:g}" if cell.ridge else "")
        rows.append(
            (
                kind,
                *_format_size(cell),
                *(_format_agreement(found.get(name)) for name in names),
                count,
                infinities,
                *mine,
            )
        )
    headings = (
        "kind",
        "d",
        "N",
        *(_PEER_NAMES[name] for name in names),
        "compared",
        "infinities",
        "batch",
        "restored",
    )
    note = (
        "Largest difference of a peer's thresholds from ours, and in brackets how many differ by more than"
        " 1e-6 or in what is infinite. Compared, infinities: prompts that SciPy's HiGHS (where it is too slow"
        " its ipm; with ridge Clarabel) answered too, and those infinite for one of us only. Batch: against"
        " our single prompts. Restored: thresholds not bit for bit those before saving."
    )
    return Sheet("Agreement", note, headings, tuple(rows))


def _format_wrong(row: Exactness | None) -> str:
    if row is None:
        return "-"
    beyond, unanswered = row.agreement.beyond, row.agreement.unanswered
    more = [f"{row.outside} off"] if row.outside else []
    more += [f"{unanswered} none"] if unanswered else []
    return f"{beyond}" + (f" ({', '.join(more)})" if more else "")


def _make_exactness_sheet(results: Results) -> Sheet:
    known = {(row.kind, row.n, row.method): row for row in results.exactness}
    methods = list(dict.fromkeys(row.method for row in results.exactness))
    rows = []
    for kind, size in dict.fromkeys((row.kind, row.n) for row in results.exactness):
        ours = known[kind, size, "ours"].agreement
        found = (known.get((kind, size, method)) for method in methods)
        rows.append(
            (kind, str(size), str(ours.compared), format_number(ours.largest), *map(_format_wrong, found))
        )
    headings = ("kind", "N", "prompts", "ours, largest", *(_PEER_NAMES[method] for method in methods))
    note = (
        "Wrong answers on many small problems, measured by HiGHS with theta = tau - 1e-8 and tolerances of"
        " 1e-10: off by more than 1e-6, or infinite where HiGHS is not. Off: beyond even the largest value of"
        " the optimal face (theta = tau + 1e-8). None: no answer, but an error or no end."
        " (N + 1) tau is an integer for N = 199."
    )
    return Sheet("Who answers right", note, headings, tuple(rows))


def _make_stopped_sheet(results: Results) -> Sheet | None:
    where = defaultdict(list)
    for cell in results.cells:
        for name, peer in cell.peers.items():
            if peer.stopped is not None:
                where[_PEER_NAMES[name], peer.stopped].append(cell)
    rows = tuple(
        (name, why, str(len(cells)), describe_cell(cells[0])) for (name, why), cells in sorted(where.items())
    )
    note = f"A step of a peer may take {results.limit:g} s."
    return Sheet("Left out", note, ("peer", "why", "problems", "first"), rows) if rows else None


def _get_series(cell: Cell) -> tuple[float, str]:
    return cell.ridge, cell.kind

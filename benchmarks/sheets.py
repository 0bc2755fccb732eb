"""Results as tables, for the terminal and for the page."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

from benchmarks.figures import asked, figures, oracle, place, prepared
from benchmarks.peers import LINEAR, RIDGE
from benchmarks.results import Agreement, Cell, Exactness, PeerFigures, Results
from benchmarks.sheet import NAMES, Sheet, number, span

Step = Callable[[PeerFigures], tuple[float, bool] | None]


def targets(results: Results) -> Sheet:
    """The figures to reach and what was measured."""
    rows = []
    for figure in figures(results):
        worst = figure.worst
        bound = f"{'at most' if figure.most else 'at least'} {number(figure.limit)}{figure.unit}"
        said, where = "-", "-"
        if worst is not None:
            said = f"{'over ' if worst.at_least else ''}{number(worst.value)}{figure.unit}"
            where = worst.where if worst.value else "everywhere"
        rows.append((figure.name, bound, said, where, figure.verdict))
    headings = ("figure", "wanted", "measured", "worst at", "verdict")
    return Sheet("Figures to reach", "The worst over all kinds counts.", headings, tuple(rows))


def _where(cell: Cell) -> tuple[str, str]:
    return str(cell.d), f"{cell.n:,}"


def _calibration(title: str, cells: list[Cell]) -> Sheet:
    rows = []
    for cell in cells:
        ours = cell.ours
        peaks = (
            "-" if peak is None else f"{number(peak / ours.input)}x"
            for peak in (ours.peak_traced, ours.peak_resident)
        )
        sort = f"{number(ours.calibrate.p50 / ours.sort.p50)}x"
        times = (span(ours.calibrate.p50), span(ours.fit.p50), sort)
        rows.append((*_where(cell), *times, *peaks, span(ours.restore.p50), f"{ours.artifact / 1e3:,.1f} KB"))
    headings = ("d", "N", "calibrate", "fit", "/ np.sort", "allocated", "resident", "restore", "artifact")
    note = (
        "Calibrate: fit and a first answer; beside np.sort on the scores. Allocated, resident: peak memory"
        " beyond the input, in multiples of the input. Restore: a rule from its state. Artifact: one level."
    )
    return Sheet(title, note, headings, tuple(rows))


def _queries(title: str, cells: list[Cell]) -> Sheet:
    rows = []
    for cell in cells:
        ours = cell.ours
        batches = (
            "too slow" if seconds is None else span(seconds / ours.batch)
            for seconds in (ours.batch_cold, ours.batch_again)
        )
        times = (ours.first.p50, ours.cold.p50, ours.cold.p90, ours.fresh.p50, ours.warm.p50)
        least = f"{number(ours.warm.p50 / ours.reference.p50)}x"
        rows.append((*_where(cell), *map(span, times), least, *batches, str(ours.refused)))
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


def _ratios(
    title: str, cells: list[Cell], step: Step, ours: Callable[[Cell], float], note: str
) -> Sheet | None:
    """Peers' times as multiples of ours; None where no peer has any."""
    tried = (name for name in (*LINEAR, *RIDGE) if any(name in cell.peers for cell in cells))
    names = [name for name in tried if any(name in cell.peers and step(cell.peers[name]) for cell in cells)]
    rows = []
    for cell in cells:
        mine = ours(cell)
        said = (_ratio(step, cell.peers.get(name), mine) for name in names)
        rows.append((*_where(cell), span(mine), *said))
    return (
        Sheet(title, note, ("d", "N", "ours", *(NAMES[name] for name in names)), tuple(rows))
        if names
        else None
    )


def _ratio(step: Step, peer: PeerFigures | None, ours: float) -> str:
    if peer is None:
        return "-"
    seconds = step(peer)
    if seconds is not None and not seconds[1]:
        return f"{number(seconds[0] / ours)}x"
    return "too slow" if peer.stopped is not None and peer.stopped.startswith("too slow") else "-"


def _agreed(agreement: Agreement | None) -> str:
    if agreement is None:
        return "-"
    wrong = f" ({agreement.beyond} of {agreement.compared})" if agreement.beyond else ""
    return number(agreement.largest) + wrong


def _agreements(cells: list[Cell]) -> Sheet:
    names = [
        name
        for name in (*LINEAR, *RIDGE)
        if any(name in cell.peers and cell.peers[name].agreement is not None for cell in cells)
    ]
    rows = []
    for cell in cells:
        found = {name: cell.peers[name].agreement for name in names if name in cell.peers}
        judge = oracle(cell)
        infinities = "-" if judge is None else str(judge.infinities)
        count = "-" if judge is None else str(judge.compared)
        mine = (_agreed(cell.ours.batch_agreement), str(cell.ours.differ_restored))
        kind = cell.kind + (f", ridge {cell.ridge:g}" if cell.ridge else "")
        rows.append(
            (kind, *_where(cell), *(_agreed(found.get(name)) for name in names), count, infinities, *mine)
        )
    headings = (
        "kind",
        "d",
        "N",
        *(NAMES[name] for name in names),
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


def _wrong(row: Exactness | None) -> str:
    if row is None:
        return "-"
    beyond, unanswered = row.agreement.beyond, row.agreement.unanswered
    more = [f"{row.outside} off"] if row.outside else []
    more += [f"{unanswered} none"] if unanswered else []
    return f"{beyond}" + (f" ({', '.join(more)})" if more else "")


def _exactness(results: Results) -> Sheet:
    known = {(row.kind, row.n, row.method): row for row in results.exactness}
    methods = list(dict.fromkeys(row.method for row in results.exactness))
    rows = []
    for kind, size in dict.fromkeys((row.kind, row.n) for row in results.exactness):
        ours = known[kind, size, "ours"].agreement
        found = (known.get((kind, size, method)) for method in methods)
        rows.append((kind, str(size), str(ours.compared), number(ours.largest), *map(_wrong, found)))
    headings = ("kind", "N", "prompts", "ours, largest", *(NAMES[method] for method in methods))
    note = (
        "Wrong answers on many small problems, measured by HiGHS with theta = tau - 1e-8 and tolerances of"
        " 1e-10: off by more than 1e-6, or infinite where HiGHS is not. Off: beyond even the largest value of"
        " the optimal face (theta = tau + 1e-8). None: no answer, but an error or no end."
        " (N + 1) tau is an integer for N = 199."
    )
    return Sheet("Who answers right", note, headings, tuple(rows))


def _stopped(results: Results) -> Sheet | None:
    where = defaultdict(list)
    for cell in results.cells:
        for name, peer in cell.peers.items():
            if peer.stopped is not None:
                where[NAMES[name], peer.stopped].append(cell)
    rows = tuple(
        (name, why, str(len(cells)), place(cells[0])) for (name, why), cells in sorted(where.items())
    )
    note = f"A step of a peer may take {results.limit:g} s."
    return Sheet("Left out", note, ("peer", "why", "problems", "first"), rows) if rows else None


def _series(cell: Cell) -> tuple[float, str]:
    return cell.ridge, cell.kind


def _all(results: Results) -> Iterator[Sheet | None]:
    yield targets(results)
    if results.failures:
        rows = tuple((text,) for text in results.failures)
        yield Sheet("Our failures", "Problems that our rule did not answer.", ("what",), rows)
    for (ridge, kind), group in itertools.groupby(sorted(results.cells, key=_series), _series):
        cells, title = list(group), kind + (f", ridge {ridge:g}" if ridge else "")
        yield _calibration(f"Calibration, {title}", cells)
        note = "Peers: the model and the base regression (sklearn: fit), as multiples of ours."
        yield _ratios(
            f"Calibration beside peers, {title}", cells, prepared, lambda cell: cell.ours.calibrate.p50, note
        )
        yield _queries(f"Queries, {title}", cells)
        note = "Medians of one threshold, as multiples of our cold query."
        yield _ratios(f"Queries beside peers, {title}", cells, asked, lambda cell: cell.ours.cold.p50, note)
    if results.cells:
        yield _agreements(results.cells)
    if results.exactness:
        yield _exactness(results)
    yield _stopped(results)


def sheets(results: Results) -> list[Sheet]:
    """All tables of a run."""
    return [sheet for sheet in _all(results) if sheet is not None]

"""What exact conditional thresholds cost, and which solvers answer right: ours and every peer in one run.

    python benchmarks/thresholds.py --peer-python PEERS/bin/python     hours
    python benchmarks/thresholds.py --quick                            minutes

Peers of this environment are SciPy, highspy and cvxpy; one that is not installed is left out with a note.
conditionalconformal needs NumPy < 2.4 and has, with MAPIE, an environment of its own:

    python3 -m venv PEERS && PEERS/bin/pip install "numpy<2.4" conditionalconformal mapie

Every process has one BLAS thread. Times depend on the machine; the ratios are what counts. A peer's step that
takes longer than the limit is stopped, and larger problems of the series are left out. The exit code is 1 if
one of our answers is not that of SciPy's HiGHS.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import (
    describe_run,
    format_seconds,
    limit_threads,
    pause_garbage_collection,
    print_table,
)

if TYPE_CHECKING:
    from benchmarks.lib.peers import Answers
    from benchmarks.lib.problems import FloatArray, Problem

REFERENCE = "scipy"
WRONG = 1e-6  # a larger difference is a wrong answer, not round-off
SMALL_SIZES = (199, 200)  # (N + 1) tau is an integer for one and not for the other
SMALL_LIMIT = 2.0  # seconds for an answer that takes milliseconds
FLATNESS = 1.5  # how much longer a query may take at the largest N than at the smallest
PACKAGES = ("langchain-cfc", "numpy", "scipy")


@dataclass(frozen=True)
class Plan:
    """What a run measures, and how often.

    Attributes:
        kinds: Kinds of problems whose cost is measured.
        dimensions: Numbers of features d.
        sizes: Numbers of calibration prompts N, growing.
        small: Numbers of features of the small problems, which show who answers right; none leaves them out.
        draws: Data sets of each kind, size and number of features of small problems.
        queries: New prompts of each problem.
        runs: Repetitions of a calibration.
        limit: Seconds that a step of a peer may take.
        peers: Names of the peers.
        peer_python: Interpreter of the peers' own environment.
    """

    kinds: tuple[str, ...] = ("continuous", "tied", "groups", "atoms")
    dimensions: tuple[int, ...] = (1, 3, 10, 20)
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    small: tuple[int, ...] = (1, 2, 3, 5, 10, 20)
    draws: int = 10
    queries: int = 200
    runs: int = 5
    limit: float = 12.0
    peers: tuple[str, ...] = ()
    peer_python: Path | None = None


QUICK = Plan(dimensions=(1, 3), sizes=(1_000, 10_000), small=(1, 3), draws=2, queries=20, runs=3, limit=5.0)
SMALL_QUERIES = 25


@dataclass
class Score:
    """How many answers of one method were compared with HiGHS, how many are wrong or missing."""

    compared: int = 0
    wrong: int = 0
    missing: int = 0
    largest: float = 0.0

    def add(self, answers: Sequence[float | None], reference: Sequence[float | None]) -> None:
        """Compare answers with those of HiGHS; both are `inf` from the cap on, where nothing is certified."""
        from benchmarks.lib.problems import CAP

        for one, other in zip(answers, reference, strict=False):
            if other is None:  # HiGHS should answer all of them
                continue
            self.compared += 1
            if one is None:
                self.missing += 1
                continue
            # Peers know the cap only by its neighbours.
            ends = [value >= CAP - 1e-7 for value in (one, other)]
            difference = 0.0 if all(ends) else abs(one - other)
            self.wrong += ends[0] != ends[1] or difference > WRONG
            if ends[0] == ends[1]:
                self.largest = max(self.largest, difference)

    def __str__(self) -> str:
        """Format the counts for a table."""
        if not self.compared:
            return "-"
        text = f"{self.wrong} of {self.compared:,}"
        return f"{text}, {self.missing} missing" if self.missing else text


class ThresholdRun:
    """One run of a plan; answers of ours and of every peer are compared with those of HiGHS throughout."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.ours = Score()
        self._file = folder / "problem.npz"
        self._folder = folder
        # Peers that are too slow or not there, by peer or by peer, kind and number of features.
        self._left_out: dict[tuple[object, ...], str] = {}

    def ask(
        self, peer: str, series: tuple[object, ...], files: Sequence[Path], count: int, limit: float
    ) -> list[Answers] | str:
        """Ask a peer, unless a smaller problem of the series was too much for it."""
        from benchmarks.lib.peers import ask_peer

        key = (peer, *series)
        if key not in self._left_out:
            found = ask_peer(peer, files, count=count, limit=limit, python=self.plan.peer_python)
            if not isinstance(found, str) and all(one.values[:1] != [None] for one in found):
                return found
            if not isinstance(found, str) and len(files) > 1:
                return found  # some small problems have no answer, others do
            self._left_out[key] = found if isinstance(found, str) else f"no answer in {limit:g} s"
        return self._left_out[key]

    def measure_costs(self) -> Iterator[tuple[tuple[str, int, int], list[str], float]]:
        """Yield kind, d and N of each problem, the cells of its row, and the seconds of our query."""
        from benchmarks.lib.problems import make_problem

        for kind, d, size in itertools.product(self.plan.kinds, self.plan.dimensions, self.plan.sizes):
            problem = make_problem(kind, d, size, self.plan.queries)
            calibration, query, answers, stored = measure_ours(problem, self.plan.runs)
            cells = [format_seconds(calibration), format_seconds(query), f"{stored / 1e3:,.0f} KB"]
            problem.save(self._file)
            for peer in self.plan.peers:
                found = self.ask(peer, (kind, d), [self._file], self.plan.queries, self.plan.limit)
                if isinstance(found, str):
                    cells.append("-")
                    continue
                [one] = found
                times = (one.prepared / calibration, median(one.seconds) / query)
                cells.append(" / ".join(f"{ratio:,.3g}" for ratio in times))
                if peer == REFERENCE:
                    self.ours.add(answers, one.values)
            yield (kind, d, size), cells, query

    def judge_answers(self) -> Iterator[tuple[str, int, list[Score]]]:
        """Yield kind and N of small problems, with the score of ours and of each peer but the reference."""
        from benchmarks.lib.problems import KINDS, make_problem

        if not self.plan.small or REFERENCE not in self.plan.peers:
            return
        for kind, size in itertools.product(KINDS, SMALL_SIZES):
            problems = [
                make_problem(kind, d, size, SMALL_QUERIES, draw)
                for d, draw in itertools.product(self.plan.small, range(self.plan.draws))
            ]
            files = [self._folder / f"{number}.npz" for number in range(len(problems))]
            for problem, file in zip(problems, files, strict=True):
                problem.save(file)
            reference = self.ask(REFERENCE, ("small",), files, SMALL_QUERIES, SMALL_LIMIT)
            if isinstance(reference, str):
                sys.exit(f"SciPy's HiGHS gives no answers: {reference}")
            scores = [Score() for _ in self.plan.peers]
            for problem, one in zip(problems, reference, strict=True):
                _, _, answers, _ = measure_ours(problem, runs=1)
                scores[0].add(answers, one.values)
                self.ours.add(answers, one.values)
            for score, peer in zip(scores[1:], self.plan.peers[1:], strict=True):
                found = self.ask(peer, ("small",), files, SMALL_QUERIES, SMALL_LIMIT)
                if not isinstance(found, str):
                    for one, right in zip(found, reference, strict=True):
                        score.add(one.values, right.values)
            yield kind, size, scores

    def list_notes(self) -> list[str]:
        """List what was left out, and why."""
        return [f"{', '.join(map(str, key))}: {why}" for key, why in self._left_out.items()]


def measure_ours(problem: Problem, runs: int) -> tuple[float, float, list[float | None], int]:
    """Measure our rule on a problem.

    Returns:
        Median seconds of a calibration, which is `fit` and a first threshold, so that no work can hide in the
        first question; median seconds of the threshold of a new prompt, by a search that remembers nothing;
        the thresholds, None where the rule refuses; and the bytes of the fitted state.
    """
    from benchmarks.lib.problems import make_rule
    from langchain_cfc.errors import OutsideCertifiedRegionError
    from langchain_cfc.thresholds import _windows

    def ask(phi: FloatArray) -> float | None:
        try:
            return rule.threshold(phi)
        except OutsideCertifiedRegionError:
            return None

    calibrated, asked = [], []
    answers: list[float | None] = []
    memory = _windows.CACHE_SIZE
    with pause_garbage_collection():
        for _ in range(runs):
            start = time.perf_counter()
            rule = make_rule().fit(problem.features, problem.scores)
            ask(problem.mean)
            calibrated.append(time.perf_counter() - start)
        state = rule.get_state_data()
        _windows.CACHE_SIZE = 0
        try:
            rule = rule.restore(state)
            ask(problem.mean)
            for phi in problem.prompts:
                start = time.perf_counter()
                answers.append(ask(phi))
                asked.append(time.perf_counter() - start)
        finally:
            _windows.CACHE_SIZE = memory
    return median(calibrated), median(asked), answers, sum(array.nbytes for array in state.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables; exit with 1 if one of our answers is wrong."""
    limit_threads()
    from benchmarks.lib.peers import PEERS
    from benchmarks.lib.problems import KINDS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small problems, few repetitions")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), help="kinds of problems")
    parser.add_argument("--dimensions", nargs="+", type=int, metavar="D", help="numbers of features")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="numbers of calibration prompts")
    parser.add_argument("--peers", nargs="+", choices=tuple(PEERS), default=tuple(PEERS), help="peers")
    parser.add_argument("--peer-python", type=Path, metavar="PATH", help="interpreter of the other peers")
    options = parser.parse_args(arguments)
    if options.peer_python is not None and not options.peer_python.is_file():
        parser.error(f"there is no interpreter at {options.peer_python}")
    plan = QUICK if options.quick else Plan()
    plan = replace(
        plan,
        kinds=tuple(options.kinds or plan.kinds),
        dimensions=tuple(options.dimensions or plan.dimensions),
        sizes=tuple(sorted(options.sizes or plan.sizes)),
        peers=(REFERENCE, *(peer for peer in options.peers if peer != REFERENCE)),
        peer_python=options.peer_python and options.peer_python.absolute(),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = ThresholdRun(plan, Path(folder))
        judged = [(kind, size, *map(str, scores)) for kind, size, scores in run.judge_answers()]
        print_table("Wrong answers, next to HiGHS", ("kind", "N", "ours", *plan.peers[1:]), judged)
        rows, queries = [], {}
        for where, cells, query in run.measure_costs():
            rows.append((*where, *cells))
            queries[where] = query
        note = "Peers: calibration and a query, as multiples of ours."
        headings = ("kind", "d", "N", "calibration", "query", "artifact", *plan.peers)
        print_table("Cost", headings, rows, note)
    first, last = plan.sizes[0], plan.sizes[-1]
    growth = {
        (kind, d): queries[kind, d, last] / queries[kind, d, first]
        for kind, d in itertools.product(plan.kinds, plan.dimensions)
    }
    worst = max(growth, key=growth.__getitem__)
    print(f"A query at N = {last:,} over one at {first:,}: at most {growth[worst]:.2f} times ({worst[0]},")
    print(f"d = {worst[1]}), where {FLATNESS} is wanted.")
    print(f"Ours: wrong {run.ours}; largest difference from HiGHS {run.ours.largest:.0e}.")
    print(*run.list_notes(), describe_run(PACKAGES), sep="\n")
    raise SystemExit(1 if run.ours.wrong or run.ours.missing else 0)


if __name__ == "__main__":
    main()

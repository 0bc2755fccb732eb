"""What exact conditional thresholds cost, and which solvers answer right: ours and every peer in one run.

    python benchmarks/thresholds.py --json results.json --peer-python PEERS/bin/python
    python benchmarks/thresholds.py --from results.json --page benchmarks/RESULTS.md

Peers of this environment are SciPy, highspy, cvxpy and scikit-learn; one that is not installed is left out
with a note. conditionalconformal needs NumPy < 2.4 and has, with MAPIE, an environment of its own:

    python3 -m venv PEERS && PEERS/bin/pip install "numpy<2.4" conditionalconformal mapie

Every process has one BLAS thread. Times depend on the machine; the ratios are what counts. A peer's step that
takes longer than the limit is stopped and called too slow, and larger problems of the series are not tried
where the smaller ones point beyond the limit. The exit code is 1 if our own rule raised an error anywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    from benchmarks.lib.threshold_run import Plan


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    from benchmarks.lib.problems import KINDS

    description = "Cost and exactness of conditional thresholds and of every peer, one BLAS thread each."
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, cell by cell")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the page, and its picture next to it"
    )
    parser.add_argument("--from", type=Path, metavar="FILE", help="read what --json wrote, measure nothing")
    parser.add_argument("--quick", action="store_true", help="small problems, few repetitions: minutes")
    parser.add_argument("--only", choices=("peers", "sizes"), help="only up to N = 100,000, or only ours")
    parser.add_argument("--runs", type=int, metavar="R", help="repetitions of what takes long")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="how long one step of a peer may take")
    parser.add_argument("--ridge", type=float, metavar="PENALTY", help="measure ridge with this penalty too")
    parser.add_argument(
        "--peer-python", type=Path, metavar="PATH", help="interpreter that has the other peers"
    )
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), help="kinds of problems")
    parser.add_argument("--dimensions", nargs="+", type=int, metavar="D", help="numbers of features")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="numbers of calibration prompts")
    return parser


def make_plan(options: argparse.Namespace) -> Plan:
    """Make the plan that the options ask for."""
    from benchmarks.lib.threshold_run import Plan

    plan = Plan(peer_python=options.peer_python and options.peer_python.absolute())
    if options.quick:
        plan = replace(
            plan,
            dimensions=(1, 3),
            sizes=(1_000, 10_000),
            exactness=10,
            draws=2,
            small=(1, 3),
            batch=1_000,
            queries=20,
            runs=3,
            limit=5.0,
        )
    if options.only == "peers":
        plan = replace(plan, sizes=tuple(size for size in plan.sizes if size <= 100_000))  # noqa: PLR2004
    if options.only == "sizes":
        plan = replace(plan, peers=(), exactness=0)
    if options.ridge is not None:
        plan = replace(plan, ridges=(0.0, options.ridge))
    chosen = {
        "runs": options.runs,
        "limit": options.limit,
        "kinds": options.kinds and tuple(options.kinds),
        "dimensions": options.dimensions and tuple(options.dimensions),
        "sizes": options.sizes and tuple(sorted(options.sizes)),
    }
    return replace(plan, **{name: value for name, value in chosen.items() if value is not None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write what was asked for, and print the tables."""
    from benchmarks.lib.threads import check_threads, limit_threads

    limit_threads()
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.peer_python is not None and not options.peer_python.is_file():
        parser.error(f"there is no interpreter at {options.peer_python}")
    from benchmarks.lib.tables import print_sheets
    from benchmarks.lib.threshold_picture import draw_costs
    from benchmarks.lib.threshold_results import Results
    from benchmarks.lib.threshold_run import ThresholdRun
    from benchmarks.lib.threshold_tables import PICTURE, make_page, make_sheets

    earlier: Path | None = getattr(options, "from")
    if earlier is not None:
        results = Results.model_validate_json(earlier.read_text(encoding="utf-8"))
    else:
        check_threads()
        run = ThresholdRun(make_plan(options))
        results = run.results
        for results in run.run():
            if options.json is not None:
                options.json.write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if options.page is not None:
        draw_costs(results, options.page.with_name(PICTURE))
        options.page.write_text(make_page(results), encoding="utf-8")
    print_sheets(make_sheets(results), width=160)
    if results.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

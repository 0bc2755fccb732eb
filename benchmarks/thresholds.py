"""What exact conditional thresholds cost, and who answers right: ours beside every peer, in one run.

    python benchmarks/thresholds.py --json results.json --peer-python PEERS/bin/python
    python benchmarks/page.py results.json

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

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from benchmarks.grid import Plan


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from benchmarks.problems import KINDS

    description = "Cost and exactness of conditional thresholds beside every peer, one BLAS thread each."
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results, cell by cell")
    made.add_argument("--quick", action="store_true", help="small problems, few repetitions: minutes")
    made.add_argument("--only", choices=("peers", "sizes"), help="only up to N = 100,000, or only ours")
    made.add_argument("--runs", type=int, metavar="R", help="repetitions of what takes long")
    made.add_argument("--limit", type=float, metavar="SECONDS", help="how long one step of a peer may take")
    made.add_argument("--ridge", type=float, metavar="PENALTY", help="measure ridge with this penalty too")
    made.add_argument("--peer-python", type=Path, metavar="PATH", help="interpreter that has the other peers")
    made.add_argument("--kinds", nargs="+", choices=tuple(KINDS), help="kinds of problems")
    made.add_argument("--dimensions", nargs="+", type=int, metavar="D", help="numbers of features")
    made.add_argument("--sizes", nargs="+", type=int, metavar="N", help="numbers of calibration prompts")
    return made


def planned(options: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    from benchmarks.grid import Plan

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
    """Measure, write and show."""
    from benchmarks.one_thread import check_threads, one_thread

    one_thread()
    command = parser()
    options = command.parse_args(arguments)
    if options.peer_python is not None and not options.peer_python.is_file():
        command.error(f"there is no interpreter at {options.peer_python}")
    from rich.console import Console

    from benchmarks.grid import Run
    from benchmarks.sheets import sheets

    check_threads()
    run = Run(planned(options))
    results = run.results
    for results in run.go():
        if options.json is not None:
            options.json.write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file is as wide as need be
    for sheet in sheets(results):
        console.print(sheet.table())
        console.print()
    if results.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

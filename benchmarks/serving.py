"""What serving costs in addition to the model and the verifier, in one run.

    python benchmarks/serving.py --page benchmarks/SERVING.md

Six parts: `CFCRunnable` and the same calls by hand, in memory; the same in the waves of a draw rule; our own
arithmetic for one prompt; the claims of a long answer; imports in fresh interpreters; and wall time over
HTTP, with the requests that the server counted. Alternatives are timed in turn within the run. Times depend
on the machine; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    from benchmarks.lib.serving_results import ServingResults

PARTS = ("overhead", "waves", "arithmetic", "claims", "imports", "http")
PACKAGES = ("langchain-cfc", "langchain-core", "langchain-openai", "openai", "pydantic", "numpy")


@dataclass(frozen=True)
class Plan:
    """What a run measures, and how often.

    Attributes:
        parts: Some of `PARTS`.
        overhead: Rounds in memory.
        waves: Rounds of each draw rule.
        arithmetic: Prompts whose arithmetic is timed.
        claims: Rounds of long answers.
        imports: Rounds of interpreters.
        http: Rounds over HTTP.
        draw: Seconds that the server takes to answer.
        verify: Seconds that it takes to judge.
    """

    parts: tuple[str, ...] = PARTS
    overhead: int = 400
    waves: int = 40
    arithmetic: int = 250
    claims: int = 400
    imports: int = 40
    http: int = 9
    draw: float = 1.0
    verify: float = 0.5


def make_plan(options: argparse.Namespace) -> Plan:
    """Make the plan that the options ask for."""
    plan = Plan(parts=tuple(options.only or PARTS))
    if options.quick:
        plan = replace(
            plan, overhead=8, waves=6, arithmetic=20, claims=8, imports=6, http=6, draw=0.1, verify=0.05
        )
    return plan


def run(plan: Plan) -> ServingResults:
    """Measure every part of a plan."""
    from benchmarks.lib import serving_parts
    from benchmarks.lib.serving_results import ServingResults
    from benchmarks.lib.tables import describe_machine, find_versions

    found: dict[str, Any] = {}
    for part in plan.parts:
        if part == "http":
            rows, requests = serving_parts.measure_http(plan.http, plan.draw, plan.verify)
            found |= {"http": rows, "requests": requests}
        else:
            found[part] = getattr(serving_parts, f"measure_{part}")(getattr(plan, part))
    return ServingResults(
        versions=find_versions(PACKAGES),
        machine=describe_machine(),
        draw=plan.draw,
        verify=plan.verify,
        **found,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write what was asked for, and print the tables."""
    from benchmarks.lib.threads import check_threads, limit_threads

    limit_threads()
    parser = argparse.ArgumentParser(
        description="What serving costs in addition to the model and the verifier."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to measure")
    parser.add_argument("--quick", action="store_true", help="few rounds, short latencies")
    options = parser.parse_args(arguments)
    from benchmarks.lib.serving_results import make_page, make_sheets
    from benchmarks.lib.tables import print_sheets

    check_threads()
    served = run(make_plan(options))
    if options.json is not None:
        options.json.write_text(served.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if options.page is not None:
        options.page.write_text(make_page(served), encoding="utf-8")
    print_sheets(make_sheets(served))


if __name__ == "__main__":
    main()

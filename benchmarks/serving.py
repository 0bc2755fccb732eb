"""What serving costs beside the model and the verifier, in one run.

    python benchmarks/serving.py --page benchmarks/SERVING.md

Four parts: `CFCRunnable` beside the same calls by hand, in memory; our own arithmetic for one prompt;
imports in fresh interpreters; and wall time over HTTP, with the requests that the server counted. Whatever is
compared is timed in turn within the run. Times depend on the machine; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from benchmarks.serving_results import Served

PARTS = ("overhead", "arithmetic", "imports", "http")
PACKAGES = ("langchain-cfc", "langchain-core", "langchain-openai", "openai", "pydantic", "numpy")


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        parts: Some of `PARTS`.
        overhead: Rounds in memory.
        prompts: Prompts whose arithmetic is timed.
        imports: Rounds of interpreters.
        http: Rounds over HTTP.
        draw: Seconds that the server takes to answer.
        verify: Seconds that it takes to judge.
    """

    parts: tuple[str, ...] = PARTS
    overhead: int = 400
    prompts: int = 250
    imports: int = 40
    http: int = 9
    draw: float = 1.0
    verify: float = 0.5


def planned(options: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    plan = Plan(parts=tuple(options.only or PARTS))
    if options.quick:
        plan = replace(plan, overhead=8, prompts=20, imports=6, http=6, draw=0.1, verify=0.05)
    return plan


def run(plan: Plan) -> Served:
    """Measure every part of a plan."""
    from benchmarks.arithmetic import arithmetic
    from benchmarks.imports import imports
    from benchmarks.over_http import over_http
    from benchmarks.overhead import overhead
    from benchmarks.serving_results import Served

    found: dict[str, Any] = {}
    if "overhead" in plan.parts:
        found["overhead"] = overhead(plan.overhead)
    if "arithmetic" in plan.parts:
        found["arithmetic"] = arithmetic(plan.prompts)
    if "imports" in plan.parts:
        found["imports"] = imports(plan.imports)
    if "http" in plan.parts:
        found["http"], found["requests"] = over_http(plan.http, plan.draw, plan.verify)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return Served(
        versions={"python": platform.python_version()} | versions,
        machine=f"{platform.system()} on {platform.machine()} with {os.cpu_count()} cores",
        draw=plan.draw,
        verify=plan.verify,
        **found,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write and show."""
    from benchmarks.one_thread import check_threads, one_thread

    one_thread()
    parser = argparse.ArgumentParser(description="What serving costs beside the model and the verifier.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to measure")
    parser.add_argument("--quick", action="store_true", help="few rounds, short latencies")
    options = parser.parse_args(arguments)
    from rich.console import Console

    from benchmarks.serving_page import page, sheets

    check_threads()
    served = run(planned(options))
    if options.json is not None:
        options.json.write_text(served.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if options.page is not None:
        options.page.write_text(page(served), encoding="utf-8")
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file is as wide as need be
    for sheet in sheets(served):
        console.print(sheet.table())
        console.print()


if __name__ == "__main__":
    main()

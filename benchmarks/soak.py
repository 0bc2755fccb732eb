"""Many prompts at once over a network that goes wrong in many ways: is every promise kept for each of them?

    python benchmarks/soak.py --invocations 10000 --concurrency 64

What is served and what is checked stands in `tests/conformance/soaking.py`. It prints a table, and exits
with 1 if anything was violated. The full run takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))


def main(arguments: Sequence[str] | None = None) -> None:
    """Soak, show what was found, and exit with 1 if anything was violated."""
    from benchmarks.one_thread import one_thread

    one_thread()
    parser = argparse.ArgumentParser(description="Many prompts at once over a network that goes wrong.")
    parser.add_argument("--invocations", type=int, default=10_000, help="prompts (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=64, help="prompts at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that they come in (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what strikes when (%(default)s)")
    options = parser.parse_args(arguments)
    from rich.console import Console
    from rich.table import Table

    from tests.conformance.soaking import Plan, soak

    plan = Plan(
        invocations=options.invocations,
        concurrency=options.concurrency,
        rounds=options.rounds,
        seed=options.seed,
    )
    found = soak(plan)
    table = Table("what", "found", title=f"{plan.invocations} prompts, {plan.concurrency} at once", box=None)
    for row in found.rows():
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file is as wide as need be
    console.print(table)
    console.print("violated: " + "; ".join(found.violations) if found.violations else "nothing was violated")
    sys.stdout.flush()
    if found.hung:
        os._exit(1)  # threads that hang would keep the process
    sys.exit(1 if found.violations else 0)


if __name__ == "__main__":
    main()

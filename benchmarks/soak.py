"""Many prompts at once over a network with many kinds of faults: does every guarantee of serving hold?

    python benchmarks/soak.py --invocations 10000 --concurrency 64

`tests/conformance/soaking.py` says what is served and checked. The benchmark prints a table, and exits with 1
if anything was violated. The full run takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import limit_threads, print_table


def main(arguments: Sequence[str] | None = None) -> None:
    """Soak, print what was found, and exit with 1 if anything was violated."""
    limit_threads()
    parser = argparse.ArgumentParser(description="Many prompts at once over a network that goes wrong.")
    parser.add_argument("--invocations", type=int, default=10_000, help="prompts (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=64, help="prompts at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that they come in (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (%(default)s)")
    options = parser.parse_args(arguments)
    from tests.conformance.soaking import Plan, soak

    plan = Plan(
        invocations=options.invocations,
        concurrency=options.concurrency,
        rounds=options.rounds,
        seed=options.seed,
    )
    found = soak(plan)
    print_table(
        f"{plan.invocations} prompts, {plan.concurrency} at once", ("what", "found"), list(found.rows())
    )
    print("violated: " + "; ".join(found.violations) if found.violations else "nothing was violated")
    sys.stdout.flush()
    if found.hung:
        os._exit(1)  # hanging threads would keep the process alive
    sys.exit(1 if found.violations else 0)


if __name__ == "__main__":
    main()

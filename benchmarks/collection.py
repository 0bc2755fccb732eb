"""What collecting costs in addition to the model, in one run: `python benchmarks/collection.py`.

Four parts: wall time over HTTP against the ideal, with a server of fixed latency that handles so many
requests at a time; the store alone against plain inserts of the same rows; and a whole collection against a
bare `abatch` over the same prompts, with a model that answers on the event loop and with one that LangChain
calls in threads. Alternatives are timed in turn within the run. Times depend on the machine and its disk; the
ratios are what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PARTS = ("wait", "store", "memory", "threads")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables of results."""
    from benchmarks.lib.threads import check_threads, limit_threads

    limit_threads()
    parser = argparse.ArgumentParser(description="What collecting costs in addition to the model.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--rounds", type=int, default=9, help="at least 6")
    options = parser.parse_args(arguments)
    from benchmarks.lib import collection_parts
    from benchmarks.lib.tables import (
        Measurement,
        Sheet,
        Target,
        format_seconds,
        make_target_sheet,
        print_sheets,
    )

    check_threads()
    targets = {
        "wait": ("wall time over HTTP, over the ideal", 1.10, True),
        "store": ("rate of the store, over that of plain inserts", 0.5, False),
        "memory": ("bare abatch over a collection, in memory", 0.8, False),
        "threads": ("the same with a model in threads", 0.8, False),
    }
    rows, reached = [], []
    for part in options.only:
        found = list(getattr(collection_parts, f"measure_{part}")(options.rounds))
        for one in found:
            ratio = one.ratio
            times = (format_seconds(ratio.seconds), format_seconds(ratio.other))
            rows.append((one.what, str(one.prompts), str(one.n), str(ratio), *times))
        name, limit, most = targets[part]
        measured = tuple(Measurement(one.ratio.median, one.what) for one in found if not one.control)
        reached.append(Target(name, limit, measured, most=most, unit="x"))
    note = "Medians over the rounds, with an interval (95 % if the rounds were independent)."
    headings = ("what, over what", "prompts", "n", "ratio", "the one", "the other")
    sheet = Sheet("Collecting", note, headings, tuple(rows))
    print_sheets([sheet, make_target_sheet(reached, "The worst row counts.")])


if __name__ == "__main__":
    main()

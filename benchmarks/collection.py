"""What collecting costs beside the model, in one run: `python benchmarks/collection.py`.

Four parts: wall time over HTTP against a server of fixed latency that works on so many requests at a time,
beside the ideal; the store alone beside plain inserts of the same rows; and a whole collection beside a bare
`abatch` over the same prompts, with a model that answers on the event loop and with one that LangChain calls
in threads. Whatever is compared is timed in turn within the run. Times depend on the machine and its disk;
the ratios are what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))

PARTS = ("wait", "store", "memory", "threads")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and show."""
    from benchmarks.one_thread import check_threads, one_thread

    one_thread()
    parser = argparse.ArgumentParser(description="What collecting costs beside the model.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--rounds", type=int, default=9, help="at least 6")
    options = parser.parse_args(arguments)
    from rich.console import Console

    from benchmarks import collecting
    from benchmarks.figures import Figure, Found
    from benchmarks.sheet import Sheet, number, span

    check_threads()
    targets = {
        "wait": ("wall time over HTTP, over the ideal", 1.10, True),
        "store": ("rate of the store, over that of plain inserts", 0.5, False),
        "memory": ("bare abatch over a collection, in memory", 0.8, False),
        "threads": ("the same with a model in threads", 0.8, False),
    }
    rows, figures = [], []
    for part in options.only:
        found = list(getattr(collecting, part)(options.rounds))
        for one in found:
            ratio = one.ratio
            said = f"{number(ratio.median)} [{number(ratio.low)}, {number(ratio.high)}]"
            rows.append(
                (one.what, str(one.prompts), str(one.n), said, span(ratio.seconds), span(ratio.other))
            )
        name, limit, most = targets[part]
        where = tuple(Found(one.ratio.median, one.what) for one in found if not one.control)
        figures.append(Figure(name, limit, where, most=most, unit="x"))
    verdicts = [
        (
            one.name,
            f"at {'most' if one.most else 'least'} {one.limit:g}x",
            number(one.worst.value),
            one.verdict,
        )
        for one in figures
        if one.worst is not None
    ]
    console = Console() if Console().is_terminal else Console(width=200)  # a file is as wide as need be
    note = "Medians over the rounds, with an interval (95 % if the rounds were independent)."
    headings = ("what, over what", "prompts", "n", "ratio", "the one", "the other")
    console.print(Sheet("Collecting", note, headings, tuple(rows)).table())
    console.print()
    named = ("what", "target", "worst", "verdict")
    console.print(Sheet("Figures", "The worst row counts.", named, tuple(verdicts)).table())


if __name__ == "__main__":
    main()

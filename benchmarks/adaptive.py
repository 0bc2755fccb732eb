"""What adaptive levels gain over a fixed one: prompts covered and flagged, and stated against kept coverage.

    python benchmarks/adaptive.py RECORDING:ALPHA ... --splits 60 --jobs 2

Each split calibrates on a random part of the prompts and is judged on the other 40 %, with the default
options: `hat(mean_score, 5)`, sets that are never empty. Fifths of the test prompts are by mean score. The
gap is kept less stated coverage, the smallest over the fifths, with its standard error over the splits.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.threads import limit_threads, measure_splits

limit_threads()  # before NumPy is imported

import numpy as np  # noqa: E402 - after the threads are limited

from benchmarks.lib.tables import Sheet, print_sheets  # noqa: E402 - the path comes first
from langchain_cfc import calibrate, read_records  # noqa: E402 - the path comes first
from langchain_cfc._internal.arrays import FloatArray  # noqa: E402 - the path comes first
from langchain_cfc.artifact import select_held_out  # noqa: E402 - the path comes first
from langchain_cfc.candidates import LabelledBatch  # noqa: E402 - the path comes first
from langchain_cfc.certificates.coverage import compute_outcomes  # noqa: E402 - the path comes first
from langchain_cfc.records import tabulate  # noqa: E402 - the path comes first

FIFTHS = 5
HEADINGS = ("level", "stated", "kept", "covered", "flagged", "distinct", "hardest fifth", "smallest gap")
PAGE = (
    "Made by `benchmarks/adaptive.py`, whose docstring says what is compared. *stated*: mean coverage "
    "stated; *kept*: covered or flagged; *covered*: the set holds a correct answer; *hardest fifth*: "
    "covered there, and in brackets what is stated; *smallest gap*: kept less stated in the fifth where it "
    "is smallest."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare adaptive levels with a fixed one, and print a table for each recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recordings", nargs="+", help="records and alpha, such as facts.jsonl:0.2")
    parser.add_argument("--splits", type=int, default=60, help="random splits of each recording")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    options = parser.parse_args(arguments)
    sheets = []
    for one in options.recordings:
        path, _, alpha = one.rpartition(":")
        measure = partial(measure_split, tabulate(read_records(path)), alpha)
        found = measure_splits(measure, options.splits, options.jobs)
        sheets.append(make_sheet(f"{Path(path).stem}, alpha = {alpha}", np.array(found)))
        print_sheets(sheets[-1:])
    if options.page is not None:
        text = "\n".join([f"# Adaptive levels\n\n{PAGE}\n", *(one.to_markdown() for one in sheets)])
        options.page.write_text(text, encoding="utf-8")


def make_sheet(name: str, found: FloatArray) -> Sheet:
    """Make the table of one recording from (splits, 2, figures) measurements."""
    means, errors = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
    rows = []
    for level, mean, error in zip(("fixed", "adaptive"), means, errors, strict=True):
        stated, kept, covered, flagged, distinct, hardest, stated_there, *gaps = mean
        worst = int(np.argmin(gaps))
        spread = error[-FIFTHS:][worst]
        figures = [f"{one:.3f}" for one in (stated, kept, covered, flagged)]
        where = f"{hardest:.3f} ({stated_there:.3f})"
        rows.append((level, *figures, f"{distinct:.2f}", where, f"{gaps[worst]:+.3f} ± {spread:.3f}"))
    return Sheet(name, f"means over {len(found)} splits", HEADINGS, tuple(rows))


def measure_split(table: LabelledBatch, alpha: str, seed: int) -> list[list[float]]:
    """Calibrate at a fixed and at adaptive levels, and return the figures of both on the test prompts."""
    measured = []
    for adaptive in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            artifact = calibrate(
                table,
                alpha=alpha,
                adaptive_alpha=adaptive,
                test_fraction=0.4,
                seed=seed,
                allow_unattainable=True,
            )
        test, _ = select_held_out(artifact, table)
        seen = compute_outcomes(artifact, test, alpha)
        fifths = np.array_split(test.draws.scores.mean(axis=1).argsort(kind="stable"), FIFTHS)
        measured.append(
            [
                float(seen.stated.mean()),
                float(seen.kept.mean()),
                float(seen.covered.mean()),
                float(seen.decisions.not_certifiable.mean()),
                float(seen.decisions.distinct_answers.mean()),
                float(seen.covered[fifths[-1]].mean()),
                float(seen.stated[fifths[-1]].mean()),
                *(float((seen.kept - seen.stated)[rows].mean()) for rows in fifths),
            ]
        )
    return measured


if __name__ == "__main__":
    main()

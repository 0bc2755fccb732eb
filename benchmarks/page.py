"""Writes the page of a run: `python benchmarks/page.py results.json` makes RESULTS.md and its picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))

from benchmarks.picture import draw  # noqa: E402 - found by the line above
from benchmarks.results import Results  # noqa: E402 - likewise
from benchmarks.sheets import sheets  # noqa: E402 - likewise

PICTURE = "cost.svg"
HEAD = """\
# What exact conditional thresholds cost

Written by `benchmarks/page.py` from one run of `benchmarks/thresholds.py`; do not edit. Every process had one
BLAS thread. Times are of one machine with {cores} cores; the ratios, all from the same run, are what counts.

- Here: {versions}
- The peers' own environment: {peer_versions}

![Cost against the number of calibration prompts, ours and the peers]({picture})

MAPIE runs the same algorithm as conditionalconformal and is left out of the picture; its times are below.
A line ends where its method became too slow. Scores are success scores with cap 2, alpha is 0.1, and five
prompts of a hundred have no correct candidate (none under "no atoms"). "Tied" has scores on a grid of 0.1,
"groups" a constant and d - 1 overlapping indicators, "tied groups" both, "atoms" d hat functions of one
number and most scores 0. HiGHS is asked with theta = tau - 1e-8 and feasibility tolerances of 1e-10, at which
it takes as long as at its defaults. `c.c.` is the package conditionalconformal.
"""


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "none"


def page(results: Results) -> str:
    """The page as Markdown."""
    head = HEAD.format(
        cores=results.cores,
        versions=_versions(results.versions),
        peer_versions=_versions(results.peer_versions),
        picture=PICTURE,
    )
    return "\n".join([head, *(sheet.markdown() for sheet in sheets(results))])


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and the picture."""
    parser = argparse.ArgumentParser(description="The page of a run of benchmarks/thresholds.py.")
    parser.add_argument("results", type=Path, help="what --json wrote")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where to write")
    options = parser.parse_args(arguments)
    results = Results.model_validate_json(options.results.read_text(encoding="utf-8"))
    draw(results, options.folder / PICTURE)
    (options.folder / "RESULTS.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()

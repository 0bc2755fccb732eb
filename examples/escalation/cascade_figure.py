"""Draw what a question costs against how often its set holds a correct answer, level by level.

    python cascade_figure.py cascade.png

The cascade that is drawn is the sound one of `cascade_table`; its cheap tier answers more at looser levels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cascade_table import Row, compute_mean, measure_splits
from langchain_cfc_lab.report.drawing import Style, finish_axes, format_tick
from matplotlib.figure import Figure
from two_models import CHEAP, STRONG

LEVELS = ("0.1", "0.2", "0.3", "0.4")
AS_RECORDED = CHEAP.cost / STRONG.cost
# Another pair of models, further apart in price, that would answer the same.
IMAGINED = 1 / 20


def draw_figure(by_level: dict[str, Row], alone: Row) -> Figure:
    """Draw the costs and shares of a cascade as a figure.

    Args:
        by_level: The cascade, by the level of its cheap tier.
        alone: The strong model asked everything.

    Returns:
        The figure, to be saved.
    """
    figure = Figure(figsize=(7.4, 4.0), layout="constrained")
    axis = figure.subplots()
    handles: list[Any] = []
    right = [row.right for row in by_level.values()]
    for place, ratio in enumerate((AS_RECORDED, IMAGINED)):
        costs = [row.cost - AS_RECORDED + ratio for row in by_level.values()]
        handles += axis.plot(costs, right, **_look(place))
        for level, cost, share in zip(by_level, costs, right, strict=True):
            axis.annotate(level, (cost, share), xytext=(-12, 7), textcoords="offset points", fontsize=8)
    handles += axis.plot([alone.cost], [alone.right], **_look(3))
    axis.set_xlabel("cost of a question")
    axis.set_ylabel("questions whose set holds a correct answer")
    axis.xaxis.set_major_formatter(format_tick)
    axis.yaxis.set_major_formatter(format_tick)
    axis.set_ylim(0.5, 0.8)
    names = [
        f"cascade, at 1 : {1 / AS_RECORDED:.1f}",
        f"cascade, were it 1 : {1 / IMAGINED:.0f}",
        "strong model alone",
    ]
    finish_axes(
        axis, handles, names, title="cost of cheap to strong;\nat the points: level of the cheap tier"
    )
    return figure


def _look(place: int) -> dict[str, Any]:
    style = Style.at(place)
    return {"color": style.colour, "marker": style.marker, "linestyle": style.dash}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cascade at each level, and draw it."""
    parser = argparse.ArgumentParser(description="Draw what a cascade costs and covers.")
    parser.add_argument("file", type=Path, help="where to draw: .png, .svg or .pdf")
    parser.add_argument("--splits", type=int, default=20, help="how many random splits (%(default)s)")
    options = parser.parse_args(arguments)
    by_level = {
        level: compute_mean(measure_splits(["cascade"], options.splits, level)["cascade"]) for level in LEVELS
    }
    alone = compute_mean(measure_splits(["strong model alone"], options.splits)["strong model alone"])
    draw_figure(by_level, alone).savefig(options.file, dpi=100)


if __name__ == "__main__":
    main()

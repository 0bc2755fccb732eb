"""Draw what a question costs against how many are answered, rate by rate.

    python cascade_figure.py cascade.png

The cascade that is drawn is the sound one of `cascade_table`; its cheap tier answers more at larger rates.
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

RATES = ("0.15", "0.2", "0.25", "0.3")
AS_RECORDED = CHEAP.cost / STRONG.cost
# Another pair of models, further apart in price, that would answer the same.
IMAGINED = 1 / 20


def draw_figure(by_rate: dict[str, Row], alone: Row) -> Figure:
    """Draw the costs and shares of a cascade as a figure.

    Args:
        by_rate: The cascade, by the rate of its cheap tier.
        alone: The strong model asked everything.

    Returns:
        The figure, to be saved.
    """
    figure = Figure(figsize=(7.4, 4.0), layout="constrained")
    axis = figure.subplots()
    handles: list[Any] = []
    answered = [1.0 - row.person for row in by_rate.values()]
    for place, ratio in enumerate((AS_RECORDED, IMAGINED)):
        costs = [row.cost - AS_RECORDED + ratio for row in by_rate.values()]
        handles += axis.plot(costs, answered, **_look(place))
        for rate, cost, share in zip(by_rate, costs, answered, strict=True):
            axis.annotate(rate, (cost, share), xytext=(-12, 7), textcoords="offset points", fontsize=8)
    handles += axis.plot([alone.cost], [1.0 - alone.person], **_look(3))
    axis.set_xlabel("cost of a question")
    axis.set_ylabel("questions answered")
    axis.xaxis.set_major_formatter(format_tick)
    axis.yaxis.set_major_formatter(format_tick)
    axis.set_ylim(0.5, 1.0)
    names = [
        f"cascade, at 1 : {1 / AS_RECORDED:.1f}",
        f"cascade, were it 1 : {1 / IMAGINED:.0f}",
        "strong model alone",
    ]
    finish_axes(axis, handles, names, title="cost of cheap to strong;\nat the points: rate of the cheap tier")
    return figure


def _look(place: int) -> dict[str, Any]:
    style = Style.at(place)
    return {"color": style.colour, "marker": style.marker, "linestyle": style.dash}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cascade at each rate, and draw it."""
    parser = argparse.ArgumentParser(description="Draw what a cascade costs and covers.")
    parser.add_argument("file", type=Path, help="where to draw: .png, .svg or .pdf")
    parser.add_argument("--splits", type=int, default=20, help="how many random splits (%(default)s)")
    options = parser.parse_args(arguments)
    by_rate = {
        rate: compute_mean(measure_splits(["cascade"], options.splits, rate)["cascade"]) for rate in RATES
    }
    alone = compute_mean(measure_splits(["strong model alone"], options.splits)["strong model alone"])
    draw_figure(by_rate, alone).savefig(options.file, dpi=100)


if __name__ == "__main__":
    main()

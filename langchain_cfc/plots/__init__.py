"""Figures for people, drawn with matplotlib.

Each `plot_` function takes data and, if there is one, the axis to draw on, and returns the axis:

    axis = plot_by_alpha(report.sweep, figure="worst_group_coverage")
    axis.figure.savefig("worst_group.pdf")

An axis of one's own keeps its size; its figure should be made with `layout="constrained"`, since the key
stands to the right of the axis. Nothing here changes matplotlib's settings, and no figure is kept open.
`style` fixes how each method looks, `labels` how groups are called, `axes` what all figures share, `svg` how
a figure becomes part of a page.
"""

from __future__ import annotations

from langchain_cfc.plots.answers import plot_certified_policies, plot_selective_risk
from langchain_cfc.plots.evidence import plot_evidence
from langchain_cfc.plots.groups import plot_group_miscoverage, plot_threshold_by_difficulty
from langchain_cfc.plots.levels import plot_by_alpha
from langchain_cfc.plots.prompts import plot_attainable, plot_score_histogram
from langchain_cfc.plots.svg import to_svg

__all__ = [
    "plot_attainable",
    "plot_by_alpha",
    "plot_certified_policies",
    "plot_evidence",
    "plot_group_miscoverage",
    "plot_score_histogram",
    "plot_selective_risk",
    "plot_threshold_by_difficulty",
    "to_svg",
]

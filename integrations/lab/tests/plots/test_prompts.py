"""Plots of scores and attainable coverage show the data."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_lab.comparison_report import AttainableComparison, Histogram, Spread
from langchain_cfc_lab.report.plots import plot_attainable, plot_score_histogram
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch

from integrations.lab.tests.plots.inputs import HISTOGRAM, make_attainable
from integrations.lab.tests.plots.reading import containers, data, lines, read_legend
from langchain_cfc.errors import InputError


def list_step_patches(ax: Axes) -> list[Any]:
    return [one for one in ax.patches if isinstance(one, StepPatch)]


def read_interval(spread: Spread) -> tuple[float, float]:
    """Return the interval, which must be known."""
    assert spread.interval is not None
    return spread.interval


def test_plot_score_histogram_draws_both_labels_visibly() -> None:
    ax = plot_score_histogram(HISTOGRAM)
    correct, wrong = list_step_patches(ax)
    for drawn, counts in ((correct, HISTOGRAM.correct), (wrong, HISTOGRAM.wrong)):
        assert list(drawn.get_data().values) == counts
        assert list(drawn.get_data().edges) == HISTOGRAM.edges
    assert read_legend(ax) == ["correct", "wrong"]
    assert (correct.get_fill(), wrong.get_fill()) == (True, False)
    assert wrong.get_hatch()


def test_plot_score_histogram_refuses_an_empty_histogram() -> None:
    plot_score_histogram(Histogram(edges=[0.0, 1.0], correct=[0], wrong=[1]))
    with pytest.raises(InputError, match="nothing to draw: the histogram holds no candidates"):
        plot_score_histogram(Histogram(edges=[0.0, 1.0], correct=[0], wrong=[0]))


def test_plot_attainable_draws_points_with_intervals() -> None:
    groups = make_attainable(["all prompts", "mean score: 1 of 2", "mean score: 2 of 2"])
    ax = plot_attainable(groups)
    (diagonal,) = [line for line in lines(ax) if line.get_linestyle() == "--"]
    assert data(diagonal) == (list(ax.get_xlim()), list(ax.get_ylim()))
    assert ax.get_xlim() == ax.get_ylim()
    names = read_legend(ax)
    assert names == ["as predicted", "all prompts", "1 of 2", "2 of 2"]
    for group, points in zip(groups, containers(ax), strict=True):
        centre, (across, up) = points.lines[0], points.lines[2]
        assert (centre.get_xdata()[0], centre.get_ydata()[0]) == (group.predicted.mean, group.seen.mean)
        assert across.get_segments()[0][:, 0] == pytest.approx(read_interval(group.predicted))
        assert up.get_segments()[0][:, 1] == pytest.approx(read_interval(group.seen))
        for low, high in (read_interval(group.predicted), read_interval(group.seen)):
            assert ax.get_xlim()[0] < low < high < ax.get_xlim()[1]


def test_plot_attainable_draws_a_constant_group_as_a_point() -> None:
    sure = Spread(mean=1.0, sd=0.0, interval=(1.0, 1.0), splits=5)
    ax = plot_attainable([AttainableComparison(words="all prompts", predicted=sure, seen=sure)])
    assert ax.get_xlim() == pytest.approx((0.98, 1.02))


def test_plot_attainable_refuses_no_groups() -> None:
    with pytest.raises(InputError, match="nothing to draw: there is no group"):
        plot_attainable([])

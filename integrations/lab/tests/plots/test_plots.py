"""Plots show the data of a report, and refuse to draw nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_cfc_lab.comparison_report import ComparisonReport, Histogram
from langchain_cfc_lab.report.drawing import assign_styles
from langchain_cfc_lab.report.plots import (
    plot_by_alpha,
    plot_group_miscoverage,
    plot_score_histogram,
    plot_selective_risk,
    plot_threshold_by_difficulty,
)
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch

from integrations.lab.tests.plots.inputs import HISTOGRAM, make_comparison, make_evaluation
from integrations.lab.tests.plots.reading import (
    containers,
    data,
    error_bars,
    lines,
    map_legend_to_drawn,
    read_legend,
)
from langchain_cfc.errors import InputError
from langchain_cfc.support.curves import RiskCurve

METHODS = ["conditional", "TopK", "CFC"]
SWEEP = make_comparison()
LEVEL = SWEEP.sweep[-1]
NO_RISK = {"data": SWEEP.data.model_copy(update={"risk": RiskCurve(answered=[], wrong=[])})}


def silence(report: ComparisonReport) -> ComparisonReport:
    """Leave CFC alone, as if it had answered nothing."""
    one = report.methods["CFC"]
    figures = {name: figure for name, figure in one.figures.items() if name != "selective_accuracy"}
    level = report.model_copy(update={"methods": {"CFC": one.model_copy(update={"figures": figures})}})
    return level.model_copy(update={"sweep": [level]})


SILENT = silence(SWEEP)


@pytest.mark.parametrize("of", ["kept_promise", "coverage"])
def test_plot_group_miscoverage_draws_missed_shares_with_sd(of: Any) -> None:
    ax = plot_group_miscoverage(LEVEL, of=of)
    bars = map_legend_to_drawn(ax)
    assert list(bars) == METHODS
    for name, drawn in bars.items():
        groups = LEVEL.methods[name].groups
        missed = [1 - getattr(group, of) for group in groups]
        assert [bar.get_height() for bar in drawn] == pytest.approx(missed)
        ends = [[share, share + group.figures[of].sd] for share, group in zip(missed, groups, strict=True)]
        assert error_bars(drawn.errorbar) == [pytest.approx(pair) for pair in ends]
    assert data(lines(ax)[0])[1] == [0.1, 0.1]
    assert read_legend(ax)[0] == "target 0.1"
    assert "sd over splits" in ax.get_ylabel()


def test_plot_group_miscoverage_draws_intervals_of_an_evaluation() -> None:
    report = make_evaluation()
    ax = plot_group_miscoverage(report)
    methods = {"this artifact": "conditional", "one threshold for all": "marginal"}
    for name, drawn in map_legend_to_drawn(ax).items():
        tops = [1 - one.kept_promise_ci[0] for one in report.methods[methods[name]].groups]
        assert [end for _, end in error_bars(drawn.errorbar)] == pytest.approx(tops)
    # Its groups have no interval of coverage, and none is made up.
    bars = map_legend_to_drawn(plot_group_miscoverage(report, of="coverage")).values()
    assert all(drawn.errorbar is None for drawn in bars)


def test_plot_group_miscoverage_accepts_methods_without_or_with_other_groups() -> None:
    one = LEVEL.methods["CFC"]
    methods = {
        name: one.model_copy(update={"groups": one.groups[:count]})
        for name, count in zip("abc", (3, 2, 0), strict=True)
    }
    ax = plot_group_miscoverage(LEVEL.model_copy(update={"methods": methods}))
    bars = map_legend_to_drawn(ax)
    assert [len(drawn) for drawn in bars.values()] == [3, 2, 1]
    assert round(bars["c"][0].get_x()) == 3
    assert [text.get_text() for text in ax.get_xticklabels()][-1] == "all prompts"


def test_plot_threshold_by_difficulty_draws_means_with_sd() -> None:
    drawn = map_legend_to_drawn(plot_threshold_by_difficulty(LEVEL))
    assert list(drawn) == ["conditional", "CFC"]
    for name, points in drawn.items():
        spreads = [group.figures["threshold"] for group in LEVEL.methods[name].groups]
        across, up = data(points.lines[0])
        assert up == [one.mean for one in spreads]
        assert [round(x) for x in across] == [0, 1, 2]
        ends = [pytest.approx([one.mean - one.sd, one.mean + one.sd]) for one in spreads]
        assert error_bars(points) == ends


@pytest.mark.parametrize("methods", [None, ["CFC"], ["CFC", "conditional"]])
def test_selecting_methods_changes_no_style(methods: list[str] | None) -> None:
    look = assign_styles(METHODS)["CFC"]
    bar = map_legend_to_drawn(plot_group_miscoverage(LEVEL, methods=methods))["CFC"][0]
    assert (to_hex(bar.get_facecolor()), bar.get_hatch()) == (look.colour.lower(), look.hatch)
    for ax in (
        plot_threshold_by_difficulty(LEVEL, methods=methods),
        plot_by_alpha(SWEEP.sweep, methods=methods),
        plot_selective_risk(SWEEP, methods=methods),
    ):
        line = map_legend_to_drawn(ax)["CFC"].lines[0]
        assert (line.get_color(), line.get_marker()) == (look.colour, look.marker)


@pytest.mark.parametrize("figure", ["mean_distinct_answers", "selective_accuracy"])
def test_plot_by_alpha_draws_means_with_sd(figure: str) -> None:
    ax = plot_by_alpha(SWEEP.sweep, figure=figure)
    for name, points in map_legend_to_drawn(ax).items():
        spreads = {one.alpha: one.methods[name].figures[figure] for one in SWEEP.sweep}
        assert data(points.lines[0]) == ([0.05, 0.1, 0.2], [spreads[a].mean for a in (0.05, 0.1, 0.2)])
        ends = [(spreads[a].mean - spreads[a].sd, spreads[a].mean + spreads[a].sd) for a in (0.05, 0.1, 0.2)]
        assert error_bars(points) == [pytest.approx(list(pair)) for pair in ends]
    # No target for these.
    assert read_legend(ax) == METHODS


@pytest.mark.parametrize("figure", ["kept_promise", "worst_group_coverage"])
def test_plot_by_alpha_draws_the_target_of_coverage(figure: str) -> None:
    ax = plot_by_alpha(SWEEP.sweep, figure=figure)
    assert read_legend(ax) == ["target 1 - alpha", *METHODS]
    (target,) = [line for line in lines(ax) if line.get_linestyle() == "--" and line.get_marker() == ""]
    assert data(target)[0] == pytest.approx([0.04, 0.21])
    assert data(target)[1] == pytest.approx([0.96, 0.79])


def test_plot_selective_risk_draws_curve_and_points_of_every_method() -> None:
    ax = plot_selective_risk(SWEEP)
    assert read_legend(ax) == ["lowest best scores", *METHODS]
    assert data(lines(ax)[0]) == (SWEEP.data.risk.answered, SWEEP.data.risk.wrong)
    levels = sorted(SWEEP.sweep, key=lambda level: level.alpha)
    for name, points in zip(METHODS, containers(ax), strict=True):
        found = [level.methods[name] for level in levels]
        answered, wrong = data(points.lines[0])
        assert answered == [1 - one.abstention_rate for one in found]
        assert wrong == [1 - one.figures["selective_accuracy"].mean for one in found]
    assert read_legend(plot_selective_risk(SILENT)) == ["lowest best scores"]
    assert read_legend(plot_selective_risk(SWEEP.model_copy(update=NO_RISK), methods=["CFC"])) == ["CFC"]


def test_plot_score_histogram_draws_both_labels_visibly() -> None:
    ax = plot_score_histogram(HISTOGRAM)
    patches: list[Any] = [one for one in ax.patches if isinstance(one, StepPatch)]
    for drawn, counts in zip(patches, (HISTOGRAM.correct, HISTOGRAM.wrong), strict=True):
        assert list(drawn.get_data().values) == counts
        assert list(drawn.get_data().edges) == HISTOGRAM.edges
    assert read_legend(ax) == ["correct", "wrong"]
    assert [one.get_fill() for one in patches] == [True, False]
    assert patches[1].get_hatch()


EMPTY = Histogram(edges=[0.0, 1.0], correct=[0], wrong=[0])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot_group_miscoverage(LEVEL, methods=["ICP"]), "'ICP'; the report holds conditional, TopK"),
        (lambda: plot_threshold_by_difficulty(LEVEL, methods=["ICP"]), "unknown method 'ICP'"),
        (lambda: plot_by_alpha(SWEEP.sweep, methods=["ICP"]), "unknown method 'ICP'"),
        (lambda: plot_selective_risk(SWEEP, methods=["ICP"]), "unknown method 'ICP'"),
        (lambda: plot_group_miscoverage(LEVEL, methods=[]), "no method was asked for"),
        (lambda: plot_threshold_by_difficulty(LEVEL, methods=["TopK"]), "no group has thresholds under TopK"),
        (lambda: plot_by_alpha(SWEEP.sweep, figure="size"), "'size'; there are kept_promise, coverage"),
        (lambda: plot_by_alpha(SWEEP.sweep, methods=[]), "there are none"),
        (lambda: plot_selective_risk(SILENT.model_copy(update=NO_RISK)), "nothing is answered under CFC"),
        (lambda: plot_score_histogram(EMPTY), "the histogram holds no candidates"),
    ],
)
def test_plots_refuse_unknown_methods_and_empty_figures(draw: Callable[[], Axes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw()

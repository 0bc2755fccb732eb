"""Plots of miscoverage and thresholds by group show the data."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_lab.report.drawing import assign_styles
from langchain_cfc_lab.report.plots import (
    plot_by_alpha,
    plot_group_miscoverage,
    plot_selective_risk,
    plot_threshold_by_difficulty,
)
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from integrations.lab.tests.plots.inputs import (
    make_bin_words,
    make_comparison,
    make_evaluation,
    make_level,
    make_level_of,
    make_method,
)
from integrations.lab.tests.plots.reading import data, error_bars, lines, map_legend_to_drawn, read_legend
from langchain_cfc.errors import InputError

WORDS = make_bin_words(3)
METHODS = ["conditional", "TopK", "CFC"]


@pytest.mark.parametrize("of", ["kept_promise", "coverage"])
def test_plot_group_miscoverage_draws_missed_shares_with_sd(of: Any) -> None:
    report = make_level_of(METHODS, WORDS, alpha=0.2)
    ax = plot_group_miscoverage(report, of=of)
    bars = map_legend_to_drawn(ax)
    assert list(bars) == METHODS
    for name, drawn in bars.items():
        groups = report.methods[name].groups
        missed = [1 - getattr(group, of) for group in groups]
        assert [bar.get_height() for bar in drawn] == pytest.approx(missed)
        ends = [[share, share + group.figures[of].sd] for share, group in zip(missed, groups, strict=True)]
        assert error_bars(drawn.errorbar) == [pytest.approx(pair) for pair in ends]
    target = lines(ax)[0]
    assert data(target)[1] == [0.2, 0.2]
    assert target.get_linestyle() == "--"
    assert read_legend(ax)[0] == "target 0.2"
    assert ax.get_ylim()[0] == 0.0
    assert "sd over splits" in ax.get_ylabel()


def test_plot_group_miscoverage_places_bars_side_by_side() -> None:
    ax = plot_group_miscoverage(make_level_of(METHODS, WORDS))
    for place in range(3):
        row = [drawn[place] for drawn in map_legend_to_drawn(ax).values()]
        edges = [bar.get_x() for bar in row] + [row[-1].get_x() + row[-1].get_width()]
        assert edges == sorted(edges)
        assert [bar.get_x() + bar.get_width() for bar in row] == pytest.approx(edges[1:])
        assert sum(edges[:: len(row)]) / 2 == pytest.approx(place)
        assert place - 0.5 < edges[0] < edges[-1] < place + 0.5
    assert [text.get_text() for text in ax.get_xticklabels()] == [
        "below 0.25",
        "[0.25, 0.5)",
        "at least 0.5",
    ]
    assert ax.get_xlabel() == "mean score"


def test_plot_group_miscoverage_draws_intervals_of_an_evaluation() -> None:
    report = make_evaluation(WORDS)
    ax = plot_group_miscoverage(report)
    for name, drawn in map_legend_to_drawn(ax).items():
        groups = report.methods[name].groups
        assert [bar.get_height() for bar in drawn] == pytest.approx([1 - one.kept_promise for one in groups])
        tops = [1 - one.kept_promise_ci[0] for one in groups]
        assert [end for _, end in error_bars(drawn.errorbar)] == pytest.approx(tops)
    assert "interval" in ax.get_ylabel()
    # Its groups have no interval of coverage, and none is made up.
    assert all(
        drawn.errorbar is None
        for drawn in map_legend_to_drawn(plot_group_miscoverage(report, of="coverage")).values()
    )


def test_plot_group_miscoverage_without_groups_draws_all_prompts() -> None:
    for report in (make_evaluation(), make_level_of(["conditional", "marginal"])):
        ax = plot_group_miscoverage(report)
        assert [text.get_text() for text in ax.get_xticklabels()] == ["all prompts"]
        for name, drawn in map_legend_to_drawn(ax).items():
            assert [bar.get_height() for bar in drawn] == [
                pytest.approx(1 - report.methods[name].kept_promise)
            ]


def test_plot_group_miscoverage_accepts_different_groups_by_method() -> None:
    report = make_level(
        {"a": make_method(0.1, WORDS), "b": make_method(0.1, WORDS[:2]), "c": make_method(0.1)}
    )
    ax = plot_group_miscoverage(report)
    bars = map_legend_to_drawn(ax)
    assert [len(drawn) for drawn in bars.values()] == [3, 2, 1]
    assert round(bars["c"][0].get_x()) == 3
    assert len(ax.get_xticks()) == 4


def test_plot_threshold_by_difficulty_draws_means_with_sd() -> None:
    report = make_level_of(METHODS, WORDS)
    ax = plot_threshold_by_difficulty(report)
    drawn = map_legend_to_drawn(ax)
    assert list(drawn) == ["conditional", "CFC"]
    for name, points in drawn.items():
        spreads = [group.figures["threshold"] for group in report.methods[name].groups]
        line = points.lines[0]
        across, up = data(line)
        assert up == [one.mean for one in spreads]
        assert [round(x) for x in across] == [0, 1, 2]
        ends = [pytest.approx([one.mean - one.sd, one.mean + one.sd]) for one in spreads]
        assert error_bars(points) == ends


def test_methods_have_the_same_style_in_bars_and_thresholds() -> None:
    report = make_level_of(METHODS, WORDS)
    look = assign_styles(METHODS)["CFC"]
    for methods in (None, ["CFC"], ["CFC", "conditional"]):
        bar = map_legend_to_drawn(plot_group_miscoverage(report, methods=methods))["CFC"][0]
        assert (to_hex(bar.get_facecolor()), bar.get_hatch()) == (look.colour.lower(), look.hatch)
        line = map_legend_to_drawn(plot_threshold_by_difficulty(report, methods=methods))["CFC"].lines[0]
        assert (line.get_color(), line.get_marker()) == (look.colour, look.marker)


def test_selecting_methods_changes_no_style() -> None:
    # So many unknown names that some had to give way to others.
    names = [f"method {place}" for place in range(40)]
    moved = [name for name, look in assign_styles(names).items() if look != assign_styles([name])[name]]
    assert moved
    report = make_level_of(names, WORDS)
    look = assign_styles(names)[moved[0]]
    assert (
        map_legend_to_drawn(plot_group_miscoverage(report, methods=moved[:1]))[moved[0]][0].get_hatch()
        == look.hatch
    )
    line = map_legend_to_drawn(plot_threshold_by_difficulty(report, methods=moved[:1]))[moved[0]].lines[0]
    assert (line.get_color(), line.get_marker()) == (look.colour, look.marker)
    swept = make_comparison([report])
    for ax in (plot_by_alpha(swept.sweep, methods=moved[:1]), plot_selective_risk(swept, methods=moved[:1])):
        assert map_legend_to_drawn(ax)[moved[0]].lines[0].get_marker() == look.marker


def test_group_plots_draw_on_the_given_axis() -> None:
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    report = make_level_of(METHODS, WORDS)
    assert plot_group_miscoverage(report, left) is left
    assert plot_threshold_by_difficulty(report, right) is right
    assert figure.axes == [left, right]


def test_group_plots_refuse_unknown_methods_and_empty_figures() -> None:
    report = make_level_of(METHODS, WORDS)
    for plot in (plot_group_miscoverage, plot_threshold_by_difficulty):
        with pytest.raises(
            InputError, match=r"unknown method 'ICP'; the report holds conditional, TopK, CFC"
        ):
            plot(report, methods=["CFC", "ICP"])
    with pytest.raises(
        InputError, match=r"nothing to draw: no method was asked for; .* conditional, TopK, CFC"
    ):
        plot_group_miscoverage(report, methods=[])
    with pytest.raises(InputError, match=r"nothing to draw: no group has thresholds under TopK"):
        plot_threshold_by_difficulty(report, methods=["TopK"])
    with pytest.raises(InputError, match=r"nothing to draw: no group has thresholds under conditional"):
        plot_threshold_by_difficulty(make_level_of(["conditional"]))

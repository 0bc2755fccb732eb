"""Plots against alpha show the sweep."""

from __future__ import annotations

import pytest
from langchain_cfc_lab.report.drawing import assign_styles
from langchain_cfc_lab.report.plots import plot_by_alpha, plot_group_miscoverage

from integrations.lab.tests.plots.inputs import make_comparison, make_level, make_level_of, make_method
from integrations.lab.tests.plots.reading import (
    containers,
    data,
    error_bars,
    lines,
    map_legend_to_drawn,
    read_legend,
)
from langchain_cfc.errors import InputError

METHODS = ["conditional", "marginal"]
# Not in order, as someone may have asked for them.
REPORT = make_comparison([make_level_of(METHODS, alpha=alpha) for alpha in (0.2, 0.05, 0.1)])


@pytest.mark.parametrize("figure", ["mean_distinct_answers", "mean_set_size", "selective_accuracy"])
def test_plot_by_alpha_draws_means_with_sd(figure: str) -> None:
    ax = plot_by_alpha(REPORT.sweep, figure=figure)
    for name, points in map_legend_to_drawn(ax).items():
        spreads = {one.alpha: one.methods[name].figures[figure] for one in REPORT.sweep}
        assert data(points.lines[0]) == ([0.05, 0.1, 0.2], [spreads[a].mean for a in (0.05, 0.1, 0.2)])
        ends = [(spreads[a].mean - spreads[a].sd, spreads[a].mean + spreads[a].sd) for a in (0.05, 0.1, 0.2)]
        assert error_bars(points) == [pytest.approx(list(pair)) for pair in ends]
        look = assign_styles(METHODS)[name]
        assert (points.lines[0].get_color(), points.lines[0].get_marker()) == (look.colour, look.marker)
    # No target for these.
    assert read_legend(ax) == METHODS


@pytest.mark.parametrize("figure", ["kept_promise", "coverage", "worst_group_coverage"])
def test_plot_by_alpha_draws_the_target_of_coverage(figure: str) -> None:
    ax = plot_by_alpha(REPORT.sweep, figure=figure)
    assert read_legend(ax) == ["target 1 - alpha", *METHODS]
    (target,) = [line for line in lines(ax) if line.get_linestyle() == "--" and line.get_marker() == ""]
    across, up = data(target)
    assert across == pytest.approx([0.04, 0.21])
    assert up == pytest.approx([0.96, 0.79])


def test_plot_by_alpha_formats_shares_as_percentages() -> None:
    share, size = (plot_by_alpha(REPORT.sweep, figure=name) for name in ("kept_promise", "mean_set_size"))
    assert share.yaxis.get_major_formatter()(0.855) == "85.5 %"
    assert "%" not in size.yaxis.get_major_formatter()(4.0)
    assert share.get_ylabel().startswith("promise kept")
    assert plot_by_alpha(REPORT.sweep, figure="kept_promise", methods=["marginal"]).get_xlabel() == "alpha"


def test_plot_by_alpha_accepts_a_single_level() -> None:
    ax = plot_by_alpha(make_comparison([make_level_of(METHODS)]).sweep)
    assert len(data(lines(ax)[-1])[0]) == 2  # the target is a line still


def test_plot_by_alpha_leaves_out_methods_without_the_figure() -> None:
    methods = {"CFC": make_method(0.1), "ICP": make_method(0.1, without=["selective_accuracy"])}
    some = make_comparison([make_level(methods)])
    assert read_legend(plot_by_alpha(some.sweep, figure="selective_accuracy")) == ["CFC"]
    with pytest.raises(
        InputError, match=r"no method has the figure 'selective_accuracy'; there are kept_promise, "
    ):
        plot_by_alpha(some.sweep, figure="selective_accuracy", methods=["ICP"])
    with pytest.raises(InputError, match=r"unknown method 'TopK'; the report holds CFC, ICP"):
        plot_by_alpha(some.sweep, methods=["TopK"])
    with pytest.raises(InputError, match=r"no method has the figure 'kept_promise'; there are none"):
        plot_by_alpha(some.sweep, methods=[])


def test_plot_by_alpha_labels_unknown_figures_by_their_key() -> None:
    method = make_method(0.1)
    method.figures["price_$_or_$"] = method.figures["coverage"]
    assert (
        plot_by_alpha(make_comparison([make_level({"CFC": method})]).sweep, figure="price_$_or_$")
        .get_ylabel()
        .startswith("price $ or $")
    )


def test_legend_marks_methods_that_do_not_aim_at_the_target() -> None:
    methods = {"CFC": make_method(0.1), "back-off": make_method(0.1, aims_at_coverage=False)}
    some = make_comparison([make_level(methods)])
    says = ["CFC", "back-off (aims at\nsomething else)"]
    assert read_legend(plot_by_alpha(some.sweep)) == ["target 1 - alpha", *says]
    assert read_legend(plot_group_miscoverage(some)) == ["target 0.1", *says]
    assert read_legend(plot_by_alpha(some.sweep, figure="mean_set_size")) == list(methods)


def test_plot_by_alpha_shows_coinciding_methods_by_marker_size() -> None:
    # One figure for all: what is drawn later is smaller, down to a size that can still be told.
    same = make_method(0.1)
    for count in (1, 2, 16):
        ax = plot_by_alpha(
            make_comparison([make_level({f"method {place}": same for place in range(count)})]).sweep
        )
        sizes = [points.lines[0].get_markersize() for points in containers(ax)]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == count
        assert 3.5 <= sizes[-1] <= sizes[0] <= 10.0

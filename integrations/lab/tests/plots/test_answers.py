"""Plots of wrong answers against answered prompts show the data."""

from __future__ import annotations

import pytest
from langchain_cfc_lab.comparison_report import RiskCurve
from langchain_cfc_lab.report.drawing import assign_styles
from langchain_cfc_lab.report.plots import plot_certified_cuts, plot_running_bound, plot_selective_risk

from integrations.lab.tests.plots.inputs import (
    make_bot,
    make_comparison,
    make_level,
    make_level_of,
    make_method,
    make_trade_off,
)
from integrations.lab.tests.plots.reading import containers, data, lines, read_legend
from langchain_cfc.errors import InputError

RISK = RiskCurve(answered=[0.1, 0.5, 1.0], wrong=[0.0, 0.1, 0.3])
METHODS = ["conditional", "marginal"]
SWEEP = [make_level_of(METHODS, alpha=alpha) for alpha in (0.2, 0.1)]


def test_plot_selective_risk_draws_curve_and_points_of_every_method() -> None:
    ax = plot_selective_risk(make_comparison(SWEEP, RISK))
    assert read_legend(ax) == ["lowest best scores", *METHODS]
    assert data(lines(ax)[0]) == (RISK.answered, RISK.wrong)
    for name, points in zip(METHODS, containers(ax), strict=True):
        found = [one.methods[name] for one in (SWEEP[1], SWEEP[0])]
        answered, wrong = data(points.lines[0])
        assert answered == [1 - one.abstention_rate for one in found]
        assert wrong == [1 - one.figures["selective_accuracy"].mean for one in found]
        assert points.lines[0].get_color() == assign_styles(METHODS)[name].colour


def test_plot_selective_risk_requires_a_curve_or_points() -> None:
    silent = [make_level({"CFC": make_method(0.1, without=["selective_accuracy"])})]
    line_only = plot_selective_risk(make_comparison(silent, RISK))
    assert read_legend(line_only) == ["lowest best scores"]
    points_only = plot_selective_risk(make_comparison(SWEEP), methods=["marginal"])
    assert read_legend(points_only) == ["marginal"]
    with pytest.raises(InputError, match="nothing to draw: nothing is answered under CFC"):
        plot_selective_risk(make_comparison(silent))
    with pytest.raises(InputError, match="unknown method 'ICP'; the report holds conditional, marginal"):
        plot_selective_risk(make_comparison(SWEEP, RISK), methods=["ICP"])


def test_plot_certified_cuts_draws_bounds_target_and_choice() -> None:
    curve = [make_trade_off(50, 2, 0.09), make_trade_off(120, 6, 0.095)]
    ax = plot_certified_cuts(make_bot(curve))
    bound, seen = (points.lines[0] for points in containers(ax))
    assert data(bound) == ([0.25, 0.6], [0.09, 0.095])
    assert data(seen) == ([0.25, 0.6], [0.04, 0.05])
    promised, ring = (line for line in lines(ax) if line not in (bound, seen))
    assert data(promised)[1] == [0.1, 0.1]
    assert data(ring) == ([0.6], [0.05])
    assert read_legend(ax)[:2] == ["promised: at most 10 %", "bound, confidence 95 %"]


def test_plot_certified_cuts_leaves_room_below_zero() -> None:
    ax = plot_certified_cuts(make_bot([make_trade_off(50, 0, 0.09)]))
    assert ax.get_ylim()[0] < 0.0


def test_plot_running_bound_draws_bound_and_target() -> None:
    ax = plot_running_bound([(0, 0.0), (1, 0.2), (5, 0.7)], 0.6)
    target, bound = lines(ax)
    assert data(target)[1] == [0.6, 0.6]
    assert data(bound) == ([0, 1, 5], [0.0, 0.2, 0.7])
    assert bound.get_drawstyle() == "steps-post"
    assert read_legend(ax) == ["to be certified", "certified at least"]

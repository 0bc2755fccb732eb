"""Labels of figures are complete and do not touch, measured with a renderer in crowded figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from langchain_cfc_lab.comparison_report import ComparisonReport, LevelComparison, RiskCurve
from langchain_cfc_lab.report.drawing import SLANT
from langchain_cfc_lab.report.plots import (
    plot_attainable,
    plot_by_alpha,
    plot_certified_cuts,
    plot_group_miscoverage,
    plot_score_histogram,
    plot_selective_risk,
    plot_threshold_by_difficulty,
)
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from integrations.lab.tests.plots.inputs import (
    ALPHAS,
    HISTOGRAM,
    TWELVE,
    make_attainable,
    make_bin_words,
    make_bot,
    make_comparison,
    make_evaluation,
    make_level_of,
    make_trade_off,
)
from integrations.lab.tests.plots.reading import draw_canvas, get_figure
from tests.lengths import mostly_long

BINS = make_bin_words(10)
LONG = [f"prompts whose subject is 'a name that takes much room, number {place}'" for place in range(10)]
WIDE = [f"prompts whose subject is 'WMWMWMWMWMWM{place}'" for place in range(10)]
SMALLEST = 9.0  # points


def make_crowded_level(words: list[str]) -> LevelComparison:
    return make_level_of(TWELVE, words)


@cache
def draw_bars(*words: str) -> Axes:
    """Bars of all methods, drawn once for all tests that only look at them."""
    return plot_group_miscoverage(make_crowded_level(list(words)))


def make_sweep() -> ComparisonReport:
    sweep = [make_level_of(TWELVE, BINS, alpha) for alpha in ALPHAS]
    return make_comparison(sweep, RiskCurve(answered=[0.1, 1.0], wrong=[0.1, 0.3]))


FIGURES: dict[str, Callable[[], Axes]] = {
    "bars, bins": lambda: draw_bars(*BINS),
    "bars, long names": lambda: draw_bars(*LONG),
    "bars, wide names": lambda: plot_group_miscoverage(make_crowded_level(WIDE)),
    "bars, one method, long names": lambda: plot_group_miscoverage(make_level_of(["CFC"], LONG)),
    "bars, thirty groups": lambda: plot_group_miscoverage(make_level_of(["CFC"], LONG * 3)),
    "bars, no groups": lambda: plot_group_miscoverage(make_evaluation()),
    "thresholds, bins": lambda: plot_threshold_by_difficulty(make_crowded_level(BINS)),
    "thresholds, long names": lambda: plot_threshold_by_difficulty(make_crowded_level(LONG)),
    "by alpha": lambda: plot_by_alpha(make_sweep().sweep, figure="size_stratified_kept_promise"),
    "risk": lambda: plot_selective_risk(make_sweep()),
    "attainable, bins": lambda: plot_attainable(make_attainable(["all prompts", *BINS])),
    "attainable, long names": lambda: plot_attainable(make_attainable(LONG)),
    "attainable, thirty groups": lambda: plot_attainable(make_attainable(LONG * 2)),
    "scores": lambda: plot_score_histogram(HISTOGRAM),
    "cuts": lambda: plot_certified_cuts(make_bot([make_trade_off(50, 2, 0.09), make_trade_off(90, 5, 0.1)])),
    "long names of methods": lambda: plot_group_miscoverage(
        make_level_of(
            [f"conditional:unique(best_prefix), variant {place} of many" for place in range(12)], BINS
        )
    ),
}


def list_visible_ticks(axis: Axis) -> list[Text]:
    """Return visible tick labels; matplotlib keeps some beyond the ends that it never draws."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label for place, label in ticks if low <= place <= high]


def list_texts(ax: Axes) -> list[Text]:
    legend = ax.get_legend()
    assert legend is not None
    labels = [ax.xaxis.label, ax.yaxis.label, *list_visible_ticks(ax.xaxis), *list_visible_ticks(ax.yaxis)]
    return [text for text in (*labels, *legend.get_texts(), legend.get_title()) if text.get_text()]


def lay_out(ax: Axes) -> Any:
    """Lay out a figure and return its renderer."""
    return draw_canvas(get_figure(ax)).get_renderer()


def find_clipped(ax: Axes, renderer: Any) -> list[str]:
    """Texts that reach beyond the figure."""
    width, height = renderer.get_canvas_width_height()
    boxes = {text.get_text(): text.get_window_extent(renderer) for text in list_texts(ax)}
    return [
        text
        for text, box in boxes.items()
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]


def find_touching(texts: list[Text], renderer: Any) -> list[tuple[str, str]]:
    """Return neighbouring labels that touch; rotated ones are parallel strips through their ticks."""
    found = []
    for one, other in pairwise(texts):
        first, second = (text.get_window_extent(renderer) for text in (one, other))
        turn = one.get_rotation()
        if turn:
            step = find_position(other) - find_position(one)
            apart = step * math.sin(math.radians(turn)) >= measure_flat_height(one, renderer)
        else:
            apart = (
                first.x1 < second.x0 or second.x1 < first.x0 or first.y1 < second.y0 or second.y1 < first.y0
            )
        if not apart:
            found.append((one.get_text(), other.get_text()))
    return found


def find_position(text: Text) -> float:
    return float(text.get_transform().transform(text.get_position())[0])


def measure_flat_height(text: Text, renderer: Any) -> float:
    turn = text.get_rotation()
    text.set_rotation(0.0)
    height = float(text.get_window_extent(renderer).height)
    text.set_rotation(turn)
    return height


@mostly_long("name", FIGURES, quick=4)
def test_figure_labels_are_complete_and_do_not_touch(name: str) -> None:
    ax = FIGURES[name]()
    renderer = lay_out(ax)
    legend = ax.get_legend()
    assert legend is not None
    assert find_clipped(ax, renderer) == []
    assert find_touching(list_visible_ticks(ax.xaxis), renderer) == []
    assert find_touching(list(legend.get_texts()), renderer) == []
    assert legend.get_window_extent(renderer).x0 >= ax.get_window_extent(renderer).x1
    lowest_tick = min(text.get_window_extent(renderer).y0 for text in ax.get_xticklabels())
    assert ax.xaxis.label.get_window_extent(renderer).y1 <= lowest_tick + 1
    assert min(float(text.get_fontsize()) for text in list_texts(ax)) >= SMALLEST
    # Of 420 and at least 380 pixels: labels and key did not eat the figure.
    assert ax.get_window_extent(renderer).height > 200
    assert ax.get_window_extent(renderer).width > 350


def test_tick_labels_are_flat_if_they_fit_and_slanted_otherwise() -> None:
    assert {text.get_rotation() for text in draw_bars(*BINS).get_xticklabels()} == {0.0}
    assert {text.get_rotation() for text in draw_bars(*LONG).get_xticklabels()} == {SLANT}


@pytest.mark.parametrize("layout", ["constrained", None])
def test_tick_labels_fit_a_given_axis(layout: Any) -> None:
    figure = Figure(figsize=(5.0, 4.0), layout=layout)
    ax = plot_group_miscoverage(make_level_of(["CFC", "ICP"], LONG), figure.subplots())
    assert find_touching(list_visible_ticks(ax.xaxis), lay_out(ax)) == []


def test_slanted_tick_labels_do_not_narrow_the_axis() -> None:
    flat, slanted = draw_bars(*BINS), draw_bars(*LONG)
    widths = [ax.get_window_extent(lay_out(ax)).width for ax in (flat, slanted)]
    assert widths[1] > 0.95 * widths[0]


def test_tick_labels_leave_room_for_the_legend() -> None:
    figure = Figure(figsize=(4.5, 4.0), layout="constrained")
    report = make_level_of(
        ["a method with a long name of its own"], ["biology", "history", "physics", "grammar"]
    )
    ax = plot_group_miscoverage(report, figure.subplots())
    assert find_touching(list_visible_ticks(ax.xaxis), lay_out(ax)) == []


def test_tick_labels_are_upright_if_slanted_ones_would_touch() -> None:
    figure = Figure(figsize=(6.5, 5.0), layout="constrained")
    ax = plot_group_miscoverage(make_level_of(["CFC"], LONG * 2), figure.subplots())
    assert {text.get_rotation() for text in ax.get_xticklabels()} == {90.0}
    assert find_touching(list_visible_ticks(ax.xaxis), lay_out(ax)) == []


def test_control_layout_checks_find_clipped_and_touching_labels() -> None:
    ax = plot_group_miscoverage(make_level_of(["CFC"], LONG))
    ax.set_xticks(range(10), LONG, rotation=0.0)
    assert len(find_touching(list_visible_ticks(ax.xaxis), lay_out(ax))) == 9
    ax.set_xticks(range(10), LONG, rotation=2.0)
    assert len(find_touching(list_visible_ticks(ax.xaxis), lay_out(ax))) == 9
    get_figure(ax).set_layout_engine("none")
    ax.set_position((0.0, 0.0, 1.0, 1.0))
    assert len(find_clipped(ax, lay_out(ax))) > 12

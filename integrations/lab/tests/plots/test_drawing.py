"""Figures show the data of a report, legibly: labels complete and apart, styles distinct without colour."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import pytest
from langchain_cfc_lab.comparison_report import ComparisonReport, Histogram
from langchain_cfc_lab.report.drawing import assign_styles, label_groups, to_svg
from langchain_cfc_lab.report.plots import (
    plot_by_alpha,
    plot_group_miscoverage,
    plot_score_histogram,
    plot_selective_risk,
    plot_threshold_by_difficulty,
)
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Text

from integrations.lab.tests.plots.inputs import (
    ALPHAS,
    HISTOGRAM,
    TWELVE,
    make_bin_words,
    make_comparison,
    make_evaluation,
    make_level,
)
from integrations.lab.tests.plots.reading import (
    containers,
    data,
    draw_canvas,
    error_bars,
    get_figure,
    lines,
    map_legend_to_drawn,
    parse_svg,
    read_legend,
    write_matplotlib_svg,
)
from langchain_cfc.errors import InputError
from langchain_cfc.support.curves import RiskCurve
from tests.lengths import mostly_long

BINS = make_bin_words(10)
LONG = [f"prompts whose subject is 'a name that takes much room, number {place}'" for place in range(10)]
MANY = [f"conditional:unique(best_prefix), variant {place} of many" for place in range(12)]
SVG = "{http://www.w3.org/2000/svg}"

FIGURES: dict[str, Callable[[], Axes]] = {
    "bars, long names": lambda: plot_group_miscoverage(make_level(TWELVE, LONG)),
    "bars, bins": lambda: plot_group_miscoverage(make_level(TWELVE, BINS)),
    "bars, thirty groups": lambda: plot_group_miscoverage(make_level(["CFC"], LONG * 3)),
    "bars, long names of methods": lambda: plot_group_miscoverage(make_level(MANY, BINS)),
    "thresholds": lambda: plot_threshold_by_difficulty(make_level(TWELVE, BINS)),
    "by alpha": lambda: plot_by_alpha([make_level(TWELVE, BINS, alpha) for alpha in ALPHAS]),
}


def find_touching(texts: list[Text], renderer: Any) -> list[tuple[str, str]]:
    """Return neighbouring labels that touch; rotated ones are parallel strips through their ticks."""
    found = []
    for one, other in pairwise(texts):
        first, second = (text.get_window_extent(renderer) for text in (one, other))
        turn = one.get_rotation()
        if turn:
            ends = [float(text.get_transform().transform(text.get_position())[0]) for text in (one, other)]
            one.set_rotation(0.0)
            height = float(one.get_window_extent(renderer).height)
            one.set_rotation(turn)
            touch = (ends[1] - ends[0]) * math.sin(math.radians(turn)) < height
        else:
            touch = first.overlaps(second)
        if touch:
            found.append((one.get_text(), other.get_text()))
    return found


def find_problems(ax: Axes) -> list[str]:
    """Lay out a figure; return what is cut off, touches another label, or leaves the axis too little."""
    renderer = draw_canvas(get_figure(ax)).get_renderer()
    width, height = renderer.get_canvas_width_height()
    legend: Any = ax.get_legend()
    low, high = ax.get_xlim()
    ticks = [tick for tick in ax.get_xticklabels() if low <= tick.get_position()[0] <= high]
    named = [*legend.get_texts(), legend.get_title()]
    problems = [
        f"cut: {text.get_text()}"
        for text in (ax.xaxis.label, ax.yaxis.label, *ticks, *named)
        for box in [text.get_window_extent(renderer)]
        if text.get_text()
        and not (box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1)
    ]
    problems += [f"touching: {pair}" for pair in find_touching(ticks, renderer)]
    problems += [f"touching: {pair}" for pair in find_touching(list(legend.get_texts()), renderer)]
    box = ax.get_window_extent(renderer)
    if legend.get_window_extent(renderer).y0 < box.y1:
        problems.append("the key covers the axis")
    if box.width < 300 or box.height < 180:
        problems.append(f"the axis has {box.width:.0f} x {box.height:.0f} pixels left")
    return problems


@mostly_long("name", FIGURES, quick=3)
def test_figure_labels_are_complete_and_do_not_touch(name: str) -> None:
    assert find_problems(FIGURES[name]()) == []


def test_control_layout_checks_find_clipped_and_touching_labels() -> None:
    ax = plot_group_miscoverage(make_level(["CFC"], LONG))
    ax.set_xticks(range(10), LONG, rotation=0.0)
    get_figure(ax).set_layout_engine("none")
    assert sum("touching" in problem for problem in find_problems(ax)) == 9
    ax.set_position((0.0, 0.0, 1.0, 1.0))
    assert sum("cut" in problem for problem in find_problems(ax)) > 5


def test_tick_labels_fit_a_given_axis() -> None:
    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    ax = plot_group_miscoverage(make_level(["CFC", "ICP"], LONG), figure.subplots())
    assert [one for one in find_problems(ax) if "touching" in one or "cut" in one] == []


@pytest.mark.parametrize(
    ("words", "title", "labels"),
    [
        (["prompts whose topic is 'sums'", "prompts whose topic is 'law'"], "topic", ["sums", "law"]),
        (["prompts whose city is 'new york'", "prompts whose city is 'new'"], "city", ["new york", "new"]),
        (
            ["all prompts", "mean score: 1 of 2", "mean score: 2 of 2"],
            "mean score",
            ["all prompts", "1 of 2", "2 of 2"],
        ),
        (["easy prompts", "hard prompts"], "", ["easy prompts", "hard prompts"]),
        (["prompts whose topic is 'sums'"], "", ["topic: sums"]),
        (["topic is 'a\nb'", "topic is 'c'"], "", ["topic is 'a b'", "topic is 'c'"]),
        ([f"prompts whose topic is '{'x' * 99}'", "all prompts"], "", [f"topic: {'x' * 20}…", "all prompts"]),
    ],
)
def test_label_groups_moves_the_property_to_the_title(
    words: list[str], title: str, labels: list[str]
) -> None:
    assert label_groups(words) == (title, labels)


@pytest.fixture(scope="module")
def bars() -> Axes:
    return plot_group_miscoverage(make_level(["conditional", "marginal", "CFC"], make_bin_words(4)))


def list_ids(text: str) -> list[str]:
    return [part.attrib["id"] for part in parse_svg(text).iter() if "id" in part.attrib]


def test_to_svg_returns_one_self_contained_element(bars: Axes) -> None:
    svg, plain = to_svg(bars, title='Promise "kept" & <broken>'), write_matplotlib_svg(bars)
    root = parse_svg(svg)
    assert (root.tag, root[0].tag, root.attrib["role"]) == (f"{SVG}svg", f"{SVG}title", "img")
    assert root.attrib["aria-label"] == root[0].text == 'Promise "kept" & <broken>'
    said = ["".join(part.itertext()) for part in root.iter(f"{SVG}text")]
    assert {"target 0.1", "conditional", "CFC"} <= set(said)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    forbidden = {"style", "metadata", "script", "image"}
    assert not forbidden & {part.tag.removeprefix(SVG) for part in root.iter()}
    assert "<style" in plain
    # Black is the default of SVG: what says nothing takes the colour of the text.
    assert root.attrib["fill"] == "currentColor"
    assert "stroke: currentColor" in svg
    for colour in ("#000000", "#ffffff"):
        assert colour in plain
        assert colour not in svg
    assert "#0072b2" in svg


def test_to_svg_is_deterministic_and_ids_do_not_clash(bars: Axes) -> None:
    texts = [
        to_svg(bars, title="bars"),
        to_svg(bars, title="the same under another title"),
        to_svg(plot_score_histogram(HISTOGRAM), title="bars"),
    ]
    assert to_svg(plot_score_histogram(HISTOGRAM), title="bars") == texts[-1]
    names = [name for text in texts for name in list_ids(text)]
    assert len(names) == len(set(names)) > 100
    for text in texts:
        found = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
        assert {first or second for first, second in found} <= set(list_ids(text))
    theirs = list_ids(write_matplotlib_svg(bars)) + list_ids(
        write_matplotlib_svg(plot_score_histogram(HISTOGRAM))
    )
    assert len(theirs) > len(set(theirs))


@mostly_long(
    "name",
    ["$a$ and b_", 'id="x" url(#y) #000000', "数学", "$a", "_hidden", "<b>&amp;", "a\x00\x0b\nb"],
    quick=3,
)
def test_to_svg_shows_any_name_unchanged(name: str) -> None:
    report = make_level([name, "CFC"], [f"prompts whose topic is '{name}'", "prompts whose topic is 'b'"])
    shown = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    for ax in (plot_group_miscoverage(report), plot_by_alpha([report])):
        root = parse_svg(to_svg(ax, title=name))
        assert shown in ["".join(part.itertext()) for part in root.iter(f"{SVG}text")]
        assert root[0].text == shown


def test_to_svg_keeps_images_and_matplotlib_settings() -> None:
    before = dict(mpl.rcParams)
    ax = plot_score_histogram(HISTOGRAM)
    ax.imshow([[0.0, 1.0]], extent=(0.0, 1.0, 0.0, 1.0))
    (picture,) = parse_svg(to_svg(ax, title="a picture")).iter(f"{SVG}image")
    assert picture.attrib["href"].startswith("data:image/png;base64,")
    assert dict(mpl.rcParams) == before
    ax.remove()
    with pytest.raises(InputError, match="belongs to no figure"):
        to_svg(ax, title="gone")


DRAWN = """
import sys
from langchain_cfc_lab.report import drawing, plots
from integrations.lab.tests.plots.inputs import HISTOGRAM
print("matplotlib" in sys.modules)
drawing.to_svg(plots.plot_score_histogram(HISTOGRAM), title="scores")
print("matplotlib" in sys.modules, "matplotlib.pyplot" in sys.modules)
"""


def test_matplotlib_is_imported_on_drawing_only_and_pyplot_never() -> None:
    # pyplot keeps figures open and chooses how they are shown.
    run = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]


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

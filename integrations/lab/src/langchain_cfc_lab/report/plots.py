"""Figures of comparisons, evaluations and monitors, drawn with matplotlib.

Each `plot_` function takes data and optionally the axis to draw on, and returns the axis:

    axis = plot_by_alpha(report.sweep, figure="worst_group_coverage")
    axis.figure.savefig("worst_group.pdf")

Without an axis it draws in a new figure. A figure of the caller's should be made with
`layout="constrained"`, which makes room for the labels and for the key to the right of the axis. No function
here changes matplotlib's settings or keeps a figure open. All of them raise `InputError` if there is nothing
to draw or a method is not in the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport, MethodReport
from langchain_cfc.features import name_group
from langchain_cfc.support.units import Unit
from langchain_cfc_lab.comparison_report import (
    ComparisonReport,
    Histogram,
    LevelComparison,
    MethodComparison,
    Spread,
)
from langchain_cfc_lab.metrics import CLAIMS_FIGURES, FIGURES, is_share
from langchain_cfc_lab.report._text import METHOD_NAMES
from langchain_cfc_lab.report.drawing import (
    ALL_PROMPTS,
    COLOURS,
    TARGET_LINE,
    Style,
    assign_styles,
    create_axes,
    finish_axes,
    format_tick,
    get_ink_colour,
    label_axes,
    label_group_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_by_alpha",
    "plot_evidence",
    "plot_group_miscoverage",
    "plot_score_histogram",
    "plot_selective_risk",
    "plot_threshold_by_difficulty",
]

Method = MethodComparison | MethodReport
Shown = TypeVar("Shown")

# Widths of an axis in inches.
LEAST_WIDTH, MOST_WIDTH = 4.6, 8.0
WIDTH = 4.8
EVIDENCE_WIDTH = 4.1
TARGET_OVERHANG = 0.01  # in units of alpha: how far the target line goes on at either end


def plot_group_miscoverage(
    level: LevelComparison | EvaluationReport,
    ax: Axes | None = None,
    *,
    methods: Sequence[str] | None = None,
    of: Literal["kept_promise", "coverage"] = "kept_promise",
) -> Axes:
    """Plot how often each method falls short in each group, as bars next to the target alpha.

    Error bars reach up by one standard deviation over the splits. An evaluation has no splits: there they
    reach up to the end of the kept promise's 95 % interval, and `coverage` has none.

    Args:
        level: A comparison, one of its levels, or an evaluation. Without groups there is one bar for each
            method, over all prompts.
        ax: The axis to draw on.
        methods: Names of the methods to draw; None for all.
        of: `kept_promise` for the share neither covered nor flagged as not certifiable, which alpha bounds;
            `coverage` for the share whose set holds no correct answer, flagged prompts included.
    """
    there: Mapping[str, Method] = level.methods
    shown = _select_methods(there, methods)
    _require_data(shown, f"no method was asked for; the report holds {', '.join(there) or 'none'}")
    words = _collect_groups(shown.values())
    names = [f"target {level.alpha:g}", *(_make_key_label(name, method) for name, method in shown.items())]
    ax = _prepare_group_axis(ax, words, names, 0.07 * len(shown))
    looks, places, each = assign_styles(there), list(words), min(0.84 / len(shown), 0.28)
    what = "promise broken" if of == "kept_promise" else "no correct answer returned"
    handles: list[Any] = [ax.axhline(level.alpha, color=get_ink_colour(ax), **{**TARGET_LINE, "zorder": 3.0})]
    for place, (name, method) in enumerate(shown.items()):
        parts: dict[str, Any] = {group.name: group for group in method.groups} or {ALL_PROMPTS: method}
        heights = [1.0 - getattr(part, of) for part in parts.values()]
        above = [0.0] * len(parts)
        if isinstance(level, LevelComparison):
            above = [part.figures[of].sd for part in parts.values()]
        elif of == "kept_promise":
            above = [max(part.kept_promise - part.kept_promise_ci[0], 0.0) for part in parts.values()]
        handles.append(
            ax.bar(
                [places.index(group) + (place + 0.5 - len(shown) / 2.0) * each for group in parts],
                heights,
                each,
                color=looks[name].colour,
                edgecolor=get_ink_colour(ax),
                hatch=looks[name].hatch,
                linewidth=0.5,
                yerr=[[0.0] * len(parts), above] if any(above) else None,
                error_kw={"ecolor": get_ink_colour(ax), "elinewidth": 0.9, "capsize": 1.5},
            )
        )
    if isinstance(level, LevelComparison):
        what += "\nmean + sd over splits"
    elif of == "kept_promise":
        what += "\nwith upper end of its interval"
    ax.set_ylabel(what)
    ax.yaxis.set_major_formatter(format_tick)
    ax.set_ylim(bottom=0.0)
    return finish_axes(ax, handles, names)


def plot_threshold_by_difficulty(
    level: LevelComparison, ax: Axes | None = None, *, methods: Sequence[str] | None = None
) -> Axes:
    """Plot the mean threshold of each method in each group, with one standard deviation over the splits.

    Groups are in the report's order, from easy to hard if they are bins of difficulty.

    Args:
        level: A comparison, or one of its levels.
        ax: The axis to draw on.
        methods: Names of the methods to draw; None for all. Those without thresholds are left out.
    """
    shown = _select_methods(level.methods, methods)
    found = {
        name: {one.name: one.figures["threshold"] for one in method.groups if "threshold" in one.figures}
        for name, method in shown.items()
    }
    drawn = {name: groups for name, groups in found.items() if groups}
    _require_data(drawn, f"no group has thresholds under {', '.join(found) or 'no method at all'}")
    words = _collect_groups(shown[name] for name in drawn)
    ax = _prepare_group_axis(ax, words, list(drawn), 0.05 * len(drawn))
    looks, places, each = assign_styles(level.methods), list(words), min(0.5 / len(drawn), 0.08)
    handles = [
        _draw_spreads(
            ax,
            [places.index(group) + (place + 0.5 - len(drawn) / 2.0) * each for group in groups],
            groups.values(),
            looks[name],
        )
        for place, (name, groups) in enumerate(drawn.items())
    ]
    ax.set_ylabel("threshold\nmean ± sd over splits")
    return finish_axes(ax, handles, list(drawn))


def plot_by_alpha(
    levels: Sequence[LevelComparison],
    ax: Axes | None = None,
    *,
    methods: Sequence[str] | None = None,
    figure: str = "kept_promise",
) -> Axes:
    """Plot a figure of each method against alpha, with one standard deviation over the splits.

    Args:
        levels: The levels of a comparison, such as its `sweep`.
        ax: The axis to draw on.
        methods: Names of the methods to draw; None for all. Those without the figure are left out.
        figure: Name of the figure, such as `kept_promise`, `worst_group_coverage` (the paper's GSC) or
            `mean_distinct_answers`. Coverage and the kept promise are drawn with the target 1 - alpha.
    """
    levels = sorted(levels, key=lambda level: level.alpha)
    there = {name: method for level in levels for name, method in level.methods.items()}
    found: dict[str, dict[float, Spread]] = {
        name: {
            level.alpha: level.methods[name].figures[figure]
            for level in levels
            if name in level.methods and figure in level.methods[name].figures
        }
        for name in _select_methods(there, methods)
    }
    drawn = {name: course for name, course in found.items() if course}
    known = dict.fromkeys(one for name in found for one in there[name].figures)
    _require_data(drawn, f"no method has the figure {figure!r}; there are {', '.join(known) or 'none'}")
    aimed = figure.endswith(("coverage", "kept_promise"))
    names = [_make_key_label(name, there[name]) if aimed else name for name in drawn]
    if aimed:
        names.insert(0, "target 1 - alpha")
    ax = ax or create_axes(WIDTH, names)
    looks = assign_styles(there)
    handles: list[Any] = [
        _draw_spreads(ax, course, course.values(), looks[name], _shrink_marker(place))
        for place, (name, course) in enumerate(drawn.items())
    ]
    if aimed:
        ends = [levels[0].alpha - TARGET_OVERHANG, levels[-1].alpha + TARGET_OVERHANG]
        handles[:0] = ax.plot(ends, [1.0 - alpha for alpha in ends], color=get_ink_colour(ax), **TARGET_LINE)
    label = {**CLAIMS_FIGURES, **FIGURES}[figure].label
    label_axes(ax, "alpha", f"{label}\nmean ± sd over splits", shares="y" if is_share(figure) else "")
    return finish_axes(ax, handles, names)


def plot_score_histogram(scores: Histogram, ax: Axes | None = None, *, unit: Unit = "answers") -> Axes:
    """Plot the scores of correct and of wrong candidates, or of supported and unsupported claims."""
    _require_data(any(scores.correct) or any(scores.wrong), "the histogram holds no candidates")
    names = ["correct", "wrong"] if unit == "answers" else ["supported", "unsupported"]
    ax = ax or create_axes(WIDTH, names)
    correct, wrong = COLOURS[:2]
    # One is filled and one hatched, so that neither hides the other and they differ in a grey print.
    handles = [
        ax.stairs(scores.correct, scores.edges, fill=True, facecolor=correct, edgecolor=get_ink_colour(ax)),
        ax.stairs(scores.wrong, scores.edges, fill=False, edgecolor=wrong, hatch="////", linewidth=1.4),
    ]
    label_axes(ax, "score (smaller is better)", "candidates" if unit == "answers" else "claims")
    ax.set_ylim(bottom=0.0)
    return finish_axes(ax, handles, names)


def plot_selective_risk(
    report: ComparisonReport, ax: Axes | None = None, *, methods: Sequence[str] | None = None
) -> Axes:
    """Plot the share of answered prompts that are answered wrongly, against the share answered.

    The line is for answering the prompts with the lowest best scores first. Each method has a point for each
    alpha at which it answers any prompt, with its mean wrong share where it answers. For claims, the shares
    are those of claims shown and, of these, of unsupported ones.

    Args:
        report: A comparison; its whole sweep is drawn.
        ax: The axis to draw on.
        methods: Names of the methods to draw; None for all.
    """
    levels = sorted(report.sweep, key=lambda level: level.alpha)
    there = {name: None for level in levels for name in level.methods}
    found = {
        name: [
            point
            for level in levels
            if name in level.methods and (point := _find_risk(level.methods[name], report.unit)) is not None
        ]
        for name in _select_methods(there, methods)
    }
    drawn = {name: course for name, course in found.items() if course}
    curve = report.data.risk
    _require_data(
        drawn or curve.answered, f"nothing is answered under {', '.join(found) or 'no method at all'}"
    )
    line = "lowest best scores" if report.unit == "answers" else "lowest scores"
    names = [line] * bool(curve.answered) + list(drawn)
    ax = ax or create_axes(WIDTH, names)
    looks = assign_styles(there)
    handles: list[Any] = []
    if curve.answered:
        handles += ax.plot(curve.answered, curve.wrong, color=get_ink_colour(ax), linewidth=1.6)
    for place, (name, course) in enumerate(drawn.items()):
        answered, wrong = zip(*course, strict=True)
        look = looks[name].make_line_options(ax, _shrink_marker(place))
        handles.append(ax.errorbar(answered, wrong, **look))
    label_axes(ax, *curve.labels, shares="xy")
    # Begin a little below zero, so that a marker at zero is not cut off.
    top = ax.get_ylim()[1]
    ax.set_ylim(-0.03 * top, 1.03 * top)
    return finish_axes(ax, handles, names)


def _find_risk(method: MethodComparison, unit: Unit) -> tuple[float, float] | None:
    """Return the share shown, and the mean share of it that is wrong; None if nothing is shown."""
    if unit == "answers":
        accuracy = method.figures.get("selective_accuracy")
        return None if accuracy is None else (1.0 - method.abstention_rate, 1.0 - accuracy.mean)
    unsupported = method.figures.get("unsupported_kept")
    return None if unsupported is None else (method.figures["claims_kept"].mean, unsupported.mean)


def plot_evidence(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    needed: float,
    ax: Axes | None = None,
    *,
    outcomes: str = "results",
) -> Axes:
    """Plot each test's evidence in powers of ten against the number of outcomes, and the alarm's line.

    Args:
        curves: By name of a test, numbers of outcomes with the natural logarithm of the evidence after each.
        needed: The evidence that alarms, above 1.
        ax: The axis to draw on.
        outcomes: What the outcomes are called.
    """
    drawn = {name: points for name, points in curves.items() if points}
    _require_data(drawn, "no test has seen anything yet")
    names = ["alarm", *drawn]
    ax = ax or create_axes(EVIDENCE_WIDTH, names)
    last = max(points[-1][0] for points in drawn.values())
    handles: list[Any] = ax.plot([0, last], [math.log10(needed)] * 2, color=get_ink_colour(ax), **TARGET_LINE)
    for place, points in enumerate(drawn.values()):
        style = Style.at(place)
        handles += ax.plot(
            [0, *(seen for seen, _ in points)],
            [0.0, *(log / math.log(10.0) for _, log in points)],
            color=style.colour,
            linestyle=style.dash,
            linewidth=1.3,
        )
    label_axes(ax, outcomes, "evidence, powers of ten")
    return finish_axes(ax, handles, names)


def _require_data(data: object, problem: str) -> None:
    if not data:
        msg = f"nothing to draw: {problem}"
        raise InputError(msg)


def _select_methods(there: Mapping[str, Shown], methods: Sequence[str] | None) -> dict[str, Shown]:
    """Return the methods with these names, in this order; all of them if `methods` is None."""
    names = list(there) if methods is None else list(methods)
    unknown = [name for name in names if name not in there]
    if unknown:
        msg = f"unknown method {unknown[0]!r}; the report holds {', '.join(there) or 'none'}"
        raise InputError(msg)
    return {name: there[name] for name in names}


def _make_key_label(name: str, method: Method) -> str:
    """Return a method's label in a key; those of an evaluation have readable names."""
    return name if isinstance(method, MethodComparison) else METHOD_NAMES.get(name, name)


def _collect_groups(methods: Iterable[Method]) -> dict[str, str]:
    """Return the readable names of all methods' groups by their names, in order of appearance."""
    words: dict[str, str] = {}
    for method in methods:
        named = {group.name: name_group(group.words, group.name, None) for group in method.groups}
        words.update(named or {ALL_PROMPTS: ALL_PROMPTS})
    return words


def _prepare_group_axis(ax: Axes | None, words: Mapping[str, str], names: Sequence[str], each: float) -> Axes:
    """Return the axis, or a new one with `each` inches and a gap for each group, labelled with its groups."""
    width = min(max(len(words) * (each + 0.25), LEAST_WIDTH), MOST_WIDTH)
    if ax is not None:
        width = ax.get_window_extent().width / ax.figure.dpi / 2.0  # the key takes up to half of it
    ax = ax or create_axes(width, names)
    label_group_ticks(ax, list(words.values()), width)
    return ax


def _shrink_marker(place: int) -> float:
    """Return a size in points that falls with the place, so that methods drawn over others hide none."""
    return max(10.0 - place, 4.0)


def _draw_spreads(
    ax: Axes, places: Iterable[float], spreads: Iterable[Spread], look: Style, size: float = 6.0
) -> Any:
    several = list(spreads)
    means, errors = [one.mean for one in several], [one.sd for one in several]
    return ax.errorbar(list(places), means, yerr=errors, **look.make_line_options(ax, size))

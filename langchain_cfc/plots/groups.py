"""Methods side by side in groups of prompts: how often each falls short, and the thresholds it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from langchain_cfc.comparison.report import GroupComparison, LevelComparison, MethodComparison
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import EvaluationReport, GroupReport, MethodReport
from langchain_cfc.plots.axes import (
    HEIGHT,
    TARGET,
    GroupTicks,
    finish,
    ink,
    new_axes,
    percent,
    width_beside_key,
)
from langchain_cfc.plots.labels import ALL_PROMPTS
from langchain_cfc.plots.style import Style, as_aimed, chosen, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Level = LevelComparison | EvaluationReport
Method = MethodComparison | MethodReport
Share = Literal["kept_promise", "coverage"]

NARROWEST, WIDEST = 4.6, 8.0  # inches of an axis
GAP = 0.25  # inches between two groups, where there is room
_SHORT = {"kept_promise": "promise broken", "coverage": "no correct answer returned"}
_ABOVE = {"spread": "mean + sd over splits", "interval": "with upper end of its interval"}


@dataclass(frozen=True)
class _Bar:
    """One bar.

    Attributes:
        height: A share.
        above: Length of its error bar; None for none.
        kind: What the error bar shows: `spread` or `interval`.
    """

    height: float
    above: float | None
    kind: str = "interval"


@dataclass(frozen=True)
class _Abreast:
    """How methods stand side by side in each group.

    Attributes:
        each: Inches that one of them asks for.
        share: Of a group's unit, that all of them take; the rest keeps groups apart.
        most: Of the unit, that one takes at most.
    """

    each: float
    share: float
    most: float

    def unit(self, count: int) -> float:
        """What one of so many methods takes of a group."""
        return min(self.share / count, self.most)

    def at(self, place: int, count: int, groups: Iterable[int]) -> list[float]:
        """Where the method of a place stands in each of these groups."""
        return [group + (place + 0.5 - count / 2.0) * self.unit(count) for group in groups]


_BARS = _Abreast(each=0.07, share=0.84, most=0.28)
_POINTS = _Abreast(each=0.05, share=0.5, most=0.08)


def plot_group_miscoverage(
    level: Level,
    ax: Axes | None = None,
    *,
    methods: Sequence[str] | None = None,
    of: Share = "kept_promise",
) -> Axes:
    """How often each method falls short in each group, as bars beside the target alpha.

    Error bars reach up by one standard deviation over the splits. A report of one evaluation has no splits:
    there they end where the 95 % interval of the kept promise does.

    Args:
        level: A comparison, one of its levels, or an evaluation. Without groups there is one bar a method,
            for all prompts.
        ax: The axis to draw on; None for one in a figure of its own.
        methods: Names of the methods to draw; None for all.
        of: `kept_promise` for the share neither covered nor flagged as not certifiable, which alpha bounds;
            `coverage` for the share whose set holds no correct answer, flagged prompts included.

    Returns:
        The axis.

    Raises:
        InputError: If a method is not in the report, or none is asked for.
        MissingExtraError: If matplotlib is not installed.
    """
    there: Mapping[str, Method] = level.methods
    shown = chosen(there, methods)
    if not shown:
        msg = f"nothing to draw: no method was asked for; the report holds {', '.join(there) or 'none'}"
        raise InputError(msg)
    drawn = {name: _bars(method, of) for name, method in shown.items()}
    words = _words(shown.values())
    names = [f"target {level.alpha:g}", *(as_aimed(name, method) for name, method in shown.items())]
    ax = _axis(ax, words, names, len(drawn) * _BARS.each)
    looks, places = styles(there), list(words)
    handles: list[Any] = [ax.axhline(level.alpha, color=ink(ax), **{**TARGET, "zorder": 3.0})]
    for place, (name, bars) in enumerate(drawn.items()):
        at = _BARS.at(place, len(drawn), map(places.index, bars))
        handles.append(_draw_bars(ax, at, list(bars.values()), _BARS.unit(len(drawn)), looks[name]))
    kinds = {bar.kind for bars in drawn.values() for bar in bars.values() if bar.above is not None}
    ax.set_ylabel("\n".join([_SHORT[of], *(_ABOVE[kind] for kind in sorted(kinds))]))
    ax.yaxis.set_major_formatter(percent)
    ax.set_ylim(bottom=0.0)
    return finish(ax, handles, names)


def plot_threshold_by_difficulty(
    level: LevelComparison, ax: Axes | None = None, *, methods: Sequence[str] | None = None
) -> Axes:
    """The mean threshold of each method in each group, with one standard deviation over the splits.

    Groups stand in the report's order, from easy to hard where they are bins of difficulty.

    Args:
        level: A comparison, or one of its levels.
        ax: The axis to draw on; None for one in a figure of its own.
        methods: Names of the methods to draw; None for all. Those without thresholds are left out.

    Returns:
        The axis.

    Raises:
        InputError: If a method is not in the report, or none of them has thresholds by group.
        MissingExtraError: If matplotlib is not installed.
    """
    shown = chosen(level.methods, methods)
    found = {
        name: {
            group.name: group.figures["threshold"] for group in method.groups if "threshold" in group.figures
        }
        for name, method in shown.items()
    }
    drawn = {name: groups for name, groups in found.items() if groups}
    if not drawn:
        msg = f"nothing to draw: no group has thresholds under {', '.join(found) or 'no method at all'}"
        raise InputError(msg)
    words = _words(shown[name] for name in drawn)
    ax = _axis(ax, words, list(drawn), len(drawn) * _POINTS.each)
    looks, places = styles(level.methods), list(words)
    handles = [
        ax.errorbar(
            _POINTS.at(place, len(drawn), map(places.index, groups)),
            [spread.mean for spread in groups.values()],
            yerr=[spread.sd for spread in groups.values()],
            **looks[name].points(ink(ax)),
        )
        for place, (name, groups) in enumerate(drawn.items())
    ]
    ax.set_ylabel("threshold\nmean ± sd over splits")
    return finish(ax, handles, list(drawn))


def _words(methods: Iterable[Method]) -> dict[str, str]:
    """The groups of all methods, in words by name, in the order in which they come up."""
    words: dict[str, str] = {}
    for method in methods:
        words.update({group.name: group.words for group in method.groups} or {ALL_PROMPTS: ALL_PROMPTS})
    return words


def _axis(ax: Axes | None, words: Mapping[str, str], names: Sequence[str], each: float) -> Axes:
    """The axis with its groups.

    Args:
        ax: The axis to draw on; None for one in a figure of its own.
        words: The groups in words, by name.
        names: What the key will say.
        each: Inches that a group asks for.

    Returns:
        The axis.
    """
    own = min(max(len(words) * (each + GAP), NARROWEST), WIDEST)
    ticks = GroupTicks.of(list(words.values()), own if ax is None else width_beside_key(ax, names))
    ax = ax or new_axes(own + ticks.overhang, names, HEIGHT + ticks.depth)
    ticks.put_on(ax)
    return ax


def _bars(method: Method, of: Share) -> dict[str, _Bar]:
    """The bars of one method by the name of the group; one for all prompts where there are no groups."""
    if method.groups:
        return {group.name: _bar(group, of) for group in method.groups}
    return {ALL_PROMPTS: _bar(method, of)}


def _bar(reported: Method | GroupComparison | GroupReport, of: Share) -> _Bar:
    share = reported.kept_promise if of == "kept_promise" else reported.coverage
    if isinstance(reported, (GroupComparison, MethodComparison)) and of in reported.figures:
        return _Bar(1.0 - share, reported.figures[of].sd, "spread")
    if of == "kept_promise":
        return _Bar(1.0 - share, max(share - reported.kept_promise_ci[0], 0.0))
    return _Bar(1.0 - share, None)


def _draw_bars(ax: Axes, places: Sequence[float], bars: Sequence[_Bar], width: float, look: Style) -> Any:
    above = [bar.above or 0.0 for bar in bars]
    return ax.bar(
        places,
        [bar.height for bar in bars],
        width,
        color=look.colour,
        edgecolor=ink(ax),
        hatch=look.hatch,
        linewidth=0.5,
        yerr=[[0.0] * len(bars), above] if any(above) else None,
        error_kw={"ecolor": ink(ax), "elinewidth": 0.9, "capsize": 1.5},
    )

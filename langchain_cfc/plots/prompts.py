"""What the records themselves are like: scores of candidates, and how far coverage can go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_cfc.comparison.report import AttainableComparison, Histogram, Spread
from langchain_cfc.errors import InputError
from langchain_cfc.plots.axes import TARGET, finish, ink, new_axes, percent
from langchain_cfc.plots.labels import group_labels
from langchain_cfc.plots.style import COLOURS, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches
SQUARE = 3.8
_CORRECT, _WRONG = COLOURS[0], COLOURS[1]
EDGE = 0.02  # of a share: free space around the points


def plot_score_histogram(scores: Histogram, ax: Axes | None = None) -> Axes:
    """Scores of correct and of wrong candidates.

    Args:
        scores: Numbers of candidates by bins of the score.
        ax: The axis to draw on; None for one in a figure of its own.

    Returns:
        The axis.

    Raises:
        InputError: If there are no candidates.
        MissingExtraError: If matplotlib is not installed.
    """
    if not any(scores.correct) and not any(scores.wrong):
        msg = "nothing to draw: the histogram holds no candidates"
        raise InputError(msg)
    names = ["correct", "wrong"]
    ax = ax or new_axes(WIDTH, names)
    # One filled and one hatched, so that neither hides the other and a grey print tells them apart.
    handles = [
        ax.stairs(scores.correct, scores.edges, fill=True, facecolor=_CORRECT, edgecolor=ink(ax)),
        ax.stairs(scores.wrong, scores.edges, fill=False, edgecolor=_WRONG, hatch="////", linewidth=1.4),
    ]
    ax.set_xlabel("score (smaller is better)")
    ax.set_ylabel("candidates")
    ax.set_ylim(bottom=0.0)
    return finish(ax, handles, names)


def plot_attainable(attainable: Sequence[AttainableComparison], ax: Axes | None = None) -> Axes:
    """Attainable coverage of each group as foretold and as seen, with their 95 % intervals.

    Points on the diagonal were foretold rightly; below it, less was attainable than foretold.

    Args:
        attainable: The groups.
        ax: The axis to draw on; None for one in a figure of its own.

    Returns:
        The axis.

    Raises:
        InputError: If there are no groups.
        MissingExtraError: If matplotlib is not installed.
    """
    if not attainable:
        msg = "nothing to draw: there is no group whose attainable coverage was foretold"
        raise InputError(msg)
    shared, labels = group_labels([group.words for group in attainable])
    names = ["as foretold", *labels]
    ax = ax or new_axes(SQUARE, names)
    spreads = [spread for group in attainable for spread in (group.foretold, group.seen)]
    lows, highs = zip(*map(_ends, spreads), strict=True)
    limits = (min(lows) - EDGE, max(highs) + EDGE)
    handles: list[Any] = ax.plot(limits, limits, color=ink(ax), **TARGET)
    for place, group in enumerate(attainable):
        look = Style.at(place).points(ink(ax)) | {"linestyle": ""}
        handles.append(
            ax.errorbar(
                [group.foretold.mean],
                [group.seen.mean],
                xerr=_around(group.foretold),
                yerr=_around(group.seen),
                **look,
            )
        )
    ax.set_xlim(limits)
    ax.set_ylim(limits)
    for axis, words in ((ax.xaxis, "foretold"), (ax.yaxis, "seen on test prompts")):
        axis.set_major_formatter(percent)
        axis.set_label_text(f"attainable coverage, {words}")
    return finish(ax, handles, names, shared)


def _around(spread: Spread) -> list[list[float]]:
    """(2, 1): how far the interval reaches below and above the mean."""
    low, high = _ends(spread)
    return [[spread.mean - low], [high - spread.mean]]


def _ends(spread: Spread) -> tuple[float, float]:
    """The interval; the mean itself where a single split says nothing of others."""
    return spread.interval or (spread.mean, spread.mean)

"""Wrong answers against prompts answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_cfc.artifact import CertifiedPolicy, TradeOff
from langchain_cfc.comparison.report import ComparisonReport, LevelComparison
from langchain_cfc.errors import InputError
from langchain_cfc.plots.axes import TARGET, finish, ink, new_axes, percent
from langchain_cfc.plots.style import Style, chosen, nested, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches
BY_SCORE = "lowest best scores"
ACCURACY = "selective_accuracy"


def plot_selective_risk(
    report: ComparisonReport, ax: Axes | None = None, *, methods: Sequence[str] | None = None
) -> Axes:
    """How many of the answered prompts are answered wrongly, against how many are answered.

    A line for answering the prompts of lowest best score, and for each method a point at each alpha: its mean
    wrong share where it answers.

    Args:
        report: A comparison; its whole sweep is drawn.
        ax: The axis to draw on; None for one in a figure of its own.
        methods: Names of the methods to draw; None for all. Levels at which a method answers nothing have no
            point.

    Returns:
        The axis.

    Raises:
        InputError: If a method is not in the report, or there is neither a point nor a line.
        MissingExtraError: If matplotlib is not installed.
    """
    levels = sorted(report.sweep, key=lambda level: level.alpha)
    there = {name: None for level in levels for name in level.methods}
    found = {name: _course(levels, name) for name in chosen(there, methods)}
    drawn = {name: course for name, course in found.items() if course}
    curve = report.data.risk
    if not drawn and not curve.answered:
        msg = f"nothing to draw: nothing is answered under {', '.join(found) or 'no method at all'}"
        raise InputError(msg)
    names = [BY_SCORE] * bool(curve.answered) + list(drawn)
    ax = ax or new_axes(WIDTH, names)
    looks = styles(there)
    handles: list[Any] = []
    if curve.answered:
        handles += ax.plot(curve.answered, curve.wrong, color=ink(ax), linewidth=1.6)
    for (name, course), size in zip(drawn.items(), nested(len(drawn)), strict=True):
        answered, wrong = zip(*course, strict=True)
        handles.append(ax.errorbar(answered, wrong, **looks[name].points(ink(ax), size)))
    return _finish(ax, handles, names)


def plot_certified_policies(policy: CertifiedPolicy, ax: Axes | None = None) -> Axes:
    """What was to choose from for bot mode: wrong answers against prompts answered, policy by policy.

    Args:
        policy: The certified policy of an artifact, with those it was compared with.
        ax: The axis to draw on, such as that of `plot_selective_risk`; None for one in a figure of its own.

    Returns:
        The axis.

    Raises:
        InputError: If no policy answered any certification prompt.
        MissingExtraError: If matplotlib is not installed.
    """
    certificate = policy.certificate
    curve = [one for one in policy.curve if one.answered]
    if not curve:
        msg = "nothing to draw: no policy compared answered any certification prompt"
        raise InputError(msg)
    promised = float(certificate.max_wrong_rate)
    names = [
        f"promised: at most {percent(promised)}",
        f"bound, confidence {percent(1.0 - float(certificate.delta))}",
        "seen",
        "the certified policy",
    ]
    ax = ax or new_axes(WIDTH, names)
    ours = [one for one in curve if (one.alpha, one.policy) == (certificate.alpha, certificate.policy)]
    answered, wrong = _shares(curve, certificate.prompts)
    ring: dict[str, Any] = {
        "marker": "o",
        "markersize": 12.0,
        "markerfacecolor": "none",
        "color": ink(ax),
        "linestyle": "",
    }
    bounds = [one.wrong_rate_at_most for one in curve]
    handles: list[Any] = [
        ax.axhline(promised, color=ink(ax), **TARGET),
        ax.errorbar(answered, bounds, **Style.at(3).points(ink(ax))),
        ax.errorbar(answered, wrong, **Style.at(0).points(ink(ax))),
        *ax.plot(*_shares(ours, certificate.prompts), **ring),
    ]
    return _finish(ax, handles, names)


def _course(levels: Sequence[LevelComparison], name: str) -> list[tuple[float, float]]:
    """Share answered and share of those answered wrongly, level by level, where anything is answered."""
    found = (level.methods[name] for level in levels if name in level.methods)
    return [
        (1.0 - method.abstention_rate, 1.0 - method.figures[ACCURACY].mean)
        for method in found
        if ACCURACY in method.figures
    ]


def _shares(policies: Sequence[TradeOff], prompts: int) -> tuple[list[float], list[float]]:
    """Share of prompts answered, and share of those answered wrongly."""
    return [one.answered / prompts for one in policies], [one.wrong / one.answered for one in policies]


def _finish(ax: Axes, handles: Sequence[Any], names: Sequence[str]) -> Axes:
    ax.set_xlabel("prompts answered")
    ax.set_ylabel("of these, wrong best answer")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(percent)
    # A little below zero, so that a mark at zero is whole.
    top = ax.get_ylim()[1]
    ax.set_ylim(-0.03 * top, 1.03 * top)
    return finish(ax, handles, names)

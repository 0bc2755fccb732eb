"""The rule of choice, and its reason in words.

An option's *gap* is that of its worst group. Of the options whose gap is within one standard error of the
smallest, the one that shows the fewest answers is chosen. Where others show as few, by what their difference
over the same splits can tell, it is the simplest of those.

A flagged prompt counts as kept, so that gaps alone would choose whatever flags everything. Hence the size of
a flagged prompt is n, the most that can be shown, and an option that flags most of the prompts that it could
have answered is none. Its distinct answers would be too low a price: where they are few, flagging is then
hardly dearer than answering. Measured on unseen prompts of the recording that ships, over twelve splits at
alpha = 0.2: 23 % flagged by that price and 10 % by this, with gaps alike.

The standard errors. Inner splits of one pool share prompts, so that the mean over J splits is much less sure
than J independent ones would make it: the variance is that of Nadeau and Bengio (2003, "Inference for the
generalization error"), (1 / J + test / development) s^2, as everywhere in `comparison`. It is approximate.
The options' errors differ by accident, for their worst groups are large or small; one yardstick serves for
all, the median. It does not tell how much worse than the truth the worst of many groups looks: that raises
the gaps of all options, and the rule compares them with each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.comparison.summary import standard_error
from langchain_cfc.suggestion.options import Option
from langchain_cfc.suggestion.report import JudgedOption
from langchain_cfc.suggestion.trials import TEST, Tried

OVERLAP = TEST / (1.0 - TEST)


@dataclass(frozen=True, eq=False)
class Judged:
    """An option with what it did.

    Attributes:
        option: The option.
        shown: Its figures.
        sizes: (J,) its size in each split.
        withheld: Mean share flagged of the prompts that have a correct candidate.
    """

    option: Option
    shown: JudgedOption
    sizes: FloatArray
    withheld: float

    @classmethod
    def of(cls, option: Option, tried: Sequence[Tried], words: Sequence[str], tau: float) -> Judged:
        """Sum up J splits.

        Args:
            option: The option.
            tried: What it did on each split.
            words: The P groups.
            tau: Target coverage.
        """
        kept = np.array([one.kept for one in tried])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a group that no split tests
            means = np.nanmean(kept, axis=0)
        worst = int(np.nanargmin(means))
        shown = JudgedOption(
            features=option.features,
            set_rule=option.set_rule,
            combine=None if option.combine is None else list(option.combine),
            columns=max(one.columns for one in tried),
            gap=max(0.0, tau - float(means[worst])),
            gap_error=standard_error(kept[:, worst], OVERLAP),
            group=words[worst],
            size=float(np.mean([one.size for one in tried])),
            kept_promise=float(np.mean([one.kept_promise for one in tried])),
            not_certifiable_rate=float(np.mean([one.flagged for one in tried])),
            abstention_rate=float(np.mean([one.abstained for one in tried])),
        )
        sizes = np.array([one.size for one in tried])
        return cls(option, shown, sizes, float(np.mean([one.withheld for one in tried])))

    @property
    def fitted_numbers(self) -> int:
        """How simple it is: features, and verifiers to be combined."""
        return self.shown.columns + len(self.option.combine or ())


@dataclass(frozen=True, eq=False)
class Choice:
    """What the rule makes of some options.

    Attributes:
        best: What it chooses.
        least: The option of smallest gap.
        near: Those within the tolerance of it.
        smallest: Of those, the one of smallest size.
        alike: Those whose size cannot be told from it.
    """

    best: Judged
    least: Judged
    near: list[Judged]
    smallest: Judged
    alike: list[Judged]

    @classmethod
    def among(cls, options: Sequence[Judged], tolerance: float) -> Choice:
        """Apply the rule.

        Args:
            options: At least one.
            tolerance: One standard error of a gap.
        """
        least = min(options, key=lambda one: one.shown.gap)
        near = [one for one in options if one.shown.gap <= least.shown.gap + tolerance]
        smallest = min(near, key=lambda one: one.shown.size)
        alike = [
            one
            for one in near
            if one.shown.size - smallest.shown.size <= standard_error(one.sizes - smallest.sizes, OVERLAP)
        ]
        # Errors of differences do not grow with size: whoever is no larger than one of these is one, too.
        largest = max(one.shown.size for one in alike)
        alike = [one for one in near if one.shown.size <= largest]
        best = min(alike, key=lambda one: (one.fitted_numbers, one.shown.size))
        return cls(best, least, near, smallest, alike)


def tolerance_of(options: Sequence[Judged]) -> float:
    """The median standard error of the options' gaps."""
    return float(np.median([one.shown.gap_error for one in options]))


def ranked(options: Sequence[Judged], tolerance: float) -> list[Judged]:
    """All options: what the rule chooses, what it would choose without that, and so on."""
    left, order = list(options), []
    while left:
        best = Choice.among(left, tolerance).best
        order.append(best)
        left = [one for one in left if one is not best]
    return order


def reason(choice: Choice, options: int, tolerance: float, tau: float) -> str:
    """Why the winner won.

    Args:
        choice: What the rule made of all options.
        options: Their number.
        tolerance: One standard error of a gap.
        tau: Target coverage.

    Returns:
        Two or three sentences.
    """
    best, smallest = choice.best.shown, choice.smallest.shown
    gap = (
        f"Its worst group ({best.group}) falls short of {100 * tau:g} % by {points(best.gap)} points; the "
        f"smallest gap of {options} options is {points(choice.least.shown.gap)}, and a standard error "
        f"{points(tolerance)}."
    )
    if len(choice.near) == 1:
        return f"{gap} No other is within that of it."
    size = (
        f"Of the {len(choice.near)} within that of the smallest gap, the leanest shows {smallest.size:.2f} "
        "answers a prompt, a flagged prompt counting as all its candidates"
    )
    if len(choice.alike) == 1:
        return f"{gap} {size}: this one."
    others = len(choice.alike) - 1
    if choice.best is choice.smallest:
        return f"{gap} {size}: this one. {others} more, no simpler, cannot be told from it by their sizes."
    return (
        f"{gap} {size}. {others} more cannot be told from it by their sizes, and this, with {best.size:.2f}, "
        f"is the simplest of them: {features(best.columns)}."
    )


def lost(choice: Choice, other: Judged, tolerance: float) -> str:
    """Why an option that the rule did not choose lost.

    Args:
        choice: What the rule made of all options.
        other: The option.
        tolerance: One standard error of a gap.

    Returns:
        A sentence.
    """
    best, its = choice.best.shown, other.shown
    if other not in choice.near:
        return (
            f"Its gap of {points(its.gap)} points ({its.group}) is more than a standard error of "
            f"{points(tolerance)} above the smallest, {points(choice.least.shown.gap)}."
        )
    if other not in choice.alike:
        return (
            f"Its gap of {points(its.gap)} points is within a standard error of the smallest as well, but it "
            f"shows {its.size:.2f} answers a prompt where {choice.smallest.shown.size:.2f} do."
        )
    if other.fitted_numbers > choice.best.fitted_numbers:
        return (
            f"By its gap of {points(its.gap)} points and its {its.size:.2f} answers a prompt it cannot be "
            f"told from the winner, but it fits {other.fitted_numbers} numbers where "
            f"{choice.best.fitted_numbers} do."
        )
    return (
        f"As simple, with a gap of {points(its.gap)} points, it shows {its.size:.2f} answers a prompt where "
        f"{best.size:.2f} do."
    )


def points(share: float) -> str:
    """A share in points of a hundred."""
    return f"{100 * share:.1f}"


def features(count: int) -> str:
    """A number of features in words."""
    return f"{count} feature{'s' * (count != 1)}"

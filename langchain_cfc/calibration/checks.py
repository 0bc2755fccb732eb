"""What calibration refuses or warns of, once the records are in numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction

from langchain_cfc.artifact import AttainableGroup
from langchain_cfc.calibration.attainability import smallest_alpha, smallest_size, target_is_attainable
from langchain_cfc.combination import Combination
from langchain_cfc.discrimination import discrimination
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import (
    AttainabilityWarning,
    InputError,
    OrientationWarning,
    UnattainableTargetError,
)
from langchain_cfc.records import Provenance

# Scores that tell nothing are taken for reversed ones once in 2,000 calibrations.
ORIENTATION_CONFIDENCE = 0.999
# Groups that a warning names.
MOST_LISTED = 10


def check_answers(labelled: LabelledDraws, provenance: Provenance | None, *, needed: bool) -> None:
    """Refuse answers that serving could not tell apart in the same way."""
    if needed and labelled.extracted is None:
        msg = (
            "set rule, features or policies look at distinct answers, but only some candidates have an "
            "extracted `answer`: give every candidate one, or none"
        )
        raise InputError(msg)
    if needed and provenance is not None and provenance.answer is not None and not labelled.extracted:
        msg = (
            f"the provenance names the answer extractor {provenance.answer}, but not every candidate has an "
            "`answer`"
        )
        raise InputError(msg)


def check_orientation(prompts: LabelledDraws, combination: Combination | None) -> None:
    """Warn of scores that point the wrong way; at worst thresholds are useless then, never unsafe."""
    found = discrimination(prompts.draws.scores, prompts.correct, ORIENTATION_CONFIDENCE)
    if found is None or found.high >= 0.5:  # noqa: PLR2004 - the AUROC of scores that tell nothing
        return
    cure = (
        "smaller scores must be better, so if the verifier speaks in confidence p, use 1 - p"
        if combination is None
        else "the prompts that the combination was fitted on say the opposite: raise fit_fraction, or look "
        "for what sets them apart"
    )
    msg = (
        f"correct candidates score worse than wrong ones: AUROC {found.auroc:.3f}, "
        f"{100 * found.confidence:g} % interval {found.low:.3f} to {found.high:.3f}, where 0.5 tells "
        f"nothing; {cure}"
    )
    warnings.warn(msg, OrientationWarning, stacklevel=4)  # the call of `calibrate`


def check_attainable(
    size: float,
    reached: float,
    groups: Sequence[AttainableGroup],
    strictest: str,
    *,
    promised: bool,
    allow_unattainable: bool,
) -> None:
    """Refuse a target out of reach overall, warn of guaranteed groups where it is.

    Args:
        size: Number N of calibration prompts, or the sum of their weights.
        reached: How many of them a threshold below the cap can cover, or the sum of their weights.
        groups: All prompts first, then every guaranteed weighting.
        strictest: The smallest error level.
        promised: Whether anything is promised for groups.
        allow_unattainable: Whether to go on where the target is out of reach overall.

    Raises:
        UnattainableTargetError: If it is, and going on was not allowed.

    Warns:
        AttainabilityWarning: If the target is out of reach for a guaranteed group.
    """
    if not target_is_attainable(strictest, size, reached) and not allow_unattainable:
        needed = smallest_size(strictest, Fraction(reached) / Fraction(size))
        more = f"at least {needed} such prompts would do" if needed else "no number of such prompts would do"
        least = f"Smallest alpha here: {smallest_alpha(size, reached):g}" if reached else "No alpha would do"
        msg = (
            f"alpha = {strictest} is out of reach: {reached:.9g} of {size:.9g} calibration prompts have a "
            f"correct candidate that can enter the set (attainable coverage {reached / size:.3f}). {least}; "
            f"for alpha = {strictest} {more}. Draw more candidates, improve the model, choose a larger "
            "alpha, or pass allow_unattainable=True (on the command line --allow-unattainable) to have "
            "prompts flagged as not certifiable"
        )
        raise UnattainableTargetError(msg)
    hopeless = [group for group in groups[1:] if promised and not group.allows(strictest)]
    if hopeless:
        worst = sorted(hopeless, key=lambda group: -group.smallest_alpha)[:MOST_LISTED]
        listed = "; ".join(f"{group.name} (smallest alpha {group.smallest_alpha:.3f})" for group in worst)
        if len(hopeless) > len(worst):
            listed += f"; and {len(hopeless) - len(worst)} more"
        msg = (
            f"alpha = {strictest} is out of reach for {len(hopeless)} guaranteed group(s), whose prompts "
            f"will often be flagged: {listed}"
        )
        warnings.warn(msg, AttainabilityWarning, stacklevel=4)  # the call of `calibrate`

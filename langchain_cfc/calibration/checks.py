"""Checks that calibration runs on records: attainable targets, extracted answers, score orientation."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from itertools import count

from langchain_cfc.calibration.fit import CalibrationData
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import AttainabilityWarning, InputError, OrientationWarning, UnattainableTargetError
from langchain_cfc.features import FeatureMap, name_group
from langchain_cfc.features.statistics import SCORE_STATISTICS
from langchain_cfc.scoring import compute_auroc
from langchain_cfc.thresholds import Level, compute_conformal_rank, compute_tau


def is_attainable(alpha: Level, size: float, reachable: float) -> bool:
    """Whether the marginal order statistic lies below the cap: (N + 1) tau <= reachable, in exact arithmetic.

    Of N calibration prompts `reachable` have a success score below the cap.
    """
    return (Fraction(size) + 1) * compute_tau(alpha) <= Fraction(reachable)


def compute_smallest_alpha(size: float, reachable: float) -> float:
    """Return the smallest attainable level, 1 - reachable / (N + 1), rounded up to four decimals."""
    return math.ceil(10_000 * (1 - Fraction(reachable) / (Fraction(size) + 1))) / 10_000


def compute_smallest_size(alpha: Level, attainable: float | Fraction) -> int | None:
    """Return the smallest N with ceil((N + 1) tau) <= floor(attainable N); None if attainable <= tau.

    A float share is read as its shortest decimal form, which is not exact for a share such as 20 / 21.

    Examples:
        >>> compute_smallest_size(0.1, 1.0), compute_smallest_size(0.1, 0.95), compute_smallest_size(0.1, 0.9)
        (9, 19, None)
    """
    tau, share = compute_tau(alpha), Fraction(str(attainable))
    if share <= tau:
        return None
    sizes = count(max(1, math.floor(tau / (share - tau)) - 1))
    return next(one for one in sizes if compute_conformal_rank(one, tau) <= math.floor(share * one))


# Uninformative scores cause a false warning once in 2,000 calibrations.
ORIENTATION_CONFIDENCE = 0.999


def check_answers(labelled: LabelledBatch, *, needed: bool) -> None:
    """Refuse answers that serving could not extract in the same way."""
    if needed and labelled.extracted is None:
        msg = (
            "the set rule, features or draw rule compare answers, but only some candidates have an "
            "extracted `answer`: give every candidate one, or none"
        )
        raise InputError(msg)


def check_orientation(prompts: LabelledBatch) -> None:
    """Warn if scores seem reversed, which makes thresholds useless but never unsafe."""
    if prompts.draws.drawn is not None:
        # Every prompt has this many candidates, so the choice does not depend on their scores.
        prompts = prompts.keep_first_candidates(int(prompts.draws.drawn.min()))
    result = compute_auroc(prompts.draws.scores, prompts.correct, ORIENTATION_CONFIDENCE)
    if result is None or result.high >= 0.5:  # noqa: PLR2004 - the AUROC of scores that tell nothing
        return
    msg = (
        f"correct candidates score worse than wrong ones: AUROC {result.auroc:.3f}, "
        f"{100 * ORIENTATION_CONFIDENCE:g} % interval {result.low:.3f} to {result.high:.3f}, where 0.5 is "
        f"uninformative; smaller scores must be better; if the verifier returns a confidence p, use 1 - p"
    )
    warnings.warn(msg, OrientationWarning, stacklevel=4)  # the call of `calibrate`


def warn_if_conditional_on_score(feature_map: FeatureMap) -> None:
    """Warn if a bot's rate among all questions is to hold at each difficulty, which costs answers.

    The cut is on the mean score. Where the map tells prompts apart by their scores, the wrong answers of each
    range are withheld by a cut of its own, so questions of a low mean score are withheld too.
    """
    scores = sorted({one.name for term in feature_map.terms for one in term.statistics} & {*SCORE_STATISTICS})
    if scores:
        msg = (
            f"the feature map {feature_map.text} tells questions apart by {', '.join(scores)}, and the bot's "
            "cut is on the mean score as well: far fewer questions will be answered. Leave features out, or "
            "name topics or sources, such as group(topic)"
        )
        warnings.warn(msg, AttainabilityWarning, stacklevel=4)  # the call of `calibrate`


def check_attainable(data: CalibrationData, option: str) -> None:
    """Refuse an option's level that is out of reach overall; warn if it is so for guaranteed groups."""
    adaptive, strictest = data.feature_map.adaptive_alpha, data.config.alphas[0]
    if adaptive is not None:
        strictest = adaptive.list_levels(strictest)[-1]
    size, reached = float(len(data.labelled)), float(data.reachable.sum())
    if not is_attainable(strictest, size, reached) and not data.config.allow_unattainable:
        needed = compute_smallest_size(strictest, Fraction(reached) / Fraction(size))
        more = f"Add questions (at least {needed})" if needed else "Improve the model"
        if reached < size:
            more = f"Draw more answers, {more[0].lower()}{more[1:]}"
        msg = (
            f"{option} = {strictest} is out of reach: the promise can be kept for {reached:.9g} of "
            f"{size:.9g} questions (attainable coverage {reached / size:.3f}).\n"
            f"{more}, or "
        )
        if reached:
            least = f"{compute_smallest_alpha(size, reached):g}"
            msg += f"allow more: {option}={least}, or "
        msg += "allow_unattainable=True"
        raise UnattainableTargetError(msg)
    hopeless = [group for group in data.groups[1:] if not group.is_attainable(strictest)]
    if hopeless and adaptive is None:  # adaptive levels are chosen so that few prompts are flagged
        worst = max(hopeless, key=lambda group: group.smallest_alpha)
        msg = (
            f"{option} = {strictest} is out of reach for {len(hopeless)} guaranteed group(s), whose prompts "
            f"will often be flagged. The worst is {name_group(worst.words, worst.name)} (smallest {option} "
            f"{worst.smallest_alpha:.3f})"
        )
        warnings.warn(msg, AttainabilityWarning, stacklevel=4)  # the call of `calibrate`

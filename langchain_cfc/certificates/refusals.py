"""What a refusal says: what would be enough, and how the next test on the same labels is made.

A refusal prints no figure that depends on certification labels. The next attempt may change the model, the
verifier or any setting, and a choice that follows such figures would void its certificate; see
`artifact.attempts`. How many prompts would be enough is therefore stated for given shares of wrong answers,
and every refusal says which scores are better, as only the labels show that scores are reversed.
"""

from __future__ import annotations

from fractions import Fraction

from langchain_cfc.artifact import PlannedAttempt
from langchain_cfc.certificates.bounds import LARGEST_SIZE, find_size, required_size
from langchain_cfc.errors import UnattainableTargetError
from langchain_cfc.guarantee.certified import compute_share
from langchain_cfc.support.text import format_percent
from langchain_cfc.support.units import UnitTraits

# Larger rates are no advice.
_LARGEST_RATE = Fraction(1, 2)


def explain_refusal(rate: str, level: float, traits: UnitTraits, cause: str | None = None) -> str:
    """Say that a rate is not certified, with a cause, or how many prompts its test needs.

    The number is stated for assumed shares of wrong answers.
    """
    noun = traits.single if traits.is_fixed_count else traits.item
    target = Fraction(rate)
    half = target / 2
    if cause is None:
        sizes = (required_size(share, target, level) for share in (Fraction(0), half))
        none, some = (f"more than {LARGEST_SIZE:,}" if size is None else f"{size:,}" for size in sizes)
        share = format_percent(float(half), ".3g")
        cause = f"it takes about {none} {traits.counted} if none are {traits.wrong}, {some} if {share} are"
    return f"A rate of {float(rate):g} {traits.wrong} {noun}s is not certified: {cause}"


def make_refusal(
    reason: str, rate: str, level: float, attempt: PlannedAttempt, traits: UnitTraits
) -> UnattainableTargetError:
    """Build the error for an attempt that certified nothing.

    Args:
        reason: What was not certified, without figures from certification labels.
        rate: The largest rate that was asked for.
        level: The level at which it was tested.
        attempt: The attempt.
        traits: The words for what it is about.

    Returns:
        The error, with the attempts up to this one, and advice that keeps delta.
    """
    later = level * float(compute_share(attempt.number + 1) / compute_share(attempt.number))
    larger = Fraction(rate) * 2
    # What the next test cannot certify even if nothing is wrong is no advice.
    while larger < _LARGEST_RATE and find_size(0, larger, later) > len(attempt.labelled):
        larger *= 2
    advice = f", or allow more: max_wrong_rate={float(larger):g} (in Python with after=error)"
    msg = (
        f"{reason}.\nThis was test {attempt.number} on these labels. Add {traits.prompt}s"
        f"{advice if larger < _LARGEST_RATE else ''}. "
        "Smaller scores are better"
    )
    return UnattainableTargetError(msg, attempts=attempt.end(certified=False))

"""`select_tested_levels`: levels that are strict enough for the promise to hold for this artifact.

Given the calibration set, the share of prompts on which the conditional rule keeps its promise follows no
known law. So the rule is fitted at levels from far below alpha up to alpha, and each is tested on a third
split against "the promise fails more often than alpha": from the strictest on, each at level delta, until one
fails its test. The last one that passed is served. The order does not depend on the third split, so the first
level in it at which the promise does fail more often than alpha is fixed before the tests, and passes with
probability at most delta: no division of delta is needed.

Source: fixed sequence testing (Maurer, Hothorn and Lehmacher 1995); Learn then Test (Angelopoulos, Bates,
Candes, Jordan and Lei 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from langchain_cfc.artifact import CalibrationArtifact, Confidence, LevelState
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import binomial_p_value, required_size
from langchain_cfc.certificates.coverage import compute_outcomes, compute_records_digest
from langchain_cfc.errors import UnattainableTargetError


def select_tested_levels(
    artifact: CalibrationArtifact,
    certification: LabelledBatch,
    steps: Mapping[str, Sequence[str]],
    delta: str,
) -> CalibrationArtifact:
    """Replace each level by the largest of its steps that is shown to keep the promise.

    The artifact holds every step as a level. `steps` lists for each level alpha the levels to test, in the
    order of the tests: smaller ones, and alpha itself last. The certification prompts must have been used for
    nothing else. If there are several levels, one may be served the larger threshold of another.
    """
    held = {one.alpha: one for one in artifact.levels}
    selected = [
        _select_step(artifact, certification, alpha, [held[one] for one in tried], delta)
        for alpha, tried in steps.items()
    ]
    confidence = Confidence(
        delta=delta,
        names=[artifact.feature_map.list_guaranteed_weights()[0].name],
        prompts=len(certification),
        records_digest=compute_records_digest(certification),
        missed={level.alpha: missed for level, missed in selected},
    )
    levels = sorted((level for level, _ in selected), key=lambda one: float(one.alpha))
    return artifact.with_levels(levels, confidence=confidence)


def _select_step(
    artifact: CalibrationArtifact,
    certification: LabelledBatch,
    alpha: str,
    tried: Sequence[LevelState],
    delta: str,
) -> tuple[LevelState, int]:
    """Return the last step before the first failed test, and on how many prompts its promise failed."""
    passed: tuple[LevelState, int] | None = None
    missed = 0
    for step in tried:
        level = step.model_copy(
            update={
                "alpha": alpha,
                "effective_alpha": None if step.alpha == alpha else step.alpha,
                "marginal": tried[-1].marginal,
            }
        )
        # Tested alone: among other levels the largest of several thresholds would be served.
        seen = compute_outcomes(artifact.with_levels([level]), certification, alpha)
        missed = len(certification) - int(seen.kept.sum())
        if binomial_p_value(missed, len(certification), Fraction(alpha)) > float(delta):
            break
        passed = level, missed
    if passed is None:
        raise _make_unattainable_error(alpha, delta, missed, len(certification))
    return passed


def _make_unattainable_error(alpha: str, delta: str, missed: int, size: int) -> UnattainableTargetError:
    needed = required_size(Fraction(missed, size) if size else 0, Fraction(alpha), float(delta))
    cure = (
        f"with this share about {needed} certification prompts would be enough: add more records or raise "
        "certification_fraction (on the command line --certification-fraction)"
        if needed is not None
        else "no number of certification prompts would be enough; choose a larger alpha"
    )
    msg = (
        f"alpha = {alpha} cannot be promised with failure probability {delta}: even at the strictest level "
        f"the promise failed on {missed} of {size} certification prompts; {cure}"
    )
    return UnattainableTargetError(msg)

"""`select_tested_levels`: levels that are strict enough for the promise to hold for this artifact.

Given the calibration set, the share of prompts on which the conditional rule keeps its promise follows no
known law. So the rule is fitted at levels from far below alpha up to alpha, and each is tested on a third
split against "the promise fails more often than alpha": from the strictest on, each at the same level, until
one fails its test. The last one that passed is served. The order does not depend on the third split, so the
first level in it at which the promise does fail more often than alpha is fixed before the tests, and passes
with at most the probability of one test. Only several alphas divide the level of the attempt.

Source: fixed sequence testing (Maurer, Hothorn and Lehmacher 1995); Learn then Test (Angelopoulos, Bates,
Candes, Jordan and Lei 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from langchain_cfc.artifact import CalibrationArtifact, Confidence, LevelState, PlannedAttempt
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import binomial_p_value
from langchain_cfc.certificates.coverage import compute_outcomes, compute_records_digest
from langchain_cfc.certificates.refusals import explain_needed, make_refusal


def select_tested_levels(
    artifact: CalibrationArtifact,
    attempt: PlannedAttempt,
    steps: Mapping[str, Sequence[str]],
    delta: str,
) -> CalibrationArtifact:
    """Replace each level by the largest of its steps that is shown to keep the promise.

    The artifact holds every step as a level. `steps` lists for each level alpha the levels to test, in the
    order of the tests: smaller ones, and alpha itself last. If there are several levels, one
    may be served the larger threshold of another.
    """
    held = {one.alpha: one for one in artifact.levels}
    level = attempt.compute_level(delta, len(steps))
    selected = {
        alpha: _select_step(artifact, attempt.labelled, alpha, [held[one] for one in tried], level)
        for alpha, tried in steps.items()
    }
    for alpha, step in selected.items():
        if step is None:
            needed = explain_needed(alpha, level, wrong="misses", prompts="certification prompts")
            reason = f"alpha = {alpha} is not promised with confidence, even at the strictest level. {needed}"
            raise make_refusal(reason, attempt, delta)
    passed = {alpha: step for alpha, step in selected.items() if step is not None}
    confidence = Confidence(
        delta=delta,
        attempt=attempt.number,
        level=level,
        names=[artifact.feature_map.list_guaranteed_weights()[0].name],
        prompts=len(attempt.labelled),
        records_digest=compute_records_digest(attempt.labelled),
        missed={alpha: missed for alpha, (_, missed) in passed.items()},
    )
    levels = sorted((step for step, _ in passed.values()), key=lambda one: float(one.alpha))
    return artifact.with_levels(levels, confidence=confidence)


def _select_step(
    artifact: CalibrationArtifact,
    certification: LabelledBatch,
    alpha: str,
    tried: Sequence[LevelState],
    level: float,
) -> tuple[LevelState, int] | None:
    """Return the last step before the first failed test, and on how many prompts its promise failed."""
    passed: tuple[LevelState, int] | None = None
    for step in tried:
        stricter = step.model_copy(
            update={
                "alpha": alpha,
                "effective_alpha": None if step.alpha == alpha else step.alpha,
                "marginal": tried[-1].marginal,
            }
        )
        # Tested alone: among other levels the largest of several thresholds would be served.
        seen = compute_outcomes(artifact.with_levels([stricter]), certification, alpha)
        missed = len(certification) - int(seen.kept.sum())
        if binomial_p_value(missed, len(certification), Fraction(alpha)) > level:
            break
        passed = stricter, missed
    return passed

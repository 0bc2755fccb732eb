"""`certify_policy`: a policy that answers or abstains, with a certificate on how often its answers are wrong.

The family: a policy uses the sets of one of the artifact's levels. It answers if the set holds at most a
given number of distinct answers, at least a given number of candidates agree on the best one, and the mean
score of all candidates is at most a cut, one of the deciles of the calibration prompts. The labels of the
calibration prompts have been used already, so they may show which policies look safe, and fix the order of
the tests. On the third split each policy is tested against "of the answered prompts more than r get a wrong
best answer": given how many are answered, the number of wrong ones is binomial, so the p-value is exact.
Tests stop at the first failure; all policies that passed before are certified together.

Source: Learn then Test (Angelopoulos, Bates, Candes, Jordan and Lei 2021), with fixed sequence testing in an
order learned on other data.

*For claims* the family is the levels alone. An answer that shows claims is wrong if one of them, drawn by the
hash of its id, is unsupported. These are independent trials, whose rate is the expected share of unsupported
claims among those that an answer shows. Claims of one answer are not independent, so they cannot be counted
one by one.

*Without sets* bot mode certifies a cut on the mean score (see `cuts`).

*The promise about sets.* It holds on average over all calibration sets, but not on average over those for
which a policy is found: strict thresholds make answers rarer and safer, so a policy passes more easily where
sets hold a correct answer too rarely. (Measured: at alpha = 0.5 and N = 49, where one calibration set in
three let a policy pass, these covered 0.43.) So bot mode does not carry that promise. It carries what the
certification prompts certify about the sets at the chosen level, with bounds that hold for all levels at
once; or the promise with confidence, if the calibration gave one for all levels at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact, CertifiedPolicy, PlannedAttempt, TradeOff
from langchain_cfc.candidates import LabelledBatch, Unit
from langchain_cfc.certificates.bounds import binomial_p_value, upper_bound
from langchain_cfc.certificates.coverage import (
    Outcomes,
    PromptGroup,
    certify_level,
    compute_outcomes,
    compute_records_digest,
    sample_groups,
)
from langchain_cfc.certificates.refusals import explain_needed, make_refusal
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.guarantee import AnswerPolicy, WrongRateCertificate
from langchain_cfc.guarantee.certified import divide_delta

MOST_ANSWERS = (1, 2, 3, 5)
# Share of an attempt's level for the certificates about the sets of a policy.
SETS_SHARE = 0.1
# Cuts on the mean score, at equal steps of the share of calibration prompts below them.
SCORE_CUTS = 10


@dataclass(frozen=True)
class _Policy:
    """A policy of the family, with its results on the calibration prompts."""

    alpha: str  # level of the sets
    policy: AnswerPolicy  # which sets are answered
    tuned: int  # number of calibration prompts
    answered: int  # how many of them are answered
    wrong: int  # how many of these with a wrong best answer
    shown: int  # number of answers shown, or of claims


def certify_policy(
    artifact: CalibrationArtifact,
    tuning: LabelledBatch,
    attempt: PlannedAttempt,
    *,
    max_wrong_rate: str,
    delta: str,
    by_group: bool = False,
    keep_levels: bool = True,
) -> CalibrationArtifact:
    """Certify a policy for bot mode, and store it in the artifact.

    Of the policies certified over all prompts, those with the most groups certified are preferred, and among
    these the one that answers most prompts. The sets have `SETS_SHARE` of the attempt's level, the rate has
    the rest. With `by_group` half of that goes to all prompts, the other half is divided among the groups,
    and each has its own sequence of tests. Without `keep_levels` the policy's level is served and tested
    alone.
    """
    rate, certification = Fraction(max_wrong_rate), attempt.labelled
    level = attempt.compute_level(delta)
    served = {one.alpha: artifact if keep_levels else artifact.with_levels([one]) for one in artifact.levels}
    family = [policy for alpha, one in served.items() for policy in _list_policies(one, alpha, tuning)]
    tested = [
        (one, compute_outcomes(served[one.alpha], certification, one.alpha, one.policy))
        for one in _order_tests(family, rate, len(certification))
    ]
    if not tested:
        levels = ", ".join(dict.fromkeys(one.alpha for one in family))
        reason = f"{_describe_failure(rate, artifact.unit)}: no prompt is answered at any level ({levels})."
        raise make_refusal(reason, attempt, delta)
    certificate, curve = _test_in_sequence(
        served,
        tested,
        attempt,
        max_wrong_rate=max_wrong_rate,
        delta=delta,
        level=level * (1.0 - SETS_SHARE),
        by_group=by_group,
    )
    kept = served[certificate.alpha]
    coverage = [
        certify_level(kept, attempt, alpha, delta, level * SETS_SHARE / len(served)) for alpha in kept.alphas
    ]
    stored = CertifiedPolicy(
        certificate=certificate, coverage=coverage, curve=curve, level_chosen=not keep_levels
    )
    return kept.model_copy(update={"policy": stored})


def _test_in_sequence(
    served: Mapping[str, CalibrationArtifact],
    tested: Sequence[tuple[_Policy, Outcomes]],
    attempt: PlannedAttempt,
    *,
    max_wrong_rate: str,
    delta: str,
    level: float,
    by_group: bool,
) -> tuple[WrongRateCertificate, list[TradeOff]]:
    """Test policies in their order; return the certificate of the chosen one, and the curve of all."""
    rate, certification = Fraction(max_wrong_rate), attempt.labelled
    artifact = served[tested[0][0].alpha]
    everyone, *groups = sample_groups(artifact, certification, tested[0][1].decisions.features)
    groups = groups if by_group else []
    shares = list(zip([everyone, *groups], divide_delta(level, len(groups)), strict=True))
    passed = {
        group.name: _count_passed(group, [seen for _, seen in tested], rate, share) for group, share in shares
    }
    certified = range(passed[everyone.name])
    if not certified:
        reason = _explain_refusal(tested[0][0], max_wrong_rate, shares[0][1], artifact.unit)
        raise make_refusal(reason, attempt, delta)
    chosen = max(certified, key=lambda place: (sum(place < count for count in passed.values()), place))
    policy, seen = tested[chosen]
    certificate = WrongRateCertificate(
        max_wrong_rate=max_wrong_rate,
        unit=artifact.unit,
        delta=delta,
        attempt=attempt.number,
        level=level,
        alpha=policy.alpha,
        policy=policy.policy,
        prompts=len(certification),
        groups=tuple(
            seen.certify_group(one, seen.decisions.answered, certified=chosen < passed[one.name])
            for one, _ in shares
        ),
        policies_tested=min(len(tested), passed[everyone.name] + 1),
        records_digest=compute_records_digest(certification),
        artifact_digest=served[policy.alpha].frozen_digest,
    )
    curve = []
    for one, outcomes in tested:
        answered, wrong = outcomes.count_answers(outcomes.decisions.answered)
        bound = upper_bound(wrong, answered, attempt.compute_level(delta) / len(tested))
        curve.append(
            TradeOff(
                alpha=one.alpha, policy=one.policy, answered=answered, wrong=wrong, wrong_rate_at_most=bound
            )
        )
    return certificate, sorted(curve, key=lambda one: one.answered)


def _list_policies(artifact: CalibrationArtifact, alpha: str, tuning: LabelledBatch) -> Iterator[_Policy]:
    seen = compute_outcomes(artifact, tuning, alpha)
    if artifact.unit == "claims":
        counts = seen.count_answers(seen.decisions.answered)
        yield _Policy(alpha, AnswerPolicy(), len(tuning), *counts, shown=int(seen.decisions.accepted.sum()))
        return
    n = artifact.n
    agreements = sorted({1, *(-(-n * quarter // 4) for quarter in (1, 2, 3, 4))})
    sizes = (*(one for one in MOST_ANSWERS if one < n), None)
    cuts = (None, *_choose_cuts(np.sort(MEAN_SCORE.compute_values(tuning.draws))))
    for most, agreement, cut in itertools.product(sizes, agreements, cuts):
        policy = AnswerPolicy(max_answers=most, min_agreement=agreement, max_mean_score=cut)
        counts = seen.count_answers(seen.answered_under(policy))
        yield _Policy(alpha, policy, len(tuning), *counts, shown=counts[0])


def _choose_cuts(means: FloatArray) -> Iterator[float]:
    """Yield cuts at equal shares of the ascending mean scores, each between two of these scores."""
    places = dict.fromkeys(
        int(np.searchsorted(means, means[len(means) * step // SCORE_CUTS], side="right"))
        for step in range(1, SCORE_CUTS)
    )
    for place in places:
        if place < len(means):
            yield find_short_number(float(means[place - 1]), float(means[place]))


def find_short_number(low: float, high: float) -> float:
    """Return the number in [low, high) with the fewest decimals, at least 2; of several, the largest."""
    for decimals in range(2, 17):
        unit = 10.0**decimals
        number = float(round(math.ceil(high * unit) - 1.0) / unit)
        if low <= number < high:
            return number
    return low


def _order_tests(family: Sequence[_Policy], rate: Fraction, size: int) -> list[_Policy]:
    """Return the policies to test: the most promising first, and each shows more than those before it."""

    def expected_p_value(one: _Policy) -> tuple[float, int]:
        # The p-value on the certification prompts if they were like the calibration prompts.
        answered, wrong = one.answered * size // one.tuned, -(-one.wrong * size // one.tuned)
        return binomial_p_value(min(wrong, answered), answered, rate), -one.shown

    chain: list[_Policy] = []
    for one in sorted(family, key=expected_p_value):
        if one.shown > (chain[-1].shown if chain else 0):
            chain.append(one)
    return chain


def _count_passed(group: PromptGroup, tested: Sequence[Outcomes], rate: Fraction, delta: float) -> int:
    for count, seen in enumerate(tested):
        answered, wrong = seen.count_answers(seen.decisions.answered & group.members)
        if binomial_p_value(wrong, answered, rate) > delta:
            return count
    return len(tested)


def _describe_failure(rate: Fraction, unit: Unit) -> str:
    what = "wrong-answer rate" if unit == "answers" else "share of unsupported claims among those shown"
    return f"A {what} of {float(rate):g} is not certified"


def _explain_refusal(one: _Policy, rate: str, level: float, unit: Unit) -> str:
    """Say which policy failed its test, with its figures on the prompts that do not certify."""
    reason, needed = _describe_failure(Fraction(rate), unit), explain_needed(rate, level)
    shows = f"answers {one.answered}, {one.wrong} wrongly"
    if unit == "claims":
        needed = explain_needed(rate, level, wrong="unsupported", prompts="claims, one from each answer")
        shows = f"shows claims for {one.answered}; of one claim drawn from each, {one.wrong} are unsupported"
    return (
        f"{reason}. The first test was of {one.policy.described} at alpha = {one.alpha}, which {shows}, of "
        f"{one.tuned} calibration prompts (these do not certify). {needed}"
    )

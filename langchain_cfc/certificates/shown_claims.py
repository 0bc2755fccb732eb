"""`certify_shown_claims`: a level at which few of the claims that an answer shows are unsupported.

An answer that shows claims is wrong if one of them, drawn by the hash of its id, is unsupported. These are
independent trials, whose rate is the expected share of unsupported claims among those that an answer shows.
Claims of one answer are not independent, so they cannot be counted one by one.

The labels of the calibration prompts have been used already, so they may show which levels look safe, and fix
the order of the tests. On the third split each level is tested against "more than r of the claims shown are
unsupported": given how many answers show claims, the number of wrong ones is binomial, so the p-value is
exact. Tests stop at the first failure. The last level that passed before, which shows most, is served.

Source: Learn then Test (Angelopoulos, Bates, Candes, Jordan and Lei 2021), with fixed sequence testing in an
order learned on other data.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot, PlannedAttempt
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import binomial_p_value
from langchain_cfc.certificates.coverage import (
    Outcomes,
    PromptGroup,
    compute_outcomes,
    compute_records_digest,
    sample_groups,
)
from langchain_cfc.certificates.refusals import explain_needed, make_refusal
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.guarantee.certified import divide_delta


def certify_shown_claims(
    artifact: CalibrationArtifact,
    tuning: LabelledBatch,
    attempt: PlannedAttempt,
    *,
    max_wrong_rate: str,
    delta: str,
    by_group: bool = False,
) -> CalibrationArtifact:
    """Certify one of the artifact's levels, and return the artifact with this level alone.

    Of the levels certified over all prompts, those with the most groups certified are preferred, and among
    these the one that shows most. With `by_group` half of the attempt's level goes to all prompts, the other
    half is divided among the groups, and each has its own sequence of tests.

    Raises:
        UnattainableTargetError: If no level can be certified.
    """
    rate, certification = Fraction(max_wrong_rate), attempt.labelled
    alone = [artifact.with_levels([level]) for level in artifact.levels]
    order = _order_tests([compute_outcomes(one, tuning, None) for one in alone], rate, len(certification))
    level = attempt.compute_level(delta)
    needed = explain_needed(
        max_wrong_rate, level, wrong="unsupported", prompts="claims, one from each answer"
    )
    refused = f"A share of unsupported claims among those shown of {float(rate):g} is not certified. {needed}"
    if not order:
        refused = f"{refused} No claim is shown at any level."
        raise make_refusal(refused, attempt, delta)
    tested = [compute_outcomes(alone[place], certification, None) for place in order]
    everyone, *groups = sample_groups(artifact, certification, tested[0].decisions.features)
    groups = groups if by_group else []
    shares = list(zip([everyone, *groups], divide_delta(level, len(groups)), strict=True))
    passed = [_count_passed(group, tested, rate, share) for group, share in shares]
    if not passed[0]:
        raise make_refusal(refused, attempt, delta)
    chosen = max(range(passed[0]), key=lambda place: (sum(place < count for count in passed), place))
    kept, seen = alone[order[chosen]], tested[chosen]
    certificate = WrongRateCertificate(
        max_wrong_rate=max_wrong_rate,
        delta=delta,
        attempt=attempt.number,
        level=level,
        alpha=kept.alphas[0],
        prompts=len(certification),
        groups=tuple(
            seen.certify_group(group, seen.decisions.answered, certified=chosen < count)
            for (group, _), count in zip(shares, passed, strict=True)
        ),
        records_digest=compute_records_digest(certification),
        artifact_digest=kept.frozen_digest,
    )
    bot = CertifiedBot(certificates=[certificate], delta=delta, by_group=by_group)
    return kept.model_copy(update={"bot": bot})


def _order_tests(tuned: Sequence[Outcomes], rate: Fraction, size: int) -> list[int]:
    """Return the levels to test: the most promising first, and each shows more than those before it."""
    counts = [seen.count_answers(seen.decisions.answered) for seen in tuned]
    shown = [int(seen.decisions.accepted.sum()) for seen in tuned]

    def expected_p_value(place: int) -> tuple[float, int]:
        # The p-value on the certification prompts if they were like the calibration prompts.
        prompts = len(tuned[place].covered)
        answered, wrong = counts[place][0] * size // prompts, -(-counts[place][1] * size // prompts)
        return binomial_p_value(min(wrong, answered), answered, rate), -shown[place]

    chain: list[int] = []
    for place in sorted(range(len(tuned)), key=expected_p_value):
        if shown[place] > (shown[chain[-1]] if chain else 0):
            chain.append(place)
    return chain


def _count_passed(group: PromptGroup, tested: Sequence[Outcomes], rate: Fraction, level: float) -> int:
    for count, seen in enumerate(tested):
        answered, wrong = seen.count_answers(seen.decisions.answered & group.members)
        if binomial_p_value(wrong, answered, rate) > level:
            return count
    return len(tested)

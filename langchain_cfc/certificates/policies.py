"""A policy that answers or abstains, with a certificate on how often its answers are wrong.

The family: from the sets of one of the artifact's levels, answer where the set holds at most so many distinct
answers and at least so many candidates agree on the best one. The calibration prompts, whose labels have been
used already, say which policies look safe, and fix the order of the tests. On the third split each is tested
against "of the answered prompts more than r get a wrong best answer": given how many are answered, the number
of wrong ones is binomial, so the p-value is exact. Tests stop at the first that fails; whatever passed before
is certified, all of it together.

Source: Learn then Test (Angelopoulos, Bates, Candes, Jordan and Lei 2021), with fixed sequence testing in an
order learned on other data.

*What becomes of the promise about sets.* On average over calibration sets it holds before a policy is looked
for, and not for those calibration sets for which one is found: strict thresholds make answers rarer and
safer, so that a policy passes more easily where sets hold a correct answer too rarely. (Measured: at alpha =
0.5 and N = 49, where one calibration set in three let a policy pass, these covered 0.43.) So bot mode does
not carry that promise. It carries what the certification prompts say of the sets at the level chosen, with
bounds that hold for all levels at once; or the promise with confidence, where the calibration gave one for
all levels at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from langchain_cfc._internal.arrays import BoolArray
from langchain_cfc.artifact import CalibrationArtifact, CertifiedPolicy, TradeOff
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import at_most, rare_p_value, size_needed
from langchain_cfc.certificates.coverage import (
    Claim,
    Outcomes,
    claims,
    coverage_certificate,
    outcomes,
    records_digest,
)
from langchain_cfc.errors import UnattainableTargetError
from langchain_cfc.guarantee import AnswerPolicy, CertifiedAnswers, WrongRateCertificate

MOST_ANSWERS = (1, 2, 3, 5)


@dataclass(frozen=True)
class _Policy:
    """A policy of the family, with what it does on the calibration prompts.

    Attributes:
        alpha: Level of the sets.
        policy: Which of them are answered.
        tuned: Number of calibration prompts.
        answered: How many of them are answered.
        wrong: How many of these with a wrong best answer.
    """

    alpha: str
    policy: AnswerPolicy
    tuned: int
    answered: int
    wrong: int

    @property
    def words(self) -> str:
        """The policy in words, for messages."""
        return f"sets{' ' * bool(self.policy.words)}{self.policy.words} at alpha = {self.alpha}"


def certified_policy(
    artifact: CalibrationArtifact,
    tuning: LabelledBatch,
    certification: LabelledBatch,
    *,
    max_wrong_rate: str,
    delta: str,
    by_group: bool = False,
    keep_levels: bool = True,
) -> CalibrationArtifact:
    """Certify a policy, and store it for bot mode."""
    rate = Fraction(max_wrong_rate)
    whole = float(delta)
    served = {one.alpha: artifact if keep_levels else artifact.with_levels([one]) for one in artifact.levels}
    family = [policy for alpha, one in served.items() for policy in _family(one, alpha, tuning)]
    chain = _chain(family, rate, len(certification))
    tested = [(one, outcomes(served[one.alpha], certification, one.alpha, one.policy)) for one in chain]
    if not tested:
        raise _unattainable(family, tested, rate, whole)
    everyone, *groups = claims(artifact, certification, tested[0][1].decisions.features)
    own = whole / 2 if by_group and groups else whole
    judged = [(everyone, own), *((one, whole / (2 * len(groups))) for one in groups if by_group)]
    passed = {claim.name: _passed(claim, [seen for _, seen in tested], rate, at) for claim, at in judged}
    certified = range(passed[everyone.name])
    if not certified:
        raise _unattainable(family, tested, rate, own)
    chosen = max(certified, key=lambda place: (sum(place < count for count in passed.values()), place))
    policy, seen = tested[chosen]
    certificate = WrongRateCertificate(
        max_wrong_rate=max_wrong_rate,
        delta=delta,
        alpha=policy.alpha,
        policy=policy.policy,
        prompts=len(certification),
        groups=tuple(_group(claim, seen, certified=chosen < passed[claim.name]) for claim, _ in judged),
        policies_tested=min(len(tested), passed[everyone.name] + 1),
        records_digest=records_digest(certification),
        artifact_digest=served[policy.alpha].frozen_digest,
    )
    curve = sorted(
        (_trade_off(one, found, whole / len(tested)) for one, found in tested), key=lambda one: one.answered
    )
    kept = served[policy.alpha]
    coverage = [
        coverage_certificate(kept, certification, alpha, delta, certificate.records_digest, among=len(served))
        for alpha in kept.alphas
    ]
    stored = CertifiedPolicy(
        certificate=certificate, coverage=coverage, curve=curve, level_chosen=not keep_levels
    )
    return kept.model_copy(update={"policy": stored})


def _family(artifact: CalibrationArtifact, alpha: str, tuning: LabelledBatch) -> Iterator[_Policy]:
    """The policies that answer from the sets of one level."""
    n = artifact.n
    agreements = sorted({1, *(-(-n * quarter // 4) for quarter in (1, 2, 3, 4))})
    seen = outcomes(artifact, tuning, alpha)
    for most in (*(one for one in MOST_ANSWERS if one < n), None):
        for agreement in agreements:
            policy = AnswerPolicy(max_answers=most, min_agreement=agreement)
            answered = seen.under(policy)
            yield _Policy(alpha, policy, len(tuning), int(answered.sum()), int((seen.wrong & answered).sum()))


def _chain(family: Sequence[_Policy], rate: Fraction, size: int) -> list[_Policy]:
    """The policies to test, the most certain first, each of which answers more than those before."""

    def promise(one: _Policy) -> tuple[float, int]:
        # The p-value that the certification prompts would have if they were like the calibration prompts.
        answered, wrong = one.answered * size // one.tuned, -(-one.wrong * size // one.tuned)
        return rare_p_value(min(wrong, answered), answered, rate), -one.answered

    chain: list[_Policy] = []
    for one in sorted(family, key=promise):
        if one.answered > (chain[-1].answered if chain else 0):
            chain.append(one)
    return chain


def _passed(claim: Claim, tested: Sequence[Outcomes], rate: Fraction, delta: float) -> int:
    """How many policies pass in turn for the prompts of a claim."""
    for count, seen in enumerate(tested):
        answered, wrong = _counts(claim, seen)
        if rare_p_value(wrong, answered, rate) > delta:
            return count
    return len(tested)


def _counts(claim: Claim, seen: Outcomes) -> tuple[int, int]:
    answered: BoolArray = seen.decisions.answered & claim.members
    return int(answered.sum()), int((seen.wrong & answered).sum())


def _group(claim: Claim, seen: Outcomes, *, certified: bool) -> CertifiedAnswers:
    answered, wrong = _counts(claim, seen)
    return CertifiedAnswers(
        name=claim.name,
        words=claim.words,
        prompts=int(claim.members.sum()),
        answered=answered,
        wrong=wrong,
        certified=certified,
    )


def _trade_off(one: _Policy, seen: Outcomes, delta: float) -> TradeOff:
    answered = int(seen.decisions.answered.sum())
    wrong = int((seen.wrong & seen.decisions.answered).sum())
    bound = at_most(wrong, answered, delta)
    return TradeOff(
        alpha=one.alpha, policy=one.policy, answered=answered, wrong=wrong, wrong_rate_at_most=bound
    )


def _unattainable(
    family: Sequence[_Policy], tested: Sequence[tuple[_Policy, Outcomes]], rate: Fraction, delta: float
) -> UnattainableTargetError:
    """What would be needed, by what the policies did on all prompts that were looked at."""
    start = f"a wrong-answer rate of {float(rate):g} cannot be certified with these records"
    if not tested:
        levels = ", ".join(dict.fromkeys(one.alpha for one in family))
        msg = f"{start}: at none of the levels ({levels}) is any prompt answered; give larger alphas"
        return UnattainableTargetError(msg)
    # The first in turn: whatever comes behind it is tested only once this one has passed.
    first = _Seen.of(*tested[0])
    said = (
        f"{start}. The policy that looked safest, {first.words}, answers {first.answered} of "
        f"{first.certification} certification prompts, {first.wrong} of them wrongly"
    )
    size = size_needed(first.share, rate, delta)
    if size is None:
        msg = (
            f"{said}; if that stays so, no number of prompts would do. A better verifier or model is needed, "
            "a larger rate, or more levels to choose from"
        )
        return UnattainableTargetError(msg)
    msg = (
        f"{said}. If that stays so, about {ceil(size / first.answering)} would do: "
        "bring more records or raise certification_fraction (on the command line --certification-fraction)"
    )
    return UnattainableTargetError(msg)


@dataclass(frozen=True)
class _Seen:
    """What a policy did on the certification prompts.

    Attributes:
        words: The policy in words.
        certification: Number of certification prompts.
        answered: How many of them it answers.
        wrong: How many of these with a wrong best answer.
        answering: Share of answered prompts to reckon with: theirs, or where none is that of all prompts.
        share: Share of wrong answers to reckon with: theirs, or that of all prompts looked at if larger.
    """

    words: str
    certification: int
    answered: int
    wrong: int
    answering: Fraction
    share: Fraction

    @classmethod
    def of(cls, one: _Policy, found: Outcomes) -> _Seen:
        answered = int(found.decisions.answered.sum())
        wrong = int((found.wrong & found.decisions.answered).sum())
        pooled = Fraction(one.wrong + wrong, one.answered + answered)
        share = max(pooled, Fraction(wrong, max(answered, 1)))
        size = len(found.kept)
        answering = Fraction(answered, size) or Fraction(one.answered, one.tuned + size)
        return cls(one.words, size, answered, wrong, answering, share)

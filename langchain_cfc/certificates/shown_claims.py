"""`certify_shown_claims`: a cut on the scores of claims, certified for the share of unsupported ones shown.

A bot for claims shows those with a score of at most a cut. X is the unsupported share of the claims that an
answer shows. The promise is E[X] <= r among answers that show a claim. Claims of one answer are dependent, so
each answer counts once; an answer that shows nothing does not count, since its 0 would dilute r.

*One cut.* Let the cut be fixed. Answers are independent and identically distributed (one of each cluster). So
are those that show a claim at the cut, since each answer's own scores decide that. Of the claims that such an
answer shows one is drawn, each with the same probability, by a hash of the answer's id. Given the answer, it
is unsupported with probability X, so given only that a claim is shown, with probability E[X]. Hence the
number of answers whose drawn claim is unsupported is binomial with the rate E[X], however claims of one
answer depend on each other. The cut passes at a level if this number or fewer have at most that probability
under the rate r (exact binomial test).

Two tests without a draw show fewer claims with the few hundred answers that people label. "A claim that is
shown is unsupported" happens at least as often as its share says. Bets on X use that X varies less than a
drawn claim does, which pays with thousands of answers, but bound the tail of a product by its mean.

*Many cuts.* They are quantiles of the scores of claims in the fit split, whose answers do not certify, so
they are fixed; labels are not used. They are tested from the strictest on, at most at the level that follows.
Every cut has a level of its own, which is 0 except at one or two starts. Whatever level a cut passed at is
added to that of the next; if it fails, nothing is. The probability that any cut with E[X] > r passes is at
most the sum of the own levels. Proof. Consider the first such cut that passes. No such cut before it has
passed, so the level carried to it is the sum of own levels of cuts after the last such one. These sums, one
for each such cut, are over disjoint cuts; by the union bound their sum bounds the probability. The tests may
depend on each other in any way (the fallback procedure: Wiens 2003).

*The starts.* The first cut that is tested must be one at which enough answers show a claim, and an early
mistake is allowed: `SPARE` of them at `FIRST_SHARE` of the level. It is not known where claims are safest, so
the rest of the level starts where `SECOND_START` of the answers show a claim. If the first start would not be
the earlier one, the second has all of the level, and is where a test can pass at all. How many answers show a
claim is estimated by their share in the fit split. The three numbers were chosen once, on recordings; the
theorem holds for any. The last cut that passed is served. In groups, each has starts and tests of its own,
with its part of the level.

Sources: fallback procedure: see `cuts`; bets: Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting".
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot, PlannedAttempt
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import binomial_p_value, find_size
from langchain_cfc.certificates.coverage import PromptGroup, compute_records_digest, sample_groups
from langchain_cfc.certificates.refusals import explain_refusal, make_refusal
from langchain_cfc.decision import AnswerSets
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.guarantee import CertifiedAnswers, WrongRateCertificate
from langchain_cfc.guarantee.certified import divide_delta
from langchain_cfc.support.arrays import BoolArray, FloatArray

# Quantiles, in percent, of the claims' scores in the fit split: cuts in the order of their tests.
PERCENTS = range(10, 101)
# See the module: how many mistakes the test at the first start allows, its share of the level, and the share
# of the answers that show a claim at the second one.
SPARE = 2
FIRST_SHARE = 0.8
SECOND_START = 0.3


def certify_shown_claims(
    artifact: CalibrationArtifact,
    fit: LabelledBatch,
    attempt: PlannedAttempt,
    *,
    max_wrong_rate: str,
    delta: str,
    by_group: bool = False,
) -> CalibrationArtifact:
    """Certify a cut on the scores of claims, and store its certificate in the artifact.

    Of the cuts certified over all prompts, those with the most groups certified are preferred, and among
    these the one that shows most. With `by_group` half of the attempt's level goes to all prompts, the other
    half is divided among the groups.

    Args:
        artifact: The artifact, without levels.
        fit: Answers of the fit split, whose scores fix the cuts.
        attempt: The attempt, on other answers.
        max_wrong_rate: Largest expected share of unsupported claims among those that an answer shows.
        delta: Failure probability of all attempts on these labels.
        by_group: Whether to test the groups of the feature map as well.

    Returns:
        The artifact with its bot.

    Raises:
        UnattainableTargetError: If no cut can be certified.
    """
    certification, rate, cuts = attempt.labelled, Fraction(max_wrong_rate), list_cuts(fit)
    level = attempt.compute_level(delta)
    groups = _list_groups(artifact, certification)[: None if by_group else 1]
    parts = divide_delta(level, len(groups) - 1)
    shown = np.array([AnswerSets.from_claims_below(fit.draws, cut).accepted.any(axis=1) for cut in cuts])
    own = [
        _plan_levels(shown[:, known.members], int(group.members.sum()), rate, part)
        for known, group, part in zip(_list_groups(artifact, fit), groups, parts, strict=False)
    ]
    tickets = artifact.calibration.split.draw_uniforms("shown claim", certification.ids)
    carried = [0.0 for _ in groups]
    tested: list[tuple[CertifiedAnswers, ...]] = []
    for cut, added in zip(cuts, zip(*own, strict=True), strict=True):
        carried = [before + further for before, further in zip(carried, added, strict=True)]
        accepted = AnswerSets.from_claims_below(certification.draws, cut).accepted
        counts, unsupported = accepted.sum(axis=1), (accepted & ~certification.correct).sum(axis=1)
        drawn = tickets * counts < unsupported  # whether the one drawn is unsupported
        results = [
            _test_group(group, counts > 0, drawn, rate, at) for group, at in zip(groups, carried, strict=True)
        ]
        carried = [at if one.certified else 0.0 for one, at in zip(results, carried, strict=True)]
        tested.append(tuple(results))
    passed = [place for place, (overall, *_) in enumerate(tested) if overall.certified]
    if not passed:
        reason = explain_refusal(max_wrong_rate, parts[0], artifact.traits)
        raise make_refusal(reason, max_wrong_rate, parts[0], attempt, artifact.traits)
    chosen = max(passed, key=lambda place: (sum(one.certified for one in tested[place]), place))
    certificate = WrongRateCertificate(
        max_wrong_rate=max_wrong_rate,
        delta=delta,
        attempt=attempt.number,
        level=level,
        alpha=max_wrong_rate,
        prompts=len(certification),
        max_score=cuts[chosen],
        groups=tested[chosen],
        subject=artifact.subject,
        records_digest=compute_records_digest(certification),
        artifact_digest=artifact.frozen_digest,
    )
    bot = CertifiedBot(certificates=[certificate], delta=delta, by_group=by_group)
    return artifact.model_copy(update={"bot": bot})


def list_cuts(fit: LabelledBatch) -> list[float]:
    """List the cuts of the tests, ascending, from the scores of claims alone; the last shows all claims."""
    scores: FloatArray = fit.draws.scores[fit.draws.is_drawn]
    cuts: FloatArray = np.quantile(scores, np.array(PERCENTS) / 100.0, method="higher")
    return [*cuts[:-1].tolist(), 1.0]


def _plan_levels(shown: BoolArray, size: int, rate: Fraction, level: float) -> list[float]:
    """Plan the own levels of the tests of all cuts, which sum to a level; see the module.

    Args:
        shown: (number of cuts, number of answers of the fit split) whether an answer shows a claim.
        size: Number of answers that certify.
        rate: The rate.
        level: The sum.
    """
    shares = shown.sum(axis=1) / max(1, shown.shape[1])
    own = [0.0] * len(shares)
    first, second = FIRST_SHARE * level, SECOND_START * size
    if (early := find_size(SPARE, rate, first)) < second:
        own[_find_place(shares, early / size)] = first
        own[_find_place(shares, second / size)] += level - first
    else:
        own[_find_place(shares, max(second, find_size(0, rate, level)) / max(size, 1))] = level
    return own


def _find_place(shares: FloatArray, share: float) -> int:
    """Return the first cut at which a share of the answers show a claim, or the last cut."""
    return min(int(np.searchsorted(shares, share)), len(shares) - 1)


def _test_group(
    group: PromptGroup, answered: BoolArray, wrong: BoolArray, rate: Fraction, level: float
) -> CertifiedAnswers:
    """Test one cut in one group, given (m,) which answers show a claim, and draw an unsupported one."""
    seen = group.count_answers(answered, wrong, certified=False)
    passes = binomial_p_value(seen.wrong, seen.answered, rate) <= level
    return seen.model_copy(update={"certified": passes})


def _list_groups(artifact: CalibrationArtifact, labelled: LabelledBatch) -> list[PromptGroup]:
    with name_records_in_errors(labelled.ids):
        features = artifact.feature_map.transform(labelled.draws, allow_unknown=True)
    return sample_groups(artifact, labelled, features)

"""`certify_shown_claims`: a cut on the scores of claims, certified for the share of unsupported ones shown.

A bot for claims shows those with a score of at most a cut. X is the unsupported share of the claims that an
answer shows. The promise is E[X] <= r among answers that show a claim. Claims of one answer are dependent, so
each answer counts once; an answer that shows nothing does not count, since its 0 would dilute r.

*One cut.* Let the cut be fixed. Answers are independent and identically distributed (one of each cluster). So
are those that show a claim at the cut, since each answer's own scores decide that: given which ones do, their
X are independent draws from the distribution of X given that a claim is shown. Bet on them in the order of
hashed ids. A stake of 1 becomes 1 + b (r - X), above 0 for every b in [0, 1 / (1 - r)). If E[X] >= r its mean
is at most 1, so the product over answers is a supermartingale, and so is its mean over a few bets b. Such
wealth ever reaches 1 / level with probability at most level (Ville 1939). So a cut passes if the largest
wealth does.

*Many cuts.* They are quantiles of the scores of claims in the fit split, whose answers do not certify, so
they are fixed; labels are not used. They are tested from the strictest on, at most at the level that follows.
Every cut has a level of its own, which is 0 except at `STARTS`. Whatever level a cut passed at is added to
that of the next; if it fails, nothing is. The probability that any cut with E[X] > r passes is at most the
sum of the own levels. Proof. Consider the first such cut that passes. No such cut before it has passed, so
the level carried to it is the sum of own levels of cuts after the last such one. These sums, one for each
such cut, are over disjoint cuts; by the union bound their sum bounds the probability. The tests may depend on
each other in any way (the fallback procedure: Wiens 2003).

Two starts, because it is not known where claims are safest: few answers show claims below low quantiles, and
more of their claims may be unsupported than among claims up to higher ones. The last cut that passed is
served. In groups, each has tests of its own, with its part of the level.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting".
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, CertifiedBot, PlannedAttempt
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.coverage import PromptGroup, compute_records_digest, sample_groups
from langchain_cfc.certificates.e_processes import (
    compute_mean_wealth,
    compute_mean_wealth_path,
    required_outcomes,
)
from langchain_cfc.certificates.refusals import make_refusal
from langchain_cfc.decision import AnswerSets
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.guarantee import CertifiedAnswers, WrongRateCertificate
from langchain_cfc.guarantee.certified import divide_delta
from langchain_cfc.support.arrays import FloatArray, IntArray

# Quantiles, in percent, of the claims' scores in the fit split: cuts in the order of their tests.
PERCENTS = range(10, 101)
# Share of the level that the test of a cut has of its own, by percent; see the module.
STARTS = {10: 0.8, 40: 0.2}


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
    certification, split = attempt.labelled, artifact.calibration.split
    certification = certification.take(np.argsort(split.draw_uniforms("bet", certification.ids)))
    level = attempt.compute_level(delta)
    with name_records_in_errors(certification.ids):
        features = artifact.feature_map.transform(certification.draws, allow_unknown=True)
    everyone, *groups = sample_groups(artifact, certification, features)
    groups = groups if by_group else []
    parts = list(zip([everyone, *groups], divide_delta(level, len(groups)), strict=True))
    carried = [0.0 for _ in parts]
    tested: list[tuple[CertifiedAnswers, ...]] = []
    cuts = list_cuts(fit)
    for percent, cut in zip(PERCENTS, cuts, strict=True):
        accepted = AnswerSets.from_claims_below(certification.draws, cut).accepted
        shown, unsupported = accepted.sum(axis=1), (accepted & ~certification.correct).sum(axis=1)
        own = STARTS.get(percent, 0.0)
        carried = [before + own * part for before, (_, part) in zip(carried, parts, strict=True)]
        results = [
            _test_group(group, shown, unsupported, float(Fraction(max_wrong_rate)), at)
            for (group, _), at in zip(parts, carried, strict=True)
        ]
        carried = [at if one.certified else 0.0 for one, at in zip(results, carried, strict=True)]
        tested.append(tuple(results))
    passed = [place for place, (overall, *_) in enumerate(tested) if overall.certified]
    if not passed:
        needed = required_outcomes(float(Fraction(max_wrong_rate)), max(STARTS.values()) * parts[0][1])
        refused = (
            f"A rate of {float(Fraction(max_wrong_rate)):g} unsupported claims is not certified: it takes at "
            f"least {needed:,} answers that show claims, even if all of these are supported"
        )
        raise make_refusal(refused, max_wrong_rate, attempt)
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


def _test_group(
    group: PromptGroup, shown: IntArray, unsupported: IntArray, rate: float, level: float
) -> CertifiedAnswers:
    """Test one cut in one group, given (m,) numbers of claims that answers show, and of unsupported ones."""
    answered = group.members & (shown > 0)
    counts, wrong = shown[answered], unsupported[answered]
    bets: dict[str, int] = {}
    certified = False
    if level > 0.0:
        path = compute_mean_wealth_path(wrong / counts, rate)
        best = int(path.argmax())
        common = np.gcd(wrong, counts)[:best]
        pairs = np.column_stack([wrong[:best] // common, counts[:best] // common])
        for (top, bottom), count in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
            bets[f"{top}/{bottom}"] = int(count)
        certified = compute_mean_wealth(bets, rate) >= -np.log(level)
    return CertifiedAnswers(
        name=group.name,
        words=group.words,
        prompts=int(group.members.sum()),
        answered=len(counts),
        wrong=int((wrong > 0).sum()),
        certified=bool(certified),
        bets=bets,
    )

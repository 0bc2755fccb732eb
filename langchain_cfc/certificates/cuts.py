"""`certify_mean_score`: a cut on the mean score, with a certificate on how often answers below it are wrong.

A bot ignores sets. It answers with the best candidate if the mean score of the n candidates is at most a
cut. What it answers depends on no label, so all labels may be used to certify.

*The tests.* The m certification prompts with an answer are sorted by mean score; ties are broken by hash. A
size k is tested by the number W of wrong answers among the first k: it passes at a level if W or fewer of k
have at most that probability under the rate r (exact binomial test). A sequence of sizes is tested in
ascending order until one fails. A size that passes is served, unless it divides a tie, by the cut behind its
prompts.

*Two sequences.* The first starts at n_0, the smallest size that can pass, the second at `SECOND_START` of m,
where the first one ends. The first has `FIRST_SHARE` of delta, the second the rest. If all sizes of the first
pass, its level is carried on, and the second has all of delta (fallback procedure). If the first would have
no sizes, there is one sequence alone, at delta. Sizes are fixed by r, delta and m.

One rule makes ties bearable, as with self-consistency many prompts have a mean score of 0, those whose
candidates all agree: let Z be their number. Each sequence tests the size Z before those above Z, and none
below. If it ends below Z it tests nothing, and its level is carried on.

*The theorem.* Let R(c) be the wrong-answer rate of the bot that answers below c. The probability that any cut
with R(c) > r is served is at most delta: for every number of prompts, however R goes up and down, and however
mean scores tie. Proof. With the hash the order has no ties, and R is continuous. The places with R > r form
disjoint intervals (a, b); let D be all a and b. R = r at each of them, except at the two ends of the order.
N(c) is the number of prompts up to c. Condition on N on all of D. The prompts between two neighbours of D are
independent draws with an average risk of r (or a larger one, in an interval that ends the order). Call k
wrong if N(a) <= k <= N(b) for an interval, so that R > r somewhere between the prompts k and k + 1. Which
sizes are wrong depends on N on D alone. Given that,

    (1)  a wrong size k passes a test at level x with probability at most x.

For the first N(a) prompts are wrong with probability r each, independently. The others are the first ones in
(a, b): given the next prompt, at u, they are independent draws from (a, u), with an average risk above r,
since R(a) = r < R(u); if k = N(b), from (a, b). So W is stochastically at least as large as a binomial number
with rate r.

First let R <= r where the mean score is 0, or let no prompt have it. Then Z <= N(a) for all intervals, so a
sequence that has a wrong size tests its first one, and passes all its tests only if it passes that one. By
(1) it serves a wrong cut with probability at most its level. If both have wrong sizes, the second one has all
of delta only if the first has passed a wrong size: FIRST_SHARE and the rest add up to 1. If only one has, at
most delta. (If both test Z, as Z is the start of the second one, it counts as a size of the second.)

Now let R > r there, and up to the first b. Only sequences that start with n <= N(b) prompts need another
argument: n is wrong. Read the prompts before b from the last one to the first until n are left. If none read
had a mean score of 0, Z <= n, the n are independent draws with an average risk above r, and n passes with
probability at most the level. If one had, the test is that of Z > n. Given all mean scores, W is binomial
with a rate above r, and Z passes with probability at most the level. Read first for the second sequence: in
the latter case it has at most all of delta, and the first sequence tests nothing; in the other case each has
its own share unless a wrong cut has passed, and reading goes on for the first sequence.

*In groups* every size from n_0 on is tested, because the cut that is certified over all prompts may end
anywhere between two neighbouring prompts of a group. The theorem holds for all these cuts, as k is called
wrong if R > r anywhere between its neighbours. Over all prompts some sizes are skipped, since each further
test may fail: the number of wrong answers allowed at the level of the first sequence grows by one at n_0 =
m_0 < m_1 < ..., and below m_8, or the last of them, only these sizes are tested.

*What the proof does not allow* is to round sizes up to complete ties. Which tie is completed depends on how
few prompts are before it, and these may be the wrong ones. Example: mean scores .1, .2 and .3 have the odds
46 : 46 : 9, and 0, 100 and 50 % of their prompts are wrong; r = 1/2, 8 prompts, and the sizes 1 and 8. If the
last cut is the first wrong one, a test at level .035 is passed 1.008 times as often as allowed. Starting with
all prompts of mean score 0 selects nothing, as there are no smaller scores.

*The choice* of the second start and of the shares was made once, on recordings and simulated prompts; the
theorem holds for any. The first sequence serves models that can answer few prompts. The second one serves
those whose surest answers are wrong, or with a rate so small that one early wrong answer is too many.

*Several rates* have separate sequences and divide the level, so that all rates hold together.

Sources: given the k-th order statistic those below are independent draws from the distribution cut off there
(David and Nagaraja 2003, "Order statistics", Theorem 2.5); fixed sequence testing (Maurer, Hothorn and
Lehmacher 1995); the fallback procedure (Wiens and Dmitrienko 2005, "The fallback procedure for evaluating a
single family of hypotheses"); Learn then Test (Angelopoulos, Bates, Candes, Jordan and Lei 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from langchain_cfc.artifact import (
    CalibrationArtifact,
    CertifiedBot,
    PlannedAttempt,
    TradeOff,
    has_separate_scores,
)
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import binomial_p_value, find_size, upper_bound
from langchain_cfc.certificates.coverage import (
    Outcomes,
    compute_outcomes,
    compute_records_digest,
    sample_groups,
)
from langchain_cfc.certificates.refusals import explain_refusal, make_refusal
from langchain_cfc.decision import EVERY_PROMPT
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.guarantee.certified import divide_delta
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray

# The first sequence's share of delta, and the share of the prompts at which the second one starts.
FIRST_SHARE = 0.8
SECOND_START = Fraction(2, 5)
# Sizes are skipped until this number of wrong answers is allowed.
SPACED_TESTS = 9
# If a larger share of prompts has the smallest mean score, a refusal names this as its cause.
MANY_TIES = 0.25
# Number of cuts on the curve, at equal steps of the share answered.
CURVE_POINTS = 20


def certify_mean_score(
    artifact: CalibrationArtifact,
    attempt: PlannedAttempt,
    *,
    max_wrong_rates: Sequence[str],
    delta: str,
    by_group: bool = False,
) -> CalibrationArtifact:
    """Certify a cut on the mean score for each rate, and store the certificates in the artifact.

    A bot ignores sets, so the certification prompts may have calibrated their thresholds, or fitted the
    feature map. Nothing is certified about the sets. The level of the attempt is divided among the rates.
    With `by_group` half of a rate's level goes to all prompts, and the other half is divided among the
    groups, which must not depend on the certification prompts. Of the cuts certified over all prompts, those
    with the most groups certified are preferred, and among these the one that answers most. A rate that
    cannot be certified is stored with the reason.

    If no rate can be certified, and the artifact has no levels, there is no artifact. Beside sets
    there always is one: if it depended on the labels that the rates are tested on, the promise about sets
    would not hold on average over the calibration sets with an artifact.

    Raises:
        UnattainableTargetError: If there are no levels, and none of the rates can be certified.
    """
    certification = attempt.labelled
    seen = compute_outcomes(artifact, certification, None, cut=EVERY_PROMPT)
    ranking = _Ranking.rank(artifact, certification, seen)
    certificates: list[WrongRateCertificate] = []
    refused: dict[str, str] = {}
    level = attempt.compute_level(delta, len(max_wrong_rates))
    first = level * FIRST_SHARE / (2 if by_group else 1)
    for rate in max_wrong_rates:
        certificate = _certify_rate(
            artifact,
            attempt,
            seen,
            ranking,
            max_wrong_rate=rate,
            delta=delta,
            level=level,
            by_group=by_group,
        )
        if certificate is not None:
            certificates.append(certificate)
            continue
        refused[rate] = explain_refusal(rate, first, artifact.traits)
    if not (artifact.levels or certificates):
        largest = max(max_wrong_rates, key=Fraction)
        reason = explain_refusal(largest, first, artifact.traits, _explain_ties(ranking, artifact))
        raise make_refusal(reason, largest, first, attempt, artifact.traits)
    bot = CertifiedBot(
        certificates=certificates,
        refused=refused,
        curve=list(_compute_curve(ranking, attempt.compute_level(delta))) if certificates else [],
        delta=delta,
        by_group=by_group,
    )
    return artifact.model_copy(update={"bot": bot})


@dataclass(frozen=True)
class _Ranking:
    """The prompts with an answer, in ascending order of mean score."""

    rows: IntArray  # (m,) their rows among the certification prompts
    scores: FloatArray  # (m,) mean scores, ascending
    wrong: IntArray  # (m + 1,) number of wrong answers among the first 0 ... m

    @classmethod
    def rank(cls, artifact: CalibrationArtifact, labelled: LabelledBatch, seen: Outcomes) -> _Ranking:
        """Rank the prompts; ties are broken by hash."""
        answered = np.flatnonzero(seen.decisions.answered)
        scores = MEAN_SCORE.compute_values(labelled.draws)[answered]
        tickets = artifact.calibration.split.draw_uniforms("tie", [labelled.ids[row] for row in answered])
        order = np.lexsort((tickets, scores))
        return cls._from_rows(answered[order], scores[order], seen.wrong)

    @classmethod
    def _from_rows(cls, rows: IntArray, scores: FloatArray, wrong: BoolArray) -> _Ranking:
        return cls(rows, scores, np.concatenate([[0], np.cumsum(wrong[rows])]).astype(np.int64))

    def select(self, members: BoolArray, wrong: BoolArray) -> _Ranking:
        """Return the ranking of the certification prompts flagged in `members`."""
        inside = members[self.rows]
        return self._from_rows(self.rows[inside], self.scores[inside], wrong)

    def divides_ties(self, size: int) -> bool:
        """Return whether a cut behind the first `size` prompts divides a tie."""
        return 0 < size < len(self.scores) and bool(self.scores[size - 1] == self.scores[size])

    def count_below(self, size: int) -> int:
        """Return how many of the first `size` prompts have a smaller mean score than the next one."""
        if size == len(self.scores):
            return size
        return int(np.searchsorted(self.scores, self.scores[size], side="left"))

    def count_zeros(self) -> int:
        """Return how many prompts have a mean score of 0, the smallest possible."""
        return int(np.searchsorted(self.scores, 0.0, side="right"))

    def find_cut(self, size: int) -> float:
        """Return the largest mean score below that of the prompt behind the first `size`."""
        if size == len(self.scores):
            return EVERY_PROMPT
        return math.nextafter(float(self.scores[size]), 0.0)


def _list_sizes(largest: int, rate: Fraction, delta: float) -> list[int]:
    """List the sizes that are tested over all prompts, ascending; see the module."""
    growing = [find_size(allowed, rate, delta) for allowed in range(SPACED_TESTS)]
    within = [size for size in growing if size <= largest]
    return sorted({*within, *range(within[-1], largest + 1)}) if within else []


def list_shares(prompts: int) -> list[int]:
    """Return how many of the prompts are answered at `CURVE_POINTS` equal steps of the share, ascending."""
    return list(
        dict.fromkeys(math.ceil(prompts * step / CURVE_POINTS) for step in range(1, CURVE_POINTS + 1))
    )


def _find_passing(ranking: _Ranking, rate: Fraction, delta: float, *, every: bool = False) -> IntArray:
    """Return the sizes that pass, ascending; with `every` no size from the first one on is skipped."""
    everyone, zeros = len(ranking.scores), ranking.count_zeros()
    share, second = FIRST_SHARE, math.ceil(everyone * SECOND_START)
    sizes: Sequence[int] = _list_sizes(everyone, rate, delta * share)
    if not sizes or sizes[0] >= second:
        share, second = 1.0, everyone + 1
        sizes = _list_sizes(everyone, rate, delta)
    if not sizes:
        return np.array([], dtype=np.int64)
    if every:
        sizes = range(sizes[0], everyone + 1)
    passed: list[int] = []
    level = 0.0
    for start, end, part in ((sizes[0], second, share), (second, everyone + 1, 1.0 - share)):
        level += delta * part
        if start < end and zeros <= end:
            first = max(start, zeros)
            tests = [first, *(size for size in sizes if first < size < end)]
            passing = list(_run_tests(ranking, tests, rate, level))
            passed += passing
            level = level if len(passing) == len(tests) else 0.0
    return np.unique(np.array(passed, dtype=np.int64))


def _run_tests(ranking: _Ranking, sizes: Iterable[int], rate: Fraction, delta: float) -> Iterator[int]:
    """Yield the sizes that pass before the first that fails."""
    known = -1  # the most wrong answers that have passed; they pass at larger sizes as well
    for size in sizes:
        wrong = int(ranking.wrong[size])
        if wrong > known and binomial_p_value(wrong, size, rate) > delta:
            return
        known = max(known, wrong)
        yield size


def _certify_rate(
    artifact: CalibrationArtifact,
    attempt: PlannedAttempt,
    seen: Outcomes,
    ranking: _Ranking,
    *,
    max_wrong_rate: str,
    delta: str,
    level: float,
    by_group: bool,
) -> WrongRateCertificate | None:
    """Return the certificate of the best cut at a rate; None if no cut is certified."""
    rate, certification = Fraction(max_wrong_rate), attempt.labelled
    everyone, *groups = sample_groups(artifact, certification, seen.decisions.features)
    groups = groups if by_group else []
    own, *each = divide_delta(level, len(groups))
    passed = _find_passing(ranking, rate, own).tolist()
    sizes = [size for size in passed if not ranking.divides_ties(size)]
    if not sizes:
        return None
    within = []
    for group, failing in zip(groups, each, strict=True):
        members = ranking.select(group.members, seen.wrong)
        alone = _find_passing(members, rate, failing, every=True)
        # (m + 1,) how many of the group are among the first 0 ... m, and whether that number is certified
        counts = np.concatenate([[0], np.cumsum(group.members[ranking.rows])])
        within.append(np.isin(counts, alone))
    size = max(sizes, key=lambda one: (sum(bool(certified[one]) for certified in within), one))
    answered = np.isin(np.arange(len(certification)), ranking.rows[:size])
    answers_zeros = size == ranking.count_zeros() < len(ranking.scores)
    return WrongRateCertificate(
        max_wrong_rate=max_wrong_rate,
        delta=delta,
        attempt=attempt.number,
        level=level,
        alpha=max_wrong_rate,
        max_mean_score=0.0 if answers_zeros else ranking.find_cut(size),
        prompts=len(certification),
        groups=(
            everyone.count_answers(answered, seen.wrong, certified=True),
            *(
                group.count_answers(answered, seen.wrong, certified=bool(certified[size]))
                for group, certified in zip(groups, within, strict=True)
            ),
        ),
        subject=artifact.subject,
        records_digest=compute_records_digest(certification),
        artifact_digest=artifact.frozen_digest,
    )


def _compute_curve(ranking: _Ranking, delta: float) -> Iterator[TradeOff]:
    """Yield cuts at equal steps of the share answered, with bounds that hold together.

    Their places in the order are fixed by the number of prompts. Given the prompt at such a place, those with
    smaller mean scores are independent draws, so each bound is exact. Delta is divided among the cuts.
    """
    everyone = len(ranking.scores)
    for size in dict.fromkeys(filter(None, map(ranking.count_below, list_shares(everyone)))):
        wrong = int(ranking.wrong[size])
        yield TradeOff(
            max_mean_score=ranking.find_cut(size),
            answered=size,
            wrong=wrong,
            wrong_rate_at_most=upper_bound(wrong, size, delta / CURVE_POINTS),
        )


def _explain_ties(ranking: _Ranking, artifact: CalibrationArtifact) -> str | None:
    """Name the likely cause if many prompts share the smallest mean score; this needs no labels."""
    everyone = len(ranking.scores)
    tied = int((ranking.scores == ranking.scores[0]).sum()) if everyone else 0
    if tied <= max(1, MANY_TIES * everyone):
        return None
    by_rule = artifact.draw_rule is not None and has_separate_scores(artifact.provenance) is False
    cure = "calibrate with draws=None" if by_rule else "draw more, or use SequenceProbability"
    traits = artifact.traits
    return (
        f"{tied} of {everyone} {traits.prompt}s share the best score, so all of them are {traits.shown}, or "
        f"none ({cure})"
    )

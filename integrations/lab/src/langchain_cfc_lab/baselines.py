"""Conformal language modelling, a published baseline, on recorded candidates.

`SamplingRule` draws until the set looks good enough. Like our methods it
promises a correct candidate in the set, but over all prompts together, and with a given confidence.

Source: Quach, Fisch, Schuster, Yala, Sohn, Jaakkola and Barzilay (ICLR 2024), "Conformal Language Modeling",
its sections on the sampling and rejection rules and on their calibration, and the authors' published code;
the tests are those of Angelopoulos, Bates, Candes, Jordan and Lei (2021), "Learn then Test", in the order of
Laufer-Goldshtein, Fisch, Barzilay and Jaakkola (2023), "Efficiently Controlling Multiple Risks with Pareto
Testing".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from langchain_cfc.certificates.bounds import binomial_p_value
from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds import Level, compute_tau, format_alpha

MAX_CUTS = 20


@dataclass(frozen=True, eq=False)
class SampledSets:
    """Sets of m prompts whose candidates are drawn one by one."""

    accepted: BoolArray  # (m, n) whether each candidate is in the set
    flagged: BoolArray  # (m,) all True if no configuration passed its test; then nothing is drawn
    draws: IntArray  # (m,) number of candidates drawn, 0 ... n


@dataclass(frozen=True, eq=False)
class SamplingRule:
    """Conformal language modelling: draw, reject, and stop, calibrated by Learn then Test.

    Candidates are drawn in slot order. A candidate is rejected if its score is above a first cut, or if its
    answer is in the set already. Drawing stops as soon as the set holds a score at or below a second cut, or
    after n candidates. The two cuts are the configuration. Half of the calibration prompts (rows 0, 2, 4,
    ...) orders the configurations, the other half tests them:

    - Every first cut is paired with every second cut up to it, and with "never stop". A second cut above the
      first changes nothing: the first accepted candidate stops the drawing in either case.
    - Of these, the Pareto front of the ordering half is kept: configurations for which no other misses as few
      prompts with smaller sets. It is ordered from the fewest misses to the smallest sets.
    - At level alpha they are tested in this order against "more than alpha of the prompts are missed", each
      at level delta, until one does not pass. The last one that passed, with the smallest sets, is used.

    *What it promises.* P(coverage >= 1 - alpha) >= 1 - delta over calibration sets of independent and
    identically distributed prompts, or else all prompts are flagged. Proof: given the ordering half, let c be
    the first configuration in the order that misses more than alpha of all prompts. A later one passes only
    if c has passed before it, so if any configuration that misses too many passes, then c passes. The misses
    of c on the testing half are binomial, so it passes with probability at most delta. The promise holds for
    each level, not for all levels at once. On average over calibration sets, prompts are covered or flagged
    with probability at least (1 - alpha) (1 - delta).

    *Differences from the published method.* Quality is 1 - the verifier's score, not the likelihood of the
    text. Answers are either the same or not, so the cut on similarity (their lambda_1) is fixed: repeats are
    rejected. The confidence of a set is the best quality in it (their MAX; neither FIRST-K nor SUM). At most
    the n recorded candidates are drawn (their k_max). Their code orders on 30 % of the calibration prompts,
    here it is half of them; and by draws plus set size, here by set size alone, because recorded candidates
    are already paid for. It has about 25 values per cut, besides "all" and "none"; here there are at most
    `MAX_CUTS`, the last of which is "all". It computes the number of misses from their mean, in floats; here
    they are counted. Components of answers are left out.

    Examples:
        >>> scores = np.array([[0.2, 0.6], [0.6, 0.2], [0.6, 0.2]] * 50)
        >>> rule = SamplingRule.learn(scores, scores < 0.5, None, delta="0.05")
        >>> rule.get_configuration("0.1")
        (0.2, 0.2)
        >>> sets = rule.make_sets(scores[:2], None, "0.1")
        >>> sets.accepted.tolist(), sets.draws.tolist()
        ([[True, False], [False, True]], [1, 2])
    """

    cuts: FloatArray  # (G,) scores, ascending, the last one 1.0
    accepting: IntArray  # (c,) position in `cuts` of each configuration's first cut, in the order of tests
    stopping: IntArray  # (c,) position of its second cut, -1 for "never stop"
    missed: IntArray  # (c,) number of testing prompts whose set holds no correct candidate
    tested: int  # number of testing prompts
    delta: str  # level of the tests, as decimal text

    @classmethod
    def learn(
        cls,
        scores: FloatArray,
        correct: BoolArray,
        answer_codes: IntArray | None,
        *,
        delta: Level,
    ) -> SamplingRule:
        """Order the configurations and count their misses on (N, n) scores and labels, for all levels.

        The order of the rows must be independent of their content: every other row orders configurations and
        the rest test them. An answer code is the slot of the prompt's first candidate with the same answer;
        without codes no candidate counts as a repeat.
        """
        if len(scores) < 2:  # noqa: PLR2004 - one to order, one to test
            msg = (
                "expected at least 2 calibration prompts, one to order configurations and one to test them, "
                f"got {len(scores)}: label more prompts"
            )
            raise InputError(msg)
        level = format_alpha(delta, "delta")
        order, test = slice(0, None, 2), slice(1, None, 2)
        # The cuts must not depend on the testing half.
        shares = np.linspace(0.0, 1.0, MAX_CUTS)
        cuts = np.unique(np.quantile(scores[order], shares, method="inverted_cdf"))
        cuts[-1] = 1.0
        ranks, repeats = _rank_scores(cuts, scores, answer_codes)
        covered, kept = _count_configurations(ranks[order], repeats[order], correct[order], len(cuts))
        accepting, stopping = _find_front(covered, kept)
        seen, _ = _count_configurations(ranks[test], repeats[test], correct[test], len(cuts))
        tested = len(scores) // 2
        missed = tested - seen[accepting, stopping + 1]
        return cls(cuts, accepting, stopping, missed, tested, level)

    def get_configuration(self, alpha: Level) -> tuple[float, float] | None:
        """Return the first cut, which accepts, and the second, which stops (-inf for "never stop").

        The result is None if no configuration passed.
        """
        place = self._count_passed(alpha) - 1
        if place < 0:
            return None
        stop = self.stopping[place]
        return float(self.cuts[self.accepting[place]]), float(self.cuts[stop]) if stop >= 0 else -math.inf

    def make_sets(self, scores: FloatArray, answer_codes: IntArray | None, alpha: Level) -> SampledSets:
        """Return the sets of m new prompts with (m, n) scores; all flagged if no configuration passed."""
        place = self._count_passed(alpha) - 1
        if place < 0:
            nothing = np.zeros(scores.shape, dtype=np.bool_)
            return SampledSets(nothing, np.ones(len(scores), np.bool_), np.zeros(len(scores), np.int64))
        ranks, repeats = _rank_scores(self.cuts, scores, answer_codes)
        first, second = self.accepting[place], self.stopping[place]
        enters = (ranks <= first) & (first < repeats)
        stops = np.logical_or.accumulate(enters & (ranks <= second), axis=1)
        drawn = np.ones(scores.shape, dtype=np.bool_)
        drawn[:, 1:] = ~stops[:, :-1]
        return SampledSets(enters & drawn, np.zeros(len(scores), np.bool_), drawn.sum(axis=1))

    def _count_passed(self, alpha: Level) -> int:
        """Return how many configurations pass before the first one that does not."""
        rate, delta = 1 - compute_tau(alpha), float(self.delta)
        # The p-value grows with the misses, so bisection computes it for a few counts only.
        allowed = bisect_right(
            range(self.tested + 1), delta, key=lambda missed: binomial_p_value(missed, self.tested, rate)
        )
        fails = self.missed >= allowed
        return int(fails.argmax()) if fails.any() else len(fails)


# A score's rank is the position of the smallest cut that it does not exceed, so score <= cuts[g] if and only
# if rank <= g. The functions below work with these small whole numbers.


def _rank_scores(
    cuts: FloatArray, scores: FloatArray, codes: IntArray | None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Rank (N, n) scores among the G cuts, and find from which first cut on candidates are repeats.

    The second array holds the smallest rank among earlier candidates with the same answer, G if there is
    none. With a first cut of at least that rank the candidate is a repeat: one of those is in the set.
    """
    ranks = np.searchsorted(cuts, scores.ravel()).astype(np.uint8).reshape(scores.shape)
    repeats = np.full(scores.shape, len(cuts), dtype=np.uint8)
    if codes is None:
        return ranks, repeats
    rows = np.arange(len(scores))
    lowest = repeats.copy()  # by answer, among the slots seen so far
    for slot in range(scores.shape[1]):
        answer = codes[:, slot]
        repeats[:, slot] = lowest[rows, answer]
        lowest[rows, answer] = np.minimum(repeats[:, slot], ranks[:, slot])
    return ranks, repeats


def _count_configurations(
    ranks: npt.NDArray[np.uint8], repeats: npt.NDArray[np.uint8], correct: BoolArray, size: int
) -> tuple[IntArray, IntArray]:
    """Count covered prompts and kept candidates on some prompts for every configuration.

    A slot is reached if no earlier candidate in the set stops the drawing, that is, if the second cut is
    below the best rank in the set so far. So for each first cut, accepted candidates are counted by that best
    rank, and cumulative sums from above give the counts for all second cuts at once.

    Returns:
        Two (G, G + 1) arrays, by first cut and by second cut plus 1, where column 0 is "never stop": the
        number of prompts with a correct candidate in the set, and the number of candidates in all sets.
    """
    width = size + 1
    first = np.arange(size, dtype=np.uint8)[:, np.newaxis]
    base = np.arange(size)[:, np.newaxis] * width
    best = np.repeat(base + size, len(ranks), axis=1)  # best rank in the set so far, by first cut and prompt
    waiting = np.ones(best.shape, dtype=np.bool_)  # whether no correct candidate has been found yet
    covered, kept = np.zeros((2, size * width), dtype=np.int64)
    for rank, repeat, right in zip(ranks.T, repeats.T, correct.T, strict=True):
        enters = (rank <= first) & (first < repeat)
        finds = enters & right & waiting
        kept += np.bincount(best[enters], minlength=size * width)
        covered += np.bincount(best[finds], minlength=size * width)
        waiting &= ~finds
        np.minimum(best, base + rank, out=best, where=enters)
    return _sum_from_above(covered, size), _sum_from_above(kept, size)


def _sum_from_above(counts: IntArray, size: int) -> IntArray:
    return counts.reshape(size, size + 1)[:, ::-1].cumsum(axis=1)[:, ::-1]


def _find_front(covered: IntArray, kept: IntArray) -> tuple[IntArray, IntArray]:
    """Return first and second cuts on the Pareto front of misses and set size, fewest misses first."""
    first, second = np.nonzero(np.tri(len(covered), len(covered) + 1, 1, dtype=np.bool_))
    found, sizes = covered[first, second], kept[first, second]
    # Ties go to the configuration that stops earliest, which draws least.
    order = np.lexsort((-second, sizes, -found))
    before = np.minimum.accumulate(np.r_[np.iinfo(np.int64).max, sizes[order][:-1]])
    front = order[sizes[order] < before]
    return first[front], second[front] - 1

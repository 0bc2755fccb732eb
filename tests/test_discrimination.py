"""AUROC against counting pairs, and its interval against repeated draws of clustered candidates.

Statistical tests draw independent repetitions; a false alarm, a failing assertion although the law holds, has
probability at most 1e-6 per test, and seeds are fixed.
"""

from __future__ import annotations

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from langchain_cfc.errors import InputError
from langchain_cfc.scoring import Discrimination, compute_auroc
from langchain_cfc.support.arrays import BoolArray, FloatArray
from tests.lengths import repetitions

FALSE_ALARM = 1e-6


def compute_some_auroc(scores: FloatArray, correct: BoolArray, confidence: float = 0.95) -> Discrimination:
    result = compute_auroc(scores, correct, confidence)
    assert result is not None
    return result


def make_clustered_with_ties(seed: int, size: int, n: int, decimals: int) -> tuple[FloatArray, BoolArray]:
    """Clustered candidates with ties."""
    rng = np.random.default_rng(seed)
    correct = rng.random((size, n)) < rng.random((size, 1))
    correct[0, 0], correct[1, 0], correct[2, 0], correct[3, 0] = True, False, True, False
    scores = rng.normal(size=(size, n)) + rng.normal(size=(size, 1)) - 0.5 * correct
    return scores.round(decimals), correct


def compare_pair(x: float, y: float) -> float:
    return 1.0 if x < y else 0.5 if x == y else 0.0


@pytest.mark.parametrize("decimals", [0, 1, 9])
@pytest.mark.parametrize("seed", range(5))
def test_compute_auroc_equals_the_formula_over_all_pairs(seed: int, decimals: int) -> None:
    """Obuchowski's estimator as the paper writes it, S10, S01 and S11 pair by pair."""
    scores, correct = make_clustered_with_ties(seed, 60, 4, decimals)
    slots = list(product(range(60), range(4)))
    x = [(i, scores[i, j]) for i, j in slots if correct[i, j]]
    y = [(i, scores[i, j]) for i, j in slots if not correct[i, j]]
    m, w = len(x), len(y)
    auroc = sum(compare_pair(a, b) for (_, a), (_, b) in product(x, y)) / (m * w)
    v10 = [(i, sum(compare_pair(a, b) for _, b in y) / w) for i, a in x]
    v01 = [(i, sum(compare_pair(a, b) for _, a in x) / m) for i, b in y]
    d = [sum(v - auroc for k, v in v10 if k == i) for i in range(60)]
    e = [sum(v - auroc for k, v in v01 if k == i) for i in range(60)]
    i10, i01 = len({i for i, _ in x}), len({i for i, _ in y})
    s10 = i10 / ((i10 - 1) * m) * sum(v**2 for v in d)
    s01 = i01 / ((i01 - 1) * w) * sum(v**2 for v in e)
    s11 = 60 / 59 * sum(a * b for a, b in zip(d, e, strict=True))
    deviation = math.sqrt(s10 / m + s01 / w + 2 * s11 / (m * w))
    half = NormalDist().inv_cdf(0.95) * deviation / (auroc * (1 - auroc))
    ends = [1 / (1 + math.exp(-math.log(auroc / (1 - auroc)) - sign * half)) for sign in (-1, 1)]
    result = compute_some_auroc(scores, correct, 0.9)
    assert result.auroc == auroc
    assert (result.low, result.high) == pytest.approx((ends[0], ends[1]), rel=1e-9)


def test_compute_auroc_depends_on_ranks_and_mirrors_swapped_labels() -> None:
    scores, correct = make_clustered_with_ties(0, 40, 5, 1)
    result = compute_some_auroc(scores, correct)
    assert compute_some_auroc(np.exp(3.0 * scores), correct) == result
    for other in (compute_some_auroc(-scores, correct), compute_some_auroc(scores, ~correct)):
        assert other.auroc == pytest.approx(1.0 - result.auroc, abs=1e-15)
        assert (other.low, other.high) == pytest.approx((1.0 - result.high, 1.0 - result.low), abs=1e-12)


def test_compute_auroc_of_a_million_candidates_is_fast() -> None:
    # 2.5e11 pairs would take minutes; the AUROC of a known law comes out.
    rng = np.random.default_rng(0)
    correct = rng.random((100_000, 10)) < 0.5
    result = compute_some_auroc(rng.normal(size=correct.shape) - correct, correct)
    truth = stats.norm.cdf(1 / math.sqrt(2))
    # Independent candidates: the variance is at most A (1 - A) / min(m, w) (Birnbaum and Klose 1957).
    bound = math.sqrt(truth * (1 - truth) / min(correct.sum(), (~correct).sum()))
    assert abs(result.auroc - truth) < -stats.norm.ppf(FALSE_ALARM / 2) * bound


# Coverage. An interval by the central limit theorem over N prompts covers with 95 % up to terms that vanish
# with N; at N = 100 two points are allowed for them. The number of R independent intervals that cover is then
# between its quantiles under Binomial(R, 0.93) and Binomial(R, 0.97).
REPETITIONS = repetitions(1500, share=0.4)


def draw_clustered(rng: np.random.Generator, size: int) -> tuple[FloatArray, BoolArray]:
    """Prompts on which nearly all of 8 candidates are correct, or nearly none, with a level of their own.

    A candidate's score is b_i + e_ij, and 1 more if wrong, b_i and e_ij standard normal and independent of
    the labels. So a correct and a wrong candidate of two prompts are N(0, 2) and N(1, 2), and the AUROC is
    Phi(1 / 2). The share of pairs within a prompt, about 1 / N, is far below what can be seen.
    """
    correct = rng.random((size, 8)) < rng.choice([0.1, 0.9], (size, 1))
    return rng.normal(size=(size, 1)) + rng.normal(size=(size, 8)) + ~correct, correct


def compute_delong_interval(scores: FloatArray, correct: BoolArray) -> tuple[float, float]:
    """The interval of DeLong et al. (1988), as if all candidates were independent, on the same scale."""
    x, y = np.sort(scores[correct]), np.sort(scores[~correct])
    v10 = 1.0 - np.searchsorted(y, x) / len(y)
    v01 = np.searchsorted(x, y) / len(x)
    auroc = v10.mean()
    half = 1.96 * math.sqrt(v10.var(ddof=1) / len(x) + v01.var(ddof=1) / len(y)) / (auroc * (1 - auroc))
    logit = math.log(auroc / (1 - auroc))
    return 1 / (1 + math.exp(half - logit)), 1 / (1 + math.exp(-half - logit))


def test_auroc_interval_covers_and_the_unclustered_one_does_not() -> None:
    rng, truth = np.random.default_rng(1), stats.norm.cdf(0.5)
    covered = forgetful = 0
    for _ in range(REPETITIONS):
        scores, correct = draw_clustered(rng, 100)
        result = compute_some_auroc(scores, correct)
        covered += result.low <= truth <= result.high
        low, high = compute_delong_interval(scores, correct)
        forgetful += low <= truth <= high
    fewest = stats.binom.ppf(FALSE_ALARM / 2, REPETITIONS, 0.93)
    most = stats.binom.ppf(1 - FALSE_ALARM / 2, REPETITIONS, 0.97)
    assert fewest <= covered <= most
    assert forgetful < fewest


def test_auroc_interval_of_shuffled_scores_holds_one_half() -> None:
    rng = np.random.default_rng(2)
    holds = as_they_were = 0
    size = repetitions(300, share=0.5)
    for _ in range(size):
        scores, correct = draw_clustered(rng, 300)
        as_they_were += compute_some_auroc(scores, correct).low <= 0.5
        shuffled = compute_some_auroc(rng.permutation(scores.ravel()).reshape(scores.shape), correct)
        holds += shuffled.low <= 0.5 <= shuffled.high
    fewest = stats.binom.ppf(FALSE_ALARM, size, 0.93)
    assert holds >= fewest
    assert as_they_were < fewest


# Edges ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [True, False])
def test_compute_auroc_returns_none_for_labels_of_one_kind(label: bool) -> None:
    assert compute_auroc(np.random.default_rng(0).random((5, 3)), np.full((5, 3), label)) is None
    assert compute_auroc(np.zeros((0, 3)), np.zeros((0, 3), dtype=np.bool_)) is None


def make_separated(size: int) -> tuple[FloatArray, BoolArray]:
    """Each prompt with a correct candidate at 0.2 and a wrong one at 0.8."""
    return np.tile([0.2, 0.8], (size, 1)), np.tile([True, False], (size, 1))


@pytest.mark.parametrize("size", [2, 20, 21, 1000])
def test_auroc_interval_of_perfect_separation_depends_on_the_prompts(size: int) -> None:
    scores, correct = make_separated(size)
    result = compute_some_auroc(scores, correct)
    # floor(N / 2) disjoint pairs of prompts, none of them out of order.
    assert (result.auroc, result.high) == (1.0, 1.0)
    assert result.low == pytest.approx(0.025 ** (1 / (size // 2)))
    reversed_ = compute_some_auroc(-scores, correct)
    assert (reversed_.auroc, reversed_.low, reversed_.high) == (0.0, 0.0, 1.0 - result.low)


def test_auroc_interval_of_one_error_is_no_tighter_than_of_none() -> None:
    scores, correct = make_separated(200)
    perfect = compute_some_auroc(scores, correct)
    scores[0, 0] = 0.9
    result = compute_some_auroc(scores, correct)
    assert 0.99 < result.auroc < 1.0
    assert result.low <= perfect.low


def test_auroc_interval_of_one_prompt_is_the_unit_interval() -> None:
    result = compute_some_auroc(np.array([[0.1, 0.2, 0.3, 0.15]]), np.array([[True, True, False, False]]))
    assert (result.auroc, result.low, result.high) == (0.75, 0.0, 1.0)


def test_auroc_interval_is_wide_if_one_prompt_holds_all_correct() -> None:
    correct = np.zeros((50, 4), dtype=np.bool_)
    correct[7] = True
    result = compute_some_auroc(np.random.default_rng(0).random((50, 4)) - 0.3 * correct, correct)
    assert result.low <= 0.025
    assert result.high >= 0.975


def test_auroc_of_equal_scores_is_one_half() -> None:
    _, correct = make_separated(100)
    result = compute_some_auroc(np.full(correct.shape, 0.5), correct)
    unseen = 1 - 0.025 ** (1 / 50)
    assert result.auroc == 0.5
    assert (result.low, result.high) == pytest.approx((0.5 - unseen / 2, 0.5 + unseen / 2))


@pytest.mark.parametrize(
    ("scores", "correct", "confidence", "message"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2), dtype=np.bool_), 0.95, r"shapes \(2, 3\) and \(3, 2\)"),
        (np.zeros(3), np.zeros(3, dtype=np.bool_), 0.95, "expected"),
        (np.zeros((2, 3)), np.zeros((2, 3)), 0.95, "labels of type float64"),
        (np.array([[0.0, np.nan]]), np.array([[True, False]]), 0.95, "candidate 1 of prompt 0 is nan"),
        (np.array([[0.0, np.inf]]), np.array([[True, False]]), 0.95, "candidate 1 of prompt 0 is inf"),
        (np.zeros((1, 2)), np.array([[True, False]]), 1.0, "confidence"),
        (np.zeros((1, 2)), np.array([[True, False]]), math.nan, "confidence"),
    ],
)
def test_compute_auroc_refuses_invalid_arguments(
    scores: FloatArray, correct: BoolArray, confidence: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compute_auroc(scores, correct, confidence)

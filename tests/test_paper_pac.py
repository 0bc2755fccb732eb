"""The slack of CFC-PAC: its arithmetic, what its proof shows, and where the proof fails."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, compute_conformal_rank, compute_tau
from tests.lengths import repetitions

PAPER = PaperPAC()
SIZE = 10_000
UNIT = Fraction(1, 10**12)
# The bound is computed in a few floating-point operations, each off by at most 2e-16 of it.
ROUND_OFF = 1e-14


# -- arithmetic ----------------------------------------------------------------------------------------------


def test_paper_pac_has_the_constants_of_the_paper() -> None:
    assert PAPER == PaperPAC(delta=0.9, ridge=0.0) == PaperPAC("0.90", 0)
    assert PAPER.slack(SIZE) == pytest.approx(math.sqrt(math.log(10 / 9) / 10_000), rel=1e-14)
    assert f"{PAPER.slack(SIZE):.6f}" == "0.003246"


@pytest.mark.parametrize("alpha", ["0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45"])
def test_effective_alpha_at_the_levels_of_the_paper(alpha: str) -> None:
    # eps = 0.003245928459745...
    assert Decimal(PAPER.effective_alpha(alpha, SIZE)) == Decimal(alpha) - Decimal("0.00324592846")
    assert PAPER.effective_alpha(alpha, SIZE) != "0"


def bound_logarithm(number: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds on the logarithm of a number of at least 1, without logarithms: the series of the area tangent.

    log x = 2 sum z^(2k + 1) / (2k + 1) with z = (x - 1) / (x + 1); all after a term are together below it
    where z^2 <= 1/2.
    """
    doublings = 0
    while number > 2:
        number, doublings = number / 2, doublings + 1
    lower = Fraction(0)
    upper = Fraction(0)
    for x, times in ((number, 1), (Fraction(2), doublings)):
        z = (x - 1) / (x + 1)
        terms = [2 * times * z ** (2 * k + 1) / (2 * k + 1) for k in range(60)]
        lower += sum(terms)
        upper += sum(terms) + terms[-1]
    return lower, upper


def is_rounded_down(text: str, alpha: str, size: int, pac: PaperPAC) -> bool:
    """Whether text <= alpha - eps < text + 1e-12, or 0 and alpha - eps < 1e-12; in rational arithmetic."""
    given_up = Fraction(alpha) - Fraction(text)
    least, most = bound_logarithm(1 / Fraction(pac.delta))
    low_enough = text == "0" or (given_up >= 0 and given_up**2 * size >= most)
    high_enough = given_up < UNIT or (given_up - UNIT) ** 2 * size < least
    return low_enough and high_enough


DECIMALS = st.builds(
    lambda digits, places: f"{Decimal(digits % 10**places or 1).scaleb(-places):f}",
    st.integers(1, 10**12 - 1),
    st.integers(1, 12),
)


@given(DECIMALS, DECIMALS, st.integers(1, 10**9))
@example("0.1", "0.9", SIZE)
@example("0.000000000001", "0.999999999999", 10**9)
@example("0.1", "0.9", 10**30)
@example("0.999999999999", "0.000000000001", 1)
@settings(max_examples=repetitions(300, share=0.1))
def test_effective_alpha_is_rounded_down(alpha: str, delta: str, size: int) -> None:
    pac = PaperPAC(delta)
    left = pac.effective_alpha(alpha, size)
    assert is_rounded_down(left, alpha, size, pac)
    # Negative control: a last digit more is too much, one less too little.
    assert not is_rounded_down(f"{Decimal(left) + Decimal('1e-12'):f}", alpha, size, pac)
    if left != "0":
        assert left == f"{Decimal(left):f}".rstrip("0")
        assert not is_rounded_down(f"{Decimal(left) - Decimal('1e-12'):f}", alpha, size, pac)


def test_float_arithmetic_would_round_effective_alpha_up() -> None:
    # Negative control: why the arithmetic is decimal.
    wrong = 0
    for size in range(1000, 1100):
        plain = 0.3 - math.sqrt(math.log(1 / 0.9) / size)
        wrong += not is_rounded_down(f"{plain:.12f}", "0.3", size, PAPER)
    assert wrong > 25


def test_slack_scales_with_size_and_delta() -> None:
    assert PAPER.slack(100) == pytest.approx(10 * PAPER.slack(SIZE), rel=1e-14)
    slacks = [PaperPAC(delta=delta).slack(SIZE) for delta in ("0.9", "0.5", "0.1", 0.01)]
    assert slacks == sorted(slacks)


def test_effective_alpha_is_0_if_the_slack_exceeds_alpha() -> None:
    strict = PaperPAC(delta="0.05")
    assert strict.slack(100) == pytest.approx(0.1730818382602285, rel=1e-13)
    assert strict.effective_alpha("0.173", 100) == "0"
    assert strict.effective_alpha("0.173081838261", 100) == "0"
    assert strict.effective_alpha("0.173081838262", 100) == "0.000000000001"
    assert strict.effective_alpha("0.18", 100) != "0"


@pytest.mark.parametrize("ridge", [-0.1, math.nan, math.inf, True, "1", None])
def test_paper_pac_refuses_an_invalid_ridge(ridge: Any) -> None:
    with pytest.raises(InputError, match="ridge of PaperPAC"):
        PaperPAC(ridge=ridge)


@pytest.mark.parametrize("delta", ["0", "1", "1.5", "x", True, math.nan, "0.1234567890123"])
def test_paper_pac_refuses_an_invalid_delta(delta: Any) -> None:
    with pytest.raises(InputError, match="delta m"):
        PaperPAC(delta)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "10"])
def test_slack_and_effective_alpha_refuse_invalid_sizes(size: Any) -> None:
    for ask in (PAPER.slack, lambda n: PAPER.effective_alpha("0.1", n), lambda n: PAPER.statement("0.1", n)):
        with pytest.raises(InputError, match="size must be a number of calibration prompts"):
            ask(size)


def test_statement_names_the_claim_and_its_missing_proof() -> None:
    text = PAPER.statement(0.1, SIZE)
    assert "heuristic" in text
    # The paper's delta of 0.90 sounds like a confidence and is none.
    assert "with probability at least 10 % over calibration sets (delta = 0.9" in text
    assert "coverage over all prompts is at least 90 %" in text
    assert "slack is 0.003246, from N = 10000 calibration prompts" in text
    assert "alpha = 0.09675407154 instead of 0.1" in text
    for reason in ("needs a penalty", "identically distributed", "no jump", "not groups"):
        assert reason in text


# -- the proof, step by step ---------------------------------------------------------------------------------


class Replacement(NamedTuple):
    """A calibration set, the same with one prompt replaced, a prompt to ask about, and the rule."""

    features: FloatArray
    scores: FloatArray
    other_features: FloatArray
    other_scores: FloatArray
    phi: FloatArray
    alpha: str
    ridge: float

    def movement(self) -> float:
        """Return how far the threshold moves, less what round-off may have added."""
        # No fit comes near the cap, where a threshold is infinite.
        rule = ConditionalThreshold(self.alpha, cap=1e9, ridge=self.ridge, window=None)
        asked = self.phi[np.newaxis]
        one = rule.fit(self.features, self.scores).solve(asked)
        other = rule.fit(self.other_features, self.other_scores).solve(asked)
        return float(abs(one.values[0] - other.values[0]) - one.errors[0] - other.errors[0])

    def bound(self) -> float:
        """What the proof allows at every level, 2 R^2 / (lambda (N + 1))."""
        radius = max(np.linalg.norm(one, axis=1).max() for one in (self.features, self.other_features))
        radius = max(radius, np.linalg.norm(self.phi))
        return float(2 * radius**2 / (self.ridge * (len(self.scores) + 1)))

    def at_its_level(self) -> float:
        """The share of it that one level needs."""
        tau = float(compute_tau(self.alpha))
        return max(tau, 1 - tau)


def draw_replacement(rng: np.random.Generator) -> Replacement:
    # With fewer prompts than features, the library gives none outside their span a threshold at all.
    d = int(rng.integers(1, 4))
    size = int(rng.integers(d, 15))
    features = rng.normal(size=(size + 2, d))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    features *= rng.uniform(0.1, 10.0)
    if rng.random() < 0.5:
        features *= rng.random((size + 2, 1))
    if rng.random() < 0.3:
        features = np.abs(features)
    scores = rng.random(size + 1) if rng.random() < 0.7 else rng.integers(0, 5, size + 1) / 4
    other_features, other_scores = features[:size].copy(), scores[:size].copy()
    k = rng.integers(size)
    other_features[k], other_scores[k] = features[size], scores[size]
    alpha, ridge = str(rng.choice(["0.01", "0.1", "0.5", "0.9"])), 10.0 ** rng.uniform(-2.0, 1.0)
    asked = features[size + 1]
    return Replacement(features[:size], scores[:size], other_features, other_scores, asked, alpha, ridge)


def make_opposite_replacement(size: int, alpha: str) -> Replacement:
    """All prompts far above the fit, and one of them turned round: it pulls the other way with full force."""
    features, scores = np.full((size, 1), 3.0), np.ones(size)
    turned = features.copy()
    turned[0] *= -1
    # A fit of at most tau R^2 / lambda = 0.45 stays below all success scores.
    return Replacement(features, scores, turned, scores, np.array([3.0]), alpha, 20.0)


@pytest.mark.long
def test_replacing_a_prompt_moves_thresholds_within_the_bound() -> None:
    rng = np.random.default_rng(20)
    shares = []
    for _ in range(repetitions(800, share=0.3)):
        case = draw_replacement(rng)
        shares.append(case.movement() / (case.at_its_level() * case.bound()))
    assert max(shares) <= 1 + ROUND_OFF
    # Negative controls: the bound is not merely large. A tenth of it is exceeded, and so is the half that
    # one pulling prompt would need if the other let go.
    assert np.mean(np.array(shares) > 0.1) > 0.1
    assert max(shares) > 0.9


@pytest.mark.parametrize("size", [1, 5, 40])
@pytest.mark.parametrize("alpha", ["0.5", "0.1", "0.001"])
def test_bound_on_moves_is_attained(size: int, alpha: str) -> None:
    # Exactly, at one level: max(tau, 1 - tau) belongs there, and as tau nears 1 nothing is left to gain.
    case = make_opposite_replacement(size, alpha)
    assert case.movement() == pytest.approx(case.at_its_level() * case.bound(), rel=1e-12)
    assert case.movement() <= case.bound()
    # Negative control: a constant ten times smaller is refuted.
    assert case.movement() > case.bound() / 10


def test_claim_of_the_paper_is_false_under_its_assumptions() -> None:
    """Phi = 1, uniform success scores, independent prompts: R = L = 1, no atom, and alpha above the slack.

    Coverage given the calibration set is the threshold t itself. With the penalty, the prompts below t are
    (N + 1) (tau - lambda t) but for at most one, so their share of the N is off from tau - lambda t by at
    most 2 / N. By Dvoretzky, Kiefer, Wolfowitz and Massart it is off from t by D at most, with probability
    1 - 2 exp(-2 N D^2) = 1 - 1e-6. So (1 + lambda) t <= tau + D + 2 / N.
    """
    alpha, ridge = "0.1", 0.1
    # The constant of the theorem, sqrt(2) L R^2 / lambda, in place of the 1 of the tables.
    left = float(alpha) - math.sqrt(2) / ridge * PAPER.slack(SIZE)
    assert float(left) == pytest.approx(0.1 - 0.0459043605, abs=1e-9)
    farthest = math.sqrt(math.log(2e6) / (2 * SIZE)) + 2 / SIZE
    most = (float(compute_tau(left)) + farthest) / (1 + ridge)
    assert most < 0.89  # the claim: at least 0.90 with probability at least 0.1

    scores = np.random.default_rng(21).random(SIZE)
    ones = np.ones((SIZE, 1))
    penalised = ConditionalThreshold(left, ridge=ridge).fit(ones, scores)
    assert penalised.threshold([1.0]) <= most
    # Negative control: the rule without a penalty, which the theorem on coverage is about, keeps to it.
    assert ConditionalThreshold(left).fit(ones, scores).threshold([1.0]) >= 1 - float(left) - farthest > 0.9


# -- the paper's synthetic table -----------------------------------------------------------------------------

M, GROUPS, MEMBERS = 50, 10, 1000


def law_of_success(t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share p of correct candidates and exponent k of their scores' law V^k, for prompts of difficulty t.

    This generator was fitted on the paper's TopK and ICP rows; it is not the only one that reproduces them.
    """
    return 0.034 + 0.276 * (1 - t), 0.686 + 0.237 * t


def coverage(t: FloatArray, thresholds: FloatArray) -> FloatArray:
    """Probability that a correct candidate enters the set: Pr(S <= threshold), a correct one given."""
    p, k = law_of_success(t)
    return np.asarray(1 - (1 - p * np.minimum(thresholds, 1.0) ** k) ** M, dtype=np.float64)


def success_scores(rng: np.random.Generator, t: FloatArray) -> FloatArray:
    """The smallest of M scores of correct candidates; 1, as in the paper, if none is correct."""
    p, k = law_of_success(t)
    reached = (1 - rng.random(t.shape) ** (1 / M)) / p
    return np.asarray(np.where(reached < 1, reached, 1.0) ** (1 / k), dtype=np.float64)


def mean_coverage(alpha: str, repetitions: int) -> float:
    """True coverage of thresholds by decile, averaged over calibration sets of 1000 prompts in each."""
    rng = np.random.default_rng(22)
    rank = compute_conformal_rank(MEMBERS, compute_tau(alpha))
    deciles = np.arange(GROUPS)[:, np.newaxis] / GROUPS
    everyone = deciles + (np.arange(200) + 0.5) / (200 * GROUPS)
    means = []
    for _ in range(repetitions):
        t = deciles + rng.random((GROUPS, MEMBERS)) / GROUPS
        thresholds = np.partition(success_scores(rng, t), rank - 1, axis=1)[:, [rank - 1]]
        means.append(coverage(everyone, thresholds).mean())
    return float(np.mean(means))


def expected_coverage(alpha: str) -> tuple[float, float]:
    """Mean and variance of that coverage for one calibration set.

    In each decile success scores are continuous below 1, so coverage is Beta(k, n + 1 - k), k the rank and
    n = 1000, but for the share a of prompts with a correct candidate, which no threshold exceeds.
    """
    rank = compute_conformal_rank(MEMBERS, compute_tau(alpha))
    law, longer = (stats.beta(rank + more, MEMBERS + 1 - rank) for more in (0, 1))
    t = (np.arange(GROUPS)[:, np.newaxis] + (np.arange(200) + 0.5) / 200) / GROUPS
    attainable = coverage(t, np.ones_like(t)).mean(axis=1)
    means = law.mean() * longer.cdf(attainable) + attainable * law.sf(attainable)
    # A limit from above takes from the variance.
    return float(means.mean()), float(law.var() / GROUPS)


def test_slack_of_the_paper_reproduces_its_coverage() -> None:
    """CFC-PAC at alpha = 0.10 covers 90.4 %: the paper's table says 90.8 +- 0.6 over five seeds.

    The mean of 300 calibration sets is that of 3000 independent Beta variables (or less), normal but for
    terms that do not matter at five standard deviations: a false alarm has probability 6e-7.
    """
    repetitions, alpha = 300, "0.1"
    left = PAPER.effective_alpha(alpha, SIZE)
    expected, variance = expected_coverage(left)
    tolerance = 5 * math.sqrt(variance / repetitions)
    assert f"{100 * expected:.1f}" == "90.4"
    assert abs(mean_coverage(left, repetitions) - expected) < tolerance < 0.001
    # Negative control: without the slack it is 90.0, and the same check raises the alarm.
    assert f"{100 * expected_coverage(alpha)[0]:.1f}" == "90.0"
    assert abs(mean_coverage(alpha, repetitions) - expected) > tolerance

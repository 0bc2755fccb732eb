"""What a ridge costs: units that keep coverage over all prompts exact, and the slack of all other weightings.

On one data set the slack is an identity, each prompt being the new one in turn and the uniforms of the
randomised rule integrated out; over fresh calibration sets it is a law of expectations, tested by betting
with false alarms below 1e-6.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from langchain_cfc.thresholds._rows import Penalised, RidgeUnits
from tests.lengths import mostly_long

from .test_randomised import HIGH, compute_kept_shares

FALSE_ALARM = 1e-6


def draw_curved_prompts(rng: np.random.Generator, size: int) -> tuple[FloatArray, FloatArray]:
    """[1, t, (2 t - 1)^2], and scores that no line follows."""
    t = rng.random(size)
    return np.stack([np.ones(size), t, (2.0 * t - 1.0) ** 2], axis=1), t**2 * rng.random(size)


# f >= 0 on these features, each at most one: 1, t, 1 - t, and (2 t - 1)^2.
FUNCTIONS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])


# Units of a ridge.


def test_units_of_calibration_features_are_the_default_units() -> None:
    features, scores = draw_curved_prompts(np.random.default_rng(1), 300)
    for penalised in ("slopes", "all"):
        rule = ConditionalThreshold("0.1", ridge=0.1, penalised=penalised)
        default, given = rule.fit(features, scores), rule.fit(features, scores, units_of=features)
        for name, array in default.get_state_data().items():
            assert array.tobytes() == given.get_state_data()[name].tobytes()


def test_units_are_mean_and_spread_of_the_prompts_given() -> None:
    """Standardised by hand with the other prompts' numbers; the penalties make up for powers of two."""
    rng = np.random.default_rng(2)
    (features, scores), (others, _) = draw_curved_prompts(rng, 200), draw_curved_prompts(rng, 50)
    others = others * np.array([1.0, 3.0, 0.2])
    rule = ConditionalThreshold("0.2", ridge=0.05, window=None).fit(features, scores, units_of=others)
    z = (features[:, 1:] - others[:, 1:].mean(axis=0)) / others[:, 1:].std(axis=0)
    units = rule.fitted.units
    assert units is not None
    powers = z / units.apply(features)[:, 1:]
    np.testing.assert_allclose(powers, np.exp2(np.round(np.log2(powers))), rtol=1e-12)
    np.testing.assert_allclose(units.penalty[1:] * powers[0] ** 2, 201 * 0.05, rtol=1e-12)
    assert (np.abs(units.apply(features)) <= 1.0).all()
    restored = ConditionalThreshold("0.2", ridge=0.05, window=None).restore(rule.get_state_data())
    assert restored.thresholds(features).tolist() == rule.thresholds(features).tolist()


def test_units_omit_columns_that_do_not_vary_and_keep_the_constant() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, 300)
    features, scores = np.eye(3)[codes], rng.random(300)
    others = np.eye(3)[rng.integers(0, 2, 40)]  # the third group is missing
    rule = ConditionalThreshold("0.1", ridge=0.1).fit(features, scores, units_of=others)
    units = rule.fitted.units
    assert units is not None
    assert (units.spread > 0.0).tolist() == [True, True, False]
    assert units.penalty[0] == 0.0
    assert (units.apply(features)[:, 0] == 1.0).all()
    # Groups add up to the constant, so the missing one is a combination of what is left.
    slacks = [rule.compute_ridge_slack(f, features) * np.mean(features @ f) for f in (*np.eye(3), np.ones(3))]
    assert slacks[3] == pytest.approx(0.0, abs=1e-12)
    assert slacks[2] == pytest.approx(-slacks[0] - slacks[1], abs=1e-12)
    assert min(np.abs(slacks[:3])) > 1e-6


def test_ridge_slack_refuses_a_weighting_of_a_column_left_out() -> None:
    features, scores = draw_curved_prompts(np.random.default_rng(3), 300)
    others = features[:40] * np.array([1.0, 1.0, 0.0])
    rule = ConditionalThreshold("0.1", ridge=0.1).fit(features, scores, units_of=others)
    assert rule.compute_ridge_slack(FUNCTIONS[1], features) != 0.0
    with pytest.raises(InputError, match="left out"):
        rule.compute_ridge_slack(FUNCTIONS[3], features)


def test_units_refuse_a_constant_of_the_calibration_prompts_alone() -> None:
    rng = np.random.default_rng(4)
    features, scores = np.eye(2)[rng.integers(0, 2, 50)], rng.random(50)
    others = np.vstack([features, np.zeros((5, 2))])  # some are in no group
    rule = ConditionalThreshold("0.1", ridge=0.1)
    with pytest.raises(InputError, match="the constant"):
        rule.fit(features, scores, units_of=others)
    # With the roles exchanged, a column of ones is constant in the units, and has no penalty.
    units = rule.fit(others, rng.random(55), units_of=features).fitted.units
    assert units is not None
    assert (units.apply(others)[:, 0] == 1.0).all()
    assert units.penalty[0] == 0.0
    # Nothing else has units.
    plain = ConditionalThreshold("0.1")
    assert plain.fit(features, scores, units_of=others).thresholds(features[:5]).tolist() == (
        plain.fit(features, scores).thresholds(features[:5]).tolist()
    )
    ConditionalThreshold("0.1", ridge=0.1, penalised="all").fit(features, scores, units_of=others)


@pytest.mark.parametrize(
    "units_of", [[[1.0]], [1.0, 2.0], np.empty((0, 2)), [[1.0, float("nan")]], [[1.0, 1e200]], [["a", "b"]]]
)
def test_fit_refuses_invalid_units_of(units_of: Any) -> None:
    for ridge in (0.0, 0.1):
        with pytest.raises(InputError, match="units_of"):
            ConditionalThreshold("0.5", ridge=ridge).fit(np.eye(2), [0.1, 0.2], units_of=units_of)


def test_units_refuse_numbers_that_overflow() -> None:
    features = np.array([[1.0, 0.0], [1.0, 1e140], [1.0, 2e140]])
    others = np.array([[1.0, 0.0], [1.0, 1e-140], [1.0, 2e-140]])
    with pytest.raises(InputError, match="floating point"):
        RidgeUnits.fit(features, 1.0, "slopes", others)


# The slack as an identity.


def compute_imbalance(kept: FloatArray, features: FloatArray, alpha: str) -> FloatArray:
    """(d,) the sums of x_i (P(kept i) - tau)."""
    return np.asarray(features.T @ (kept - float(1 - Fraction(alpha))), dtype=np.float64)


@mostly_long("alpha", ["0.1", "0.4"], quick=1)
@pytest.mark.parametrize("penalised", ["slopes", "all"])
def test_ridge_slack_is_exact_at_the_fit_to_all_prompts(penalised: Penalised, alpha: str) -> None:
    """sum_i f_i (P(kept i) - tau) = -(N + 1) lambda gamma' beta, each of N + 1 prompts being the new one.

    The fit to all, penalised by (N + 1) lambda, is the base fit of a rule with lambda (N + 1) / (N + 2),
    and its slack is that times gamma' beta over the mean of f.
    """
    rng = np.random.default_rng(5)
    others, _ = draw_curved_prompts(rng, 30)
    features, scores = draw_curved_prompts(rng, 14)
    features, others = features * np.array([1.0, 8.0, 0.3]), others * np.array([1.0, 8.0, 0.3])
    settings: dict[str, Any] = {"penalised": penalised, "units_of": others}
    kept = compute_kept_shares(features, scores, alpha, ridge=0.2, **settings)
    rule = ConditionalThreshold(alpha, cap=HIGH, ridge=0.2 * 14 / 15, penalised=penalised)
    everyone = rule.fit(features, scores, units_of=others)
    moved = 0
    for coefficients in FUNCTIONS / np.array([1.0, 8.0, 0.3]):
        slack = everyone.compute_ridge_slack(coefficients, features)
        expected = -slack * 15 * float(np.mean(features @ coefficients))
        found = float(coefficients @ compute_imbalance(kept, features, alpha))
        assert found == pytest.approx(expected, abs=1e-8)
        moved += abs(found) > 1e-2
    constant = float(compute_imbalance(kept, features, alpha)[0])
    assert abs(constant) < 1e-9 if penalised == "slopes" else abs(constant) > 0.1
    assert moved >= 2  # there is a slack to see


def test_ridge_slack_with_units_of_calibration_features_is_not_exact() -> None:
    """Why others are asked for: leaving prompts out in turn changes such units, and the identity fails."""
    rng = np.random.default_rng(6)
    features, scores = draw_curved_prompts(rng, 14)
    own = compute_kept_shares(features, scores, "0.4", ridge=0.2)
    given = compute_kept_shares(features, scores, "0.4", ridge=0.2, units_of=draw_curved_prompts(rng, 30)[0])
    assert abs(compute_imbalance(given, features, "0.4")[0]) < 1e-9
    assert abs(compute_imbalance(own, features, "0.4")[0]) > 1e-6


def test_ridge_slack_counts_weights_like_repeated_prompts() -> None:
    rng = np.random.default_rng(7)
    (features, scores), (others, _) = draw_curved_prompts(rng, 60), draw_curved_prompts(rng, 30)
    times = rng.integers(1, 4, 60)
    again = np.repeat(np.arange(60), times)
    rule = ConditionalThreshold("0.1", ridge=0.3)
    weighted = rule.fit(features, scores, times, units_of=others)
    repeated = rule.fit(features[again], scores[again], units_of=others)
    for coefficients in FUNCTIONS:
        expected = repeated.compute_ridge_slack(coefficients, features[again])
        assert weighted.compute_ridge_slack(coefficients, features, times) == pytest.approx(
            expected, abs=1e-9
        )


def test_ridge_slack_is_zero_without_a_ridge_or_a_weighting() -> None:
    rng = np.random.default_rng(8)
    features, scores = draw_curved_prompts(rng, 60)
    assert (
        ConditionalThreshold("0.1").fit(features, scores).compute_ridge_slack(FUNCTIONS[1], features) == 0.0
    )
    groups = np.column_stack([np.eye(2)[rng.integers(0, 2, 60)], np.zeros(60)])
    rule = ConditionalThreshold("0.1", ridge=0.1).fit(groups, scores)
    assert rule.compute_ridge_slack([0.0, 0.0, 1.0], groups) == 0.0
    assert rule.compute_ridge_slack([1.0, 0.0, 0.0], groups) != 0.0
    restored = ConditionalThreshold("0.1", ridge=0.1).restore(rule.get_state_data())
    assert restored.compute_ridge_slack([1.0, 0.0, 0.0], groups) == rule.compute_ridge_slack(
        [1.0, 0.0, 0.0], groups
    )


@pytest.mark.parametrize(
    ("coefficients", "match"),
    [([1.0, 0.0], "coefficients"), ([1.0, -2.0, 0.0], "negative"), ([np.nan] * 3, "fin")],
)
def test_ridge_slack_refuses_invalid_weightings(coefficients: list[float], match: str) -> None:
    features, scores = draw_curved_prompts(np.random.default_rng(9), 60)
    for ridge in (0.0, 0.1):
        rule = ConditionalThreshold("0.1", ridge=ridge).fit(features, scores)
        with pytest.raises(InputError, match=match):
            rule.compute_ridge_slack(coefficients, features)


# The slack as a law of expectations.

SIZE, NEW, ROUNDS = 200, 60, 500
TAU, LAMBDA = 0.8, 1.0
REFERENCE, _ = draw_curved_prompts(np.random.default_rng(10), 1_000)
# Of 1, t and (2 t - 1)^2 for uniform t.
MEANS = FUNCTIONS @ [1.0, 1.0 / 2.0, 1.0 / 3.0]
# gamma: the functions' slopes in the units of the ridge.
SLOPES = np.linalg.norm(FUNCTIONS[:, 1:] * REFERENCE[:, 1:].std(axis=0), axis=1)


def compute_log_wealth(gains: Iterable[float], most: float) -> float:
    """Evidence against independent gains of expectation <= 0, at least -most: a gambler's log wealth.

    A stake b >= 0 chosen before the round and below 1 / most makes prod (1 + b Z) a positive supermartingale,
    so by Markov it reaches 1 / delta with probability at most delta.
    """
    wealth, total, squares = 0.0, 0.0, most**2
    for gain in gains:
        stake = min(0.9 / most, max(0.0, total / squares))
        wealth += math.log1p(stake * gain)
        total += gain
        squares += gain**2
    return wealth


@functools.cache
def measure_rounds(penalised: Penalised, *, randomised: bool) -> tuple[FloatArray, FloatArray]:
    """(ROUNDS, 4) of the mean of f (kept - tau) / E f over new prompts, a fresh calibration set each; slacks.

    A slack divides by the mean of f over calibration prompts; multiplied by that over E f, it is lambda
    gamma' beta / E f.
    """
    rng = np.random.default_rng(11)
    gaps, slacks = np.empty((2, ROUNDS, len(FUNCTIONS)))
    rule = ConditionalThreshold("0.2", cap=HIGH, ridge=LAMBDA, penalised=penalised)
    for number in range(ROUNDS):
        (features, scores), (new, own) = draw_curved_prompts(rng, SIZE), draw_curved_prompts(rng, NEW)
        fitted = rule.fit(features, scores, units_of=REFERENCE)
        solved = fitted.solve(new, uniforms=rng.random(NEW) if randomised else None)
        kept = own <= solved.values + solved.errors
        gaps[number] = (kept - TAU) @ (new @ FUNCTIONS.T) / NEW / MEANS
        slacks[number] = [
            fitted.compute_ridge_slack(f, features) * np.mean(features @ f) for f in FUNCTIONS
        ] / MEANS
    return gaps, slacks


def compute_bias() -> FloatArray:
    """(4,) how far E of the estimate may lie from that of its theorem: 2 tau |gamma| |z| / (N + 1) / E f.

    The theorem has beta of the regression with the new prompt, the estimate that without. Given slopes, the
    level is a quantile of what they leave: when a prompt with dual variable eta joins, those of the others
    move to one side only and balance it. So the subgradients of the two objectives in the slopes differ by
    at most 2 |eta| max |z| <= 2 tau max |z|. The objectives are strongly convex there, by (N + 1) lambda, so
    the slopes differ by at most 2 tau max |z| / ((N + 1) lambda).
    """
    ends = np.array([[0.0, 0.0], [1.0, 1.0]])  # both columns lie between 0 and 1
    z = np.abs((ends - REFERENCE[:, 1:].mean(axis=0)) / REFERENCE[:, 1:].std(axis=0)).max(axis=0)
    return np.asarray(2.0 * TAU * SLOPES * np.linalg.norm(z) / (SIZE + 1) / MEANS, dtype=np.float64)


def contradicts(gains: FloatArray, above: float = 0.0) -> list[bool]:
    """For each function, whether E of the gains is not in [-bias, above / E f + bias]: betting both ways.

    |f (kept - tau)| <= tau. The objective at no slopes and the best level is at most N tau (1 - tau) for
    scores in [0, 1], and at the fit at least (N + 1) lambda / 2 |beta|^2, so |lambda gamma' beta| <= |gamma|
    (2 tau (1 - tau) lambda)^(1/2).
    """
    slips, margins = compute_bias(), above / MEANS
    most = (TAU + SLOPES * math.sqrt(2.0 * TAU * (1.0 - TAU) * LAMBDA)) / MEANS + slips + margins
    enough = math.log(2 * len(FUNCTIONS) / FALSE_ALARM)
    return [
        max(compute_log_wealth(gain - slip - margin, bound), compute_log_wealth(-gain - slip, bound))
        >= enough
        for gain, slip, margin, bound in zip(gains.T, slips, margins, most, strict=True)
    ]


@pytest.mark.long
def test_randomised_coverage_is_below_tau_by_the_ridge_slack() -> None:
    gaps, slacks = measure_rounds("slopes", randomised=True)
    assert not any(contradicts(gaps + slacks))


@pytest.mark.long
def test_coverage_is_below_tau_by_the_ridge_slack_and_at_most_d_of_n() -> None:
    """Where the prompt is on the fit, as one of d in N + 1 is at most, kept - tau exceeds -eta, by 1 at most.

    For f = 1, which has no slack, that is the law tau <= P(kept) <= tau + d / (N + 1).
    """
    gaps, slacks = measure_rounds("slopes", randomised=False)
    assert np.abs(slacks[:, 0]).max() < 1e-12
    assert not any(contradicts(gaps + slacks, above=3 / (SIZE + 1)))


@pytest.mark.long
def test_missing_slack_and_slack_of_the_wrong_sign_are_noticed() -> None:
    gaps, slacks = measure_rounds("slopes", randomised=True)
    assert contradicts(gaps)[1:3] == [True, True]
    assert contradicts(gaps - slacks)[1:3] == [True, True]


@pytest.mark.long
def test_penalised_constant_loses_marginal_coverage() -> None:
    """The negative control of the free constant; the slack says by how much (no bias is derived for it)."""
    gaps, slacks = measure_rounds("all", randomised=False)
    assert contradicts(gaps, above=3 / (SIZE + 1))[0]
    assert gaps[:, 0].mean() < -0.02
    assert not contradicts(gaps + slacks, above=3 / (SIZE + 1))[0]

"""Features that strain floating point: nearly dependent, rare, huge, tiny; and what such states may hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from tests.lengths import mostly_long, repetitions

from .oracles import solve_dual_programme


@mostly_long("exponent", [-4, -6, -7, -8], quick=2)
def test_nearly_dependent_features_give_the_threshold_of_their_span(exponent: int) -> None:
    """The same span has a well-conditioned basis, in which HiGHS solves the problem without strain."""
    for seed in range(repetitions(15, share=0.2)):
        rng = np.random.default_rng(seed)
        a, b, scores = rng.normal(size=100), rng.normal(size=100), rng.random(100)
        features = np.column_stack([np.ones(100), a, b, a + b + 10.0**exponent * rng.normal(size=100)])

        def easy(x: FloatArray) -> FloatArray:
            apart = (x[:, 3] - x[:, 1] - x[:, 2]) * 10.0**-exponent
            return np.column_stack([x[:, :3], apart])

        found = ConditionalThreshold("0.1", cap=1e3).fit(features, scores).thresholds(features[:5])
        for value, phi in zip(found, easy(features)[:5], strict=True):
            result: Any = linprog(
                -scores, A_eq=easy(features).T, b_eq=-(0.9 - 1e-7) * phi, bounds=(-0.1, 0.9)
            )
            expected = float(-result.eqlin.marginals @ phi) if result.status == 0 else np.inf
            assert value == pytest.approx(expected, abs=1e-6)


@mostly_long("seed", [2, 3, 5], quick=1)
def test_coefficients_that_are_zero_but_for_round_off_are_solved(seed: int) -> None:
    """Two hat bases that both add up to one, and a graded judge: the fit lies on score 0 for most prompts.

    Seen: "nearly dependent" for each of these seeds. Round-off of 1e-17 in coefficients that should be
    zero was taken for exact, so that rows on the fit passed for rows on the wrong side.
    """
    rng = np.random.default_rng(seed)
    length, marks = rng.random(350), rng.choice([0.0, 0.25, 0.5, 0.75], (350, 5), p=[0.6, 0.2, 0.1, 0.1])
    correct = rng.random((350, 5)) < (0.97 - 0.35 * length)[:, np.newaxis]
    marks = np.where(correct, marks * (rng.random((350, 5)) < length[:, np.newaxis]), marks)
    scores, knots = np.where(correct, marks, 2.0).min(axis=1), np.linspace(0.0, 1.0, 5)
    features = np.stack(
        [np.interp(of, knots, row) for of in (marks.mean(axis=1), length) for row in np.eye(5)], axis=1
    )
    rule = ConditionalThreshold("0.05").fit(features[:300], scores[:300])
    found = rule.solve(features[300:])
    expected = np.array(
        [solve_dual_programme(features[:300], scores[:300], "0.05", phi) for phi in features[300:]]
    )
    finite = expected < 2.0 - 1e-9
    np.testing.assert_array_equal(np.isfinite(found.values), finite)
    np.testing.assert_allclose(found.values[finite], expected[finite], atol=1e-9)


@pytest.mark.parametrize(("size", "members"), [(5_000, 1), (5_000, 3), (100_000, 50)])
def test_group_missing_from_the_subsample_gets_its_order_statistic(size: int, members: int) -> None:
    for seed in range(repetitions(6, share=1 / 3)):
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, 3, size)
        codes[rng.choice(size, members, replace=False)] = 3
        features, scores = np.eye(4)[codes], rng.random(size)
        found = ConditionalThreshold("0.2").fit(features, scores).thresholds(np.eye(4))
        for group in range(4):
            own = np.sort(scores[codes == group])
            rank = -(-4 * (len(own) + 1) // 5)
            assert found[group] == (own[rank - 1] if rank <= len(own) else np.inf)


def test_prompts_that_share_an_answer_have_their_own_bounds() -> None:
    scores = np.random.default_rng(0).random(5_000)
    rule = ConditionalThreshold("0.2", 1_000.0, window=16, levels=("0.8",)).fit(np.ones((5_000, 1)), scores)
    for order in ([0, 1], [1, 0]):
        # The products of features and targets are equal: 0.2 * 1,600 and 0.8 * 400.
        phis, alphas = np.array([[1_600.0], [400.0]])[order], np.array([0.8, 0.2])[order]
        solved = rule.solve(phis, alphas=alphas)
        # 1,600 times the fit passes the cap, 400 times does not.
        assert solved.outside[order].tolist() == [False, True]


@pytest.mark.long
def test_nearly_dependent_state_can_be_restored() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        features = np.column_stack([np.ones(5), rng.normal(size=5), np.zeros(5)])
        features[:, 2] = features[:, 0] + features[:, 1] + 1e-8 * rng.normal(size=5)
        rule = ConditionalThreshold("0.2").fit(features, 0.1 * rng.random(5))
        restored = rule.restore(rule.get_state_data())
        assert restored.thresholds(features).tolist() == rule.thresholds(features).tolist()


def test_changing_a_state_does_not_change_the_rule() -> None:
    features = np.stack([np.ones(50), np.linspace(0, 1, 50)], axis=1)
    rule = ConditionalThreshold("0.2").fit(features, np.linspace(0, 1, 50) ** 2)
    before = rule.thresholds(features[:5]).tolist()
    for array in rule.get_state_data().values():
        array[...] = 7.0
    assert rule.restore(rule.get_state_data()).thresholds(features[:5]).tolist() == before


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("size", [1e155, -1e200, 1e308])
def test_fit_refuses_numbers_whose_products_overflow(size: float, ridge: float) -> None:
    features = np.stack([np.ones(50), np.linspace(0, 1, 50)], axis=1)
    rule = ConditionalThreshold("0.2", ridge=ridge)
    with pytest.raises(InputError, match="1e\\+150"):
        rule.fit(features * [1.0, size], np.linspace(0, 1, 50))
    with pytest.raises(InputError, match="1e\\+150"):
        rule.fit(features, -abs(size) * np.linspace(0, 1, 50))
    with pytest.raises(InputError, match="finite"):
        rule.fit(features, np.linspace(0, 1, 50)).threshold([1.0, size])


def test_fit_refuses_a_ridge_that_exceeds_floating_point() -> None:
    rng = np.random.default_rng(1)
    features, scores = np.stack([np.ones(50), 1e-170 * rng.random(50)], axis=1), rng.random(50)
    ConditionalThreshold("0.2").fit(features, scores)
    with pytest.raises(InputError, match="comparable size"):
        ConditionalThreshold("0.2", ridge=0.1).fit(features, scores)

"""Thresholds of prompts with error levels of their own, against HiGHS and order statistics.

`CFC_LONG=1` compares more than twenty thousand thresholds.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, compute_tau
from langchain_cfc.thresholds._rows import Columns, Rows
from langchain_cfc.thresholds._simplex import Fit, QuantileSimplex
from tests.lengths import mostly_long, repetitions

from .cases import KINDS, Case, cases
from .oracles import NUDGE, minimise_by_highs, prove_value

LEVELS = ("0.1", "0.2", "0.35", "0.5")
AGREEMENT = 1e-9
AT_CAP = 1e-9


@dataclass(frozen=True)
class Levelled:
    """A calibration set with an error level for every prompt, calibration prompts and queries."""

    case: Case
    alphas: FloatArray
    asked: FloatArray

    def fit(self, window: int | None = 1024, ridge: float = 0.0) -> ConditionalThreshold:
        rule = ConditionalThreshold(LEVELS[0], self.case.cap, ridge=ridge, window=window, levels=LEVELS)
        return rule.fit(self.case.features, self.case.scores, alphas=self.alphas)

    def solve_by_highs(self, query: int, uniform: float | None = None) -> float:
        """Maximise S' eta, X' eta = -theta phi, tau_i - 1 <= eta_i <= tau_i; `inf` where infeasible.

        theta is the prompt's coverage, or with a uniform u its random part u - alpha.
        """
        x, phi = self.case.features, self.case.queries[query]
        units = np.maximum(np.abs(x).max(axis=0), np.abs(phi))
        units[units == 0.0] = 1.0
        theta = (1.0 - NUDGE if uniform is None else uniform) - self.asked[query]
        bounds = np.column_stack([-self.alphas, 1.0 - self.alphas])
        result = minimise_by_highs(
            -self.case.scores, A_eq=(x / units).T, b_eq=-theta * (phi / units), bounds=bounds
        )
        if result.status == 2:
            return math.copysign(math.inf, theta)
        assert result.status == 0, result.message
        value = float(-result.eqlin.marginals @ (phi / units))
        return math.inf if value >= self.case.cap - AT_CAP else value

    def prove(self, query: int) -> float:
        """The threshold by a vertex that rational arithmetic proves; `inf` where it is unbounded."""
        rule, level = self.fit(None), str(self.asked[query])
        columns, _ = Columns.choose(self.case.features)
        x, reduced = columns.reduce(self.case.features)[0], columns.reduce(self.case.queries[[query]])[0][0]
        target_of = {float(each): float(compute_tau(each) / rule.unit) for each in LEVELS}
        targets = np.array([target_of[alpha] for alpha in self.alphas])
        simplex = QuantileSimplex(Rows(x, self.case.scores, np.ones(len(x)), targets), rule.unit)
        fit = simplex.minimise(target_of[self.asked[query]] * reduced)
        if not isinstance(fit, Fit):
            return math.inf
        basis, below = fit.vertex
        alphas = [str(alpha) for alpha in self.alphas]
        value = prove_value(x, self.case.scores, level, reduced, basis=basis, below=below, alphas=alphas)
        return math.inf if value >= Fraction(self.case.cap) else float(value)


def list_levelled_cases(kind: str, count: int) -> Iterator[Levelled]:
    """Cases of a kind whose levels are drawn, or are those of the first feature's order."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()) + 1)
    offered = np.array([float(level) for level in LEVELS])
    for number, case in enumerate(cases(kind, count)):
        size = len(case.scores)
        if number % 2:
            alphas = offered[rng.integers(0, len(LEVELS), size)]
        else:
            rank = np.argsort(np.argsort(case.features[:, -1], kind="stable"), kind="stable")
            alphas = offered[rank * len(LEVELS) // size]
        yield Levelled(case, alphas, offered[rng.integers(0, len(LEVELS), len(case.queries))])


def are_equal(value: float, expected: float) -> bool:
    return bool(value == expected or abs(value - expected) <= AGREEMENT * max(1.0, abs(value)))


def compare_with_highs(every: Iterator[Levelled]) -> dict[str, int]:
    """How many thresholds were finite, infinite and refused, and which were further apart than allowed."""
    found = dict.fromkeys(("finite", "infinite", "refused", "arbitrated", "apart"), 0)
    for number, one in enumerate(every):
        solved = one.fit((None, 1024, 64, 16)[number % 4]).solve(one.case.queries, alphas=one.asked)
        for query, (value, outside) in enumerate(zip(solved.values, solved.outside, strict=True)):
            if outside:
                found["refused"] += 1
                continue
            expected = one.solve_by_highs(query)
            found["infinite" if math.isinf(value) else "finite"] += 1
            if not are_equal(value, expected):
                # HiGHS resolves fourth powers to 3e-9; rational arithmetic decides.
                found["arbitrated"] += 1
                found["apart"] += not are_equal(value, one.prove(query))
    return found


@mostly_long("kind", sorted(KINDS), quick=6)
def test_thresholds_at_own_levels_agree_with_highs(kind: str) -> None:
    found = compare_with_highs(list_levelled_cases(kind, repetitions(400, share=0.0075)))
    assert found["apart"] == 0
    assert found["finite"] + found["infinite"] > found["refused"]
    assert found["arbitrated"] <= 0.02 * (found["finite"] + found["infinite"])


def test_comparison_of_own_levels_notices_the_level_of_a_neighbour() -> None:
    """The control: asked at the wrong level, or calibrated with two levels exchanged."""
    apart = 0
    for number, one in enumerate(list_levelled_cases("continuous", 12)):
        wrong = replace(one, alphas=one.alphas[::-1]) if number % 2 else one
        rule = wrong.fit()
        alphas = one.asked if number % 2 else np.where(one.asked == 0.1, 0.2, 0.1)
        values = rule.solve(one.case.queries, alphas=alphas).values
        apart += sum(value != one.solve_by_highs(query) for query, value in enumerate(values))
    assert apart > repetitions(12, share=0.25)


def test_thresholds_at_own_levels_on_atoms_agree_with_highs() -> None:
    rng = np.random.default_rng(5)
    offered = np.array([float(level) for level in LEVELS])
    size, t = 3000, rng.random(3008)
    hats = np.stack([np.interp(t, [0.0, 0.5, 1.0], row) for row in np.eye(3)], axis=1)
    scores = np.where(rng.random(size) < 0.6, 0.3, rng.random(size))
    alphas = offered[np.minimum((t * 4).astype(np.int64), 3)]
    one = Levelled(Case(hats[:size], scores, hats[size:], LEVELS[0]), alphas[:size], alphas[size:])
    rule = one.fit()
    assert rule.fitted.windows._n_clustered > 0
    solved = rule.solve(one.case.queries, alphas=one.asked)
    assert not solved.outside.any()
    expected = [one.solve_by_highs(query) for query in range(len(one.asked))]
    np.testing.assert_allclose(solved.values, expected, atol=AGREEMENT)


@mostly_long("kind", ["groups", "overlapping_partitions", "continuous", "tied", "hopeless_prompts"], quick=2)
def test_equal_own_levels_equal_the_rule_of_that_level(kind: str) -> None:
    for one in list_levelled_cases(kind, 6):
        case, exact = one.case, kind in {"groups", "overlapping_partitions"}
        for level in LEVELS:
            alphas = np.full(len(case.scores), float(level))
            fixed = ConditionalThreshold(level, case.cap).fit(case.features, case.scores)
            expected = fixed.thresholds(case.queries)
            # A rule of one level is the same computation; with more on offer sums differ by round-off.
            alone = ConditionalThreshold(level, case.cap, levels=(level,))
            found = alone.fit(case.features, case.scores, alphas=alphas).thresholds(case.queries)
            assert np.array_equal(found, expected)
            rule = replace(one, alphas=alphas).fit()
            of_each = rule.solve(case.queries, alphas=np.full(len(case.queries), float(level))).values
            np.testing.assert_allclose(of_each, expected, atol=0.0 if exact else 1e-12, rtol=1e-12)


def test_threshold_at_its_own_level_equals_solve_of_many() -> None:
    for one in list_levelled_cases("atoms", 6):
        rule = one.fit()
        expected = rule.solve(one.case.queries, alphas=one.asked).values
        for phi, alpha, value in zip(one.case.queries, one.asked, expected, strict=True):
            assert rule.threshold(phi, alpha=float(alpha)) == value


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_certificate_proves_the_threshold_at_its_own_level(ridge: float) -> None:
    proven = 0
    for one in list_levelled_cases("continuous", 8):
        rule = one.fit(window=64, ridge=ridge)
        for phi, alpha in zip(one.case.queries, one.asked, strict=True):
            certificate = rule.make_certificate(phi, float(alpha))
            if certificate is not None:
                size = 1.0 + abs(certificate.primal)
                assert abs(certificate.gap) <= 1e-9 * size
                assert certificate.balance <= 1e-9
                proven += 1
    assert proven > 8


def test_randomised_thresholds_at_own_levels_agree_with_highs() -> None:
    rng, finite = np.random.default_rng(11), 0
    for one in list_levelled_cases("continuous", 12):
        uniforms = rng.random(len(one.asked))
        values = one.fit().solve(one.case.queries, uniforms=uniforms, alphas=one.asked).values
        for query, (uniform, value) in enumerate(zip(uniforms, values, strict=True)):
            expected = one.solve_by_highs(query, float(uniform))
            assert are_equal(value, expected)
            finite += math.isfinite(value)
    assert finite > repetitions(12, share=0.5)


@pytest.mark.parametrize("grouped", [False, True])
def test_window_gives_the_threshold_of_all_prompts_at_own_levels(grouped: bool) -> None:
    rng = np.random.default_rng(6)
    offered = np.array([float(level) for level in LEVELS])
    size, t = 20_000, rng.random(20_300)
    features = np.stack([np.interp(t, [0.0, 0.5, 1.0], row) for row in np.eye(3)], axis=1)
    if grouped:
        features = np.hstack([features, np.eye(12)[rng.integers(0, 12, len(t))]])
    alphas = offered[np.minimum((t * 4).astype(np.int64), 3)]
    scores = np.where(rng.random(size) < 0.1, 2.0, 0.4 * t[:size] + 0.6 * rng.random(size))
    rule = ConditionalThreshold(LEVELS[0], levels=LEVELS)
    kept = rule.fit(features[:size], scores, alphas=alphas[:size])
    everything = replace(rule, window=None).fit(features[:size], scores, alphas=alphas[:size])
    assert len(kept.get_state_data()["success_scores"]) < size / 2
    found, expected = (it.solve(features[size:], alphas=alphas[size:]) for it in (kept, everything))
    assert not found.outside.any()
    assert np.isfinite(expected.values).sum() > 100
    np.testing.assert_allclose(found.values, expected.values, atol=AGREEMENT)


def test_randomised_thresholds_at_own_levels_approach_the_default_ones() -> None:
    for one in list_levelled_cases("continuous", 6):
        rule, case = one.fit(), one.case
        levels = [
            rule.solve(case.queries, uniforms=np.full(len(case.queries), u), alphas=one.asked).values
            for u in (0.2, 0.6, 0.9, 1.0 - 1e-12)
        ]
        default = rule.solve(case.queries, alphas=one.asked).values
        for lower, higher in itertools.pairwise([*levels, default]):
            assert (lower <= higher + AGREEMENT).all()
        np.testing.assert_allclose(levels[-1], default, atol=AGREEMENT)


def test_restored_rule_with_own_levels_is_bit_identical() -> None:
    for one in list_levelled_cases("atoms", repetitions(4, share=0.5)):
        for ridge in (0.0, 1e-2):
            rule = one.fit(window=16, ridge=ridge)
            data = rule.get_state_data()
            assert {"targets", "rest_target"} <= set(data)
            restored = replace(rule, _state=None).restore(data)
            found, expected = (it.solve(one.case.queries, alphas=one.asked) for it in (restored, rule))
            assert np.array_equal(found.values, expected.values)
            for name in ("targets", "rest_target"):
                with pytest.raises(InputError, match=name):
                    rule.restore({**data, name: np.zeros(99)})
            with pytest.raises(InputError, match="targets"):
                ConditionalThreshold("0.1", one.case.cap, ridge=ridge).restore(data)


def test_rule_with_own_levels_refuses_a_level_not_offered() -> None:
    rule = ConditionalThreshold("0.1", levels=LEVELS)
    features, scores = np.ones((20, 1)), np.linspace(0.0, 1.0, 20)
    fitted = rule.fit(features, scores)
    calls: list[Callable[[], object]] = [
        lambda: rule.fit(features, scores, alphas=np.full(20, 0.3)),
        lambda: rule.fit(features, scores, alphas=np.full(19, 0.1)),
        lambda: rule.fit(features, scores, alphas=np.full(20, np.nan)),
        lambda: fitted.solve(features[:1], alphas=[0.3]),
        lambda: fitted.threshold([1.0], alpha="0.3"),
        lambda: fitted.threshold([1.0], alpha=0.0),
        lambda: fitted.make_certificate([1.0], alpha=0.3),
        lambda: ConditionalThreshold("0.1").fit(features, scores, alphas=np.full(20, 0.2)),
        lambda: ConditionalThreshold("0.1", levels=("0.2", "1.5")),
    ]
    for call in calls:
        with pytest.raises(InputError):
            call()

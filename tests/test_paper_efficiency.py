"""The paper's efficiency analysis (Proposition 4.3, Theorem 4.4) in worlds with closed forms.

T is a difficulty, S the success score, V the score of one of M candidates, and

    F_t(l) = P(S <= l | T = t),    G_t(l) = P(V <= l | T = t),    C_t(u) = G_t(F_t^-1(u)).

A threshold rule l(T) has E|C| = M E[G_T(l(T))]. The oracle takes q(t) = F_t^-1(u0), u0 = 1 - alpha; one
threshold takes the constant l with E[F_T(l)] = u0. The paper assumes: (1) F_t continuous and strictly
increasing on [0, 1], (2) F_t(l) not increasing in t, (3) C_t convex and differentiable, (4) dC_t/du not
increasing in t for every u. With m(t) = dC_t/du at u0,

    E|C| of one threshold - E|C| of the oracle = M ( Cov(m(T), F_T(l))  +  E[C_T(F_T(l)) - tangent at u0] ).
                                                      covariance               curvature

The curvature is not negative if C_t is convex, nor is the covariance if m and F(l) both fall with difficulty,
as (2) and (4) require. If coverage costs more on hard prompts, the covariance is negative.

- (4) is only used at u0. Required at every u, it leaves no room: dC_t/du integrates to one over (0, 1) for
  every t, and functions with the same integral, none of which is above the one before, are equal.
- (1) excludes prompts without a correct candidate, and only strictness needs it: F^-1(F(l)) <= l always.
- T has to contain everything that the oracle conditions on. Let all prompts of `RARER` have one difficulty,
  and let p be a property of X that T does not show: F and G are mixtures over prompts, (2) and (4) hold
  because T is constant, (1) and (3) by calculation; the oracle that conditions on X is still that of `RARER`.

*The worlds.* T ~ U(0, 1). A candidate has a latent score W, uniform if it is correct and P(W <= w) = w^rho if
it is wrong; its score is V = Q_t(W), Q_t(w) = (1 - s) w^2 + s w. Chance p, skill rho and scale s are lines in
t. Either the M candidates are independent, or exactly one is correct and p = 1 / M:

    F_t(l) = 1 - (1 - p w)^M  or  w,  w = Q_t^-1(l),         G_t(l) = p w + (1 - p) w^rho,
    F_t^-1(u) = Q_t(x),  x = (1 - (1 - u)^(1/M)) / p  or  u,

so q(t) is a line in t where p is constant, and [1, T] spans the oracle. Averages over T are midpoint sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds import ConditionalThreshold

Line = tuple[float, float]  # values at T = 0 and at T = 1
M = 50
U0 = 0.8
STEP = 1e-6
FALSE_ALARM = 1e-6


def take_line(ends: Line, t: FloatArray) -> FloatArray:
    return ends[0] + (ends[1] - ends[0]) * t


def make_nodes(number: int) -> FloatArray:
    return (np.arange(number) + 0.5) / number


@dataclass(frozen=True)
class World:
    chance: Line = (0.3, 0.3)
    skill: Line = (2.0, 2.0)
    scale: Line = (0.2, 1.0)
    one_correct: bool = False
    gap: Line = (1.0, 0.0)  # a latent score w becomes (1 - width) w, plus the width above a place

    def get_chance(self, t: FloatArray) -> FloatArray:
        return np.full_like(t, 1.0 / M) if self.one_correct else take_line(self.chance, t)

    def stretch(self, w: FloatArray, t: FloatArray) -> FloatArray:
        place, width = self.gap
        w, s = w * (1.0 - width) + np.where(w > place, width, 0.0), take_line(self.scale, t)
        return np.asarray(((1.0 - s) * w + s) * w)

    def unstretch(self, score: FloatArray, t: FloatArray) -> FloatArray:
        place, width = self.gap
        s, level = take_line(self.scale, t), np.clip(score, 0.0, 1.0)
        w = 2.0 * level / (s + np.sqrt(s * s + 4.0 * (1.0 - s) * level))
        below = place * (1.0 - width)
        return np.asarray(
            np.minimum(np.where(w <= below, w, np.maximum(w - width, below)) / (1.0 - width), 1.0)
        )

    def compute_coverage(self, score: FloatArray, t: FloatArray) -> FloatArray:
        w = self.unstretch(score, t)
        return w if self.one_correct else np.asarray(1.0 - (1.0 - self.get_chance(t) * w) ** M)

    def compute_share(self, score: FloatArray, t: FloatArray) -> FloatArray:
        w, p = self.unstretch(score, t), self.get_chance(t)
        return np.asarray(p * w + (1.0 - p) * w ** take_line(self.skill, t))

    def compute_quantile(self, u: float | FloatArray, t: FloatArray) -> FloatArray:
        every = np.broadcast_to(np.asarray(u, dtype=np.float64), np.broadcast(u, t).shape)
        if not self.one_correct:
            every = np.minimum(-np.expm1(np.log1p(-every) / M) / self.get_chance(t), 1.0)
        return self.stretch(every, t)

    def compute_cost(self, u: float | FloatArray, t: FloatArray) -> FloatArray:
        return self.compute_share(self.compute_quantile(u, t), t)

    def draw(self, t: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
        """Draw (N, M) scores and labels for N prompts with (N,) difficulties."""
        correct = rng.random((len(t), M)) < self.get_chance(t)[:, None]
        if self.one_correct:
            correct = np.arange(M) == rng.integers(M, size=len(t))[:, None]
        latent = rng.random((len(t), M))
        wrong = latent ** (1.0 / take_line(self.skill, t)[:, None])
        return self.stretch(np.where(correct, latent, wrong), t[:, None]), correct


# Worlds that meet all four assumptions as far as coverage is within reach: one candidate is correct, three
# in ten are, all are.
ONE, SOME, EVERY = World(skill=(3.0, 3.0), one_correct=True), World(), World(chance=(1.0, 1.0))
GOOD = [ONE, SOME, EVERY]
# Worlds that break the assumption named: a gap between good and bad scores, `RARER` with 1 - T for T, wrong
# candidates that score better than correct ones, and correct candidates that are rarer on hard prompts.
RARER = World(chance=(0.6, 0.15), skill=(1.2, 1.2), scale=(1.0, 0.6))
BROKEN = {
    "1": World(skill=(3.0, 3.0), scale=(0.8, 1.0), one_correct=True, gap=(0.8, 0.15)),
    "2": replace(RARER, chance=(0.15, 0.6), scale=(0.6, 1.0)),
    "3": World(skill=(0.4, 0.4), one_correct=True),
    "4": RARER,
}


def find_broken(world: World) -> str:
    """The assumptions that do not hold on a grid; an atom of F_t shows as a step that refining leaves."""
    t, levels = make_nodes(40)[:, None], [np.linspace(0.0, 1.0, 400 * times + 1) for times in (1, 16)]
    coverage = [world.compute_coverage(one, t) for one in levels]
    reach = float(world.compute_coverage(np.ones_like(t), t).min())
    steps = np.diff(world.compute_cost(np.linspace(0.0, reach, 401)[1:-1], t), axis=1)
    rises = np.diff(world.unstretch(levels[0], t)).min() > 0.0
    holds = {
        "1": rises and np.diff(coverage[1]).max() < np.diff(coverage[0]).max() / 2.0,
        "2": np.diff(coverage[0], axis=0).max() <= 1e-9,
        "3": np.diff(steps, axis=1).min() >= -1e-9,
        "4": np.diff(steps, axis=0).max() <= 1e-9,
    }
    return "".join(number for number, is_met in holds.items() if not is_met)


def find_one_threshold(world: World, t: FloatArray, u0: float = U0) -> float:
    return float(
        brentq(lambda level: world.compute_coverage(np.array(level), t).mean() - u0, 0, 1, xtol=1e-13)
    )


def compare_sizes(world: World, u0: float = U0) -> tuple[float, float, float]:
    """How much larger the sets of one threshold are than the oracle's, and the covariance and curvature."""
    t = make_nodes(2**14)
    one = np.array(find_one_threshold(world, t, u0))
    larger = M * float((world.compute_share(one, t) - world.compute_cost(u0, t)).mean())
    slope = (world.compute_cost(u0 + STEP, t) - world.compute_cost(u0 - STEP, t)) / (2 * STEP)
    covariance = M * float((slope * (world.compute_coverage(one, t) - u0)).mean())
    return larger, covariance, larger - covariance


@pytest.mark.parametrize("breaks", ["", *BROKEN])
def test_worlds_break_exactly_the_stated_assumption(breaks: str) -> None:
    for world in GOOD if not breaks else [BROKEN[breaks]]:
        assert find_broken(world) == breaks


@pytest.mark.parametrize("world", [*GOOD, *BROKEN.values()], ids=str)
def test_simulated_sizes_agree_with_the_integral(world: World) -> None:
    """z of a mean over independent prompts is nearly standard normal; a world with another scale is far."""
    rng, limit = np.random.default_rng(5), float(stats.norm.isf(FALSE_ALARM / 2))
    t, prompts = make_nodes(2**14), rng.random(4000)
    scores, correct = world.draw(prompts, rng)
    one = np.array(find_one_threshold(world, t))
    rules = (
        (world.compute_quantile(U0, prompts), world.compute_cost(U0, t)),
        (one, world.compute_share(one, t)),
    )
    for threshold, shares in rules:
        inside = scores <= np.reshape(threshold, (-1, 1))
        # A mean of P whole numbers has a resolution of 1 / P.
        error = max(float(inside.sum(axis=1).std()) / math.sqrt(len(prompts)), 1.0 / len(prompts))
        assert abs(inside.sum(axis=1).mean() - M * shares.mean()) < limit * error
        other = replace(world, scale=(0.5, 0.5)).compute_share(np.array(0.3), t)
        sizes = (scores <= 0.3).sum(axis=1)
        assert abs(sizes.mean() - M * other.mean()) > limit * sizes.std() / math.sqrt(len(prompts))
        covered = (inside & correct).any(axis=1)
        assert abs(covered.mean() - U0) < limit * 0.5 / math.sqrt(len(prompts))


def test_quantiles_rise_with_difficulty_where_coverage_falls() -> None:
    u, t = np.linspace(0.05, 0.8, 16), make_nodes(200)[:, None]
    for world in [*GOOD, *BROKEN.values()]:
        rises = bool(np.diff(world.compute_quantile(u, t), axis=0).min() >= -1e-9)
        assert rises is (world is not BROKEN["2"])


def test_costs_cannot_fall_with_difficulty_at_every_coverage() -> None:
    for skill in ((1.5, 6.0), (6.0, 1.5)):
        world = World(skill=skill, one_correct=True)
        ends = world.compute_cost(np.array([0.0, 1.0]), make_nodes(9)[:, None])
        assert np.diff(ends, axis=1) == pytest.approx(1.0)  # the integral of dC/du
        assert "4" in find_broken(world)


def test_oracle_efficiency_is_strict_under_all_assumptions() -> None:
    for world in GOOD:
        for u0 in (0.55, 0.8, 0.9):
            larger, covariance, _ = compare_sizes(world, u0)
            assert larger > 1e-3
            assert covariance == pytest.approx(0.0, abs=1e-6)


def test_oracle_efficiency_fails_in_worlds_with_a_broken_assumption() -> None:
    found = {number: compare_sizes(world) for number, world in BROKEN.items()}
    # (1) is needed for strictness only: the thresholds differ almost everywhere, and the sizes do not.
    t = make_nodes(1000)
    differs = BROKEN["1"].compute_quantile(U0, t) - find_one_threshold(BROKEN["1"], t)
    assert (np.abs(differs) > 1e-6).mean() > 0.99
    assert found["1"][0] == pytest.approx(0.0, abs=1e-6)
    for number in "234":
        assert found[number][0] < -1e-3
    for number in "24":
        _, covariance, curvature = found[number]
        assert covariance < 0.0 < curvature < -covariance
    # (2) and (4) change places under the label 1 - t.
    assert found["2"] == pytest.approx(found["4"], rel=1e-6)


def test_oracle_knowing_more_than_difficulty_breaks_the_proposition() -> None:
    t, levels = make_nodes(512)[:, None], np.linspace(0.0, 1.0, 513)
    coverage = np.diff(RARER.compute_coverage(levels, t).mean(axis=0))
    slopes = np.diff(RARER.compute_share(levels, t).mean(axis=0)) / coverage
    assert coverage.min() > 0.0
    assert np.diff(slopes).min() >= 0.0
    assert compare_sizes(RARER)[0] < 0.0


@pytest.mark.long
def test_learned_rule_approaches_the_oracle_at_the_root_rate() -> None:
    """With a hundred times the prompts, the error of E|C| is a tenth, within a factor of 1.7.

    q is in the span of [1, T], so the learned threshold is a consistent quantile regression with errors of
    order N^(-1/2) (Koenker and Bassett 1978), and so is its E|C|. A root mean square of 40 nearly normal
    errors has a relative standard deviation of 1 / sqrt(80), the ratio of two 0.16 in logarithms: 1.7 is more
    than three of them. The control, one threshold for all, stays where it is: it costs 12 % more.
    """
    nodes = make_nodes(2048)
    oracle = SOME.compute_cost(U0, nodes).mean()

    def measure_error(size: int, columns: int) -> float:
        errors = []
        for number in range(40):
            rng = np.random.default_rng([5, number])
            t = rng.random(size)
            line, asked = (np.column_stack([np.ones_like(one), one])[:, :columns] for one in (t, nodes))
            scores, correct = SOME.draw(t, rng)
            rule = ConditionalThreshold("0.2", 2.0, window=None)
            fitted = rule.fit(line, np.where(correct, scores, 2.0).min(axis=1))
            learned = np.clip(fitted.thresholds(asked), 0.0, 1.0)
            errors.append(SOME.compute_share(learned, nodes).mean() / oracle - 1.0)
        return float(np.sqrt(np.mean(np.square(errors))))

    assert 10 / 1.7 < measure_error(100, 2) / measure_error(10_000, 2) < 10 * 1.7
    assert measure_error(10_000, 1) > 0.05

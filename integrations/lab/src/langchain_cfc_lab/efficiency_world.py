"""Worlds in which the paper's efficiency analysis has closed forms, with draws to check them.

*The analysis* (the paper's section "Efficiency Analysis", Proposition 4.3 and Theorem 4.4). T is a
difficulty, S the success score, V the score of one candidate, and

    F_t(l) = P(S <= l | T = t),    G_t(l) = P(V <= l | T = t),    C_t(u) = G_t(F_t^-1(u)).

So C_t(u) is the share of candidates that coverage u costs at difficulty t, and a threshold rule l(T) has
E|C| = M E[G_T(l(T))]. The oracle takes q(t) = F_t^-1(u0), u0 = 1 - alpha; one threshold takes the constant l
with E[F_T(l)] = u0. The paper assumes: (1) F_t continuous and strictly increasing on [0, 1], (2) F_t(l) not
increasing in t, (3) C_t convex and differentiable on (0, 1), (4) dC_t/du not increasing in t for every u.

*The key identity.* With m(t) = dC_t/du at u0,

    E|C| of one threshold - E|C| of the oracle = M ( Cov(m(T), F_T(l))  +  E[C_T(F_T(l)) - tangent at u0] ).
                                                      covariance               curvature

The curvature is not negative if C_t is convex. The covariance is not negative if both m and F(l) fall with
difficulty, which (2) and (4) require. If coverage costs more on hard prompts, for example because correct
candidates are rarer there, the covariance is negative, and the inequality depends on which term is larger.

*What the assumptions imply.*

- The inequality does not need (1): F^-1(F(l)) <= l for every distribution function, so G_t(l) is at least
  C_t(F_t(l)), and a constant with E[F_T(l)] >= u0 suffices because m >= 0. Strict inequality does need (1):
  see the world `gap`.
- (4) is only used at u0. Required at every u, it leaves no room: if no score is exactly 0 or 1, dC_t/du
  integrates to G_t(1) - G_t(0) = 1 over (0, 1) for every t; functions with the same integral, none of which
  is above the one before, are equal almost everywhere. So C_t is the same function for all t: *difficulty
  may stretch the scale of scores and nothing else*. That is what the worlds that meet all four do.
- (1) on [0, 1] excludes prompts without a correct candidate. Of M independent candidates, each correct with
  chance p < 1, none is correct with chance (1 - p)^M, so F_t(1) < 1. The proof only uses u up to the largest
  F_t(l); here (3) and (4) are checked below the smallest F_t(1), which has to be above u0.
- (2) and (4) change places if 1 - t replaces t: a world that breaks only one then breaks only the other.
- T has to contain everything that the oracle conditions on. With q of S given X in place of q given T, as
  the proposition prints it, the inequality is false: see `hidden` in `efficiency.py`.

*The worlds.* T ~ U(0, 1). A candidate has a latent score W, uniform if it is correct and P(W <= w) = w^rho(T)
if it is wrong; its score is V = Q_T(W), Q_t(w) = (1 - s(t)) w^2 + s(t) w. Chance p(t), skill rho(t) and scale
s(t) are lines in t. Either the M candidates are independent, or exactly one is correct and p = 1 / M, as with
the options of a multiple-choice question. Let w = Q_t^-1(l) = 2 l / (s + sqrt(s^2 + 4 (1 - s) l)). Then

    F_t(l) = 1 - (1 - p w)^M  (independent)   or   w  (one correct),
    G_t(l) = p w + (1 - p) w^rho,
    F_t^-1(u) = Q_t(x),  x = (1 - (1 - u)^(1/M)) / p   or   u,
    C_t(u) = p x + (1 - p) x^rho,
    q(t) = x^2 + s(t) (x - x^2):  a line in t where p is constant, so that [1, T] spans the oracle.

*The integral.* Averages over T are midpoint sums of n = 2^16 terms. By Koksma's inequality the error of such
a sum is at most Var(f) / (2 n), Var the total variation over [0, 1] (Koksma 1942; the star discrepancy of
midpoints is 1 / (2 n)). p, w and rho are monotone in t, and so is p w by (2) or its mirror: the variation of
F_t(l) is at most 1. That of G_t(l) is at most that of p w + w^rho + p w^rho: 1, plus twice that of w^rho,
plus that of p. The variation of w^rho is at most 1 for constant rho, and otherwise
max(rho) + |change of rho| / (e min(rho)), by its two partial derivatives for rho >= 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from langchain_cfc.support.arrays import BoolArray, FloatArray

Line: TypeAlias = tuple[float, float]  # values at T = 0 and at T = 1
NODES = 2**16
UNREACHABLE_SCORE = 2.0  # success score of a prompt without a correct candidate
_CHECK_NODES = 400
_ROUND_OFF = 1e-9


@dataclass(frozen=True)
class EfficiencyWorld:
    """Generator of prompts whose score distributions given difficulty have closed forms; see the module.

    Attributes:
        name: Name in reports.
        words: What is special about the world.
        chance: p at T = 0 and T = 1, in (0, 1]; unused if `one_correct`.
        skill: rho, likewise, above 0; above 1 wrong candidates tend to score worse than correct ones.
        scale: s, likewise, in (0, 1]; larger values give larger scores.
        one_correct: Whether exactly one of the candidates is correct; otherwise they are independent.
        gap: Latent place w0 and width g. A latent score w is mapped to (1 - g) w, plus g if w > w0, so values
            between (1 - g) w0 and (1 - g) w0 + g do not occur. None for no gap.
    """

    name: str
    words: str
    chance: Line = (0.3, 0.3)
    skill: Line = (2.0, 2.0)
    scale: Line = (0.2, 1.0)
    one_correct: bool = False
    gap: Line | None = None

    def get_chance(self, t: FloatArray, n: int) -> FloatArray:
        """Return p(t), the probability that one given candidate of n is correct."""
        return np.full_like(t, 1.0 / n) if self.one_correct else _interpolate(self.chance, t)

    def get_skill(self, t: FloatArray) -> FloatArray:
        """Return rho(t), the exponent of the latent scores of wrong candidates."""
        return _interpolate(self.skill, t)

    def stretch(self, w: FloatArray, t: FloatArray) -> FloatArray:
        """Return the scores Q_t(w) of latent scores w in [0, 1]."""
        if self.gap is not None:
            place, width = self.gap
            w = w * (1.0 - width) + np.where(w > place, width, 0.0)
        s = _interpolate(self.scale, t)
        score: FloatArray = ((1.0 - s) * w + s) * w
        return score

    def unstretch(self, score: FloatArray, t: FloatArray) -> FloatArray:
        """Return the largest latent score in [0, 1] whose score is at most `score`."""
        level = np.clip(score, 0.0, 1.0)
        s = _interpolate(self.scale, t)
        w: FloatArray = 2.0 * level / (s + np.sqrt(s * s + 4.0 * (1.0 - s) * level))
        if self.gap is not None:
            place, width = self.gap
            w = np.where(w <= place * (1.0 - width), w, np.maximum(w - width, place * (1.0 - width)))
            w = w / (1.0 - width)
        return np.minimum(w, 1.0)

    def compute_coverage(self, threshold: FloatArray, t: FloatArray, n: int) -> FloatArray:
        """Return F_t(threshold), the probability that the set at a threshold holds a correct candidate."""
        w = self.unstretch(threshold, t)
        return w if self.one_correct else 1.0 - (1.0 - self.get_chance(t, n) * w) ** n

    def compute_share(self, threshold: FloatArray, t: FloatArray, n: int) -> FloatArray:
        """Return G_t(threshold), the share of candidates that enter the set."""
        w, p = self.unstretch(threshold, t), self.get_chance(t, n)
        accepted: FloatArray = p * w + (1.0 - p) * w ** self.get_skill(t)
        return accepted

    def compute_quantile(self, coverage: float | FloatArray, t: FloatArray, n: int) -> FloatArray:
        """Return F_t^-1(coverage); 1, which accepts everything, if the coverage is out of reach."""
        return self.stretch(self._find_latent_quantile(coverage, t, n), t)

    def compute_cost(self, coverage: float | FloatArray, t: FloatArray, n: int) -> FloatArray:
        """Return C_t(coverage), the share of candidates in the set that reaches a coverage."""
        return self.compute_share(self.compute_quantile(coverage, t, n), t, n)

    def compute_slope(self, coverage: float, t: FloatArray, n: int) -> FloatArray:
        """Return the slope dC_t/du at a coverage within reach."""
        w, p, rho = self._find_latent_quantile(coverage, t, n), self.get_chance(t, n), self.get_skill(t)
        accepted = p + (1.0 - p) * rho * w ** (rho - 1.0)
        return accepted if self.one_correct else accepted / (n * p * (1.0 - p * w) ** (n - 1))

    def bound_variation(self, n: int) -> float:
        """Return a bound on the total variation of G_t(threshold) in t, for any threshold."""
        ends = np.array([0.0, 1.0])
        p, rho = self.get_chance(ends, n), self.get_skill(ends)
        low, high = float(rho.min()), float(rho.max())
        of_power = 1.0 if low == high else high + (high - low) / (np.e * low)
        return 1.0 + float(np.ptp(p)) + 2.0 * of_power

    def draw_success_scores(self, t: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw a success score for each difficulty in `t`; `UNREACHABLE_SCORE` if no candidate is correct."""
        u = rng.random(t.shape)
        within = u <= self.compute_coverage(np.ones_like(t), t, n)
        return np.where(within, self.compute_quantile(u, t, n), UNREACHABLE_SCORE)

    def draw_scores(self, t: FloatArray, n: int, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
        """Draw (N, n) scores and labels for N prompts with (N,) difficulties `t`."""
        column = t[:, None]
        if self.one_correct:
            correct = np.zeros((len(t), n), dtype=np.bool_)
            correct[np.arange(len(t)), rng.integers(n, size=len(t))] = True
        else:
            correct = rng.random((len(t), n)) < self.get_chance(t, n)[:, None]
        latent = rng.random((len(t), n))
        latent = np.where(correct, latent, latent ** (1.0 / self.get_skill(column)))
        return self.stretch(latent, column), correct

    def _find_latent_quantile(self, coverage: float | FloatArray, t: FloatArray, n: int) -> FloatArray:
        u = np.broadcast_to(np.asarray(coverage, dtype=np.float64), np.broadcast(coverage, t).shape)
        if self.one_correct:
            return u
        latent: FloatArray = np.minimum(-np.expm1(np.log1p(-u) / n) / self.get_chance(t, n), 1.0)
        return latent


def _interpolate(ends: Line, t: FloatArray) -> FloatArray:
    return ends[0] + (ends[1] - ends[0]) * t


def make_nodes(number: int = NODES) -> FloatArray:
    """Return the midpoints of `number` equal parts of [0, 1], for integrals over T."""
    return (np.arange(number) + 0.5) / number


def find_marginal_threshold(world: EfficiencyWorld, coverage: float, n: int) -> float:
    """Return the one threshold with E[F_T(threshold)] = coverage."""
    t = make_nodes()

    def compute_miss(threshold: float) -> float:
        return float(world.compute_coverage(np.array(threshold), t, n).mean()) - coverage

    if compute_miss(1.0) <= 0.0:
        return 1.0
    from scipy.optimize import brentq  # late: SciPy takes long to import

    return float(brentq(compute_miss, 0.0, 1.0, xtol=1e-13))


def check_assumptions(world: EfficiencyWorld, n: int) -> dict[str, bool]:
    """Check each of the four assumptions on a grid of difficulties, thresholds and coverages.

    Only coverages within reach at every difficulty are checked. Continuity is checked by refining the grid of
    thresholds by a factor of 16: unless there is an atom, the largest step of F_t shrinks.
    """
    t = make_nodes(_CHECK_NODES // 10)[:, None]
    coarse = np.linspace(0.0, 1.0, _CHECK_NODES + 1)
    fine = np.linspace(0.0, 1.0, 16 * _CHECK_NODES + 1)
    latent = world.unstretch(coarse, t)
    largest = [float(np.diff(world.compute_coverage(grid, t, n)).max()) for grid in (coarse, fine)]
    reach = float(world.compute_coverage(np.ones_like(t), t, n).min())
    u = np.linspace(0.0, reach, _CHECK_NODES + 1)[1:-1]
    steps = np.diff(world.compute_cost(u, t, n), axis=1)
    of_t = np.diff(world.compute_coverage(coarse, t, n), axis=0)
    return {
        "1": bool(np.diff(latent).min() > 0.0 and largest[1] < largest[0] / 2.0),
        "2": bool(of_t.max() <= _ROUND_OFF),
        "3": bool(np.diff(steps, axis=1).min() >= -_ROUND_OFF),
        "4": bool(np.diff(steps, axis=0).max() <= _ROUND_OFF),
    }


# Worlds that meet all four assumptions, as far as coverage is within reach.
WORLDS = (
    EfficiencyWorld("one correct", "one candidate is correct", skill=(3.0, 3.0), one_correct=True),
    EfficiencyWorld("independent", "independent candidates, three in ten of them correct"),
    EfficiencyWorld("all correct", "every candidate correct", chance=(1.0, 1.0)),
)
RARER_WORLD = EfficiencyWorld(
    "rarer",
    "correct candidates are rarer on hard prompts, so coverage costs more there",
    chance=(0.6, 0.15),
    skill=(1.2, 1.2),
    scale=(1.0, 0.6),
)
# Worlds with the numbers of the assumptions that they break; they meet the others.
BROKEN_WORLDS: tuple[tuple[EfficiencyWorld, str], ...] = (
    (
        EfficiencyWorld(
            "gap",
            "no score lies between good and bad candidates, so F_t is flat there, at 0.8",
            skill=(3.0, 3.0),
            scale=(0.8, 1.0),
            one_correct=True,
            gap=(0.8, 0.15),
        ),
        "1",
    ),
    (
        replace(
            RARER_WORLD,
            name="mirrored",
            words="the world `rarer` with 1 - T for T",
            chance=RARER_WORLD.chance[::-1],
            scale=RARER_WORLD.scale[::-1],
        ),
        "2",
    ),
    (
        EfficiencyWorld(
            "misleading",
            "wrong candidates score better than correct ones, so C_t is concave",
            skill=(0.4, 0.4),
            one_correct=True,
        ),
        "3",
    ),
    (RARER_WORLD, "4"),
)

"""The synthetic world against its own closed forms.

Laws and tolerances. Counts over independent prompts or candidates are binomial: an exact two-sided tail of
less than FALSE_ALARM / 2 on either side fails. Distribution functions of N independent draws are within
sqrt(log(2 / FALSE_ALARM) / (2 N)) of the truth with probability 1 - FALSE_ALARM (Dvoretzky, Kiefer and
Wolfowitz 1956, with Massart's constant of 1990). Seeds are fixed, so that a pass stays a pass. Each law has
worlds beside it with one number changed, which must fail it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from langchain_cfc_lab.paper import SyntheticWorld
from scipy import stats

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray

FALSE_ALARM = 1e-9
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class ClosedForms(SyntheticWorld):
    """The world with the distribution function of its success scores."""

    def coverage_given(self, threshold: FloatArray, difficulty: FloatArray, n: int) -> FloatArray:
        """1 - (1 - p(T) v^k(T))^n: one of n candidates is correct and at most v with chance p v^k."""
        accepted = np.clip(threshold, 0.0, 1.0) ** self.compute_exponent(difficulty)
        return 1.0 - (1.0 - self.compute_chance(difficulty) * accepted) ** n

    def coverage(self, threshold: FloatArray, n: int) -> FloatArray:
        """Its mean over all difficulties, by Gauss-Legendre nodes."""
        given = self.coverage_given(np.asarray(threshold)[..., None], (NODES + 1.0) / 2.0, n)
        return np.asarray(given @ (WEIGHTS / 2.0))

    def attainable(self, n: int) -> float:
        """The share of prompts with a correct candidate among n."""
        return float(self.coverage(np.array(1.0), n))


WORLD = ClosedForms()
PROMPTS, N = 20_000, 50
# One number changed in each, by what a fit could well get wrong.
OTHER_RATES = [replace(WORLD, rate=0.038), replace(WORLD, slope=0.26)]
OTHER_SHAPES = [replace(WORLD, shape=0.72), replace(WORLD, growth=0.17)]


@pytest.fixture(scope="module")
def drawn() -> LabelledBatch:
    return WORLD.draw(PROMPTS, N, np.random.default_rng(20_260_101))


def difficulty(labelled: LabelledBatch) -> FloatArray:
    return np.array([float(one["difficulty"]) for one in labelled.draws.metadata])


def is_improbable(count: int, size: int, chance: float) -> bool:
    law = stats.binom(size, chance)
    return bool(min(law.cdf(count), law.sf(count - 1)) < FALSE_ALARM / 2)


def is_far_from(values: FloatArray, law: Callable[[FloatArray], FloatArray]) -> bool:
    """Whether the values' distribution function leaves the band around the law; the law is continuous."""
    ordered, size = np.sort(values), len(values)
    expected = np.where(np.isfinite(ordered), law(np.where(np.isfinite(ordered), ordered, 1.0)), 1.0)
    steps = np.arange(size + 1) / size
    finite = np.isfinite(ordered)
    off = np.maximum(np.abs(steps[1:] - expected), np.abs(steps[:-1] - expected))[finite].max()
    return bool(off > math.sqrt(math.log(2 / FALSE_ALARM) / (2 * size)))


def test_synthetic_world_draw_is_reproducible_and_complete(drawn: LabelledBatch) -> None:
    assert drawn.draws.scores.shape == drawn.correct.shape == (PROMPTS, N)
    assert drawn.ids[0] == "0"
    assert drawn.ids[-1] == str(PROMPTS - 1)
    assert (drawn.recorded, drawn.draws.answer_codes, drawn.draws.lengths) == (N, None, None)
    assert ((drawn.draws.scores >= 0) & (drawn.draws.scores <= 1)).all()
    assert not is_far_from(difficulty(drawn), lambda t: t)
    again = WORLD.draw(PROMPTS, N, np.random.default_rng(20_260_101))
    assert (again.draws.scores == drawn.draws.scores).all()
    assert (again.correct == drawn.correct).all()
    other = WORLD.draw(PROMPTS, N, np.random.default_rng(1))
    assert (other.draws.scores != drawn.draws.scores).any()


def do_rates_fit(world: SyntheticWorld, drawn: LabelledBatch) -> bool:
    """Correct candidates of the easiest and of the hardest fifth of prompts, and of all."""
    hard = difficulty(drawn)
    parts = [(0.0, 0.2), (0.8, 1.0), (0.0, 1.0)]
    for low, high in parts:
        rows = (hard >= low) & (hard < high)
        # Given T, candidates are independent, but T differs: the count is Poisson binomial, whose tails the
        # binomial of the mean chance bounds (Hoeffding 1956).
        chance = float(world.compute_chance(hard[rows]).mean())
        if is_improbable(int(drawn.correct[rows].sum()), int(rows.sum()) * N, chance):
            return False
    return True


def test_synthetic_candidates_are_correct_as_often_as_stated(drawn: LabelledBatch) -> None:
    assert do_rates_fit(WORLD, drawn)
    for other in OTHER_RATES:
        assert not do_rates_fit(other, drawn)


def do_shapes_fit(world: SyntheticWorld, drawn: LabelledBatch) -> bool:
    """V^k(T) of correct candidates is uniform, in the easier and in the harder half."""
    rows, slots = np.nonzero(drawn.correct)
    hard = difficulty(drawn)[rows]
    uniform = drawn.draws.scores[rows, slots] ** world.compute_exponent(hard)
    return not any(is_far_from(uniform[part], lambda v: v) for part in (hard < 0.5, hard >= 0.5))


def test_synthetic_scores_follow_the_stated_laws(drawn: LabelledBatch) -> None:
    assert do_shapes_fit(WORLD, drawn)
    for other in OTHER_SHAPES:
        assert not do_shapes_fit(other, drawn)
    assert not is_far_from(drawn.draws.scores[~drawn.correct], lambda v: v)
    # Control: scores of correct candidates are not uniform.
    assert is_far_from(drawn.draws.scores[drawn.correct], lambda v: v)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": -0.1}, "rate is -0.1; expected a chance"),
        ({"slope": 0.97}, "rate [+] slope is 1.0"),
        ({"rate": math.nan}, "rate is nan"),
        ({"shape": 0.0}, "shape is 0.0; expected a finite number above 0"),
        ({"growth": -0.686}, "shape [+] growth is 0.0"),
        ({"shape": math.inf}, "shape is inf"),
    ],
)
def test_synthetic_world_refuses_invalid_parameters(change: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(WORLD, **change)

"""No prompt like those calibrated on is refused, and its threshold is exact: atoms, and many groups.

Seen before: 25 to 66 % of such prompts refused where success scores have an atom, and whole groups where
groups are many, the more the more data there was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold

from .oracles import solve_dual_programme

CAP, ALPHAS, ATOMS = 2.0, ("0.05", "0.1", "0.2"), (0.3, 0.6, 0.9, None)
Sample = tuple[FloatArray, FloatArray]


def draw_atom_prompts(rng: np.random.Generator, size: int, knots: int, atom: float | None) -> Sample:
    """Hats of a smooth feature; so many success scores are 0, of easy prompts more if `atom` is None."""
    t = rng.random(size)
    features = np.stack([np.interp(t, np.linspace(0.0, 1.0, knots), row) for row in np.eye(knots)], axis=1)
    zero = rng.random(size) < (0.995 - 0.3 * t if atom is None else atom)
    scores = np.where(zero, 0.0, rng.random(size) * (0.3 + 0.7 * t))
    return features, np.where(rng.random(size) < 0.02 * t, CAP, scores)


def draw_group_prompts(rng: np.random.Generator, size: int, groups: int) -> Sample:
    """Groups of unequal sizes, with a share of prompts without a correct candidate that differs."""
    traits = np.random.default_rng(groups)
    shares, hopeless = traits.dirichlet(np.full(groups, 2.0)), 0.25 * traits.random(groups)
    group = rng.choice(groups, size, p=shares)
    scores = rng.random(size) ** (1.0 + 8.0 * hopeless[group])
    return np.eye(groups)[group], np.where(rng.random(size) < hopeless[group], CAP, scores)


def count_refused_and_wrong(sample: Sample, size: int, alpha: str, compared: int) -> tuple[int, int]:
    """Refused prompts of all after the first `size`, and wrong thresholds of as many as are compared."""
    features, scores = sample
    asked = features[size:]
    found = ConditionalThreshold(alpha, cap=CAP).fit(features[:size], scores[:size]).solve(asked)
    expected = np.array(
        [solve_dual_programme(features[:size], scores[:size], alpha, phi) for phi in asked[:compared]]
    )
    expected = np.where(expected >= CAP - 1e-9, np.inf, expected)
    same = np.isclose(found.values[:compared], expected, rtol=0.0, atol=1e-9)
    return int(found.outside.sum()), int(np.count_nonzero(~same))


def list_settings(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, float | None, str]]:
    return itertools.product(sizes, (2, 3, 5), ATOMS, ALPHAS)


@pytest.mark.parametrize(("knots", "atom"), [(3, None), (5, None), (5, 0.9)])
def test_no_prompt_on_atoms_is_refused_or_wrong(knots: int, atom: float | None) -> None:
    for alpha in ("0.1", "0.2"):
        sample = draw_atom_prompts(np.random.default_rng(knots), 3_500, knots, atom)
        assert count_refused_and_wrong(sample, 3_000, alpha, 3) == (0, 0)


@pytest.mark.long
def test_none_of_200_000_prompts_on_atoms_is_refused() -> None:
    for size, knots, atom, alpha in list_settings((1_000, 3_000, 10_000, 100_000)):
        sample = draw_atom_prompts(np.random.default_rng([size, knots]), size + 1_500, knots, atom)
        assert count_refused_and_wrong(sample, size, alpha, 0) == (0, 0), (size, knots, atom, alpha)


@pytest.mark.long
@pytest.mark.parametrize("groups", [20, 50, 100, 200, 300])
def test_no_prompt_in_many_groups_is_refused(groups: int) -> None:
    for size, alpha in itertools.product((5_000, 20_000, 100_000), ("0.05", "0.2")):
        sample = draw_group_prompts(np.random.default_rng([size, groups]), size + 2_000, groups)
        assert count_refused_and_wrong(sample, size, alpha, 0) == (0, 0), (size, alpha)


@pytest.mark.long
def test_thresholds_on_atoms_and_in_groups_agree_with_highs() -> None:
    for size, knots, atom, alpha in list_settings((1_000, 3_000)):
        sample = draw_atom_prompts(np.random.default_rng([size, knots, 1]), size + 70, knots, atom)
        assert count_refused_and_wrong(sample, size, alpha, 70) == (0, 0), (size, knots, atom, alpha)
    for groups, alpha in itertools.product((20, 60), ALPHAS):
        sample = draw_group_prompts(np.random.default_rng([groups, 1]), 2_060, groups)
        assert count_refused_and_wrong(sample, 2_000, alpha, 60) == (0, 0), (groups, alpha)

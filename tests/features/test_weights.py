from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import FeatureError
from langchain_cfc.features import FeatureMap, GuaranteedWeight
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.support.arrays import FloatArray
from tests.features.draws import make_draws

TERMS = [
    "1",
    "meta(x)^1",
    "mean_score^2",
    "meta(y)^3",
    "bins(meta(x), 4)",
    "hat(meta(y), 4)",
    "group(topic)",
    "hard(meta(x), meta(y), 0.8)",
]
maps = st.lists(st.sampled_from(TERMS), min_size=1, max_size=4, unique=True).map(" + ".join)
seeds = st.integers(0, 2**32 - 1)
# Bernstein polynomials are small differences of larger numbers; the term refuses ranges with larger errors.
ROUNDING = 1e-9


def make_wide_draws(seed: int, size: int, spread: float) -> CandidateBatch:
    """Draws whose statistics lie far beyond those of a fit split with a smaller spread."""
    rng = np.random.default_rng(seed)
    scores = np.clip(0.5 + spread * rng.normal(scale=0.2, size=(size, 4)), 0.0, 1.0)
    metadata: list[dict[str, Scalar]] = [
        {"x": float(rng.normal() * spread), "y": float(rng.normal() * spread + 1), "topic": "ab"[row % 2]}
        for row in range(size)
    ]
    return CandidateBatch.from_arrays(scores, metadata=metadata)


def compute_weight_independently(
    features: FeatureMap, weight: GuaranteedWeight, draws: CandidateBatch
) -> FloatArray:
    """The weight's function computed from what its term learned, without any features."""
    if weight.kind == "constant":
        return np.ones(len(draws))
    base = weight.name.split("[")[0].split("=")[0]
    position = int(weight.name.split("[")[1].rstrip("]")) if "[" in weight.name else -1
    stored = dict(zip(features.text.split(" + "), features.to_data()["terms"], strict=True))
    if weight.kind == "bernstein":
        statistic, degree = base.removeprefix("bernstein(").removesuffix(")").rsplit(", ", 1)
        k = int(degree)
        lo, hi = stored[statistic if k == 1 else f"{statistic}^{k}"]["range"]
        u = (np.clip(compute_statistic(statistic, draws), lo, hi) - lo) / (hi - lo)
        return np.asarray(comb(k, position) * u**position * (1 - u) ** (k - position))
    if weight.kind == "hat":
        knots = stored[base]["knots"]
        return np.asarray(np.interp(compute_statistic("meta(y)", draws), knots, np.eye(len(knots))[position]))
    if base.startswith("bins"):
        edges = [-np.inf, *stored[base]["cuts"], np.inf]
        x = compute_statistic("meta(x)", draws)
        return np.asarray((x >= edges[position]) & (x < edges[position + 1]), dtype=float)
    if base.startswith("group"):
        return np.array([float(entries["topic"] == weight.name.split("=")[1]) for entries in draws.metadata])
    cut_x, cut_y = stored[base]["cuts"]
    hard = (compute_statistic("meta(x)", draws) >= cut_x) | (compute_statistic("meta(y)", draws) >= cut_y)
    return np.asarray(hard if weight.name.endswith("=hard") else ~hard, dtype=float)


def compute_statistic(statistic: str, draws: CandidateBatch) -> FloatArray:
    named = Statistic("meta", statistic[5]) if statistic.startswith("meta") else Statistic(statistic)
    return named.compute_values(draws)


@settings(derandomize=True)
@given(maps, seeds, st.sampled_from([0.1, 1.0, 30.0]))
def test_guaranteed_weights_are_their_stated_functions_and_not_negative(
    text: str, seed: int, spread: float
) -> None:
    features = FeatureMap.parse(text).fit(make_wide_draws(seed, 60, 1.0))
    draws = make_wide_draws(seed + 1, 80, spread)
    columns = features.transform(draws)
    for weight in features.list_guaranteed_weights():
        values = weight.compute_values(columns)
        assert values.shape == (80,)
        assert (values >= -ROUNDING).all(), weight.name
        np.testing.assert_allclose(
            values, compute_weight_independently(features, weight, draws), rtol=0, atol=ROUNDING
        )


@settings(derandomize=True)
@given(maps, seeds)
def test_guaranteed_weights_are_positive_for_some_fitted_prompt(text: str, seed: int) -> None:
    # A function that is zero everywhere would make an empty promise.
    fit = make_wide_draws(seed, 60, 1.0)
    features = FeatureMap.parse(text).fit(fit)
    for weight in features.list_guaranteed_weights():
        assert weight.compute_values(features.transform(fit)).max() > 0.1, weight.name


def test_bernstein_polynomial_without_clipping_turns_negative() -> None:
    # The reason for clipping: on [0.25, 0.75], 2 u (1 - u) at T = 1 is 2 * 1.5 * (-0.5).
    features = FeatureMap.parse("mean_score^2").fit(CandidateBatch.from_arrays([[0.25], [0.75]]))
    middle = features.list_guaranteed_weights()[2]
    assert middle.compute_values(np.array([[1.0, 1.0, 1.0]])).tolist() == pytest.approx([-1.5])
    assert middle.compute_values(
        features.transform(CandidateBatch.from_arrays([[1.0]]))
    ).tolist() == pytest.approx([0.0], abs=1e-12)


def test_constant_weight_comes_first_and_once() -> None:
    for text in ("1", "1 + group(topic)", "mean_score", "hat(mean_score, 3) + mean_score"):
        weights = FeatureMap.parse(text).fit(make_draws(1)).list_guaranteed_weights()
        assert (weights[0].name, weights[0].kind, weights[0].words) == ("1", "constant", "all prompts")
        assert [weight.kind for weight in weights].count("constant") == 1


def test_guaranteed_weight_coefficients_equal_a_calculation_by_hand() -> None:
    fit = CandidateBatch.from_arrays([[0.2], [0.4], [0.6], [0.8]])
    features = FeatureMap.parse("mean_score + bins(mean_score, 2)").fit(fit)
    assert [(one.of_constant, *one.coefficients) for one in features.list_guaranteed_weights()] == [
        (1.0, 0.0, 0.0, 0.0),
        # Linear in T: 0 at one end of the range, and 1 at the other.
        pytest.approx((0.8 / 0.6, -1 / 0.6, 0.0, 0.0)),
        pytest.approx((-0.2 / 0.6, 1 / 0.6, 0.0, 0.0)),
        (0.0, 0.0, 1.0, 0.0),
        (0.0, 0.0, 0.0, 1.0),
    ]


def test_guaranteed_weight_names_and_words() -> None:
    draws = CandidateBatch.from_arrays(
        [[0.1, 0.3], [0.2, 0.6], [0.5, 0.9]],
        [["a", "b"], ["a", "a"], ["ab", "c"]],
        [
            {"topic": "capital", "my year": 1},
            {"topic": True, "my year": 2},
            {"topic": 7, "my year": 12345.678},
        ],
    )
    features = FeatureMap.parse(
        'mean_score^2 + hat(max_score, 3) + bins(meta("my year"), 3) + group(topic)'
        " + hard(entropy, min_score, 0.75)"
    )
    described = {weight.name: weight.words for weight in features.fit(draws).list_guaranteed_weights()}
    assert described == {
        "1": "all prompts",
        "bernstein(mean_score, 2)[0]": "prompts weighted smoothly by how near their mean score is to 0.2 "
        "(within [0.2, 0.7])",
        "bernstein(mean_score, 2)[1]": "prompts weighted smoothly by how near their mean score is to 0.45 "
        "(within [0.2, 0.7])",
        "bernstein(mean_score, 2)[2]": "prompts weighted smoothly by how near their mean score is to 0.7 "
        "(within [0.2, 0.7])",
        "hat(max_score, 3)[0]": "prompts weighted by how near their max score is to 0.3 or less "
        "(falling to zero at 0.6)",
        "hat(max_score, 3)[1]": "prompts weighted by how near their max score is to 0.6 "
        "(falling to zero at 0.3 and 0.9)",
        "hat(max_score, 3)[2]": "prompts weighted by how near their max score is to 0.9 or more "
        "(falling to zero at 0.6)",
        'bins(meta("my year"), 3)[0]': 'prompts whose "my year" is below 2',
        'bins(meta("my year"), 3)[1]': 'prompts whose "my year" lies in [2, 12345.678)',
        'bins(meta("my year"), 3)[2]': 'prompts whose "my year" is at least 12345.678',
        "group(topic)=true": "prompts whose topic is true",
        "group(topic)=7": "prompts whose topic is 7",
        "group(topic)=capital": "prompts whose topic is 'capital'",
        "hard(entropy, min_score, 0.75)=easy": "prompts whose entropy is below 0.69314718056 "
        "and whose min score is below 0.5",
        "hard(entropy, min_score, 0.75)=hard": "prompts whose entropy is at least 0.69314718056 "
        "or whose min score is at least 0.5",
    }


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 3)])
def test_guaranteed_weight_refuses_features_of_another_map(shape: tuple[int, ...]) -> None:
    weight = GuaranteedWeight("w", "indicator", "prompts", (0.0, 1.0, 0.0))
    with pytest.raises(FeatureError, match=r"w takes \(N, 3\) features"):
        weight.compute_values(np.zeros(shape))

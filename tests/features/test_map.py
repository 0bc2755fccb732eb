from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError, NotFittedError
from langchain_cfc.features import FeatureMap
from tests.features.draws import make_draws
from tests.lengths import repetitions

TERMS = [
    "1",
    "mean_score^2",
    "meta(price)^3",
    "std_score",
    "bins(max_score, 5)",
    "bins(meta(year), 3)",
    "hat(mean_score, 5)",
    'hat(meta("my key"), 4)',
    "hat(mean_length, 3)",
    "group(topic)",
    "group(checked)",
    "hard(entropy, max_score, 0.8)",
    "hard(top_share, 0.95)",
]
maps = st.lists(st.sampled_from(TERMS), min_size=1, max_size=4, unique=True).map(" + ".join)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1", ["1"]),
        ("mean_score^2", ["1", "mean_score", "mean_score^2"]),
        ("1 + mean_score", ["1", "mean_score"]),
        ("mean_score + 1", ["mean_score", "1"]),
        ("hat(mean_score, 2)", ["hat(mean_score, 2)[0]", "hat(mean_score, 2)[1]"]),
        ("mean_score + group(checked)", ["mean_score", "group(checked)=false", "group(checked)=true"]),
        ("mean_score + std_score", ["1", "mean_score", "std_score"]),
        ("hard(entropy, 0.5)", ["hard(entropy, 0.5)=easy", "hard(entropy, 0.5)=hard"]),
    ],
)
def test_feature_map_has_an_intercept_unless_a_term_sums_to_one(text: str, names: list[str]) -> None:
    features = FeatureMap.parse(text).fit(make_draws(0))
    assert list(features.names) == names
    assert features.dimension == len(names)
    assert features.transform(make_draws(1)).shape == (40, len(names))


def test_feature_map_of_degree_two_is_that_of_the_paper() -> None:
    # [1, T, T^2], with T clipped to [0.25, 0.75].
    features = FeatureMap.parse("mean_score^2").fit(CandidateBatch.from_arrays([[0.25, 0.25], [0.5, 1.0]]))
    columns = features.transform(CandidateBatch.from_arrays([[0.25, 0.75], [0.0, 0.25], [1.0, 1.0]]))
    assert columns.tolist() == [[1.0, 0.5, 0.25], [1.0, 0.25, 0.0625], [1.0, 0.75, 0.5625]]


@settings(derandomize=True)
@given(maps, seeds)
def test_feature_map_span_contains_the_constant(text: str, seed: int) -> None:
    columns = FeatureMap.parse(text).fit(make_draws(seed)).transform(make_draws(seed + 1, 200))
    solution = np.linalg.lstsq(columns, np.ones(200), rcond=None)[0]
    np.testing.assert_allclose(columns @ solution, 1.0, rtol=0, atol=1e-9)


@settings(derandomize=True)
@given(maps, seeds)
def test_feature_map_survives_json_to_the_last_bit(text: str, seed: int) -> None:
    features = FeatureMap.parse(text).fit(make_draws(seed))
    again = FeatureMap.from_data(json.loads(json.dumps(features.to_data(), allow_nan=False)))
    assert again == features
    assert again.text == features.text
    assert again.names == features.names
    assert again.list_guaranteed_weights() == features.list_guaranteed_weights()
    fresh = make_draws(seed + 1, 100)
    assert again.transform(fresh).tobytes() == features.transform(fresh).tobytes()


@settings(derandomize=True, max_examples=repetitions(30, share=0.3))
@given(maps, seeds, st.sampled_from([1, 7, 50]))
def test_feature_map_of_a_prompt_is_the_same_alone_and_in_a_batch(text: str, seed: int, n: int) -> None:
    # Fitted on the very prompts that are transformed, so that many of them sit on cut-offs and knots.
    batch = make_draws(seed, 300, n)
    features = FeatureMap.parse(text)
    try:
        features = features.fit(batch)
    except FeatureError:
        # With one candidate, deviation, entropy and the like take a single value.
        assert n == 1
        return
    columns = features.transform(batch)
    assert columns.flags.c_contiguous
    for row in range(0, 300, 11):
        alone = features.transform(batch.take(np.array([row])))
        assert alone.tobytes() == columns[row].tobytes()


def test_feature_map_of_no_prompts_has_no_rows() -> None:
    features = FeatureMap.parse(" + ".join(TERMS)).fit(make_draws(3))
    empty = make_draws(3).take(np.array([], dtype=np.int64))
    assert features.transform(empty).shape == (0, features.dimension)


def test_feature_map_fit_returns_a_new_map() -> None:
    features = FeatureMap.parse("mean_score")
    fitted = features.fit(make_draws(4))
    assert (features.fitted, fitted.fitted) == (False, True)
    assert repr(features) == "FeatureMap('mean_score', fitted=False)"
    assert fitted.fit(make_draws(5)) == features.fit(make_draws(5)) != fitted
    with pytest.raises(FrozenInstanceError):
        fitted.terms = ()  # type: ignore[misc]


def test_constant_feature_map_needs_no_fit() -> None:
    features = FeatureMap.parse("1")
    assert features.fitted
    assert not features.needs_fit
    assert features.fit(CandidateBatch.from_arrays(np.zeros((0, 3)))) == features
    assert features.transform(CandidateBatch.from_arrays([[0.5, 0.5]])).tolist() == [[1.0]]
    assert features.to_data() == {"text": "1", "terms": [{}]}
    assert FeatureMap.from_data(features.to_data()) == features


def test_unfitted_feature_map_is_refused() -> None:
    features = FeatureMap.parse("1 + bins(mean_score, 3)")
    assert features.needs_fit
    uses: list[Callable[[], object]] = [
        lambda: features.transform(make_draws(6)),
        lambda: features.names,
        lambda: features.dimension,
        features.list_guaranteed_weights,
        features.to_data,
    ]
    for use in uses:
        with pytest.raises(NotFittedError, match=r"bins\(mean_score, 3\) is not fitted; call fit"):
            use()


@pytest.mark.parametrize("text", TERMS[1:])
def test_feature_map_fit_refuses_no_prompts(text: str) -> None:
    with pytest.raises(FeatureError, match="cannot be fitted on 0 prompts"):
        FeatureMap.parse(text).fit(make_draws(7).take(np.array([], dtype=np.int64)))


def test_feature_map_names_metadata_and_answers_it_reads() -> None:
    features = FeatureMap.parse("hat(meta(year), 3) + group(topic) + meta(year) + hard(meta(b), entropy, .9)")
    assert features.metadata_keys == ("year", "topic", "b")
    assert features.needs_answers
    features = FeatureMap.parse("1 + mean_score + group(entropy)")
    assert features.metadata_keys == ("entropy",)
    assert not features.needs_answers


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"text": "1"},
        {"terms": [{}]},
        {"text": "1", "terms": [{}], "more": 1},
        {"text": 1, "terms": [{}]},
        {"text": "nonsense", "terms": [{}]},
        {"text": "1", "terms": []},
        {"text": "1", "terms": [{}, {}]},
        {"text": "1", "terms": {}},
        {"text": "1", "terms": [[]]},
        {"text": "1", "terms": [{"range": [0, 1]}]},
        {"text": "mean_score", "terms": [{}]},
        {"text": "mean_score", "terms": [{"cuts": [0.0, 1.0]}]},
        {"text": "mean_score", "terms": [{"range": [0.0, 1.0], "more": []}]},
        {"text": "mean_score", "terms": [{"range": None}]},
        {"text": "mean_score", "terms": [{"range": [0.0, float("inf")]}]},
    ],
)
def test_feature_map_from_data_refuses_invalid_data(data: Any) -> None:
    with pytest.raises(FeatureError):
        FeatureMap.from_data(data)


def test_feature_map_from_data_accepts_whole_numbers() -> None:
    # Other writers of JSON shorten 1.0 to 1.
    features = FeatureMap.from_data({"text": "mean_score", "terms": [{"range": [0, 1]}]})
    assert features.to_data() == {"text": "mean_score", "terms": [{"range": [0.0, 1.0]}]}
    assert features.transform(CandidateBatch.from_arrays([[0.5]])).tolist() == [[1.0, 0.5]]


def test_feature_map_gives_unknown_categories_zero_columns() -> None:
    known = CandidateBatch.from_arrays([[0.1], [0.9]], metadata=[{"a": "x", "b": 1}, {"a": "y", "b": 2}])
    fitted = FeatureMap.parse("group(a) + mean_score + group(b)").fit(known)
    asked = CandidateBatch.from_arrays(
        [[0.5]] * 4, metadata=[{"a": a, "b": b} for a, b in (("x", 1), ("z", 1), ("y", 3), ("z", 3))]
    )
    with pytest.raises(FeatureError, match="a of prompt 1 is 'z'"):
        fitted.transform(asked)
    features = fitted.transform(asked, allow_unknown=True)
    assert fitted.has_unknown_category(features).tolist() == [False, True, True, True]
    assert [fitted.find_unknown_keys(row) for row in features] == [(), ("a",), ("b",), ("a", "b")]
    # The constant is the sum of the first group's columns, and holds for prompts of unknown categories too.
    weights = {one.name: one.compute_values(features) for one in fitted.list_guaranteed_weights()}
    assert weights["1"].tolist() == [1.0] * 4
    assert np.allclose(
        fitted.compute_weights(features), np.stack(list(weights.values()), axis=1), rtol=0.0, atol=1e-12
    )
    assert weights["group(a)=x"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert np.allclose(weights["bernstein(mean_score, 1)[0]"] + weights["bernstein(mean_score, 1)[1]"], 1.0)
    more = fitted.with_categories_of(asked)
    assert more.names == ("group(a)=x", "group(a)=y", "group(a)=z", "mean_score", *more.names[4:])
    assert not more.has_unknown_category(more.transform(asked)).any()
    with pytest.raises(FeatureError, match="expected features of shape"):
        fitted.has_unknown_category(features[:, 1:])

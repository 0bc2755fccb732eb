from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from langchain_cfc.errors import InputError
from langchain_cfc.scoring import Combination

TWO = {
    "names": ("judge", "p_true"),
    "centres": (5.0, 0.5),
    "scales": (2.0, 0.25),
    "coefficients": (1.5, -0.7),
    "intercept": 0.3,
}


def make_combination(**changes: Any) -> Combination:
    return Combination(**{**TWO, **changes})


def test_combination_score_is_one_minus_the_logistic_probability() -> None:
    raw = np.random.default_rng(0).normal(size=(50, 2)) * [3.0, 0.5] + [5.0, 0.5]
    for (judge, p_true), score in zip(raw, make_combination().score(raw), strict=True):
        log_odds = 0.3 + 1.5 * (judge - 5.0) / 2.0 - 0.7 * (p_true - 0.5) / 0.25
        assert score == pytest.approx(1 - 1 / (1 + math.exp(-log_odds)), abs=1e-12)
    # More of a verifier with a positive coefficient is better, and better is smaller.
    better, worse = make_combination().score([[9.0, 0.5], [1.0, 0.5]])
    assert 0.0 < better < worse < 1.0


def test_combination_score_does_not_depend_on_other_candidates() -> None:
    # However many candidates are scored at once, and however the array lies in memory.
    rng = np.random.default_rng(1)
    combination = Combination(
        names=tuple("abcdefg"),
        centres=tuple(rng.normal(size=7).tolist()),
        scales=tuple(rng.random(7).tolist()),
        coefficients=tuple(rng.normal(size=7).tolist()),
        intercept=0.1,
    )
    raw = rng.normal(size=(1003, 7))
    whole = combination.score(raw)
    assert [combination.score(row[np.newaxis])[0] for row in raw] == whole.tolist()
    assert combination.score(np.asfortranarray(raw)).tobytes() == whole.tobytes()
    assert combination.score(np.repeat(raw, 3, axis=0)[::3]).tobytes() == whole.tobytes()
    assert combination.score(raw.tolist()).tobytes() == whole.tobytes()
    assert combination.score_all(raw.reshape(17, 59, 7)).tobytes() == whole.tobytes()
    assert len(set(whole.tolist())) == 1003


def test_combination_score_rounds_away_the_last_digit() -> None:
    combination, raw = make_combination(), np.random.default_rng(2).normal(size=(10_000, 2)) + 5.0
    scores = combination.score(raw)
    unrounded = 1 / (1 + np.exp(0.3 + 1.5 * (raw[:, 0] - 5) / 2 - 0.7 * (raw[:, 1] - 0.5) / 0.25))
    others = np.nextafter(unrounded, 1.0).round(12)
    # A rounding boundary lies in between for about one in 10,000.
    assert np.mean(others == scores) > 0.99
    assert np.mean(np.nextafter(unrounded, 1.0) == unrounded) == 0.0


def test_combination_score_of_extreme_outputs_does_not_warn() -> None:
    assert make_combination().score([[1e300, 0.5], [-1e300, 0.5], [1e5, 0.5]]).tolist() == [0.0, 1.0, 0.0]
    assert make_combination().score(np.empty((0, 2))).tolist() == []
    assert make_combination().score([[1, 0]]).shape == (1,)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([[5.0]], r"expected 2 numbers for each candidate \(judge, p_true\), got an array of shape \(1, 1\)"),
        ([5.0, 0.5], "expected 2 numbers"),
        ([[5.0, 0.5], [5.0]], "expected 2 numbers"),
        ([["5", "0.5"]], "expected 2 numbers"),
        ([[5.0, {}]], "expected 2 numbers"),
        ([[5, 10**400]], "expected 2 numbers"),
        (None, "expected 2 numbers"),
        ([[5.0, 0.5], [5.0, None]], "'p_true' for candidate 1 is nan; expected a finite number"),
        ([[5.0, 0.5], [math.nan, 0.5]], "'judge' for candidate 1 is nan"),
        ([[math.inf, 0.5]], "'judge' for candidate 0 is inf"),
        ([[5.0, 0.5], [1e308, 1e308]], "candidate 1 are too large to be combined"),
    ],
)
def test_combination_score_refuses_missing_and_invalid_outputs(raw: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_combination().score(raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ()}, "distinct verifier names"),
        ({"names": ("judge", "judge")}, "distinct verifier names"),
        ({"names": ("judge", "")}, "distinct verifier names"),
        ({"names": ("judge",)}, "for each of 1 names"),
        ({"centres": (1.0,)}, "for each of 2 names"),
        ({"scales": (1.0, 0.0)}, "scales above 0, got 0.0"),
        ({"scales": (1.0, -1.0)}, "scales above 0"),
        ({"coefficients": (1.0, math.nan)}, "finite"),
        ({"intercept": math.inf}, "finite"),
        ({"intercept": "0"}, "valid number"),
        ({"names": "ab"}, "valid tuple"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_combination_refuses_invalid_fields(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_combination(**changes)


def test_combination_is_frozen_and_round_trips_as_json() -> None:
    combination = make_combination()
    assert Combination.model_validate_json(combination.model_dump_json()) == combination
    assert Combination.model_validate(combination.model_dump(mode="json")) == combination
    with pytest.raises(ValueError, match="frozen"):
        combination.intercept = 1.0

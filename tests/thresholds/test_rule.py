"""What all threshold rules share: refusals, copies, and states that are written down and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from langchain_cfc.errors import CFCError, InputError, NotFittedError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    GroupedThreshold,
    ThresholdRule,
    Thresholds,
)
from tests.lengths import mostly_long

from .cases import KINDS, cases

RULES: tuple[type[ThresholdRule[Any]], ...] = (ConditionalThreshold, GroupedThreshold)
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
SCORES = np.array([0.1, 0.4, 0.3, 0.2])

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)


@every_rule
@pytest.mark.parametrize("cap", [1.0, 0.5, -2.0, math.nan, math.inf])
def test_threshold_rule_refuses_an_invalid_cap(rule: type[ThresholdRule[Any]], cap: float) -> None:
    with pytest.raises(InputError, match="cap"):
        rule(0.1, cap=cap)


@every_rule
@pytest.mark.parametrize("alpha", [0, 1, "a tenth", math.nan, -0.1])
def test_threshold_rule_refuses_invalid_alpha(rule: type[ThresholdRule[Any]], alpha: float | str) -> None:
    with pytest.raises(InputError, match="alpha"):
        rule(alpha)


@every_rule
def test_threshold_rule_keeps_alpha_as_decimal_text(rule: type[ThresholdRule[Any]]) -> None:
    assert rule(0.10).alpha == rule("0.100").alpha == "0.1"
    assert rule(0.1).tau == 0.9


@every_rule
@pytest.mark.parametrize(
    ("features", "scores", "message"),
    [
        (FEATURES[:3], SCORES, "shapes"),
        (FEATURES[:, 0], SCORES, "shapes"),
        (FEATURES[None], SCORES, "shapes"),
        (FEATURES, SCORES[:, None], "shapes"),
        (FEATURES[:, :0], SCORES, "shapes"),
        (FEATURES[:0], SCORES[:0], "at least one"),
        (np.where(FEATURES == 0.0, np.nan, FEATURES), SCORES, "finite"),
        (np.where(FEATURES == 0.0, np.inf, FEATURES), SCORES, "finite"),
        (FEATURES, np.where(SCORES == 0.4, np.nan, SCORES), "finite"),
        (FEATURES, np.where(SCORES == 0.4, np.inf, SCORES), "finite"),
        (FEATURES, np.where(SCORES == 0.4, -np.inf, SCORES), "finite"),
        (FEATURES, np.where(SCORES == 0.4, 2.0000001, SCORES), "exceeds the cap"),
        ([[1.0], [1.0, 2.0]], [0.1, 0.2], "numbers"),
        ([["one"]], [0.1], "numbers"),
    ],
)
def test_threshold_rule_fit_refuses_invalid_calibration_data(
    rule: type[ThresholdRule[Any]], features: npt.ArrayLike, scores: npt.ArrayLike, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        rule(0.5).fit(features, scores)


@every_rule
def test_threshold_rule_fit_accepts_a_score_at_the_cap(rule: type[ThresholdRule[Any]]) -> None:
    rule(0.5, cap=1.5).fit(FEATURES, np.where(SCORES == 0.4, 1.5, SCORES))


@every_rule
@pytest.mark.parametrize(
    "features",
    [
        [1.0, 0.5],
        [[1.0]],
        [[1.0, 0.5, 0.0]],
        [[[1.0, 0.5]]],
        [[1.0, np.nan]],
        [[np.inf, 1.0]],
        [["one", "two"]],
    ],
)
def test_threshold_rule_refuses_prompts_of_another_shape(
    rule: type[ThresholdRule[Any]], features: npt.ArrayLike
) -> None:
    fitted = rule(0.5).fit(FEATURES, SCORES)
    with pytest.raises(InputError):
        fitted.thresholds(features)


@every_rule
def test_threshold_rule_threshold_takes_one_row(rule: type[ThresholdRule[Any]]) -> None:
    fitted = rule(0.5).fit(FEATURES, SCORES)
    assert fitted.threshold(FEATURES[1]) == fitted.thresholds(FEATURES[1:2])[0]
    for several in (FEATURES, FEATURES[:1], 1.0):
        with pytest.raises(InputError):
            fitted.threshold(several)


@every_rule
def test_threshold_rule_of_no_prompts_returns_no_thresholds(rule: type[ThresholdRule[Any]]) -> None:
    assert rule(0.5).fit(FEATURES, SCORES).thresholds(np.empty((0, 2))).shape == (0,)


@every_rule
def test_unfitted_threshold_rule_says_that_fit_is_needed(rule: type[ThresholdRule[Any]]) -> None:
    unfitted = rule(0.5)
    for ask in (
        lambda: unfitted.threshold([1.0, 0.5]),
        lambda: unfitted.thresholds(FEATURES),
        lambda: unfitted.solve(FEATURES),
        lambda: unfitted.dimension,
        unfitted.get_state_data,
    ):
        with pytest.raises(NotFittedError, match=r"\.fit\("):
            ask()


@every_rule
def test_threshold_rule_fit_returns_a_copy(rule: type[ThresholdRule[Any]]) -> None:
    unfitted = rule(0.5, cap=1.5)
    first = unfitted.fit(FEATURES, SCORES)
    second = first.fit(np.ones((4, 1)), SCORES + 0.5)
    assert type(first) is rule
    assert (first.alpha, first.cap) == (unfitted.alpha, unfitted.cap)
    assert (first.dimension, second.dimension) == (2, 1)
    assert first.threshold(FEATURES[0]) < 0.5 < second.threshold([1.0])
    with pytest.raises(NotFittedError):
        unfitted.threshold(FEATURES[0])


@every_rule
def test_fitted_threshold_rule_copies_its_arrays(rule: type[ThresholdRule[Any]]) -> None:
    features, scores = FEATURES.copy(), SCORES.copy()
    fitted = rule(0.5).fit(features, scores)
    features[:], scores[:] = 7.0, 0.0
    np.testing.assert_array_equal(
        fitted.thresholds(FEATURES), rule(0.5).fit(FEATURES, SCORES).thresholds(FEATURES)
    )


@every_rule
def test_threshold_rules_compare_by_their_settings(rule: type[ThresholdRule[Any]]) -> None:
    assert rule(0.1) == rule("0.10")
    assert rule(0.1) != rule(0.2)
    fitted = rule(0.1).fit(FEATURES, SCORES)
    again = fitted.fit(FEATURES, SCORES)
    assert fitted != again  # states made of arrays compare by identity
    assert fitted != rule(0.1)
    assert len({fitted, fitted, rule(0.1)}) == 2


@mostly_long("kind", KINDS, quick=6)
def test_conditional_threshold_restored_from_its_state_is_bit_identical(kind: str) -> None:
    rule = ConditionalThreshold
    for case in cases(kind, 4):
        fitted = rule(case.alpha, cap=case.cap).fit(case.features, case.scores)
        data = {
            name: np.array(array.tolist()).reshape(array.shape)
            for name, array in fitted.get_state_data().items()
        }
        assert all(array.dtype == np.float64 for array in fitted.get_state_data().values())
        restored = rule(case.alpha, cap=case.cap).restore(data)
        before, after = fitted.solve(case.queries), restored.solve(case.queries)
        assert after.values.tobytes() == before.values.tobytes()
        assert after.errors.tobytes() == before.errors.tobytes()
        assert restored.dimension == fitted.dimension


def change_arrays(data: Mapping[str, FloatArray], **changes: FloatArray | None) -> dict[str, FloatArray]:
    merged = {**data, **changes}
    return {name: array for name, array in merged.items() if array is not None}


@every_rule
def test_threshold_rule_restore_refuses_missing_unknown_or_invalid_arrays(
    rule: type[ThresholdRule[Any]],
) -> None:
    unfitted = rule(0.5)
    data = unfitted.fit(FEATURES, SCORES).get_state_data()
    unfitted.restore(data)
    with pytest.raises(InputError):
        unfitted.restore({})
    with pytest.raises(InputError):
        unfitted.restore(change_arrays(data, surprise=np.ones(1)))
    for name, array in data.items():
        for wrong in (None, array[None], np.full_like(array, np.nan), np.full_like(array, np.inf)):
            if wrong is None or wrong.size:
                with pytest.raises(InputError):
                    unfitted.restore(change_arrays(data, **{name: wrong}))


INVALID_STATES: dict[type[ThresholdRule[Any]], list[dict[str, FloatArray]]] = {
    ConditionalThreshold: [
        {"success_scores": np.array([0.1, 0.2, 0.3])},
        {"success_scores": np.array([0.1, 0.2, 0.3, 2.5])},
        {"features": np.empty((4, 0))},
        {"features": np.empty((0, 2)), "success_scores": np.empty(0)},
        {"weights": np.ones(3)},
        {"rest": np.zeros((2, 2))},
        {"rest_scores": np.zeros(3)},
        {"root": np.zeros((2, 3))},
        {"radius": np.ones(2)},
        {"kept": np.array([0.0, 0.0])},
        {"kept": np.array([1.0, 0.0])},
        {"kept": np.array([0.0, 2.0])},
        {"kept": np.array([0.0, 0.5])},
        {"kept": np.array([0.0])},
        {"scale": np.array([1.0, 0.0])},
        {"scale": np.ones(3)},
        {"mixture": np.ones((2, 1))},
    ],
    GroupedThreshold: [{"quantiles": np.empty(0)}, {"quantiles": np.array([0.5, 2.5])}],
}


@pytest.mark.parametrize(
    ("rule", "wrong"), [(rule, wrong) for rule, states in INVALID_STATES.items() for wrong in states]
)
def test_threshold_rule_restore_refuses_an_invalid_state(
    rule: type[ThresholdRule[Any]], wrong: dict[str, FloatArray]
) -> None:
    unfitted = rule(0.5)
    with pytest.raises(InputError):
        unfitted.restore(change_arrays(unfitted.fit(FEATURES, SCORES).get_state_data(), **wrong))


def test_apply_cap_makes_thresholds_within_error_of_the_cap_infinite() -> None:
    values = np.array([0.5, 1.5 - 1e-3, 1.5 - 1e-9, 1.5, 1.7, -4.0, np.inf, np.nan])
    errors = np.full(8, 1e-6)
    found = Thresholds.apply_cap(values, errors, 1.5)
    assert found.values.tolist() == [0.5, 1.5 - 1e-3, math.inf, math.inf, math.inf, -4.0, math.inf, math.inf]
    assert found.errors.tolist() == [1e-6, 1e-6, 0.0, 0.0, 0.0, 1e-6, 0.0, 0.0]


def test_threshold_rule_errors_are_package_and_value_errors() -> None:
    with pytest.raises(CFCError):
        ConditionalThreshold(2)
    with pytest.raises(ValueError, match="alpha"):
        ConditionalThreshold(2)

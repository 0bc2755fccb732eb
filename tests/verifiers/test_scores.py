"""`check_scores` on its own; the chains of tests/runnable show what its errors do to a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cfc.errors import ServingError, VerifierError
from langchain_cfc.verifiers.base import check_scores


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_check_scores_returns_valid_scores_unchanged(scores: list[float]) -> None:
    assert check_scores(scores, len(scores)) == scores
    assert check_scores(np.array(scores), len(scores)) == scores
    assert check_scores(iter(scores), len(scores)) == scores


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.floats(max_value=0.0, exclude_max=True) | st.floats(min_value=1.0, exclude_min=True) | st.just(np.nan),
    st.data(),
)
def test_check_scores_names_the_candidate_of_an_invalid_score(
    scores: list[float], bad: float, data: st.DataObject
) -> None:
    slot = data.draw(st.integers(0, len(scores) - 1))
    scores[slot] = bad
    with pytest.raises(VerifierError, match=f"score of candidate {slot} is"):
        check_scores(scores, len(scores))


@given(st.lists(st.floats(0.0, 1.0), max_size=8), st.integers(1, 8))
def test_check_scores_refuses_another_number_of_scores(scores: list[float], n: int) -> None:
    if len(scores) == n:
        assert len(check_scores(scores, n)) == n
    else:
        with pytest.raises(VerifierError, match=f"returned {len(scores)} scores for {n} candidates"):
            check_scores(scores, n)


class Tensor:
    """A scalar of another library: it converts to float, and `item()` gives Python's own."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        return self._value

    def __float__(self) -> float:
        return float(self._value)


def test_check_scores_accepts_scalars_of_other_libraries() -> None:
    assert check_scores([Tensor(0.25), np.float32(0.5)], 2) == [0.25, 0.5]


@pytest.mark.parametrize("value", [Tensor(True), np.True_, np.bool_(False)])
def test_check_scores_refuses_booleans_of_other_libraries(value: Any) -> None:
    with pytest.raises(VerifierError, match="score of candidate 0"):
        check_scores([value], 1)


def test_check_scores_error_describes_the_expected_return_value() -> None:
    with pytest.raises(ServingError, match=r"one score in \[0, 1\] per candidate.*pointwise"):
        check_scores(0.3, 1)

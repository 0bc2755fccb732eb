"""`check_scores` on its own; the chains of tests/runnable show what its errors do to a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, ServingError, VerifierError
from langchain_cfc.execution import Step, run_flow
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import SelfConsistency
from langchain_cfc.verifiers.base import (
    BaseVerifier,
    CandidateScorer,
    VerifierEnsemble,
    VerifierInput,
    VerifierScores,
    check_scores,
)


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
    with pytest.raises(ServingError, match=r"one score in \[0, 1\] per candidate.*from_evaluator"):
        check_scores(0.3, 1)


def test_check_scores_keeps_none_for_a_candidate_without_a_verdict() -> None:
    assert check_scores([0.5, None, 1], 3) == [0.5, None, 1.0]


def score_three(scorer: CandidateScorer) -> VerifierScores:
    candidates = [DrawnCandidate(text) for text in ("a", "b", "c")]
    return run_flow(scorer.score(VerifierInput(prompt="?", candidates=candidates), {}))


def returning(*scores: float | None) -> Any:
    """Make a verifier that always returns the same."""
    return lambda *_: list(scores)


def test_a_candidate_without_a_verdict_scores_worst() -> None:
    scored = score_three(CandidateScorer(returning(0.25, None, 0.75)))
    assert scored.scores == [0.25, 1.0, 0.75]
    assert scored.verdicts[1] is None


class Counted(BaseVerifier):
    """Scores by counting, after a call if it makes any, and counts how often it is asked."""

    def __init__(self, *, calls: bool = False, scores: Any = (0.0, 0.5, 1.0)) -> None:
        self.calls, self.scores, self.asked = calls, scores, 0

    def flow(self, given: VerifierInput, config: Any) -> Any:
        del given, config
        self.asked += 1
        if self.calls:
            yield Step(lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
        return list(self.scores)


def test_score_without_calls_stops_at_the_first_call() -> None:
    given = VerifierInput(prompt="?", candidates=[DrawnCandidate(text) for text in ("a", "b", "c")])
    found = CandidateScorer(Counted()).score_without_calls(given)
    assert found is not None
    assert found.scores == [0.0, 0.5, 1.0]
    assert CandidateScorer(Counted(scores="abc")).score_without_calls(given) is None
    calling = Counted(calls=True)
    scorer = CandidateScorer(calling)
    assert [scorer.score_without_calls(given) for _ in range(2)] == [None, None]
    assert calling.asked == 1


@pytest.mark.parametrize(
    "weights",
    [
        {"one": 1},
        {"one": 1, "two": -1},
        {"one": 0, "two": 0},
        {"a": 1, "b": 1},
        {"one": 1, "two": "1"},
        {"one": 1, "two": None},
        {"one": 1, "two": 10**400},
    ],
)
def test_ensemble_refuses_weights_that_give_no_mean(weights: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="weights"):
        VerifierEnsemble({"one": returning(0), "two": returning(0)}, weights)


def test_ensemble_averages_by_weight_and_only_records_weight_zero() -> None:
    three = {"one": returning(0, 1, None), "two": returning(1, 1, 1), "raw": returning(0.7, 0.9, 0.3)}
    scored = score_three(CandidateScorer(VerifierEnsemble(three, {"one": 1, "two": 3, "raw": 0})))
    assert scored.verdicts == [0.75, 1.0, None]
    assert scored.outputs == [{"one": 0, "two": 1, "raw": 0.7}, {"one": 1, "two": 1, "raw": 0.9}, None]
    beyond = VerifierEnsemble({"one": returning(0, 1, 1), "beyond": returning(1.5, 0, 0)})
    with pytest.raises(VerifierError, match="'beyond': the score of candidate 0"):
        score_three(CandidateScorer(beyond))


def test_fingerprints_of_ensembles_differ_only_with_the_ratios_of_weights() -> None:
    def make(*weights: float) -> Any:
        return VerifierEnsemble(
            {"one": named, "two": named}, dict(zip(("one", "two"), weights, strict=True))
        ).fingerprint

    named = SelfConsistency()
    assert make(1, 1) == make(3, 3) == VerifierEnsemble({"one": named, "two": named}).fingerprint
    assert make(1, 2) == make(2, 4)
    assert make(1, 2)["id"] != make(1, 1)["id"] != make(1, 2.0000001)["id"] != make(1, 2)["id"]

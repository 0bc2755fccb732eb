"""The set rule `claims(k)`: which claims a threshold drops, and the success score that goes with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.set_rules import Claims, parse_set_rule
from langchain_cfc.thresholds import Thresholds

# Scores and labels of answers with one to six claims, with ties.
ANSWERS = st.lists(
    st.lists(st.tuples(st.integers(0, 8).map(lambda one: one / 8), st.booleans()), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


def make_batch(answers: list[list[tuple[float, bool]]]) -> LabelledBatch:
    return LabelledBatch.from_arrays(
        [str(row) for row in range(len(answers))],
        [[score for score, _ in answer] for answer in answers],
        [[supported for _, supported in answer] for answer in answers],
    )


def keep_claims(labelled: LabelledBatch, rule: Claims, threshold: float) -> list[list[bool]]:
    size = len(labelled)
    thresholds = Thresholds(np.full(size, threshold), np.zeros(size), np.zeros(size, dtype=np.bool_))
    sets = AnswerSets.from_levels(labelled.draws, rule.compute_levels(labelled.draws), thresholds, rule)
    counts = labelled.draws.counts.tolist()
    assert not sets.accepted[~labelled.draws.is_drawn].any()
    return [row[:count] for row, count in zip(sets.accepted.tolist(), counts, strict=True)]


def test_claims_success_scores_equal_a_calculation_by_hand() -> None:
    # Confidences .9 (wrong), .75 (right), .5 (wrong) and .25 (wrong): with k = 0 all claims up to .9 go.
    labelled = make_batch([[(0.1, False), (0.25, True), (0.5, False), (0.75, False)], [(0.25, True)]])
    found = [Claims(k).compute_success_scores(labelled, 2.0).tolist() for k in (0, 1, 2, 3, 9)]
    assert found == [[0.9, 0.0], [0.5, 0.0], [0.25, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert keep_claims(labelled, Claims(1), 0.5) == [[True, True, False, False], [True]]


@given(answers=ANSWERS, k=st.integers(0, 3), threshold=st.integers(0, 9).map(lambda one: one / 8))
def test_claims_success_score_is_the_smallest_sufficient_threshold(
    answers: list[list[tuple[float, bool]]], k: int, threshold: float
) -> None:
    labelled, rule = make_batch(answers), Claims(k)
    scores = rule.compute_success_scores(labelled, 2.0)
    kept = keep_claims(labelled, rule, threshold)
    left = [
        sum(flag and not supported for flag, (_, supported) in zip(row, answer, strict=True))
        for row, answer in zip(kept, answers, strict=True)
    ]
    assert [count <= k for count in left] == (scores <= threshold).tolist()
    accepted = np.zeros(labelled.correct.shape, dtype=np.bool_)
    accepted[labelled.draws.is_drawn] = [flag for row in kept for flag in row]
    assert rule.covers(labelled.correct, accepted).tolist() == [count <= k for count in left]
    # What is kept shrinks as the threshold grows, and nothing is left where it is infinite.
    fewer = keep_claims(labelled, rule, threshold + 0.125)
    assert all(
        a >= b for row, lower in zip(kept, fewer, strict=True) for a, b in zip(row, lower, strict=True)
    )
    assert not any(flag for row in keep_claims(labelled, rule, np.inf) for flag in row)


def test_claims_reach_is_the_confidence_of_the_last_claim_of_the_share() -> None:
    scores = [[0.1 * slot for slot in range(10)], [0.5, 0.25], [0.75]]
    draws = LabelledBatch.from_arrays(["a", "b", "c"], scores, [[True] * len(one) for one in scores]).draws
    # Shares are exact: 0.3 of ten claims are three, although 0.3 * 10 in floating point may be more.
    for share, ranks in {"0.3": (3, 1, 1), "0.5": (5, 1, 1), "0.51": (6, 2, 1), None: (1, 1, 1)}.items():
        found = Claims(0).compute_reach(draws, share)
        expected = [sorted(1.0 - np.array(one))[-rank] for one, rank in zip(scores, ranks, strict=True)]
        assert found.tolist() == expected


def test_claims_threshold_drops_within_its_error_bound() -> None:
    labelled = make_batch([[(0.5, True)]])
    thresholds = Thresholds(np.array([0.4]), np.array([0.1]), np.array([False]))
    rule = Claims(0)
    levels = rule.compute_levels(labelled.draws)
    sets = AnswerSets.from_levels(labelled.draws, levels, thresholds, rule)
    assert not sets.accepted.any()


def test_set_rules_refuse_records_of_the_other_unit() -> None:
    claims = make_batch([[(0.5, True)]])
    answers = LabelledBatch.from_arrays(["a"], [[0.5]], [[True]], [["x"]])
    with pytest.raises(InputError, match="unit='claims'"):
        parse_set_rule("all").compute_success_scores(claims, 2.0)
    with pytest.raises(InputError, match="unit='answers'"):
        parse_set_rule("claims(0)").compute_success_scores(answers, 2.0)


@pytest.mark.parametrize("text", ["claims", "claims()", "claims(-1)", "claims(01)", "unique(claims(0))"])
def test_parse_set_rule_refuses_invalid_claims_rules(text: str) -> None:
    with pytest.raises(InputError, match="unknown set rule"):
        parse_set_rule(text)


def test_parse_set_rule_reads_claims_rules() -> None:
    rule = parse_set_rule("claims( 3 )")
    assert isinstance(rule, Claims)
    assert (rule.text, rule.at_most) == ("claims(3)", 3)


def test_claims_batches_of_unequal_width_are_padded_alike() -> None:
    rows = [[(0.5, True)], [(0.25, False), (0.5, True), (0.75, False)]]
    parts = [
        LabelledBatch.from_arrays([str(row)], [[s for s, _ in one]], [[c for _, c in one]])
        for row, one in enumerate(rows)
    ]
    whole, joined = make_batch(rows), LabelledBatch.concatenate(parts)
    assert joined.unit == "claims"
    for name in ("scores", "counts"):
        assert getattr(joined.draws, name).tolist() == getattr(whole.draws, name).tolist()
    assert joined.correct.tolist() == whole.correct.tolist()


def test_of_claims_refuses_an_answer_without_claims() -> None:
    with pytest.raises(InputError, match="at least one claim"):
        LabelledBatch.from_arrays(["a", "b"], [[0.5], []], [[True], []])

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.draw_rules import parse_draw_rule, replay
from langchain_cfc.errors import InputError, SamplingWarning
from langchain_cfc.records import Candidate, PromptRecord, tabulate

SCORES = [[0.0, 0.5, 1.0], [0.1, 0.2, 0.3]]
ANSWERS = [["a", "bb", "a"], ["", "", "c"]]


def test_candidate_batch_holds_scores_answers_and_lengths_as_arrays() -> None:
    draws = CandidateBatch.from_arrays(SCORES, ANSWERS, [{"topic": "x"}, {}])
    assert (len(draws), draws.n) == (2, 3)
    np.testing.assert_array_equal(draws.scores, SCORES)
    assert draws.scores.dtype == np.float64
    # The slot of the first candidate with the same answer; an empty answer is one like any other.
    np.testing.assert_array_equal(draws.answer_codes, [[0, 1, 0], [0, 0, 2]])
    np.testing.assert_array_equal(draws.lengths, [[1, 2, 1], [0, 0, 1]])
    assert draws.metadata == ({"topic": "x"}, {})


@pytest.mark.parametrize(
    ("same", "others"),
    [
        (["Lima", "lima.", " \u201cLIMA\u201d", "Li\u200bma"], ["Lime"]),
        (["C++", "c++"], ["C", "C#"]),
        (["1/2", "\u00bd"], ["12", "1 2"]),
        (["caf\u00e9", "cafe\u0301", "Caf\u00e9!"], ["cafe"]),
        (['{"unit":"C"}', ' {"unit":"C"}\n'], ['{"unit":"c"}']),
        (["."], ["?", "", "-"]),
    ],
)
def test_answer_codes_merge_spellings_and_keep_meanings(same: list[str], others: list[str]) -> None:
    texts = [*same, *others]
    codes = CandidateBatch.from_arrays([[0.5] * len(texts)], [texts]).answer_codes
    assert codes is not None
    assert codes[0].tolist() == [*[0] * len(same), *range(len(same), len(texts))]


def test_candidate_batch_without_answers_has_no_codes_and_lengths() -> None:
    draws = CandidateBatch.from_arrays(SCORES)
    assert draws.answer_codes is None
    assert draws.lengths is None
    assert draws.metadata == ({}, {})


def test_candidate_batch_may_be_empty() -> None:
    draws = CandidateBatch.from_arrays(np.empty((0, 3)), [], [])
    assert (len(draws), draws.n) == (0, 3)
    assert draws.answer_codes is not None
    assert draws.answer_codes.shape == (0, 3)


def test_candidate_batch_copies_the_scores() -> None:
    scores = np.array(SCORES)
    draws = CandidateBatch.from_arrays(scores)
    scores[0, 0] = 0.9
    assert draws.scores[0, 0] == 0.0


@pytest.mark.parametrize(
    "score", [-0.1, 1.1, float("nan"), float("inf"), -float("inf"), np.nextafter(1.0, 2.0)]
)
def test_candidate_batch_names_the_place_of_an_invalid_score(score: float) -> None:
    with pytest.raises(InputError, match=r"score of candidate 2 of prompt 1 is .*; expected one in \[0, 1\]"):
        CandidateBatch.from_arrays([[0.1, 0.2, 0.3], [0.1, 0.2, score]])


@pytest.mark.parametrize("scores", [[], [[]], [[], []], 0.5, [0.5], [[[0.5]]]])
def test_candidate_batch_refuses_scores_of_another_shape(scores: Any) -> None:
    with pytest.raises(InputError, match=r"must be an \(N, n\) array"):
        CandidateBatch.from_arrays(scores)


@pytest.mark.parametrize("answers", [[], [["a", "b", "c"]], [["a", "b", "c"], ["a"]], [["a"] * 4] * 2])
def test_candidate_batch_refuses_answers_of_another_shape(answers: list[list[str]]) -> None:
    with pytest.raises(InputError, match="2 lists of 3 texts"):
        CandidateBatch.from_arrays(SCORES, answers)


def test_candidate_batch_refuses_metadata_of_another_length() -> None:
    with pytest.raises(InputError, match="2 mappings, got 1"):
        CandidateBatch.from_arrays(SCORES, metadata=[{}])


@settings(derandomize=True)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=4, max_size=4), min_size=1, max_size=5))
def test_answer_codes_are_equal_exactly_for_equal_answers(answers: list[list[str]]) -> None:
    codes = CandidateBatch.from_arrays(np.full((len(answers), 4), 0.5), answers).answer_codes
    assert codes is not None
    for row, own in zip(answers, codes, strict=True):
        assert all((row[i] == row[j]) == (own[i] == own[j]) for i in range(4) for j in range(4))
        assert all(own[slot] == row.index(row[slot]) for slot in range(4))


def make_labelled() -> LabelledBatch:
    draws = CandidateBatch.from_arrays(SCORES, ANSWERS, [{"topic": "x"}, {"topic": "y"}])
    correct = np.array([[True, False, True], [False, False, True]])
    return LabelledBatch(draws, correct, ("p", "q"), ("c", None))


def test_take_selects_prompts_with_all_their_data() -> None:
    taken = make_labelled().take(np.array([1, 0, 1]))
    assert (taken.ids, taken.clusters) == (("q", "p", "q"), (None, "c", None))
    np.testing.assert_array_equal(taken.correct, make_labelled().correct[[1, 0, 1]])
    np.testing.assert_array_equal(taken.draws.scores, np.array(SCORES)[[1, 0, 1]])
    assert taken.draws.answer_codes is not None
    assert taken.draws.lengths is not None
    np.testing.assert_array_equal(taken.draws.answer_codes, [[0, 0, 2], [0, 1, 0], [0, 0, 2]])
    np.testing.assert_array_equal(taken.draws.lengths, [[0, 0, 1], [1, 2, 1], [0, 0, 1]])
    assert taken.draws.metadata == ({"topic": "y"}, {"topic": "x"}, {"topic": "y"})
    assert len(make_labelled().take(np.array([], dtype=np.int64))) == 0
    assert CandidateBatch.from_arrays(SCORES).take(np.array([0])).answer_codes is None


def test_tabulate_warns_of_sorted_candidates_if_only_the_first_are_used() -> None:
    # Each of 1,000 data sets of exchangeable candidates raises a false warning with probability 2e-9.
    rng = np.random.default_rng(0)
    correct = rng.random((40, 6)) < rng.random((40, 1))
    order = np.argsort(~correct, axis=1, kind="stable")

    def label(correct: Any) -> LabelledBatch:
        ids, answers = [str(row) for row in range(len(correct))], [["a"] * correct.shape[1]] * len(correct)
        return LabelledBatch.from_arrays(ids, np.full(correct.shape, 0.5), correct, answers)

    def records_of(table: LabelledBatch) -> list[PromptRecord]:
        return [
            PromptRecord(
                id=name,
                input=name,
                candidates=tuple(Candidate(text="a", score=0.5, correct=bool(one)) for one in row),
            )
            for name, row in zip(table.ids, table.correct, strict=True)
        ]

    rule = parse_draw_rule("below(0.4, at_most=4)")
    for where, one in (
        ("first", np.take_along_axis(correct, order, axis=1)),
        ("last", np.take_along_axis(correct, order[:, ::-1], axis=1)),
    ):
        table = label(one)
        warned = f"correct candidates mostly come {where}"
        with pytest.warns(SamplingWarning, match=warned):
            tabulate(table, n=2)
        with pytest.warns(SamplingWarning, match=warned):
            tabulate(records_of(table), n=2)
        with pytest.warns(SamplingWarning, match=warned):
            replay(rule, table)
        tabulate(table)  # all candidates are used, so their order does not matter
    for _ in range(1000):
        tabulate(label(rng.permuted(correct, axis=1)), n=2)
    tabulate(label(np.ones((40, 6), dtype=np.bool_)), n=2)  # all are correct: the order cannot be seen


@pytest.mark.parametrize("part", ["correct", "ids", "clusters"])
def test_labelled_batch_refuses_labels_of_another_length(part: str) -> None:
    whole = make_labelled()
    parts: dict[str, Any] = {"correct": whole.correct, "ids": whole.ids, "clusters": whole.clusters}
    parts[part] = parts[part][:1]
    with pytest.raises(InputError, match="as many entries as the candidates"):
        LabelledBatch(whole.draws, **parts)

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from langchain_cfc.records import Candidate, PromptRecord, Provenance


def make_candidate(**changes: Any) -> Candidate:
    return Candidate.model_validate({"text": "Paris", "score": 0.25, "correct": True} | changes)


def make_record(**changes: Any) -> PromptRecord:
    return PromptRecord.model_validate(
        {"id": "q1", "input": "Capital?", "candidates": [make_candidate()]} | changes
    )


def test_prompt_record_is_made_of_plain_arguments() -> None:
    made = PromptRecord(id="q1", input="Capital?", candidates=(Candidate(text="", score=0, correct=False),))
    assert made.candidates[0].score == 0.0
    assert isinstance(made.candidates[0].score, float)
    assert (made.metadata, made.reference, made.cluster) == ({}, None, None)


def test_prompt_record_keeps_candidates_as_a_tuple_in_order() -> None:
    listed = [make_candidate(text=text) for text in "cab"]
    assert make_record(candidates=listed).candidates == tuple(listed)


def test_prompt_record_refuses_candidates_without_an_order() -> None:
    with pytest.raises(ValidationError, match="candidates"):
        make_record(candidates={1: make_candidate()}.values())


@pytest.mark.parametrize("score", [0, 1, 0.0, 1.0, 1e-300])
def test_candidate_accepts_scores_of_the_unit_interval(score: float) -> None:
    assert make_candidate(score=score).score == score


@pytest.mark.parametrize("score", [-0.001, 1.001, True, "0.5", None, float("nan"), float("inf"), 10**400])
def test_candidate_refuses_other_scores(score: object) -> None:
    with pytest.raises(ValidationError, match="score"):
        make_candidate(score=score)


@pytest.mark.parametrize("correct", [1, 0, "true", None])
def test_candidate_refuses_labels_that_are_not_booleans(correct: object) -> None:
    with pytest.raises(ValidationError, match="correct"):
        make_candidate(correct=correct)


@pytest.mark.parametrize(
    "changes", [{"text": "x"}, {"score": 0.5}, {"correct": True}, {"no_answer": "other"}, {"answer": "x"}]
)
def test_candidate_that_is_no_answer_has_no_text_and_the_worst_score(changes: dict[str, Any]) -> None:
    fields = {"no_answer": "cut_off", "text": "", "score": 1.0, "correct": False}
    assert make_candidate(**fields).answer_key == ""
    with pytest.raises(ValidationError):
        make_candidate(**{**fields, **changes})


def test_candidate_without_a_verdict_has_the_worst_score() -> None:
    assert make_candidate(no_verdict=True, score=1.0).no_verdict
    assert make_candidate(no_label=True, correct=False).no_label
    with pytest.raises(ValueError, match="no_label; expected false"):
        make_candidate(no_label=True, correct=True)
    for changes in ({"score": 0.5}, {"no_verdict": False, "score": 1.0}):
        with pytest.raises(ValidationError):
            make_candidate(**{"no_verdict": True, **changes})


@pytest.mark.parametrize("content", [{"text": None}, {"message": {}}])
def test_candidate_has_exactly_one_of_text_and_message(content: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="expected exactly one"):
        make_candidate(**content)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ""},
        {"id": 5},
        {"cluster": ""},
        {"input": 5},
        {"input": None},
        {"input": ["a", {"b": float("nan")}]},
        {"reference": {"a": float("inf")}},
        {"reference": {1: "a"}},
        {"reference": (1, 2)},
        {"reference": {1, 2}},
        {"reference": "\ud800"},
        {"reference": {"\ud800": 1}},
        {"metadata": {"a": None}},
        {"metadata": {"a": [1]}},
        {"metadata": {"a": float("nan")}},
        {"metadata": {1: "a"}},
        {"metadata": None},
        {"candidates": ()},
        {"candidates": "abc"},
        {"unknown": 1},
    ],
)
def test_prompt_record_refuses_invalid_fields(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(changes))):
        make_record(**changes)


def test_prompt_record_refuses_endless_nesting() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValidationError, match="more than 100 nested levels"):
        make_record(reference=endless)


@pytest.mark.parametrize("prompt", ["", "text", [], [{"role": "user", "content": None}], {"question": "?"}])
def test_prompt_record_accepts_texts_messages_and_objects_as_input(prompt: object) -> None:
    assert make_record(input=prompt).input == prompt


def test_prompt_record_keeps_the_types_of_metadata() -> None:
    kept = make_record(metadata={"flag": True, "count": 1, "share": 1.0, "topic": "geo"}).metadata
    assert [type(value) for value in kept.values()] == [bool, int, float, str]


def test_prompt_record_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_record().id = "q2"


def test_answer_key_is_the_answer_else_the_text_else_the_message() -> None:
    assert make_candidate(answer="42").answer_key == "42"
    assert make_candidate(answer="").answer_key == ""
    assert make_candidate(text="").answer_key == ""
    one = make_candidate(text=None, message={"b": [1, "é"], "a": None})
    two = make_candidate(text=None, message={"a": None, "b": [1, "é"]})
    assert one.answer_key == two.answer_key == '{"a":null,"b":[1,"é"]}'


@pytest.mark.parametrize(
    "changes", [{"n": 0}, {"n": True}, {"version": 2}, {"format": "other"}, {"answer": "id"}]
)
def test_provenance_refuses_other_formats_and_versions(changes: dict[str, Any]) -> None:
    assert Provenance(n=10).generator is None
    with pytest.raises(ValidationError, match=next(iter(changes))):
        Provenance.model_validate({"n": 10} | changes)

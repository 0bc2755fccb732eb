"""What all labelers share: sync and async calls, repeated texts, errors and fingerprints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc.errors import CollectionError, FingerprintError, LabelerError, ServingError
from langchain_cfc.execution import arun_flow, run_flow
from langchain_cfc.labelers import (
    BaseLabeler,
    JudgeLabels,
    LabelerInput,
    MultipleChoice,
    NormalisedMatch,
    NumericMatch,
)
from langchain_cfc.labelers.base import CandidateLabeling, check_labels, check_reference
from langchain_cfc.sampling.comparison import compare_fingerprints
from tests.calls import Invoke, copies_of
from tests.factories import labeler_input


def equals_reference(prompt: Any, reference: Any, text: str) -> bool:
    del prompt
    return bool(text == reference)


@pytest.fixture(params=range(4))
def one(request: pytest.FixtureRequest) -> BaseLabeler:
    every: list[BaseLabeler] = [
        NormalisedMatch(),
        NumericMatch(),
        MultipleChoice(["7", "8"]),
        JudgeLabels(equals_reference),
    ]
    which: int = request.param
    return every[which]


def test_labelers_label_candidates_in_order(one: BaseLabeler, invoke: Invoke) -> None:
    assert invoke(one, labeler_input("7", "8", "7", "8", "7")) == [False, True, False, True]


def test_labelers_can_be_copied_and_pickled(one: BaseLabeler, invoke: Invoke) -> None:
    for again in copies_of(one):
        assert invoke(again, labeler_input("7", "7", "8")) == [True, False]
        assert again.fingerprint == one.fingerprint


def test_labelers_name_themselves_in_fingerprint_and_repr(one: BaseLabeler) -> None:
    assert one.get_name() in one.fingerprint.values()
    assert type(one).__name__ in repr(one)
    doubt = compare_fingerprints("labeler", one.fingerprint, dict(one.fingerprint))
    assert (doubt is not None) == isinstance(one, JudgeLabels)


def test_labeler_fingerprints_change_with_what_changes_labels() -> None:
    families: list[list[BaseLabeler]] = [
        [NormalisedMatch(), NormalisedMatch(articles="en"), NormalisedMatch(anywhere=True)],
        [NumericMatch(), NumericMatch(tolerance="0.1")],
        [
            MultipleChoice(),
            MultipleChoice(letters="AB"),
            MultipleChoice(["a", "b"]),
            MultipleChoice(["b", "a"]),
        ],
        [JudgeLabels(equals_reference)],
    ]
    every = [dict(one.fingerprint) for family in families for one in family]
    assert all(every.count(said) == 1 for said in every)


@pytest.mark.parametrize("labeler", [NumericMatch(), MultipleChoice()])
def test_labels_of_another_version_of_the_reading_are_noticed(labeler: BaseLabeler) -> None:
    stated = labeler.fingerprint
    with pytest.raises(FingerprintError, match="reads is"):
        compare_fingerprints("labeler", {**stated, "reads": "statements-1"}, stated)


def test_labelers_refuse_records_without_reference(invoke: Invoke) -> None:
    for labeler in (NormalisedMatch(), NumericMatch(), MultipleChoice()):
        with pytest.raises(LabelerError, match="reference"):
            invoke(labeler, labeler_input(None, "7"))
    for labeler in (NormalisedMatch(), NumericMatch()):
        for empty in ([], ["7", None]):
            with pytest.raises(LabelerError, match="reference"):
                invoke(labeler, labeler_input(empty, "7"))


def test_labeler_error_is_a_collection_error() -> None:
    assert issubclass(LabelerError, CollectionError)
    assert not issubclass(LabelerError, ServingError)


# Labelers of any kind as calls


def label_by_equality(prompt: Any, reference: Any, candidates: list[Any]) -> list[bool]:
    return [equals_reference(prompt, reference, one.text) for one in candidates]


async def alabel_by_equality(prompt: Any, reference: Any, candidates: list[Any]) -> list[bool]:
    return label_by_equality(prompt, reference, candidates)


def label_mapping(asked: LabelerInput) -> list[bool]:
    return label_by_equality(asked["prompt"], asked["reference"], asked["candidates"])


@pytest.mark.parametrize(
    "labeler", [label_by_equality, alabel_by_equality, RunnableLambda(label_mapping), NormalisedMatch()]
)
def test_candidate_labeling_accepts_functions_and_runnables(labeler: Any) -> None:
    labeling, asked = CandidateLabeling(labeler), labeler_input("Lima", "Lima", "Quito")
    assert asyncio.run(arun_flow(labeling.label_candidates(asked, None, {}))) == [True, False]
    if labeler is alabel_by_equality:
        with pytest.raises(LabelerError, match="labeler is async"):
            run_flow(labeling.label_candidates(asked, None, {}))
    else:
        assert run_flow(labeling.label_candidates(asked, None, {})) == [True, False]


class TextLabels(NormalisedMatch):
    reads_text = True


@pytest.mark.parametrize(("kind", "is_right"), [(NormalisedMatch, True), (TextLabels, False)])
def test_equal_answers_share_a_label_of_the_answer_or_the_first_text(kind: Any, is_right: bool) -> None:
    asked = labeler_input("Lima", "It is Lima", "Lima", "?")
    labeling = CandidateLabeling(kind())
    found = run_flow(labeling.label_candidates(asked, ["Lima", "Lima", " "], {}))
    assert found == [is_right, is_right, False]
    blank = labeler_input("Lima", "", " ")
    assert run_flow(labeling.label_candidates(blank, None, {})) == [False, False]


def test_check_reference_asks_labelers_of_this_package_about_no_candidate() -> None:
    check_reference(NumericMatch(), labeler_input("7", "8"))
    with pytest.raises(LabelerError, match="is not one number"):
        check_reference(NumericMatch(), labeler_input("many", "8"))
    check_reference(label_by_equality, labeler_input("many", "8"))


def test_candidate_labeling_refuses_other_types_and_wraps_errors() -> None:
    nothing: Any = "Lima"
    with pytest.raises(LabelerError, match="got a str as labeler"):
        CandidateLabeling(nothing)

    def failing(prompt: Any, reference: Any, candidates: list[Any]) -> list[bool]:
        raise ZeroDivisionError(prompt, reference, candidates)

    with pytest.raises(LabelerError, match="the labeler failed with ZeroDivisionError"):
        run_flow(CandidateLabeling(failing).label_candidates(labeler_input("Lima", "Lima"), None, {}))


def yield_labels() -> Iterator[bool]:
    yield True
    yield False


@pytest.mark.parametrize("labels", [[True, False], (True, False), np.array([True, False]), yield_labels()])
def test_check_labels_accepts_one_boolean_per_candidate(labels: Any) -> None:
    assert check_labels(labels, 2) == [True, False]
    assert check_labels([None, True], 2) == [None, True]
    assert all(type(one) is bool for one in check_labels([np.True_, False], 2))


def yield_then_fail() -> Iterator[bool]:
    yield True
    raise KeyError


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([True], "returned 1 labels for 2 candidates"),
        ([True, 1], "label of candidate 1 is 1"),
        ([True, 0.5], "label of candidate 1 is 0.5"),
        (["true", "false"], "label of candidate 0 is 'true'"),
        (np.array([1, 0]), "label of candidate 0 is 1"),
        ("yn", "returned str instead of 2 labels"),
        ({True, False}, "returned set instead"),
        ({"a": True, "b": False}, "returned dict instead"),
        (None, "returned NoneType instead of 2 labels .TypeError"),
        (yield_then_fail(), "returned generator instead of 2 labels .KeyError"),
    ],
)
def test_check_labels_refuses_anything_else(labels: Any, message: str) -> None:
    with pytest.raises(LabelerError, match=message):
        check_labels(labels, 2)

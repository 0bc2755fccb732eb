"""`SelfConsistency`: one minus the share of candidates that agree."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableLambda

from langchain_cfc.demo.replay import RecordedAnswers
from langchain_cfc.errors import DescriptionError, VerifierError
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import normalise_answer
from langchain_cfc.verifiers.self_consistency import SelfConsistency
from tests.calls import Invoke, copies_of, invoke_async, invoke_sync
from tests.factories import verifier_input
from tests.verifiers import recording

capital_input = partial(verifier_input, "where?")


def last_word(text: str) -> str:
    return text.rpartition(" ")[2]


async def alast_word(text: str) -> str:
    await asyncio.sleep(0)
    return last_word(text)


def same_initial(prompt: Any, first: str, second: str) -> bool:
    assert prompt == "where?"
    return first[0] == second[0]


def test_self_consistency_equals_values_computed_by_hand(invoke: Invoke) -> None:
    # Three of five say Lima, whatever its spelling.
    texts = capital_input("Lima", "Quito", "lima.", '"LIMA"', "Bogota")
    assert invoke(SelfConsistency(), texts) == [0.4, 0.8, 0.4, 0.4, 0.8]
    assert invoke(SelfConsistency(), capital_input("a", "a")) == [0.0, 0.0]
    assert invoke(SelfConsistency(), capital_input("a")) == [0.0]


@pytest.mark.parametrize("answer", [last_word, RunnableLambda(last_word)])
def test_self_consistency_uses_the_answer_extractor(invoke: Invoke, answer: Any) -> None:
    texts = capital_input("it is Lima", "Lima", "it is Quito", "it is Lima")
    assert invoke(SelfConsistency(answer), texts) == [0.25, 0.25, 0.75, 0.25]


@pytest.mark.parametrize("answer", [alast_word, RunnableLambda(alast_word)])
def test_self_consistency_async_extractor_works_only_under_ainvoke(answer: Any) -> None:
    verifier = SelfConsistency(answer)
    assert invoke_async(verifier, capital_input("it is Lima", "Lima")) == [0.0, 0.0]
    with pytest.raises(DescriptionError, match=r"answer extractor.*(ainvoke|async)"):
        invoke_sync(verifier, capital_input("it is Lima", "Lima"))


def test_self_consistency_extracts_equal_texts_once(invoke: Invoke) -> None:
    read: list[str] = []

    def reading(text: str) -> str:
        read.append(text)
        return text

    invoke(SelfConsistency(reading), capital_input("b", "a", "b", "b"))
    assert read == ["b", "a"]


@given(st.lists(st.sampled_from(["a", "b", "c", "A."]), min_size=1, max_size=12))
def test_self_consistency_scores_are_one_minus_shares(texts: list[str]) -> None:
    n = len(texts)
    scores = invoke_sync(SelfConsistency(), capital_input(*texts))
    assert all(0.0 <= score <= 1.0 - 1.0 / n + 1e-15 for score in scores)
    # A group of size s holds s candidates with share s / n, so the inverse shares add up to groups * n.
    groups = len({normalise_answer(text) for text in texts})
    assert sum(1.0 / (1.0 - score) for score in scores) == pytest.approx(groups * n)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Lima", "lima"),
        (" New  York\n", "new york"),
        ("“Lima”.", "lima"),
        ("**Lima**", "`Lima`"),
        ("Straße", "STRASSE"),
        ("４２", "42"),
        ("Cafe\u0301", "Café"),
        ("¡Lima!", "lima"),
        ("...", ""),
    ],
)
def test_normalise_answer_unifies_spellings(one: str, other: str) -> None:
    assert normalise_answer(one) == normalise_answer(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-5", "5"),
        ("50%", "50"),
        ("$5", "5"),
        ("[0, 1)", "(0, 1]"),
        (".5", "5"),
        ("C#", "C"),
        ("a b", "ab"),
        ("¿Lima?", "Lima"),
    ],
)
def test_normalise_answer_keeps_different_answers_apart(one: str, other: str) -> None:
    assert normalise_answer(one) != normalise_answer(other)


@pytest.mark.parametrize(
    ("settings_", "error", "message"),
    [
        ({"answer": lambda _: None}, DescriptionError, "extractor returned a NoneType .* expected text"),
        ({"answer": lambda text: text[99]}, DescriptionError, "answer extractor failed with IndexError"),
        ({"entails": lambda _: True}, VerifierError, "entailment failed with TypeError"),
    ],
)
def test_failing_parts_of_self_consistency_raise_typed_errors(
    invoke: Invoke, settings_: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        invoke(SelfConsistency(**settings_), capital_input("lima", "quito"))


def test_self_consistency_fingerprint_names_its_settings() -> None:
    assert compute_fingerprint(SelfConsistency()) == {
        "class": "langchain_cfc.SelfConsistency",
        "id": "self-consistency",
        "answer": "whole text",
        "normalised": "answers-4",
        "agreement": "equal",
    }


def test_self_consistency_fingerprint_differs_for_other_settings() -> None:
    extractor = RecordedAnswers([])
    extractor.fingerprint = {"id": "first-line"}
    known = compute_fingerprint(SelfConsistency(extractor))
    assert (known["id"], known["answer.id"]) == ("self-consistency", "first-line")
    made = [
        known,
        compute_fingerprint(SelfConsistency()),
        compute_fingerprint(SelfConsistency(entails=same_initial)),
    ]
    for one in made:
        for other in made:
            if one is not other:
                with pytest.raises(Exception, match="not the one that the artifact was calibrated for"):
                    compare_fingerprints("verifier", one, other)


def test_self_consistency_with_an_unknown_part_has_no_id() -> None:
    unknown = compute_fingerprint(SelfConsistency(last_word))
    assert "id" not in unknown
    assert compare_fingerprints("verifier", unknown, unknown) is not None
    known = compute_fingerprint(SelfConsistency())
    assert compare_fingerprints("verifier", known, known) is None


@pytest.mark.parametrize("verifier", [SelfConsistency(), SelfConsistency(last_word, entails=same_initial)])
def test_copied_self_consistency_scores_alike(verifier: SelfConsistency) -> None:
    asked = capital_input("it is lima", "leon", "quito")
    for copied in copies_of(verifier):
        assert invoke_sync(copied, asked) == invoke_sync(verifier, asked)
        assert copied.fingerprint == verifier.fingerprint


def test_self_consistency_discriminates_on_the_recording() -> None:
    scores = recording.score_recording(SelfConsistency(RecordedAnswers(recording.records())))
    assert scores.max() <= 0.9 + 1e-15
    found = recording.compute_discrimination(scores)
    assert found.low > 0.8
    control = recording.compute_discrimination(recording.shuffle_scores(scores, seed=21))
    assert control.low < 0.5 < control.high

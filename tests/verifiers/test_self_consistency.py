"""`SelfConsistency`: one minus the share of candidates that agree."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_cfc.demo.replay import RecordedAnswers
from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import normalise_answer
from langchain_cfc.verifiers.self_consistency import SelfConsistency, group_connected
from tests.calls import Invoke, copies_of, invoke_async, invoke_sync
from tests.concurrency import ConcurrencyCounter
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


async def asame_initial(prompt: Any, first: str, second: str) -> bool:
    await asyncio.sleep(0)
    return same_initial(prompt, first, second)


def test_self_consistency_equals_values_computed_by_hand(invoke: Invoke) -> None:
    # Three of five say Lima, whatever its spelling.
    texts = capital_input("Lima", "Quito", "lima.", '"LIMA"', "Bogota")
    assert invoke(SelfConsistency(), texts) == [0.4, 0.8, 0.4, 0.4, 0.8]
    assert invoke(SelfConsistency(normalise=None), texts) == [0.8] * 5
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
    with pytest.raises(VerifierError, match=r"answer extractor.*(ainvoke|async)"):
        invoke_sync(verifier, capital_input("it is Lima", "Lima"))


def test_self_consistency_uses_a_custom_normalisation(invoke: Invoke) -> None:
    assert invoke(
        SelfConsistency(normalise=lambda text: text[:1]), capital_input("Lima", "Leon", "lima")
    ) == [
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    ]


def test_self_consistency_extracts_equal_texts_once(invoke: Invoke) -> None:
    read: list[str] = []

    def reading(text: str) -> str:
        read.append(text)
        return text

    invoke(SelfConsistency(reading), capital_input("b", "a", "b", "b"))
    assert read == ["b", "a"]


@pytest.mark.parametrize(
    "equivalent",
    [same_initial, RunnableLambda(lambda pair: same_initial(pair["prompt"], pair["first"], pair["second"]))],
)
def test_self_consistency_groups_equivalent_answers(invoke: Invoke, equivalent: Any) -> None:
    texts = capital_input("lima", "leon", "quito", "lima")
    assert invoke(SelfConsistency(equivalent=equivalent), texts) == [0.25, 0.25, 0.75, 0.25]
    # Without it only the equal ones do.
    assert invoke(SelfConsistency(), texts) == [0.5, 0.75, 0.75, 0.5]


def test_self_consistency_async_equivalence_works_only_under_ainvoke() -> None:
    verifier = SelfConsistency(equivalent=asame_initial)
    assert invoke_async(verifier, capital_input("lima", "leon")) == [0.0, 0.0]
    with pytest.raises(VerifierError, match=r"equivalence is async: use ainvoke"):
        invoke_sync(verifier, capital_input("lima", "leon"))


def test_self_consistency_takes_a_chain_as_equivalence(invoke: Invoke) -> None:
    template = ChatPromptTemplate.from_template("{prompt} Do {first} and {second} mean the same?")
    judge = template | FakeListChatModel(responses=["yes"]) | RunnableLambda(lambda said: said.text == "yes")
    assert invoke(SelfConsistency(equivalent=judge), capital_input("the capital", "lima")) == [0.0, 0.0]


def test_equivalence_is_asked_once_per_pair_within_the_limit(invoke: Invoke) -> None:
    asked, under_way = [], ConcurrencyCounter()

    def judge(_: Any, first: str, second: str) -> bool:
        with under_way.counted():
            asked.append((first, second))
            time.sleep(0.02)
        return False

    with apply_limits(CallLimits(ConcurrencyLimiter(2))):
        invoke(SelfConsistency(equivalent=judge), capital_input("a", "b", "A", "c", "d", "b"))
    assert sorted(asked) == [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
    assert under_way.most == 2


@pytest.mark.parametrize("order", list(permutations(["a", "b", "c", "d"])))
def test_equivalence_is_transitive_in_any_order(order: tuple[str, ...]) -> None:
    chain = {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    verifier = SelfConsistency(equivalent=lambda _, first, second: (first, second) in chain)
    found = dict(zip(order, invoke_sync(verifier, capital_input(*order)), strict=True))
    assert found == {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.75}


@given(
    st.integers(1, 7).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=9)
        )
    )
)
def test_group_connected_finds_connected_components(graph: tuple[int, list[tuple[int, int]]]) -> None:
    size, edges = graph
    # The transitive closure by powers of the matrix of edges, which shares nothing with the grouping.
    linked = np.eye(size, dtype=int)
    for first, second in edges:
        linked[first, second] = linked[second, first] = 1
    reached = np.linalg.matrix_power(linked, size) > 0
    names = group_connected(
        [str(i) for i in range(size)], [(str(first), str(second)) for first, second in edges]
    )
    for i in range(size):
        for j in range(size):
            assert (names[str(i)] == names[str(j)]) == reached[i, j]


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
    ("settings_", "message"),
    [
        ({"answer": lambda _: None}, "an answer is a NoneType; expected text"),
        ({"answer": lambda text: text[99]}, "answer extractor failed with IndexError"),
        ({"normalise": lambda _: 7}, "an answer is a int; expected text"),
        ({"equivalent": lambda *_: "yes"}, "equivalent= returned 'yes'; expected True or False"),
        ({"equivalent": lambda *_: 1}, "equivalent= returned 1; expected True or False"),
        ({"equivalent": lambda _: True}, "equivalence failed with TypeError"),
    ],
)
def test_failing_parts_of_self_consistency_raise_verifier_error(
    invoke: Invoke, settings_: dict[str, Any], message: str
) -> None:
    with pytest.raises(VerifierError, match=message):
        invoke(SelfConsistency(**settings_), capital_input("lima", "quito"))


def test_equivalence_may_return_numpy_booleans() -> None:
    assert invoke_sync(
        SelfConsistency(equivalent=RunnableLambda(lambda _: np.True_)), capital_input("a", "b")
    ) == [
        0.0,
        0.0,
    ]


def test_self_consistency_refuses_equivalent_with_entails() -> None:
    with pytest.raises(InputError, match="are mutually exclusive; give one"):
        SelfConsistency(equivalent=same_initial, entails=same_initial)


def test_self_consistency_fingerprint_names_its_settings() -> None:
    assert compute_fingerprint(SelfConsistency()) == {
        "class": "langchain_cfc.SelfConsistency",
        "id": "self-consistency",
        "answer": "whole text",
        "normalised": "answers-2",
        "agreement": "equal",
    }
    assert len(repr(SelfConsistency())) < 100


def test_self_consistency_fingerprint_differs_for_other_settings() -> None:
    extractor = RecordedAnswers([])
    extractor.fingerprint = {"id": "first-line"}
    known = compute_fingerprint(SelfConsistency(extractor))
    assert (known["id"], known["answer.id"]) == ("self-consistency", "first-line")
    made = [
        known,
        compute_fingerprint(SelfConsistency()),
        compute_fingerprint(SelfConsistency(normalise=None)),
        compute_fingerprint(SelfConsistency(equivalent=same_initial)),
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
    assert compare_fingerprints("verifier", unknown, unknown) == "unverified"
    known = compute_fingerprint(SelfConsistency())
    assert compare_fingerprints("verifier", known, known) == "matched"


@pytest.mark.parametrize("verifier", [SelfConsistency(), SelfConsistency(last_word, equivalent=same_initial)])
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

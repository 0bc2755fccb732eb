"""Verifiers that fail, return invalid scores, or have no verdict on a candidate or are given no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.errors import VerifierError
from langchain_cfc.records import Candidate, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from tests.calls import Invoke
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, N, ScriptedModel, averify, verify

Verifier = Callable[[Any, list[DrawnCandidate]], Any]

# What verifiers return by mistake, and what the error must name.
INVALID_OUTPUTS: dict[str, tuple[Any, str]] = {
    "nan": ([0.1, float("nan"), 0.1, 0.1], "score of candidate 1 is nan"),
    "infinity": ([0.1, 0.1, float("inf"), 0.1], "score of candidate 2 is inf"),
    "below 0": ([-0.1, 0.1, 0.1, 0.1], "score of candidate 0 is -0.1"),
    "above 1": ([0.1, 0.1, 0.1, 1.5], "score of candidate 3 is 1.5"),
    "boolean": ([True, 0.1, 0.1, 0.1], "score of candidate 0 is True"),
    "booleans of numpy": (np.array([True, False, True, False]), "score of candidate 0 is"),
    "text": (["0.3", 0.1, 0.1, 0.1], "score of candidate 0 is"),
    "bytes": ([0.1, b"0.3", 0.1, 0.1], "score of candidate 1 is"),
    "beyond floats": ([0.1, 10**400, 0.1, 0.1], "score of candidate 1 is 1000"),
    "nested": ([[0.1, 0.2], 0.1, 0.1, 0.1], "score of candidate 0 is"),
    "none": (None, "returned NoneType instead of 4 scores"),
    "a single float": (0.3, "returned float instead of 4 scores"),
    "a text of digits": ("0101", "returned str instead of 4 scores"),
    "bytes of ones": (b"\x00\x01\x00\x01", "returned bytes instead of 4 scores"),
    # Its keys would pass for scores.
    "a mapping": ({0: 0.9, 1: 0.8, 0.5: 0.7, 0.25: 0.6}, "returned dict instead of 4 scores"),
    # It has lost the order of the candidates.
    "a set": ({0.1, 0.2, 0.3, 0.4}, "returned set instead of 4 scores"),
    "too few": ([0.1, 0.1, 0.1], "returned 3 scores for 4 candidates"),
    "too many": ([0.1] * 5, "returned 5 scores for 4 candidates"),
    "nothing": ([], "returned 0 scores for 4 candidates"),
}


def make_function_verifier(returned: Any) -> Verifier:
    return lambda _, __: returned


def make_async_verifier(returned: Any) -> Verifier:
    async def judge(_: Any, __: list[DrawnCandidate]) -> Any:
        return returned

    return judge


def make_runnable_verifier(returned: Any) -> Any:
    return RunnableLambda(lambda _: returned)


@pytest.mark.parametrize("name", INVALID_OUTPUTS)
def test_chain_refuses_invalid_verifier_outputs(name: str, invoke: Invoke) -> None:
    returned, found = INVALID_OUTPUTS[name]
    with pytest.raises(VerifierError, match=found):
        invoke(make_chain(verifier=make_function_verifier(returned)), "x")


@pytest.mark.parametrize("kind", [make_runnable_verifier, make_async_verifier])
@pytest.mark.parametrize("name", ["nan", "none", "too few"])
def test_chain_refuses_invalid_outputs_of_every_kind_of_verifier(
    name: str, kind: Callable[[Any], Any]
) -> None:
    returned, found = INVALID_OUTPUTS[name]
    with pytest.raises(VerifierError, match=found):
        asyncio.run(make_chain(verifier=kind(returned)).ainvoke("x"))


@pytest.mark.parametrize(
    "scores",
    [
        [0.3, 0.9, 0.1, 0.8],
        (0.3, 0.9, 0.1, 0.8),
        np.array([0.3, 0.9, 0.1, 0.8]),
        [np.float64(0.3), Fraction(9, 10), Decimal("0.1"), 0.8],
        [[0.3], [0.9], [0.1], [0.8]],
    ],
)
def test_verifier_may_return_any_sequence_of_numbers(scores: Any, invoke: Invoke) -> None:
    if isinstance(scores, list) and isinstance(scores[0], list):
        scores = np.array(scores)  # one column, as models predict
    result = invoke(make_chain(verifier=make_function_verifier(scores)), "x")
    assert [one.score for one in result.candidates] == [0.3, 0.9, 0.1, 0.8]


def test_verifier_may_return_scores_0_and_1(invoke: Invoke) -> None:
    result = invoke(make_chain(verifier=make_function_verifier([0, 1, 0.0, 1.0])), "x")
    assert [one.accepted for one in result.candidates] == [True, False, True, False]


def test_verifier_may_be_a_generator_function(invoke: Invoke) -> None:
    def judge(prompt: Any, candidates: list[DrawnCandidate]) -> Iterator[float]:
        yield from verify(prompt, candidates)

    result = invoke(make_chain(verifier=judge), "x")
    assert [one.score for one in result.candidates] == [0.3, 0.9, 0.1, 0.8]


def test_failing_generator_function_raises_verifier_error(invoke: Invoke) -> None:
    def judge(_: Any, candidates: list[DrawnCandidate]) -> Iterator[float]:
        yield 1.0 / len(candidates)
        yield 1.0 / 0.0

    with pytest.raises(VerifierError, match="ZeroDivisionError") as failure:
        invoke(make_chain(verifier=judge), "x")
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("runnable", [False, True])
def test_failing_verifier_raises_verifier_error(runnable: bool, invoke: Invoke) -> None:
    def judge(*_: Any) -> Any:
        msg = "the judge is out"
        raise LookupError(msg)

    verifier = RunnableLambda(judge) if runnable else judge
    with pytest.raises(VerifierError, match="the verifier failed with LookupError") as e:
        invoke(make_chain(verifier=verifier), "x")
    assert isinstance(e.value.__cause__, LookupError)


def test_failing_async_verifier_raises_verifier_error() -> None:
    async def judge(_: Any, __: list[DrawnCandidate]) -> list[float]:
        msg = "the judge is out"
        raise LookupError(msg)

    with pytest.raises(VerifierError, match="the verifier failed with LookupError") as e:
        asyncio.run(make_chain(verifier=judge).ainvoke("x"))
    assert isinstance(e.value.__cause__, LookupError)


def test_verifier_error_of_a_verifier_is_the_cause_and_its_text_withheld(invoke: Invoke) -> None:
    own = VerifierError("candidate 2 is in a language that I do not read")

    def judge(_: Any, __: list[DrawnCandidate]) -> list[float]:
        raise own

    with pytest.raises(VerifierError) as failure:
        invoke(make_chain(verifier=judge), "x")
    assert failure.value.__cause__ is own
    assert "language" not in str(failure.value)


async def averify_mapping(given: dict[str, Any]) -> list[float]:
    return await averify(**given)


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        (averify, "the verifier is async: use ainvoke"),
        # It looks plain, and returns something to await.
        (RunnableLambda(lambda given: averify(**given)), "the verifier is async: use ainvoke"),
        (RunnableLambda(averify_mapping), "TypeError"),
    ],
)
def test_async_verifier_works_only_under_ainvoke(verifier: Any, message: str) -> None:
    chain = make_chain(verifier=verifier)
    with pytest.raises(VerifierError, match=message):
        chain.invoke("x")
    assert asyncio.run(chain.ainvoke("x")).best == "lima|0.1"


def test_verifier_receives_the_prompt_and_candidates_in_draw_order(invoke: Invoke) -> None:
    seen: list[tuple[Any, list[str], bool]] = []

    def judge(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        seen.append((prompt, [one.text for one in candidates], all(one.message for one in candidates)))
        return verify(prompt, candidates)

    invoke(make_chain(verifier=judge), "where?")
    assert seen == [("where?", list(TEXTS), True)]


def test_runnable_verifier_receives_prompt_and_candidates_as_mapping(invoke: Invoke) -> None:
    seen: list[Any] = []

    def judge(given: dict[str, Any]) -> list[float]:
        seen.append((sorted(given), given["prompt"], len(given["candidates"])))
        return verify(given["prompt"], given["candidates"])

    invoke(make_chain(verifier=RunnableLambda(judge)), "where?")
    assert seen == [(["candidates", "prompt"], "where?", N)]


@pytest.mark.parametrize("verifier", [None, 0.5, "gpt", [verify]])
def test_chain_refuses_verifiers_that_cannot_be_called(verifier: Any) -> None:
    with pytest.raises(VerifierError, match=f"got a {type(verifier).__name__} as verifier"):
        make_chain(verifier=verifier)


@pytest.mark.parametrize("texts", [("a",) * 4, ("a", "b", "a", "c")])
@pytest.mark.parametrize("settings", [{}, {"set_rule": "unique(all)"}])
def test_candidates_without_a_verdict_are_never_served(
    texts: tuple[str, ...], settings: dict[str, Any]
) -> None:
    """Not as the best candidate either; the control has a verdict of the same score."""
    artifact = make_artifact(**settings)
    for verdict, is_answered in ((None, False), (1.0, True)):
        chain = make_chain(
            artifact,
            generator=ScriptedModel(texts=texts),
            verifier=lambda _, drawn, v=verdict: [v] * len(drawn),
        )
        result = chain.invoke("?")
        assert (result.abstained, bool(result.answers)) == (not is_answered, is_answered)
    one = make_chain(
        artifact,
        generator=ScriptedModel(texts=("a", "b", "c", "d")),
        verifier=lambda *_: [None, 0.9, None, 1.0],
    ).invoke("?")
    assert set(one.answers) <= {"b", "d"}
    assert one.best == "b"
    assert one.unscored == {"no_verdict": 2}


def test_ensemble_scores_without_what_is_no_answer() -> None:
    texts = iter(["a0", "a1", "", "a3", "a4", "a5"])

    def judge(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
        return [0.5 for _ in candidates]

    records = [
        PromptRecord(
            id=str(number),
            input=f"question {number}",
            candidates=tuple(
                Candidate(text=f"a{slot}", score=slot / 10, correct=slot < 3) for slot in range(6)
            ),
        )
        for number in range(50)
    ]
    artifact = calibrate(records, alpha=0.2, features="1")
    chain = CFCRunnable(
        generator=lambda _: next(texts), verifier={"one": judge, "two": judge}, artifact=artifact
    )
    result = chain.invoke("?")
    [odd] = [one for one in result.candidates if one.unscored]
    assert (odd.score, odd.scores, odd.accepted, odd.unscored) == (1.0, None, False, "blank")
    assert result.unscored == {"blank": 1}
    assert "1 of 6 candidates were blank" in result.explain()

"""`from_evaluator`: evaluators of openevals, and others, as verifiers."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI
from openevals.exact import exact_match, exact_match_async
from openevals.llm import create_async_llm_as_judge, create_llm_as_judge
from openevals.string import levenshtein_distance
from pydantic import BaseModel, SecretStr

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import BaseVerifier
from langchain_cfc.verifiers.evaluators import from_evaluator
from tests.calls import Invoke, copies_of, invoke_async, invoke_sync
from tests.concurrency import ConcurrencyCounter
from tests.factories import verifier_input
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving

GIVEN = verifier_input("where?", "lima", "quito", "lima")


def is_lima(*, outputs: str) -> Any:
    return exact_match(outputs=outputs, reference_outputs="lima")


# --- openevals


def test_from_evaluator_takes_exact_match_of_openevals(invoke: Invoke) -> None:
    assert invoke(from_evaluator(is_lima), GIVEN) == [0.0, 1.0, 0.0]


def test_async_evaluator_of_openevals_works_only_under_ainvoke() -> None:
    async def judge(_: Any, text: str) -> Any:
        return await exact_match_async(outputs=text, reference_outputs="lima")

    verifier = from_evaluator(judge)
    assert invoke_async(verifier, GIVEN) == [0.0, 1.0, 0.0]
    with pytest.raises(VerifierError, match="evaluator is async: use ainvoke"):
        invoke_sync(verifier, GIVEN)


def test_missing_evaluator_argument_raises_verifier_error(invoke: Invoke) -> None:
    with pytest.raises(VerifierError, match=r"evaluator failed with TypeError: .*reference_outputs"):
        invoke(from_evaluator(exact_match), GIVEN)


def test_levenshtein_distance_of_openevals_is_read_as_similarity(invoke: Invoke) -> None:
    # Its score is 1 for equal texts, whatever its name says; "lime" differs in one letter of four.
    verifier = from_evaluator(lambda _, text: levenshtein_distance(outputs=text, reference_outputs="lima"))
    assert invoke(verifier, verifier_input("where?", "lima", "lime")) == pytest.approx([0.0, 0.25])


PROMPT = "Is {outputs} a right answer to {inputs}?"
JUDGED = {"lima": (True, 0.9), "quito": (False, 0.2)}


def _judgements(which: int) -> dict[str, list[Answer]]:
    return {
        PROMPT.format(outputs=text, inputs="where?"): [
            Answer(json.dumps({"reasoning": "so it is", "score": scores[which]}))
        ]
        for text, scores in JUDGED.items()
    }


@pytest.fixture
def script() -> Script:
    return Script(_judgements(0), logprobs=False)


@pytest.fixture
def judge(script: Script) -> Iterator[ChatOpenAI]:
    with serving(script) as url:
        yield ChatOpenAI(
            model="recorded", base_url=url, api_key=SecretStr("none"), max_retries=0, disable_streaming=True
        )


def test_llm_judge_of_openevals_over_http_scores_each_text_once(
    invoke: Invoke, judge: ChatOpenAI, script: Script
) -> None:
    verifier = from_evaluator(create_llm_as_judge(prompt=PROMPT, judge=judge))
    assert invoke(verifier, GIVEN) == [0.0, 1.0, 0.0]
    # Texts drawn twice are judged once.
    assert len(script.requests) == 2
    script.answers = _judgements(1)
    continuous = from_evaluator(create_llm_as_judge(prompt=PROMPT, judge=judge, continuous=True))
    assert invoke(continuous, GIVEN) == pytest.approx([0.1, 0.8, 0.1])


def test_async_llm_judge_of_openevals_over_http(judge: ChatOpenAI) -> None:
    verifier = from_evaluator(create_async_llm_as_judge(prompt=PROMPT, judge=judge))
    assert invoke_async(verifier, GIVEN) == [0.0, 1.0, 0.0]


def test_unreachable_llm_judge_raises_verifier_error(
    invoke: Invoke, judge: ChatOpenAI, script: Script
) -> None:
    script.faults = [Fault("status 500")]
    verifier = from_evaluator(create_llm_as_judge(prompt=PROMPT, judge=judge))
    with pytest.raises(VerifierError, match=r"the evaluator failed with \w+: .*500"):
        invoke(verifier, GIVEN)


def test_evaluator_cannot_change_the_prompt(invoke: Invoke) -> None:
    # openevals converts the messages of such a prompt in place.
    prompt = {"messages": [HumanMessage("where?")]}
    seen: list[dict[str, Any]] = []

    def overwriting(*, inputs: dict[str, Any], outputs: str) -> bool:
        inputs["messages"] = outputs
        seen.append(inputs)
        return True

    assert invoke(from_evaluator(overwriting), verifier_input(prompt, "lima")) == [0.0]
    assert seen == [{"messages": "lima"}]
    assert prompt == {"messages": [HumanMessage("where?")]}


# --- others


def _grade(prompt: Any, text: str) -> float:
    assert prompt == "where?"
    return 0.75 if text == "lima" else 0.0


async def _agrade(prompt: Any, text: str) -> float:
    await asyncio.sleep(0)
    return _grade(prompt, text)


class CallableEvaluator:
    """An evaluator that holds something, such as a client."""

    def __call__(self, prompt: Any, text: str) -> float:
        return _grade(prompt, text)


class Graded(BaseModel):
    score: float
    reason: str = ""


def grade_pair(pair: dict[str, Any]) -> float:
    return _grade(pair["prompt"], pair["candidate"])


PLAIN: list[Any] = [
    _grade,
    CallableEvaluator(),
    RunnableLambda(grade_pair),
    RunnableLambda(lambda pair: {"score": grade_pair(pair)}),
    RunnableLambda(lambda pair: Graded(score=grade_pair(pair))),
    lambda prompt, text: np.float32(_grade(prompt, text)),
    lambda outputs, inputs: _grade(inputs, outputs),
    lambda outputs: 0.75 if outputs == "lima" else 0.0,
    lambda outputs, **given: _grade(given["inputs"], outputs),
    lambda prompt, text: {"key": "quality", "score": _grade(prompt, text), "comment": None},
    lambda prompt, text: [{"key": "quality", "score": _grade(prompt, text)}],
]


@pytest.mark.parametrize("evaluator", PLAIN)
def test_from_evaluator_reads_scores_in_every_shape(invoke: Invoke, evaluator: Any) -> None:
    assert invoke(from_evaluator(evaluator), GIVEN) == [0.25, 1.0, 0.25]
    assert invoke(from_evaluator(evaluator, higher_is_better=False), GIVEN) == [0.75, 0.0, 0.75]


async def grade_keywords(*, inputs: Any, outputs: str) -> float:
    return await _agrade(inputs, outputs)


async def agrade_pair(pair: dict[str, Any]) -> float:
    return await _agrade(pair["prompt"], pair["candidate"])


@pytest.mark.parametrize("evaluator", [_agrade, grade_keywords, RunnableLambda(agrade_pair)])
def test_async_evaluators_are_awaited(evaluator: Any) -> None:
    assert invoke_async(from_evaluator(evaluator), GIVEN) == [0.25, 1.0, 0.25]


@pytest.mark.parametrize("found", [True, np.True_, 1.0, 1])
def test_from_evaluator_reads_true_as_1(invoke: Invoke, found: Any) -> None:
    assert invoke(from_evaluator(lambda *_: found), GIVEN) == [0.0] * 3
    assert invoke(from_evaluator(lambda *_: found, higher_is_better=False), GIVEN) == [1.0] * 3


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([{"score": 1.0}, {"score": 0.5}], "returned 2 results: wrap it in a function"),
        ([], "returned 0 results"),
        ({"value": 1.0}, "holds no 'score', only 'value'"),
        (1.5, "returned 1.5; expected True, False or a number from 0 to 1. Wrap it"),
        (-0.1, "returned -0.1; expected"),
        (math.nan, "returned nan; expected"),
        (10**400, "returned 1000.*; expected"),
        (None, "returned None; expected"),
        ({"key": "right", "score": None}, "returned None; expected"),
        ("high", "returned 'high'; expected"),
        (np.array([0.5, 0.5]), "returned array.*; expected"),
    ],
)
def test_from_evaluator_refuses_results_without_a_score(invoke: Invoke, result: Any, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        invoke(from_evaluator(lambda *_: result), GIVEN)


def test_evaluator_receives_prompt_values_as_text_or_messages(invoke: Invoke) -> None:
    seen: list[Any] = []

    def reading(*, inputs: Any, outputs: str) -> bool:
        seen.append(inputs)
        return bool(outputs)

    messages = [HumanMessage("where?"), AIMessage("there")]
    for prompt in (StringPromptValue(text="where?"), ChatPromptValue(messages=messages)):
        invoke(from_evaluator(reading), verifier_input(prompt, "lima"))
    assert seen == ["where?", messages]


@pytest.mark.parametrize("places", [1, 2])
def test_evaluations_run_concurrently_within_the_limit(invoke: Invoke, places: int) -> None:
    under_way = ConcurrencyCounter()

    def waiting(_: Any, text: str) -> bool:
        with under_way.counted():
            time.sleep(0.05)
        return text == "a"

    with apply_limits(CallLimits(ConcurrencyLimiter(places))):
        assert invoke(from_evaluator(waiting), verifier_input("?", "a", "b", "c", "d")) == [
            0.0,
            1.0,
            1.0,
            1.0,
        ]
    assert under_way.most == places


async def collect_streamed_tokens(verifier: BaseVerifier) -> list[str]:
    """What the event stream of a chain contains of a judge's words."""
    events = verifier.astream_events(verifier_input("?", "lima"), version="v2")
    return [event["data"]["chunk"].text async for event in events if event["event"] == "on_chat_model_stream"]


def test_model_in_an_evaluator_function_streams_unless_disabled() -> None:
    def judging(model: FakeListChatModel) -> Callable[[Any, str], bool]:
        return lambda _, text: model.invoke(text).text == "yes"

    streaming = FakeListChatModel(responses=["yes"])
    silent = FakeListChatModel(responses=["yes"], disable_streaming=True)
    assert asyncio.run(collect_streamed_tokens(from_evaluator(judging(silent)))) == []
    # What the docstring warns of.
    assert asyncio.run(collect_streamed_tokens(from_evaluator(judging(streaming)))) == ["y", "e", "s"]
    # In a Runnable it is within reach.
    assert asyncio.run(collect_streamed_tokens(from_evaluator(make_judge_chain(streaming)))) == []


def make_judge_chain(model: FakeListChatModel) -> Runnable[Any, Any]:
    asking = RunnableLambda(lambda pair: pair["candidate"])
    return asking | model | RunnableLambda(lambda message: message.text == "yes")


def test_from_evaluator_refuses_what_cannot_be_called(invoke: Invoke) -> None:
    with pytest.raises(InputError, match="expected an evaluator, a function or Runnable, got a str"):
        from_evaluator("exact_match")  # type: ignore[arg-type]
    with pytest.raises(VerifierError, match="the evaluator failed with TypeError"):
        invoke(from_evaluator(dict), GIVEN)  # its parameters cannot be read


class Named(CallableEvaluator):
    fingerprint = {"id": "my-judge"}  # noqa: RUF012 - as a user writes it


def test_evaluator_fingerprint_names_its_settings() -> None:
    verifier = from_evaluator(Named())
    assert compute_fingerprint(verifier) == {
        "class": "langchain_cfc.EvaluatorVerifier",
        "id": "evaluator",
        "better": "higher",
        "evaluator.class": "Named",
        "evaluator.id": "my-judge",
    }
    assert repr(verifier) == "EvaluatorVerifier(...)"
    other = from_evaluator(Named(), higher_is_better=False)
    with pytest.raises(Exception, match="not the one that the artifact was calibrated for"):
        compare_fingerprints("verifier", compute_fingerprint(verifier), compute_fingerprint(other))
    # openevals says nothing of its evaluators, so nothing vouches for them.
    assert "id" not in compute_fingerprint(from_evaluator(exact_match))


@pytest.mark.parametrize("verifier", [from_evaluator(CallableEvaluator()), from_evaluator(is_lima)])
def test_copied_evaluator_verifiers_score_alike(verifier: BaseVerifier) -> None:
    for copied in copies_of(verifier):
        assert invoke_sync(copied, GIVEN) == invoke_sync(verifier, GIVEN)

"""`JudgeLabels`: judges of every kind, their arguments, and when their answer means correct."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI
from openevals.exact import exact_match, exact_match_async
from openevals.llm import create_llm_as_judge
from openevals.string import levenshtein_distance
from pydantic import SecretStr

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import JudgeLabels
from langchain_cfc.sampling import DrawnCandidate
from tests.calls import Invoke, invoke_async, invoke_sync, is_correct
from tests.factories import labeler_input
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

ASKED = labeler_input("lima", "lima", "quito", "lima", prompt="where?")


def judge(prompt: Any, reference: Any, text: str) -> bool:
    assert prompt == "where?"
    return bool(text == reference)


async def ajudge(prompt: Any, reference: Any, text: str) -> bool:
    await asyncio.sleep(0)
    return judge(prompt, reference, text)


class JudgeObject:
    """A judge that is an object, such as one that holds a client."""

    def __call__(self, prompt: Any, reference: Any, text: str) -> bool:
        return judge(prompt, reference, text)


def judge_mapping(told: dict[str, Any]) -> bool:
    assert set(told) == {"prompt", "reference", "candidate"}
    return judge(told["prompt"], told["reference"], told["candidate"])


async def ajudge_mapping(told: dict[str, Any]) -> bool:
    return judge_mapping(told)


@pytest.mark.parametrize("one", [judge, JudgeObject(), RunnableLambda(judge_mapping), exact_match])
def test_judge_labels_accepts_judges_of_every_kind(one: Any, invoke: Invoke) -> None:
    assert invoke(JudgeLabels(one), ASKED) == [True, False, True]


@pytest.mark.parametrize("one", [ajudge, RunnableLambda(ajudge_mapping), exact_match_async])
def test_judge_labels_awaits_async_judges_and_refuses_them_in_invoke(one: Any) -> None:
    assert invoke_async(JudgeLabels(one), ASKED) == [True, False, True]
    with pytest.raises(LabelerError, match="ainvoke"):
        invoke_sync(JudgeLabels(one), ASKED)


def test_judge_labels_judges_repeated_texts_once(invoke: Invoke) -> None:
    judged: list[str] = []

    def counting(prompt: Any, reference: Any, text: str) -> bool:
        judged.append(text)
        return judge(prompt, reference, text)

    assert invoke(JudgeLabels(counting), ASKED) == [True, False, True]
    assert sorted(judged) == ["lima", "quito"]


def test_judge_labels_batch_keeps_references_apart() -> None:
    labeler = JudgeLabels(exact_match)
    asked = [labeler_input(str(number), "3", str(number)) for number in range(20)]
    expected = [[number == 3, True] for number in range(20)]
    assert labeler.batch(asked) == expected

    async def together() -> list[Any]:
        return await labeler.abatch(asked)

    assert asyncio.run(together()) == expected


# Numeric judges


def read_number(prompt: Any, reference: Any, text: str) -> float:
    del prompt, reference
    return float(text)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ({"at_least": 0.7}, [False, False, True, True]),
        ({"at_most": 0.7}, [True, True, True, False]),
        ({"at_least": 0.0}, [True] * 4),
        ({"at_most": 0.0}, [True, False, False, False]),
    ],
)
def test_judge_labels_limits_are_inclusive(limits: dict[str, Any], labels: list[bool]) -> None:
    numbers = labeler_input(None, "0", "0.69999", "0.7", "1")
    assert JudgeLabels(read_number, **limits).invoke(numbers) == labels


def test_judge_labels_limits_use_the_range_of_the_judge() -> None:
    grades = labeler_input(None, "1", "6.9", "7", "10")
    assert JudgeLabels(read_number, at_least=7, range=(1, 10)).invoke(grades) == [False, False, True, True]
    assert JudgeLabels(read_number, at_most=6.9, range=(1, 10)).invoke(grades) == [True, True, False, False]
    # Every grade is its own limit, whatever rounding does to it on the way.
    for tenth in range(10, 101):
        assert is_correct(JudgeLabels(read_number, at_least=tenth / 10, range=(1, 10)), None, str(tenth / 10))


def test_judge_labels_without_a_limit_accepts_only_zero_and_one() -> None:
    assert JudgeLabels(read_number).invoke(labeler_input(None, "0", "1")) == [False, True]
    with pytest.raises(LabelerError, match="`at_least=` or `at_most=` to say which numbers mean correct"):
        JudgeLabels(read_number).invoke(labeler_input(None, "0", "0.5"))


def test_judge_labels_at_most_inverts_a_judge_of_faults() -> None:
    def invents(*, inputs: Any, outputs: str, reference_outputs: Any) -> dict[str, Any]:
        del inputs
        return {"key": "invents", "score": outputs != reference_outputs}

    assert JudgeLabels(invents, at_most=0).invoke(ASKED) == [True, False, True]
    # The negative control: read the usual way, every label is the other one.
    assert JudgeLabels(invents).invoke(ASKED) == [False, True, False]


def test_judge_labels_accepts_an_openevals_similarity_with_a_limit() -> None:
    near = labeler_input("lima", "lima", "lime", "quito")
    assert JudgeLabels(levenshtein_distance, at_least=0.7).invoke(near) == [True, True, False]


def test_judge_labels_passes_only_the_keywords_that_a_judge_takes(invoke: Invoke) -> None:
    def short(*, outputs: str) -> bool:
        return len(outputs) < 5

    assert invoke(JudgeLabels(short), ASKED) == [True, False, True]

    def grounded(*, outputs: str, context: str) -> bool:
        return outputs in context

    given = JudgeLabels(grounded, arguments=lambda prompt: {"context": f"{prompt} lima"})
    assert invoke(given, ASKED) == [True, False, True]
    with pytest.raises(LabelerError, match=r"failed with TypeError: .*context"):
        invoke(JudgeLabels(grounded), ASKED)


def test_judge_labels_gives_evaluators_a_copy_of_the_prompt() -> None:
    def writing(*, inputs: Any, outputs: str, reference_outputs: str) -> bool:
        assert "seen" not in inputs
        inputs["seen"] = True
        return outputs == reference_outputs

    prompt = {"question": "where?"}
    asked = labeler_input("lima", "lima", "quito", prompt=prompt)
    assert JudgeLabels(writing).invoke(asked) == [True, False]
    assert prompt == {"question": "where?"}


def return_value(said: Any, prompt: Any, reference: Any, text: str) -> Any:
    del prompt, reference, text
    return said


def test_judge_labels_raises_labeler_error_for_failing_judges(invoke: Invoke) -> None:
    def failing(prompt: Any, reference: Any, text: str) -> bool:
        del prompt, reference
        return {"lima": True}[text]

    with pytest.raises(LabelerError, match="failed with KeyError: 'quito'"):
        invoke(JudgeLabels(failing), ASKED)
    for nothing in (None, "high", float("nan"), 2.0):
        with pytest.raises(LabelerError, match="the evaluator returned"):
            invoke(JudgeLabels(partial(return_value, nothing)), ASKED)


@pytest.mark.parametrize(
    "stated",
    [
        True,
        1,
        "true",
        "YES.",
        "**Correct**",
        {"score": "yes"},
        '```json\n{"score": true}\n```',
        "Verdict: yes",
    ],
)
def test_judge_labels_reads_verdicts_in_many_forms(stated: Any) -> None:
    assert JudgeLabels(partial(return_value, stated)).invoke(ASKED) == [True] * len(ASKED["candidates"])


def test_judge_labels_gives_no_label_for_a_verdict_that_cannot_be_read(invoke: Invoke) -> None:
    replies = {"lima": ["true"], "quito": ["Well, hm.", "That is hard."], "oslo": ["?", "yes"]}

    def judge(prompt: Any, reference: Any, text: str) -> str:
        del prompt, reference
        return replies[text].pop(0)

    asked = {**ASKED, "candidates": [DrawnCandidate(text) for text in replies]}
    assert invoke(JudgeLabels(judge), asked) == [True, None, True]


def test_judge_labels_refuses_invalid_judges_and_limits() -> None:
    nothing: Any = "yes"
    with pytest.raises(InputError, match="got a str"):
        JudgeLabels(nothing)
    with pytest.raises(InputError, match="are mutually exclusive; give one"):
        JudgeLabels(read_number, at_least=0.5, at_most=0.6)
    with pytest.raises(InputError, match="range must be two finite numbers"):
        JudgeLabels(read_number, range=(1, 1))
    for limit in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="lies outside of the range"):
            JudgeLabels(read_number, at_least=limit)


PROMPT = "Is {outputs} right? The reference is {reference_outputs}."


@pytest.fixture
def model() -> Iterator[ChatOpenAI]:
    answers = {
        PROMPT.format(outputs=text, reference_outputs="lima"): [
            Answer(json.dumps({"reasoning": "so it is", "score": text == "lima"}))
        ]
        for text in ("lima", "quito")
    }
    with serving(Script(answers, logprobs=False)) as url:
        yield ChatOpenAI(
            model="judge-1", base_url=url, api_key=SecretStr("none"), max_retries=0, disable_streaming=True
        )


def test_judge_labels_works_with_an_openevals_model_judge(invoke: Invoke, model: ChatOpenAI) -> None:
    labeler = JudgeLabels(create_llm_as_judge(prompt=PROMPT, judge=model))
    assert invoke(labeler, ASKED) == [True, False, True]


def test_judge_labels_fingerprint_names_the_model() -> None:
    model = ChatOpenAI(model="judge-1", api_key=SecretStr("none"), temperature=0.0)
    said = JudgeLabels(model | RunnableLambda(lambda message: message.text == "Yes")).fingerprint
    assert (said["judge.model"], said["judge.temperature"]) == ("judge-1", 0.0)
    # A function that reads its answer may be another one tomorrow, so no id vouches for it.
    assert (said["method"], "id" in said) == ("judge-labels", False)
    assert JudgeLabels(model).fingerprint["id"] == "judge-labels"
    assert "id" not in JudgeLabels(judge).fingerprint


def test_judge_labels_keeps_the_judge_out_of_streams() -> None:
    said = FakeListChatModel(responses=["Yes"])
    labeler = JudgeLabels(RunnableLambda(str) | said | RunnableLambda(lambda message: message.text == "Yes"))
    outer = RunnableLambda(labeler.invoke)

    async def streamed(runnable: Runnable[Any, Any], asked: Any) -> int:
        events = [one["event"] async for one in runnable.astream_events(asked, version="v2")]
        return events.count("on_chat_model_stream")

    assert asyncio.run(streamed(outer, ASKED)) == 0
    assert outer.invoke(ASKED) == [True, True, True]
    # The negative control: elsewhere the same model is heard.
    assert asyncio.run(streamed(RunnableLambda(str) | said, ASKED)) > 0


def test_judge_labels_works_without_a_reference() -> None:
    asked = {"prompt": "where?", "reference": None, "candidates": [DrawnCandidate("1")]}
    assert JudgeLabels(read_number).invoke(asked) == [True]  # type: ignore[arg-type]

"""`JudgeLabels`: judges of every kind, their arguments, and what they return."""

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
from tests.calls import Invoke, invoke_async, invoke_sync
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


# What a judge returns


def read_number(prompt: Any, reference: Any, text: str) -> float:
    del prompt, reference
    return float(text)


def test_judge_labels_accepts_only_zero_and_one_as_numbers() -> None:
    assert JudgeLabels(read_number).invoke(labeler_input(None, "0", "1")) == [False, True]
    with pytest.raises(LabelerError, match="neither True nor False: wrap it in a function"):
        JudgeLabels(read_number).invoke(labeler_input(None, "0", "0.5"))


def test_judge_labels_takes_a_similarity_of_openevals_in_a_function() -> None:
    def is_near(prompt: Any, reference: Any, text: str) -> bool:
        del prompt
        return bool(levenshtein_distance(outputs=text, reference_outputs=reference)["score"] >= 0.7)

    assert JudgeLabels(is_near).invoke(labeler_input("lima", "lima", "lime", "quito")) == [True, True, False]


def test_judge_labels_passes_only_the_keywords_that_a_judge_takes(invoke: Invoke) -> None:
    def short(*, outputs: str) -> bool:
        return len(outputs) < 5

    assert invoke(JudgeLabels(short), ASKED) == [True, False, True]

    def grounded(*, outputs: str, context: str) -> bool:
        return outputs in context

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


def test_judge_labels_refuses_what_cannot_be_called() -> None:
    nothing: Any = "yes"
    with pytest.raises(InputError, match="got a str"):
        JudgeLabels(nothing)


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

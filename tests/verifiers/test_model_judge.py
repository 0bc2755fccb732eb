"""`ModelJudge`: three ways to a probability, one per judge, and replies that say none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import Field

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.verifiers.model_judge import Mode, ModelJudge
from tests.calls import Invoke
from tests.serving.openai_bodies import Answer
from tests.verifiers.judges import InMemory, LogprobModel, judging, llama_input, make_reply, token

LOGPROB_ANSWERS = {
    "Peru": Answer("Yes", math.log(0.6), first={"Yes": math.log(0.6), "No": math.log(0.2), "It": -3.0}),
    "Norway": Answer("No", math.log(0.9), first={"No": math.log(0.9), "Yes": math.log(0.1)}),
}
STRUCTURED_ANSWERS = {"Peru": Answer('{"percent": 85}', -1.0), "Norway": Answer('{"percent": 2}', -1.0)}
LINE_ANSWERS = {"Peru": Answer("Percent: 85", -1.0), "Norway": Answer("percent: 2 %\n", -1.0)}
YES_NO = {"Yes": math.log(0.3), "No": math.log(0.1)}


def score_reply(reply: AIMessage, **options: Any) -> float:
    """The score of one candidate that is judged like this."""
    score: float
    [score] = ModelJudge(LogprobModel(replies={"Peru": reply}), **options).invoke(llama_input("Peru"))
    return score


@pytest.mark.parametrize(
    ("mode", "answers", "expected"),
    [
        ("logprobs", LOGPROB_ANSWERS, [0.25, 0.9, 0.25]),
        ("structured", STRUCTURED_ANSWERS, [0.15, 0.98, 0.15]),
        ("line", LINE_ANSWERS, [0.15, 0.98, 0.15]),
    ],
)
def test_model_judge_scores_in_every_mode_over_http(
    invoke: Invoke, mode: Mode, answers: dict[str, Answer], expected: list[float]
) -> None:
    with judging(answers) as (script, make):
        scores = invoke(ModelJudge(make(streaming=True), mode=mode), llama_input("Peru", "Norway", "Peru"))
    assert scores == pytest.approx(expected, abs=1e-12)
    assert len(script.requests) == 2  # equal texts share a judgement
    for body in script.requests:
        assert not body.get("stream")
        assert body.get("top_logprobs") == (20 if mode == "logprobs" else None)
        assert ("response_format" in body) == (mode == "structured")
        [message] = body["messages"]
        assert "<question>\nWhere do llamas live?\n</question>" in message["content"]


def test_model_judge_limits_max_tokens() -> None:
    model = LogprobModel(replies={"Peru": make_reply(token("Yes", -0.1, YES_NO))})
    ModelJudge(model).invoke(llama_input("Peru"))
    [(_, settings)] = model._asked
    assert "max_tokens" in settings


def test_model_judge_shows_its_criterion() -> None:
    model = LogprobModel(replies={"Peru": make_reply(token("Yes", -0.1, YES_NO))})
    ModelJudge(model, criterion="It names {a} continent.").invoke(llama_input("Peru"))
    [([message], _)] = model._asked
    assert "It names {a} continent." in message.text


# How the mode is chosen


class StructuredModel(InMemory):
    """A model with structured output of its own, which here is any object."""

    outputs: dict[str, Any] = Field(default_factory=dict)

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[Any, Any]:
        del kwargs
        assert include_raw

        def find(message: AIMessage) -> dict[str, Any]:
            found = self.outputs[message.text]
            parsed = found if isinstance(found, Exception) else schema.model_construct(**found)
            wrong = isinstance(found, Exception)
            return {
                "raw": message,
                "parsed": None if wrong else parsed,
                "parsing_error": found if wrong else None,
            }

        return self | RunnableLambda(find)


MODELS: list[tuple[Callable[[], Any], Mode]] = [
    (lambda: ChatOpenAI(model="judge", api_key="none"), "logprobs"),  # type: ignore[arg-type]
    (lambda: LogprobModel(replies={}), "logprobs"),
    (lambda: LogprobModel(replies={}).bind(stop=["x"]).with_retry(), "logprobs"),
    (lambda: StructuredModel(replies={}), "structured"),
    (lambda: StructuredModel(replies={}).with_retry(), "line"),
    (lambda: InMemory(replies={}), "line"),
    (lambda: FakeListChatModel(responses=["x"]), "line"),
    (lambda: RunnableLambda(lambda _: AIMessage("x")), "line"),
]


@pytest.mark.parametrize(("make", "mode"), MODELS)
def test_model_judge_chooses_its_mode_by_the_model(make: Callable[[], Any], mode: Mode) -> None:
    judge = ModelJudge(make())
    assert judge.mode == mode
    assert judge.fingerprint["mode"] == mode


def test_model_judge_does_not_switch_modes(invoke: Invoke) -> None:
    # The second reply has no log-probabilities, but a line that another mode could read.
    replies = {
        "Peru": make_reply(token("Yes", -0.1, YES_NO)),
        "Norway": AIMessage("Percent: 85"),
    }
    scores = invoke(ModelJudge(LogprobModel(replies=replies)), llama_input("Peru", "Norway"))
    assert scores[1] is None
    with pytest.raises(VerifierError, match=r"no token log-probabilities"):
        invoke(ModelJudge(LogprobModel(replies=replies)), llama_input("Norway"))
    assert invoke(ModelJudge(LogprobModel(replies=replies), mode="line"), llama_input("Norway")) == [0.15]


@pytest.mark.parametrize("model", [InMemory(replies={}), StructuredModel(replies={}).with_retry()])
def test_structured_mode_requires_structured_output(model: Any) -> None:
    with pytest.raises(InputError, match=r"mode='structured' needs .* mode='line'"):
        ModelJudge(model, mode="structured")


def test_model_judge_refuses_invalid_arguments() -> None:
    with pytest.raises(InputError, match="mode is 'words'; expected one of logprobs, structured, line"):
        ModelJudge(LogprobModel(replies={}), mode="words")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="top_logprobs must be at least 2"):
        ModelJudge(LogprobModel(replies={}), top_logprobs=1)


@pytest.mark.parametrize("mode", [None, "logprobs", "structured", "line"])
def test_model_judge_refuses_what_is_no_model_in_every_mode(mode: Any) -> None:
    with pytest.raises(InputError, match="got a NoneType as judging model"):
        ModelJudge(None, mode=mode)  # type: ignore[arg-type]


# Log-probabilities


@pytest.mark.parametrize("spelling", ["Yes", " Yes", "yes", "YES", "Yes.", "**Yes", "\u0120Yes", "\u2581yes"])
def test_model_judge_adds_up_spellings_of_a_verdict(spelling: str) -> None:
    weights = {spelling: math.log(0.15), "yEs": math.log(0.15), "No": math.log(0.1), "Not": math.log(0.4)}
    assert score_reply(make_reply(token("Not", math.log(0.4), weights))) == pytest.approx(0.25, abs=1e-12)


def test_model_judge_reads_no_verdict_from_a_reply_without_a_word() -> None:
    assert score_reply(make_reply(token("\n", -0.1, {}))) is None


# Stated probabilities


@pytest.mark.parametrize("stated", [-1, 101, 10**30])
def test_structured_mode_reads_no_percentage_out_of_range(stated: int) -> None:
    model = StructuredModel(replies={"Peru": AIMessage("x")}, outputs={"x": {"percent": stated}})
    assert ModelJudge(model).invoke(llama_input("Peru")) == [None]


@pytest.mark.parametrize(("stated", "score"), [(0, 1.0), (100, 0.0), (50, 0.5), (99, 0.01)])
def test_model_judge_turns_percentages_into_scores(stated: int, score: float) -> None:
    model = StructuredModel(replies={"Peru": AIMessage("x")}, outputs={"x": {"percent": stated}})
    assert ModelJudge(model).invoke(llama_input("Peru")) == [score]
    assert score_reply(AIMessage(f"Percent: {stated}"), mode="line") == score


def test_model_judge_raises_if_no_reply_about_several_texts_is_readable() -> None:
    reply = "no idea " * 100
    model = StructuredModel(
        replies=dict.fromkeys(["Peru", "Norway"], AIMessage(reply)), outputs={reply: ValueError("no JSON")}
    )
    with pytest.raises(VerifierError, match="'no idea no idea") as caught:
        ModelJudge(model).invoke(llama_input("Peru", "Norway"))
    assert len(str(caught.value)) < 500


def test_structured_mode_reads_other_forms_over_http(invoke: Invoke) -> None:
    replies = {
        "Bern": ("", None),
        "Cairo": ("no idea", None),
        "Delhi": ('{"percent": null}', None),
        "Lima": ('{"percent": "85"}', 0.15),
        "Oslo": ('```json\n{"percent": 85.0}\n```', 0.15),
        "Paris": ('{"percent": true}', None),
        "Quito": ('{"percent": 0.85}', None),
        "Riga": ('{"p": 3}', None),
        "Rome": ('{"percent": NaN}', None),
        "Sofia": ('{"percent": 120}', None),
        "Tunis": ('{"percent": 8', None),
        "Seoul": ('Sure: {"Percent": 85, "why": "percent: 10"}', 0.15),
    }
    with judging({city: Answer(text, -1.0) for city, (text, _) in replies.items()}) as (script, make):
        judge = ModelJudge(make(), mode="structured")
        assert invoke(judge, llama_input(*replies)) == [
            None if score is None else pytest.approx(score) for _, score in replies.values()
        ]
        # Only replies that cannot be read are asked for again.
        assert len(script.requests) == len(replies) + sum(score is None for _, score in replies.values())


@pytest.mark.parametrize(
    "form",
    [
        *(
            "{}",
            "**{}**",
            "I think so.\n\n{}",
            "{}\n\n",
            "  `{}` ",
            "{}%",
            "{}.0",
            "{} %",
            "{}/100",
            "{}.",
            "```\n{}\n```",
        ),
        *("Percent: 20? No. {}", "{}\nI am sure.", "My {}", '{{"percent": "85"}}'),
        *(
            "85",
            "85%",
            "**Percent:** 85",
            "Percent: **85**",
            "Percentage = <85>",
            "Percent： ８５",
            "$\\boxed{{85}}$",
        ),
        *("Probability: 0.85", "Prozent: 85", "<think>Percent: 3</think>\n{}"),
    ],
)
def test_line_mode_reads_a_percentage_in_many_forms(form: str) -> None:
    assert score_reply(AIMessage(form.format("Percent: 85")), mode="line") == pytest.approx(0.15)


@pytest.mark.parametrize(
    "text",
    [
        *("", "Percent:", "Percent: high", "Percent: nan", "Percent: 8e1", "Percent: 0.85", "Percent: 1.0"),
        *("Percent: -5", "Percent: 85 or 90", "Percent: 80-90", "Percent: 1000", "Percent: 101", "80 or 90"),
        *("Probability: 1", "I give it 85", '{"percent": 8', "Percent: 85.5.5"),
    ],
)
def test_line_mode_reads_nothing_uncertain(text: str) -> None:
    assert score_reply(AIMessage(text), mode="line") is None


def test_line_mode_reads_nothing_from_a_reply_that_is_cut_off() -> None:
    cut = AIMessage("Percent: 8", response_metadata={"finish_reason": "length"})
    assert score_reply(cut, mode="line") is None
    assert score_reply(AIMessage("<think>Percent: 85"), mode="line") is None


# As a verifier among others


def test_model_judge_fingerprint_differs_for_other_judges() -> None:
    with judging(LOGPROB_ANSWERS) as (_, make):
        plain = ModelJudge(make()).fingerprint
        others = [
            ModelJudge(make(model="other")),
            ModelJudge(make(temperature=0.5)),
            ModelJudge(make(), criterion="It is short."),
            ModelJudge(make(), mode="structured"),
            ModelJudge(make(), mode="line"),
            ModelJudge(make(), top_logprobs=5),
            ModelJudge(make(), question=str),
        ]
        again = ModelJudge(make()).fingerprint
    assert compare_fingerprints("verifier", plain, again) == "matched"
    for other in others:
        assert any(other.fingerprint.get(key) != value for key, value in plain.items()), other
    assert (plain["id"], plain["model.model"]) == ("model-judge", "judge")
    # Who the model is must be known before the id vouches for it.
    assert "id" not in ModelJudge(InMemory(replies={})).fingerprint


def test_model_judge_repr_names_its_settings() -> None:
    with judging(LOGPROB_ANSWERS) as (_, make):
        assert repr(ModelJudge(make())) == "ModelJudge(judge, mode='logprobs')"
    assert repr(ModelJudge(InMemory(replies={}))) == "ModelJudge(InMemory, mode='line')"

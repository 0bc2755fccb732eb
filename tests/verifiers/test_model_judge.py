"""`ModelJudge`: two ways to a probability, one per judge, and replies that say none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.verifiers.model_judge import Mode, ModelJudge
from tests.calls import Invoke, invoke_async
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault
from tests.verifiers.judges import (
    InMemory,
    LogprobModel,
    candidate_of,
    judging,
    llama_input,
    make_reply,
    token,
)

LOGPROB_ANSWERS = {
    "Peru": Answer("Yes", math.log(0.6), first={"Yes": math.log(0.6), "No": math.log(0.2), "It": -3.0}),
    "Norway": Answer("No", math.log(0.9), first={"No": math.log(0.9), "Yes": math.log(0.1)}),
}
LINE_ANSWERS = {"Peru": Answer("Percent: 85", -1.0), "Norway": Answer("percent: 2 %\n", -1.0)}
YES_NO = {"Yes": math.log(0.3), "No": math.log(0.1)}


def make_weighted_reply(**weights: float) -> AIMessage:
    """A reply of one token, from the weights of the words that could have stood there."""
    return make_reply_of_weights(weights)


def make_reply_of_weights(weights: dict[str, float]) -> AIMessage:
    logprobs = {word: math.log(weight) for word, weight in weights.items()}
    first = max(logprobs, key=lambda word: logprobs[word])
    return make_reply(token(first, logprobs[first], logprobs))


def score_reply(reply: AIMessage, **options: Any) -> float:
    """The score of one candidate that is judged like this."""
    score: float
    [score] = ModelJudge(LogprobModel(replies={"Peru": reply}), **options).invoke(llama_input("Peru"))
    return score


@pytest.mark.parametrize(
    ("mode", "answers", "expected"),
    [
        ("logprobs", LOGPROB_ANSWERS, [0.25, 0.9, 0.25]),
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


MODELS: list[tuple[Callable[[], Any], Mode]] = [
    (lambda: ChatOpenAI(model="judge", api_key="none"), "logprobs"),  # type: ignore[arg-type]
    (lambda: LogprobModel(replies={}), "logprobs"),
    (lambda: LogprobModel(replies={}).bind(stop=["x"]).with_retry(), "logprobs"),
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


def test_model_judge_refuses_invalid_arguments() -> None:
    with pytest.raises(InputError, match="mode is 'words'; expected one of logprobs, line"):
        ModelJudge(LogprobModel(replies={}), mode="words")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="top_logprobs must be at least 2"):
        ModelJudge(LogprobModel(replies={}), top_logprobs=1)


@pytest.mark.parametrize("mode", [None, "logprobs", "line"])
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


@pytest.mark.parametrize("word", ["Yesterday", "Not", "Nope", "Y", "1"])
def test_model_judge_ignores_words_that_only_begin_alike(word: str) -> None:
    assert score_reply(make_reply_of_weights({"Yes": 0.3, "No": 0.1, word: 0.5})) == pytest.approx(
        0.25, abs=1e-12
    )


def test_model_judge_skips_brackets_and_blanks_before_the_word() -> None:
    alternatives = {"Yes": math.log(0.3), "No": math.log(0.1)}
    bracket = token("(", math.log(0.9), {"(": math.log(0.9), "Yes": math.log(0.05)})
    blank = token("\n\n", -0.1, {"\n\n": -0.1, "No": -3.0})
    assert score_reply(
        make_reply(blank, bracket, token("Yes", math.log(0.3), alternatives))
    ) == pytest.approx(0.25)


def test_model_judge_counts_the_drawn_token() -> None:
    drawn = token("No", math.log(0.1), {"Yes": math.log(0.3), "The": math.log(0.2)})
    assert score_reply(make_reply(drawn)) == pytest.approx(0.25, abs=1e-12)


def test_model_judge_distinguishes_scores_near_0() -> None:
    sure, surer = (
        score_reply(make_reply(token("Yes", 0.0, {"Yes": 0.0, "No": logprob}))) for logprob in (-40.0, -41.0)
    )
    # 1 - P(True) would be 0 for both, in floating point.
    assert 0.0 < surer < sure
    assert sure == pytest.approx(math.exp(-40.0), rel=1e-12)


def test_model_judge_treats_an_unlisted_word_as_impossible() -> None:
    assert score_reply(make_weighted_reply(Yes=0.9, The=0.1)) == 0.0
    assert score_reply(make_weighted_reply(No=0.9, The=0.1)) == 1.0
    assert score_reply(make_reply(token("Yes", -0.1, {"Yes": -0.1, "No": -math.inf}))) == 0.0
    # Hosted models write -9999 for what they will not say; its odds would overflow.
    assert score_reply(make_reply(token("Yes", 0.0, {"Yes": 0.0, "No": -9999.0}))) == 0.0
    assert score_reply(make_reply(token("No", 0.0, {"Yes": -9999.0, "No": 0.0}))) == 1.0
    assert score_reply(make_reply(token("Yes", -9999.0, {"Yes": -9999.0, "No": -9999.0}))) == 0.5


def test_model_judge_refuses_a_single_alternative() -> None:
    with pytest.raises(VerifierError, match=r"'Yes' cannot be read .*1 top_logprobs"):
        score_reply(make_reply(token("Yes", -0.1, {"Yes": -0.1})))


@pytest.mark.parametrize(
    ("logprob", "expected"),
    [
        (math.nan, "cannot be read .*the log-probability of 'No' is nan"),
        (0.7, "cannot be read .*the log-probability of 'No' is 0.7"),
        (10**400, "cannot be read .*OverflowError"),
        (None, "cannot be read"),
        ("x", "cannot be read"),
    ],
)
def test_model_judge_refuses_invalid_log_probabilities(logprob: Any, expected: str) -> None:
    with pytest.raises(VerifierError, match=expected):
        score_reply(make_reply(token("Yes", -0.5, {"Yes": -0.5, "No": logprob})))


@pytest.mark.parametrize("logprobs", [{}, {"content": None}, {"content": []}, {"content": ["Yes"]}, "Yes", 3])
def test_model_judge_refuses_missing_log_probabilities(logprobs: Any) -> None:
    with pytest.raises(VerifierError, match="no token log-probabilities"):
        score_reply(AIMessage("Yes", response_metadata={"logprobs": logprobs}))


def test_model_judge_reads_a_plain_list_of_log_probabilities() -> None:
    listed = token("Yes", math.log(0.3), {"Yes": math.log(0.3), "No": math.log(0.1)})
    assert score_reply(AIMessage("Yes", response_metadata={"logprobs": [listed]})) == pytest.approx(0.25)


# What is asked


def make_question(prompt: dict[str, Any]) -> str:
    return f"{prompt['country']}: capital?"


async def amake_question(prompt: dict[str, Any]) -> str:
    return make_question(prompt)


@pytest.mark.parametrize("question", [make_question, RunnableLambda(make_question)])
def test_model_judge_uses_the_question_function(invoke: Invoke, question: Any) -> None:
    model = LogprobModel(replies={"Lima": make_weighted_reply(Yes=0.5, No=0.4)})
    invoke(ModelJudge(model, question=question), llama_input("Lima", prompt={"country": "Peru"}))
    [([message], _)] = model._asked
    assert "<question>\nPeru: capital?\n</question>" in message.text


def test_model_judge_async_question_function_works_only_under_ainvoke() -> None:
    verifier = ModelJudge(
        LogprobModel(replies={"Lima": make_weighted_reply(Yes=0.3, No=0.1)}), question=amake_question
    )
    assert invoke_async(verifier, llama_input("Lima", prompt={"country": "Peru"})) == pytest.approx([0.25])
    with pytest.raises(VerifierError, match="the question function is async: use ainvoke"):
        verifier.invoke(llama_input("Lima", prompt={"country": "Peru"}))


def test_model_judge_shows_an_object_as_canonical_json() -> None:
    model = LogprobModel(replies={"Lima": make_weighted_reply(Yes=0.5, No=0.4)})
    ModelJudge(model).invoke(llama_input("Lima", prompt={"b": 1, "a": "é"}))
    [([message], _)] = model._asked
    assert '<question>\n{"a":"é","b":1}\n</question>' in message.text


@pytest.mark.parametrize(
    "prompt", [{"messages": [HumanMessage("Where?")]}, {"x": math.nan}, 3, None, [], [object()], b"Where?"]
)
def test_model_judge_refuses_prompts_that_it_cannot_show(prompt: Any) -> None:
    model = LogprobModel(replies={"Lima": make_weighted_reply(Yes=0.5, No=0.4)})
    with pytest.raises(VerifierError, match="question="):
        ModelJudge(model).invoke(llama_input("Lima", prompt=prompt))
    assert model._asked == []


def test_model_judge_quotes_braces_and_empty_texts() -> None:
    model = LogprobModel(
        replies={"{text}": make_weighted_reply(Yes=0.5, No=0.4), "": make_weighted_reply(Yes=0.4, No=0.5)}
    )
    ModelJudge(model).invoke(llama_input("{text}", "", prompt="{question} {0}"))
    assert {candidate_of(str(messages[0].text)) for messages, _ in model._asked} == {"{text}", ""}


def test_model_judge_takes_a_model_with_retry(invoke: Invoke) -> None:
    with judging(LOGPROB_ANSWERS, faults=[Fault("status 500", on={0})]) as (script, make):
        scores = invoke(ModelJudge(make().with_retry(stop_after_attempt=2)), llama_input("Peru"))
    assert scores == pytest.approx([0.25], abs=1e-12)
    assert [body["top_logprobs"] for body in script.requests] == [20, 20]


# Stated probabilities


@pytest.mark.parametrize(("stated", "score"), [(0, 1.0), (100, 0.0), (50, 0.5), (99, 0.01)])
def test_model_judge_turns_percentages_into_scores(stated: int, score: float) -> None:
    assert score_reply(AIMessage(f"Percent: {stated}"), mode="line") == score


def test_model_judge_raises_if_no_reply_about_several_texts_is_readable() -> None:
    reply = "no idea " * 100
    model = InMemory(replies=dict.fromkeys(["Peru", "Norway"], AIMessage(reply)))
    with pytest.raises(VerifierError, match="'no idea no idea") as caught:
        ModelJudge(model).invoke(llama_input("Peru", "Norway"))
    assert len(str(caught.value)) < 500


def test_line_mode_reads_json_over_http(invoke: Invoke) -> None:
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
        judge = ModelJudge(make(), mode="line")
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
            ModelJudge(make(), mode="line"),
            ModelJudge(make(), top_logprobs=5),
            ModelJudge(make(), question=str),
        ]
        again = ModelJudge(make()).fingerprint
    assert compare_fingerprints("verifier", plain, again) is None
    for other in others:
        assert any(other.fingerprint.get(key) != value for key, value in plain.items()), other
    assert (plain["id"], plain["model.model"]) == ("model-judge", "judge")
    # Who the model is must be known before the id vouches for it.
    assert "id" not in ModelJudge(InMemory(replies={})).fingerprint

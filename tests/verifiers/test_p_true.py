"""`PTrue`: what is asked, what is read from the first word's alternatives, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.verifiers import VerifierInput
from langchain_cfc.verifiers.p_true import PTrue
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

LETTERS = {"A": math.log(0.6), "B": math.log(0.2), "The": math.log(0.1)}
ANSWERS = {
    "Peru": Answer("A", math.log(0.6), first=LETTERS),
    "Norway": Answer("B", math.log(0.9), first={"B": math.log(0.9), "A": math.log(0.1)}),
}


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
    [score] = PTrue(LogprobModel(replies={"Peru": reply}), **options).invoke(llama_input("Peru"))
    return score


def test_p_true_scores_over_http(invoke: Invoke) -> None:
    with judging(ANSWERS) as (script, make):
        scores = invoke(PTrue(make()), llama_input("Peru", "Norway", "Peru"))
    # By hand: 0.2 / (0.6 + 0.2), and 0.9 / (0.9 + 0.1).
    assert scores == pytest.approx([0.25, 0.9, 0.25], abs=1e-12)
    assert len(script.requests) == 2  # equal texts share a judgement


def test_p_true_request_asks_for_log_probabilities_and_few_tokens(invoke: Invoke) -> None:
    with judging(ANSWERS) as (script, make):
        invoke(PTrue(make(streaming=True, max_tokens=500), top_logprobs=7), llama_input("Peru"))
    [body] = script.requests
    assert (body["logprobs"], body["top_logprobs"]) == (True, 7)
    assert not body.get("stream")
    # Whatever a model would go on to say is not paid for.
    assert body["max_completion_tokens"] < 10
    [message] = body["messages"]
    assert message["role"] == "user"
    for part in ("Where do llamas live?", "<answer>\nPeru\n</answer>", "(A) True\n(B) False"):
        assert part in message["content"]


def test_p_true_shows_one_candidate_per_request() -> None:
    replies = dict.fromkeys(["Peru", "Norway"], make_weighted_reply(A=0.5, B=0.4))
    plain = LogprobModel(replies=replies)
    PTrue(plain).invoke(llama_input("Peru", "Norway"))
    assert {candidate_of(str(messages[0].text)) for messages, _ in plain._asked} == {"Peru", "Norway"}
    assert not any(
        "Norway" in messages[0].text and "Peru" in messages[0].text for messages, _ in plain._asked
    )


@pytest.mark.parametrize(
    "spellings",
    [
        ("A", " A", "a", "(A", "(A)", "A.", "\u0120A", "\u2581A", "True", " true", "TRUE", "**A**"),
        ("B", " B", "b", "(B", "(B)", "B.", "\u0120B", "\u2581B", "False", " false", "FALSE", "**B**"),
    ],
)
def test_p_true_adds_up_spellings_of_a_choice(spellings: tuple[str, ...]) -> None:
    other = "B" if "A" in spellings else "A"
    found = score_reply(make_reply_of_weights({**dict.fromkeys(spellings, 0.05), other: 0.2}))
    against = 0.2 if other == "B" else 0.6
    assert found == pytest.approx(against / 0.8, abs=1e-12)


@pytest.mark.parametrize("word", ["As", "Ab", "Truth", "Falsely", "C", "1", "Answer"])
def test_p_true_ignores_words_that_only_begin_alike(word: str) -> None:
    assert score_reply(make_reply_of_weights({"A": 0.3, "B": 0.1, word: 0.5})) == pytest.approx(
        0.25, abs=1e-12
    )


def test_p_true_skips_brackets_and_blanks_before_the_choice() -> None:
    alternatives = {"A": math.log(0.3), "B": math.log(0.1)}
    bracket = token("(", math.log(0.9), {"(": math.log(0.9), "A": math.log(0.05)})
    blank = token("\n\n", -0.1, {"\n\n": -0.1, "B": -3.0})
    assert score_reply(make_reply(blank, bracket, token("A", math.log(0.3), alternatives))) == pytest.approx(
        0.25
    )


def test_p_true_counts_the_drawn_token() -> None:
    drawn = token("B", math.log(0.1), {"A": math.log(0.3), "The": math.log(0.2)})
    assert score_reply(make_reply(drawn)) == pytest.approx(0.25, abs=1e-12)


def test_p_true_distinguishes_scores_near_0() -> None:
    sure, surer = (
        score_reply(make_reply(token("A", 0.0, {"A": 0.0, "B": logprob}))) for logprob in (-40.0, -41.0)
    )
    # 1 - P(True) would be 0 for both, in floating point.
    assert 0.0 < surer < sure
    assert sure == pytest.approx(math.exp(-40.0), rel=1e-12)


def test_p_true_treats_an_unlisted_choice_as_impossible() -> None:
    assert score_reply(make_weighted_reply(A=0.9, The=0.1)) == 0.0
    assert score_reply(make_weighted_reply(B=0.9, The=0.1)) == 1.0
    assert score_reply(make_reply(token("A", -0.1, {"A": -0.1, "B": -math.inf}))) == 0.0
    # Hosted models write -9999 for what they will not say; its odds would overflow.
    assert score_reply(make_reply(token("A", 0.0, {"A": 0.0, "B": -9999.0}))) == 0.0
    assert score_reply(make_reply(token("B", 0.0, {"A": -9999.0, "B": 0.0}))) == 1.0
    assert score_reply(make_reply(token("A", -9999.0, {"A": -9999.0, "B": -9999.0}))) == 0.5


def test_p_true_reads_no_verdict_from_a_blank_reply() -> None:
    assert score_reply(make_reply(token("\n", -0.1, {"\n": -0.1, "A": -2.0}))) is None


def test_p_true_refuses_a_single_alternative() -> None:
    with pytest.raises(VerifierError, match=r"'A' cannot be read .*1 top_logprobs"):
        score_reply(make_reply(token("A", -0.1, {"A": -0.1})))


@pytest.mark.parametrize(
    ("logprob", "expected"),
    [
        (math.nan, "cannot be read .*the log-probability of 'B' is nan"),
        (0.7, "cannot be read .*the log-probability of 'B' is 0.7"),
        (None, "cannot be read"),
        ("x", "cannot be read"),
    ],
)
def test_p_true_refuses_invalid_log_probabilities(logprob: Any, expected: str) -> None:
    with pytest.raises(VerifierError, match=expected):
        score_reply(make_reply(token("A", -0.5, {"A": -0.5, "B": logprob})))


@pytest.mark.parametrize("logprobs", [{}, {"content": None}, {"content": []}, {"content": ["A"]}, "A", 3])
def test_p_true_refuses_missing_log_probabilities(logprobs: Any) -> None:
    with pytest.raises(VerifierError, match="no token log-probabilities"):
        score_reply(AIMessage("A", response_metadata={"logprobs": logprobs}))


def test_p_true_reads_a_plain_list_of_log_probabilities() -> None:
    listed = token("A", math.log(0.3), {"A": math.log(0.3), "B": math.log(0.1)})
    assert score_reply(AIMessage("A", response_metadata={"logprobs": [listed]})) == pytest.approx(0.25)


def make_question(prompt: dict[str, Any]) -> str:
    return f"{prompt['country']}: capital?"


async def amake_question(prompt: dict[str, Any]) -> str:
    return make_question(prompt)


@pytest.mark.parametrize("question", [make_question, RunnableLambda(make_question)])
def test_p_true_uses_the_question_function(invoke: Invoke, question: Any) -> None:
    model = LogprobModel(replies={"Lima": make_weighted_reply(A=0.5, B=0.4)})
    invoke(PTrue(model, question=question), llama_input("Lima", prompt={"country": "Peru"}))
    [([message], _)] = model._asked
    assert "<question>\nPeru: capital?\n</question>" in message.text


def test_p_true_async_question_function_works_only_under_ainvoke() -> None:
    verifier = PTrue(
        LogprobModel(replies={"Lima": make_weighted_reply(A=0.3, B=0.1)}), question=amake_question
    )
    assert invoke_async(verifier, llama_input("Lima", prompt={"country": "Peru"})) == pytest.approx([0.25])
    with pytest.raises(VerifierError, match="the question function is async: use ainvoke"):
        verifier.invoke(llama_input("Lima", prompt={"country": "Peru"}))


def test_p_true_shows_an_object_as_canonical_json() -> None:
    model = LogprobModel(replies={"Lima": make_weighted_reply(A=0.5, B=0.4)})
    PTrue(model).invoke(llama_input("Lima", prompt={"b": 1, "a": "é"}))
    [([message], _)] = model._asked
    assert '<question>\n{"a":"é","b":1}\n</question>' in message.text


@pytest.mark.parametrize(
    "prompt", [{"messages": [HumanMessage("Where?")]}, {"x": math.nan}, 3, None, [], [object()], b"Where?"]
)
def test_p_true_refuses_prompts_that_it_cannot_show(prompt: Any) -> None:
    model = LogprobModel(replies={"Lima": make_weighted_reply(A=0.5, B=0.4)})
    with pytest.raises(VerifierError, match="question="):
        PTrue(model).invoke(llama_input("Lima", prompt=prompt))
    assert model._asked == []


def test_p_true_quotes_braces_and_empty_texts() -> None:
    model = LogprobModel(
        replies={"{text}": make_weighted_reply(A=0.5, B=0.4), "": make_weighted_reply(A=0.4, B=0.5)}
    )
    PTrue(model).invoke(llama_input("{text}", "", prompt="{question} {0}"))
    assert {candidate_of(str(messages[0].text)) for messages, _ in model._asked} == {"{text}", ""}


def test_p_true_takes_a_model_with_retry(invoke: Invoke) -> None:
    with judging(ANSWERS, faults=[Fault("status 500", on={0})]) as (script, make):
        scores = invoke(PTrue(make().with_retry(stop_after_attempt=2)), llama_input("Peru"))
    assert scores == pytest.approx([0.25], abs=1e-12)
    assert [body["top_logprobs"] for body in script.requests] == [20, 20]


def test_p_true_judges_structured_candidates_by_their_text() -> None:
    model = LogprobModel(replies={'{"x":1}': make_weighted_reply(A=0.3, B=0.1)})
    candidates = [DrawnCandidate('{"x":1}', None, {"x": 1})]
    assert PTrue(model).invoke(VerifierInput(prompt="?", candidates=candidates)) == pytest.approx([0.25])


def test_p_true_fingerprint_differs_for_other_judges() -> None:
    with judging(ANSWERS) as (_, make):
        model = make(temperature=0.0)
        plain = PTrue(model).fingerprint
        others = [
            PTrue(make(model="other")),
            PTrue(make(temperature=0.5)),
            PTrue(model, top_logprobs=5),
            PTrue(model, question=make_question),
        ]
        again = PTrue(make(temperature=0.0)).fingerprint
    assert compare_fingerprints("verifier", plain, again) == "matched"
    for other in others:
        assert any(other.fingerprint.get(key) != value for key, value in plain.items()), other
    assert plain["id"] == "p-true"
    assert plain["model.model"] == "judge"
    # Who the model is must be known before the id vouches for it.
    assert "id" not in PTrue(InMemory(replies={})).fingerprint


def test_p_true_refuses_a_single_alternative_as_setting() -> None:
    with pytest.raises(InputError, match="top_logprobs must be at least 2"):
        PTrue(LogprobModel(replies={}), top_logprobs=1)


def test_p_true_refuses_anything_but_a_model() -> None:
    with pytest.raises(InputError, match="got a str as judging model"):
        PTrue("gpt")  # type: ignore[arg-type]


def test_p_true_repr_names_its_model() -> None:
    with judging(ANSWERS) as (_, make):
        assert repr(PTrue(make())) == "PTrue(judge)"
    assert repr(PTrue(InMemory(replies={}))) == "PTrue(InMemory)"

"""What a chain returns: the set that the threshold admits, in every way of calling it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCResult
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import decide
from langchain_cfc.sampling import DrawnCandidate
from tests.calls import Invoke
from tests.factories import make_artifact, make_chain, with_prompt_kind
from tests.fakes import (
    TEXTS,
    N,
    ScriptedModel,
    answer_of,
    averify,
    score_of,
    text_from_hash,
    topic_of,
    verify,
)

PROMPTS = [f"question {number} easy" for number in range(12)]


def test_chain_accepts_candidates_with_scores_below_the_threshold(invoke: Invoke) -> None:
    result = invoke(make_chain(), "where?")
    assert result.threshold == pytest.approx(0.75)
    assert [one.accepted for one in result.candidates] == [True, False, True, False]
    assert [one.score for one in result.candidates] == [0.3, 0.9, 0.1, 0.8]
    assert [one.slot for one in result.candidates] == [0, 1, 2, 3]
    assert [one.text for one in result.candidates] == ["lima|0.3", None, "lima|0.1", None]
    # There is no extractor, so there is no extracted answer.
    assert [one.answer for one in result.candidates] == [None] * N
    assert (result.abstained, result.reason) == (False, "answered")


def test_answers_are_distinct_and_ordered_by_score(invoke: Invoke) -> None:
    texts = ("lima|0.3", "quito|0.2", "lima|0.1", "quito|0.7")
    by_text = invoke(make_chain(generator=ScriptedModel(texts=texts)), "where?")
    assert by_text.answers == ("lima|0.1", "quito|0.2", "lima|0.3", "quito|0.7")
    extracted = invoke(make_chain(generator=ScriptedModel(texts=texts), answer=answer_of), "where?")
    assert extracted.answers == ("lima", "quito")
    spelled = ScriptedModel(texts=("Lima|0.3", "quito|0.2", "lima.|0.1", "Quito!|0.7"))
    assert invoke(make_chain(generator=spelled, answer=answer_of), "where?").answers == ("lima.", "quito")
    assert extracted.best == "lima"


def test_chain_gives_the_best_candidate_if_none_is_below_the_threshold(invoke: Invoke) -> None:
    model = ScriptedModel(texts=("a|0.8", "b|0.76", "c|1", "d|0.9"))
    result = invoke(make_chain(generator=model), "x")
    assert (result.abstained, result.reason) == (False, "answered")
    assert (result.answers, result.best) == (("b|0.76",), "b|0.76")
    assert result.threshold == pytest.approx(0.75)


def test_prompt_with_infinite_threshold_is_not_certifiable(
    by_topics: CalibrationArtifact, invoke: Invoke
) -> None:
    chain = make_chain(by_topics, metadata=topic_of)
    assert invoke(chain, "an easy").reason == "answered"
    flagged = invoke(chain, "a hopeless")
    assert (flagged.abstained, flagged.reason) == (True, "not_certifiable")
    assert (flagged.answers, flagged.best) == ((), None)
    assert flagged.threshold == float("inf")
    # The scores are good enough for every finite threshold; it is the topic that cannot be certified.
    assert not any(one.accepted for one in flagged.candidates)


def test_result_features_are_named_and_those_of_the_prompt(
    by_topics: CalibrationArtifact, invoke: Invoke
) -> None:
    result = invoke(make_chain(by_topics, metadata=topic_of), "a hopeless")
    assert result.features == {"group(topic)=easy": 0.0, "group(topic)=hopeless": 1.0}


@pytest.mark.parametrize("verifier", [verify, averify, RunnableLambda(lambda d: verify(**d))])
def test_invoke_batch_and_stream_return_the_same_decision(verifier: Any) -> None:
    chain = make_chain(generator=ScriptedModel(), verifier=verifier, answer=answer_of)

    async def all_async() -> list[list[CFCResult]]:
        one_by_one = [await chain.ainvoke(prompt) for prompt in PROMPTS]
        together = await chain.abatch(PROMPTS)
        streamed = [part for prompt in PROMPTS async for part in chain.astream(prompt)]
        completed: dict[int, Any] = dict([pair async for pair in chain.abatch_as_completed(PROMPTS)])
        return [one_by_one, together, streamed, [completed[i] for i in range(len(PROMPTS))]]

    ways = asyncio.run(all_async())
    if verifier is not averify:
        ways += [
            [chain.invoke(prompt) for prompt in PROMPTS],
            chain.batch(PROMPTS),
            chain.batch(PROMPTS, {"max_concurrency": 2}),
            [result for _, result in sorted(chain.batch_as_completed(PROMPTS), key=lambda pair: pair[0])],
            [part for prompt in PROMPTS for part in chain.stream(prompt)],
        ]
    expected = ways[0]
    assert len(expected) == len(PROMPTS)
    assert len({len(result.answers) for result in expected}) > 1
    assert all(way == expected for way in ways)


def test_chain_decides_as_decide_does(artifact: CalibrationArtifact) -> None:
    results = make_chain(artifact, generator=ScriptedModel()).batch(PROMPTS)
    texts = [[text_from_hash(prompt, slot) for slot in range(N)] for prompt in PROMPTS]
    draws = CandidateBatch.from_arrays([[score_of(text) for text in row] for row in texts], texts)
    decisions = decide(artifact, draws)
    assert [[one.accepted for one in result.candidates] for result in results] == decisions.accepted.tolist()
    assert [result.threshold for result in results] == decisions.thresholds.tolist()
    assert [result.reason for result in results] == [
        decisions.find_reason(row) for row in range(len(PROMPTS))
    ]


def test_concurrent_batch_returns_what_invoke_returns(by_topics: CalibrationArtifact) -> None:
    chain = make_chain(by_topics, generator=ScriptedModel(), answer=answer_of, metadata=topic_of)
    prompts = [f"question {number} {('easy', 'hopeless')[number % 2]}" for number in range(30)]
    one_by_one = [chain.invoke(prompt) for prompt in prompts]
    assert chain.batch(prompts, {"max_concurrency": 16}) == one_by_one
    assert asyncio.run(chain.abatch(prompts, {"max_concurrency": 16})) == one_by_one
    assert {result.reason for result in one_by_one} == {"answered", "not_certifiable"}


def test_unique_set_rule_accepts_each_answer_once() -> None:
    artifact = make_artifact(set_rule="unique(all)", extracted=True)
    texts = ("lima|0.3", "quito|0.2", "lima|0.1", "quito|0.7")
    chain = make_chain(artifact, generator=ScriptedModel(texts=texts), answer=answer_of)
    result = chain.invoke("where?")
    assert result.answers == ("lima", "quito")
    assert [one.level for one in result.candidates] == [None, 0.2, 0.1, None]
    assert [one.accepted for one in result.candidates] == [False, True, True, False]


def test_best_prefix_set_rule_accepts_nothing_after_the_best() -> None:
    artifact = make_artifact(set_rule="best_prefix")
    texts = ("a|0.3", "b|0.1", "c|0.2", "d|0.9")
    result = make_chain(artifact, generator=ScriptedModel(texts=texts)).invoke("x")
    assert result.answers == ("b|0.1", "a|0.3")


def test_empty_candidate_scores_worst_and_is_never_accepted(invoke: Invoke) -> None:
    def judge(_: Any, candidates: Sequence[DrawnCandidate]) -> list[float]:
        return [0.1 if one.text == "" else 0.9 for one in candidates]

    model = ScriptedModel(texts=("a", "", "b", "c"))
    result = invoke(make_chain(generator=model, verifier=judge), "x")
    assert len(result.candidates) == N
    assert (result.answers, result.best, result.reason) == (("a",), "a", "answered")
    empty = result.candidates[1]
    assert (empty.score, empty.level, empty.accepted, empty.length) == (1.0, None, False, 0)


def test_extractor_that_finds_no_answer_gives_only_blank_answers(invoke: Invoke) -> None:
    result = invoke(make_chain(answer=lambda _: ""), "x")
    assert (result.answers, result.best, result.reason) == ((), None, "only_blank_answers")
    assert not any(one.accepted for one in result.candidates)


@pytest.mark.parametrize(
    "generator",
    [
        ScriptedModel(texts=TEXTS),
        ScriptedModel(texts=TEXTS).bind(stop=["\n"]),
        ScriptedModel(texts=TEXTS) | RunnableLambda(lambda message: message.text),
        ScriptedModel(texts=TEXTS).with_retry(),
        RunnableLambda(lambda _: AIMessage("lima|0.3")),
        lambda _: "lima|0.3",
    ],
)
def test_generator_may_be_any_runnable_or_function_of_texts(generator: Any, invoke: Invoke) -> None:
    result = invoke(make_chain(generator=generator, answer=answer_of), "where?")
    assert result.answers == ("lima",)
    assert result.candidates[0].text == "lima|0.3"


def test_generator_may_be_a_template_piped_into_a_model(
    artifact: CalibrationArtifact, invoke: Invoke
) -> None:
    model = ScriptedModel(texts=TEXTS)
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("Capital of {land}?")
    chain = make_chain(with_prompt_kind(artifact, "object"), generator=template | model, answer=answer_of)
    assert invoke(chain, {"land": "Peru"}).answers == ("lima",)
    assert model.drawn == ["Capital of Peru?"] * N


def test_result_holds_no_rejected_text(invoke: Invoke) -> None:
    result = invoke(make_chain(answer=answer_of), "where?")
    for text in (result.model_dump_json(), repr(result), result.explain()):
        assert "quito" not in text
        assert "bogota" not in text
    assert "lima|0.3" in result.model_dump_json()


def test_show_rejected_shows_rejected_texts_and_answers(invoke: Invoke) -> None:
    result = invoke(make_chain(answer=answer_of, show_rejected=True), "where?")
    assert [one.text for one in result.candidates] == list(TEXTS)
    assert [one.answer for one in result.candidates] == ["lima", "quito", "lima", "bogota"]
    assert result.answers == ("lima",)


def test_chain_draws_as_many_candidates_as_the_artifact_states() -> None:
    model = ScriptedModel(texts=TEXTS)
    result = make_chain(make_artifact(n=2), generator=model).invoke("x")
    assert len(result.candidates) == 2
    assert len(model.drawn) == 2

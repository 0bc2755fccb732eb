"""A preview: what a chain answers, where it agrees, what it cost, and what failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc.errors import InputError
from langchain_cfc.runnable import Preview, preview_answers
from langchain_cfc.verifiers import SelfConsistency

ANSWERS = {
    "sure": ["Lima"] * 4,
    "worded": ["Lima", "lima.", "Lima!", "Lima"],
    "torn": ["Cusco", "Lima", "Lima", "Cusco"],
    "lost": ["a", "b", "c", "d"],
}


def make_chain() -> Runnable[Any, Any]:
    """Return a chain that gives the answers of a question in turn."""
    turns = {question: count() for question in ANSWERS}

    def answer(question: str) -> AIMessage:
        text = ANSWERS[question][next(turns[question]) % 4]
        usage: Any = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
        return AIMessage(text, usage_metadata=usage, response_metadata={"model_name": "fake"})

    return RunnableLambda(answer)


def look(**options: Any) -> Preview:
    return preview_answers(make_chain(), list(ANSWERS), n=4, config={"max_concurrency": 1}, **options)


def test_the_questions_with_least_agreement_come_first() -> None:
    found = look()
    assert [one.question for one in found.questions] == ["lost", "torn", "sure", "worded"]
    assert [one.agreement for one in found.questions] == [0.25, 0.5, 1.0, 1.0]
    assert [one.entropy for one in found.questions] == pytest.approx([math.log(4), math.log(2), 0.0, 0.0])
    torn = found.questions[1]
    assert [(one.answer, one.count, one.score) for one in torn.clusters] == [
        ("Cusco", 2, 0.5),
        ("Lima", 2, 0.5),
    ]
    assert found.unanimous_rate == 0.5
    assert found.mean_distinct_answers == 2.0
    assert Preview.model_validate_json(found.model_dump_json()) == found


def test_a_judge_of_meaning_joins_clusters() -> None:
    def entails(_: Any, first: str, second: str) -> bool:
        return {first, second} <= {"a", "b"} or first == "c"

    one_way = look(verifier=SelfConsistency(equivalent=entails)).questions
    both_ways = look(verifier=SelfConsistency(equivalent=entails, both_ways=True)).questions
    lost = [next(one for one in seen if one.question == "lost") for seen in (one_way, both_ways)]
    # c entails d, but not the other way round.
    assert [sorted(cluster.count for cluster in one.clusters) for one in lost] == [[2, 2], [1, 1, 2]]


def test_a_verifier_scores_each_cluster_by_its_best_candidate() -> None:
    def judge(prompt: Any, candidates: Sequence[Any]) -> list[float]:
        assert prompt in ANSWERS
        return [0.1 * slot for slot in range(len(candidates))]

    torn = look(verifier=judge).questions[1]
    assert {one.answer: one.score for one in torn.clusters} == pytest.approx({"Cusco": 0.0, "Lima": 0.1})


def test_what_fails_is_kept_and_stops_nothing() -> None:
    def answer(question: str) -> AIMessage:
        answers = {name: answers for name, answers in ANSWERS.items() if name != "lost"}
        return AIMessage(answers[question][0])

    found = preview_answers(RunnableLambda(answer), list(ANSWERS), n=4, config={"max_concurrency": 1})
    assert [one.question for one in found.answered] == ["sure", "worded", "torn"]
    failed = found.questions[-1]
    assert failed.question == "lost"
    assert failed.error is not None
    assert failed.clusters == ()
    assert failed.agreement is None


def test_tokens_are_those_of_all_draws() -> None:
    model = make_chain() | RunnableLambda(lambda said: said)
    assert preview_answers(model, ["sure"], n=2).usage is None  # no model was called
    told = preview_answers(FakeListChatModel(responses=["a", "b"]), ["x"], n=2, config={"max_concurrency": 1})
    assert [one.count for one in told.questions[0].clusters] == [1, 1]


@pytest.mark.parametrize(
    ("questions", "options"),
    [([], {}), (["sure"], {"n": 1}), (["sure"], {"verifier": SelfConsistency(), "answer": str.strip})],
)
def test_what_makes_no_sense_is_refused(questions: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        preview_answers(make_chain(), questions, **options)


def test_progress_is_announced_question_by_question() -> None:
    done: list[int] = []
    look(on_progress=done.append)
    assert done == [1, 2, 3, 4]

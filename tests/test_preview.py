"""`preview`: how far draws agree, which questions come first, and what fails is shown."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.preview import NO_GUARANTEE, Preview, preview
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import EntailmentJudge, SelfConsistency
from tests.fakes import N, ScriptedModel, answer_of, verify

# What is drawn for a question, draw by draw.
ANSWERS = {
    "sure": ["Lima", "lima.", "Lima", "Lima"],
    "split": ["Lima", "Quito", "Lima", "Quito"],
    "lost": ["Lima", "Quito", "Bogota", "La Paz"],
}


def answering(**answers: list[str]) -> RunnableLambda[str, str]:
    """A chain that gives these answers to each question, one after the other."""
    given = {question: iter(texts) for question, texts in (answers or ANSWERS).items()}
    lock = threading.Lock()

    def answer(question: str) -> str:
        with lock:
            return next(given[question])

    return RunnableLambda(answer)


def look(*questions: str, chain: Any = None, **settings: Any) -> Preview:
    return preview(chain or answering(), questions, **{"n": N, "max_concurrency": 1, **settings})


def test_computed_by_hand() -> None:
    found = look("sure", "lost", "split")
    assert [one.question for one in found.questions] == ["lost", "split", "sure"]
    assert [one.agreement for one in found.questions] == [0.25, 0.5, 1.0]
    assert [one.mean_score for one in found.questions] == [0.75, 0.5, 0.0]
    clusters = [[(one.text, one.size, one.score) for one in seen.clusters] for seen in found.questions]
    assert clusters[1:] == [[("Lima", 2, 0.5), ("Quito", 2, 0.5)], [("Lima", 4, 0.0)]]
    assert found.unanimous == pytest.approx(1 / 3)
    assert found.mean_agreement == pytest.approx((0.25 + 0.5 + 1.0) / 3)
    assert found.mean_clusters == pytest.approx((4 + 2 + 1) / 3)
    assert (found.n, found.failed, found.note) == (N, 0, NO_GUARANTEE)
    assert "not" in NO_GUARANTEE
    assert "guarantee" in NO_GUARANTEE


def test_questions_that_tie_keep_their_order() -> None:
    chain = answering(b=["x"] * N, a=["x"] * N, c=["x"] * N)
    assert [one.question for one in look("b", "a", "c", chain=chain).questions] == ["b", "a", "c"]


def test_the_largest_cluster_comes_first() -> None:
    found = look("q", chain=answering(q=["Quito", "Lima", "Lima", "Lima"]))
    assert [(one.text, one.size) for one in found.questions[0].clusters] == [("Lima", 3), ("Quito", 1)]


def test_a_verifier_scores_and_orders_while_answers_make_the_clusters() -> None:
    model = ScriptedModel(texts=["lima|0.2", "lima|0.4", "quito|0.9", "lima|0.3"])
    seen = look("where?", chain=model, verifier=verify, answer=answer_of).questions[0]
    assert [(one.text, one.size) for one in seen.clusters] == [("lima|0.2", 3), ("quito|0.9", 1)]
    assert [one.score for one in seen.clusters] == pytest.approx([0.3, 0.9])
    assert seen.mean_score == pytest.approx(0.45)
    # Without the extractor, all four texts differ.
    apart = look("where?", chain=ScriptedModel(texts=model.texts), verifier=verify).questions[0]
    assert len(apart.clusters) == N


def test_clusters_of_meaning_come_from_the_verifier_which_is_asked_once() -> None:
    asked: list[tuple[str, str]] = []

    def entails(prompt: Any, premise: str, hypothesis: str) -> bool:
        assert prompt == "lost"
        asked.append((premise, hypothesis))
        return premise[0] == hypothesis[0]

    seen = look("lost", verifier=SelfConsistency(entails=entails, normalise=None)).questions[0]
    assert [(one.text, one.size) for one in seen.clusters] == [("Lima", 2), ("Quito", 1), ("Bogota", 1)]
    assert len(asked) == len(set(asked))


def test_a_failed_question_is_shown_and_the_others_go_on() -> None:
    found = look("sure", "unknown", "lost")
    assert [one.question for one in found.questions] == ["lost", "sure", "unknown"]
    failed = found.questions[-1]
    assert "KeyError" in str(failed.error)
    assert "guarantee" not in str(failed.error)  # a preview has none
    assert (failed.clusters, failed.agreement, failed.mean_score) == ((), None, None)
    # It counts in no mean.
    assert (found.failed, found.unanimous, found.mean_clusters) == (1, 0.5, 2.5)


def test_where_all_fail_there_is_no_summary() -> None:
    found = look("unknown")
    assert (found.failed, found.unanimous, found.mean_agreement, found.mean_clusters) == (1, None, None, None)


def test_a_verifier_that_fails_fails_its_question() -> None:
    def fail_once(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        if prompt == "sure":
            msg = "no server"
            raise OSError(msg)
        return [0.5] * len(candidates)

    found = look("sure", "split", verifier=fail_once)
    assert found.failed == 1
    assert "no server" in str(found.questions[-1].error)


def test_what_it_costs_counts_generator_and_verifier() -> None:
    usage: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    model = ScriptedModel(texts=["a", "b", "a", "a"], usage=usage)
    judge = EntailmentJudge(FakeListChatModel(responses=["neutral"]))
    found = look("where?", "who?", chain=model, verifier=SelfConsistency(entails=judge))
    # Two answers, of which the second does not follow from the first: one judgement for each question.
    assert (found.calls, found.silent_calls) == (2 * (N + 1), 2)
    assert (found.input_tokens, found.output_tokens) == (2 * N * 10, 2 * N * 2)


def test_calls_keep_to_the_limit() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def answer(question: str) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1
        return question

    look(*"abcdef", chain=RunnableLambda(answer), max_concurrency=3)
    assert most == 3


def test_progress_is_told_of_every_question() -> None:
    done: list[None] = []
    look("sure", "unknown", on_progress=lambda: done.append(None))
    assert len(done) == 2


def test_it_works_where_a_loop_runs_and_with_async_parts() -> None:
    async def answer(question: str) -> str:
        await asyncio.sleep(0)
        return question

    async def in_a_notebook() -> Preview:
        return look("a", chain=RunnableLambda(answer))

    assert asyncio.run(in_a_notebook()).unanimous == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "n is 0; expected a whole number"),
        ({"n": 2.5}, "n is 2.5; expected a whole number"),
        ({"max_concurrency": 0}, "max_concurrency is 0"),
        ({"verifier": SelfConsistency(), "answer": answer_of}, "pass answer= to SelfConsistency"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        look("sure", **settings)


def test_no_question_and_no_verifier_are_refused() -> None:
    with pytest.raises(InputError, match="no questions"):
        look()
    with pytest.raises(VerifierError, match="got a int as verifier"):
        look("sure", verifier=3)

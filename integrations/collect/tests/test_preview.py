"""`preview`: agreement of draws, order of questions, and how failures are shown."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_cfc_collect.preview import NO_GUARANTEE, Preview, preview
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from langchain_cfc.errors import InputError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import EntailmentJudge, SelfConsistency
from tests.concurrency import ConcurrencyCounter
from tests.fakes import N, ScriptedModel, answer_of, verify

# What is drawn for a question, draw by draw.
ANSWERS = {
    "sure": ["Lima", "lima.", "Lima", "Lima"],
    "split": ["Lima", "Quito", "Lima", "Quito"],
    "lost": ["Lima", "Quito", "Bogota", "La Paz"],
}


def make_chain(**answers: list[str]) -> RunnableLambda[str, str]:
    """A chain that gives these answers to each question, one after the other."""
    given = {question: iter(texts) for question, texts in (answers or ANSWERS).items()}
    lock = threading.Lock()

    def answer(question: str) -> str:
        with lock:
            return next(given[question])

    return RunnableLambda(answer)


def run_preview(*questions: str, chain: Any = None, **settings: Any) -> Preview:
    return preview(chain or make_chain(), questions, **{"n": N, "max_concurrency": 1, **settings})


def test_preview_equals_values_computed_by_hand() -> None:
    found = run_preview("sure", "lost", "split")
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


def test_preview_clusters_by_answer_and_scores_by_verifier() -> None:
    model = ScriptedModel(texts=["lima|0.2", "lima|0.4", "quito|0.9", "lima|0.3"])
    seen = run_preview("where?", chain=model, verifier=verify, answer=answer_of).questions[0]
    assert [(one.text, one.size) for one in seen.clusters] == [("lima|0.2", 3), ("quito|0.9", 1)]
    assert [one.score for one in seen.clusters] == pytest.approx([0.3, 0.9])
    assert seen.mean_score == pytest.approx(0.45)
    # Without the extractor, all four texts differ.
    apart = run_preview("where?", chain=ScriptedModel(texts=model.texts), verifier=verify).questions[0]
    assert len(apart.clusters) == N


def test_preview_clusters_by_entailment_and_asks_once_per_pair() -> None:
    asked: list[tuple[str, str]] = []

    def entails(prompt: Any, premise: str, hypothesis: str) -> bool:
        assert prompt == "lost"
        asked.append((premise, hypothesis))
        return premise[0] == hypothesis[0]

    seen = run_preview("lost", verifier=SelfConsistency(entails=entails)).questions[0]
    assert [(one.text, one.size) for one in seen.clusters] == [("Lima", 2), ("Quito", 1), ("Bogota", 1)]
    assert len(asked) == len(set(asked))


def test_preview_reports_a_failed_question_and_continues() -> None:
    found = run_preview("sure", "unknown", "lost")
    assert [one.question for one in found.questions] == ["lost", "sure", "unknown"]
    failed = found.questions[-1]
    assert "KeyError" in str(failed.error)
    assert "guarantee" not in str(failed.error)  # a preview has none
    assert (failed.clusters, failed.agreement, failed.mean_score) == ((), None, None)
    # It counts in no mean.
    assert (found.failed, found.unanimous, found.mean_clusters) == (1, 0.5, 2.5)


def test_preview_reports_a_failing_verifier_per_question() -> None:
    def fail_once(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        if prompt == "sure":
            msg = "no server"
            raise OSError(msg)
        return [0.5] * len(candidates)

    found = run_preview("sure", "split", verifier=fail_once)
    assert found.failed == 1
    assert "no server" in str(found.questions[-1].error)


def test_preview_counts_calls_and_tokens() -> None:
    usage: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    model = ScriptedModel(texts=["a", "b", "a", "a"], usage=usage)
    judge = EntailmentJudge(FakeListChatModel(responses=["neutral"]))
    found = run_preview("where?", "who?", chain=model, verifier=SelfConsistency(entails=judge))
    # Two answers, of which the second does not follow from the first: one judgement for each question.
    assert (found.calls, found.silent_calls) == (2 * (N + 1), 2)
    assert (found.input_tokens, found.output_tokens) == (2 * N * 10, 2 * N * 2)


def test_preview_keeps_max_concurrency() -> None:
    under_way = ConcurrencyCounter()

    def answer(question: str) -> str:
        with under_way.counted():
            threading.Event().wait(0.01)
        return question

    run_preview(*"abcdef", chain=RunnableLambda(answer), max_concurrency=3)
    assert under_way.most == 3


def test_preview_works_inside_a_running_event_loop() -> None:
    async def answer(question: str) -> str:
        await asyncio.sleep(0)
        return question

    async def in_a_notebook() -> Preview:
        return run_preview("a", chain=RunnableLambda(answer))

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
def test_preview_refuses_invalid_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_preview("sure", **settings)

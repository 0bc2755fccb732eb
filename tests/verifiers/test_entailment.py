"""Clusters of meaning: answers that entail each other, by any judge of entailment."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from functools import partial
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.features.statistics import STATISTICS
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import EntailmentJudge, SelfConsistency, VerifierInput
from tests.calls import Invoke, copies_of, invoke_async, invoke_sync
from tests.concurrency import ConcurrencyCounter
from tests.factories import verifier_input
from tests.fakes import ScriptedModel

# What an answer says, beyond its wording: all that it states, so that more entails less.
FACTS = {
    "lima": {"city: lima"},
    "it is lima": {"city: lima"},
    "lima, in peru": {"city: lima", "country: peru"},
    "quito": {"city: quito"},
    "the city of quito": {"city: quito"},
}


make_input = partial(verifier_input, "where?")


class FactJudge(ConcurrencyCounter):
    """Judges entailment by what the answers state, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def __call__(self, prompt: Any, premise: str, hypothesis: str) -> bool:
        assert prompt == "where?"
        with self.counted():
            self.asked.append((premise, hypothesis))
            time.sleep(0.01)
        return FACTS[premise] >= FACTS[hypothesis]


def test_entailment_clusters_equal_those_by_hand(invoke: Invoke) -> None:
    judge = FactJudge()
    texts = make_input("Lima", "it is Lima", "Quito", "lima, in peru", "lima.", "the city of Quito")
    # Three say Lima, two say Quito; what says more than Lima entails it one way only.
    assert invoke(SelfConsistency(entails=judge), texts) == pytest.approx(
        [1 / 2, 1 / 2, 2 / 3, 5 / 6, 1 / 2, 2 / 3]
    )
    # With 5 distinct answers and 3 clusters; equal answers are asked about once, and no pair twice.
    assert max(Counter(judge.asked).values()) == 1
    assert len(judge.asked) <= 2 * 5 * 3


def test_entailment_questions_are_asked_in_rounds(invoke: Invoke) -> None:
    judge = FactJudge()
    with apply_limits(CallLimits(ConcurrencyLimiter(2))):
        invoke(SelfConsistency(entails=judge), make_input("lima", "quito", "lima, in peru", "it is lima"))
    rounds = [
        # All against the first, then the way back for those that it entails.
        {("lima", "quito"), ("lima", "lima, in peru"), ("lima", "it is lima")},
        {("it is lima", "lima")},
        {("quito", "lima, in peru")},
    ]
    asked = iter(judge.asked)
    assert [{next(asked) for _ in one} for one in rounds] == rounds
    assert next(asked, None) is None
    assert judge.most == 2


def test_entailment_judge_is_not_asked_about_equal_answers(invoke: Invoke) -> None:
    judge = FactJudge()
    assert invoke(SelfConsistency(entails=judge), make_input("Lima", "lima.", "LIMA")) == [0.0] * 3
    assert judge.asked == []


def test_entailment_clusters_follow_draw_order_if_the_judge_is_inconsistent() -> None:
    # b means the same as a and as c, which differ: the judge contradicts itself.
    both = {frozenset("ab"), frozenset("bc")}
    verifier = SelfConsistency(entails=lambda _, one, other: frozenset((one, other)) in both)
    assert invoke_sync(verifier, make_input("a", "b", "c", "b")) == [0.25, 0.25, 0.75, 0.25]
    assert invoke_sync(verifier, make_input("c", "b", "a", "b")) == [0.25, 0.25, 0.75, 0.25]


@hypothesis.given(st.lists(st.sampled_from(sorted(FACTS)), min_size=1, max_size=12))
def test_entailment_clusters_equal_meanings_within_the_bound_of_calls(texts: list[str]) -> None:
    asked: list[tuple[str, str]] = []

    def entails(prompt: Any, premise: str, hypothesis: str) -> bool:
        del prompt
        asked.append((premise, hypothesis))
        return FACTS[premise] >= FACTS[hypothesis]

    scores = invoke_sync(SelfConsistency(entails=entails), make_input(*texts))
    sizes = Counter(frozenset(FACTS[text]) for text in texts)
    expected = [1 - sizes[frozenset(FACTS[text])] / len(texts) for text in texts]
    assert scores == pytest.approx(expected)
    assert len(asked) <= 2 * len(set(texts)) * len(sizes)


def test_score_statistics_give_the_semantic_entropy() -> None:
    texts = ["lima", "it is lima", "quito", "lima, in peru", "lima", "quito"]
    scores = invoke_sync(SelfConsistency(entails=FactJudge()), make_input(*texts))
    shares = np.array([3, 2, 1]) / 6
    draws = CandidateBatch.from_arrays(np.array([scores]), [texts])
    assert STATISTICS["mean_score"](draws)[0] == pytest.approx(1 - np.sum(shares**2))
    assert STATISTICS["min_score"](draws)[0] == pytest.approx(1 - shares.max())
    entropy = float(np.mean([-math.log(1 - score) for score in scores]))
    assert entropy == pytest.approx(-np.sum(shares * np.log(shares)))
    # The feature `entropy` counts texts as they are written: four of them.
    assert STATISTICS["entropy"](draws)[0] > entropy


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [(True, True), (np.False_, False), (0.51, True), (np.float32(0.5), False), (None, False)],
)
def test_entailment_is_a_verdict_or_a_probability(reply: Any, verdict: bool) -> None:
    scores = SelfConsistency(entails=lambda *_: reply).invoke(make_input("lima", "quito"))
    assert (scores == [0.0, 0.0]) is verdict


@pytest.mark.parametrize("reply", ["entailment", "", {"entailment": 0.9}, [0.9], float("nan"), 2.0, -0.1])
def test_other_replies_about_entailment_are_refused(invoke: Invoke, reply: Any) -> None:
    verifier = SelfConsistency(entails=lambda *_: reply)
    with pytest.raises(VerifierError, match=r"entails= returned .*; expected True or False"):
        invoke(verifier, make_input("lima", "quito"))


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (" ENTAILMENT.", True),
        ('{"label": "entailment"}', True),
        ("The relation is **neutral**.", False),
        ("contradiction", False),
        ("yes", None),
        ("no entailment", None),
        ("entailment or neutral", None),
    ],
)
def test_entailment_judge_reads_short_replies_with_one_label(reply: str, verdict: bool | None) -> None:
    asked = {"prompt": "where?", "premise": "lima", "hypothesis": "quito"}
    assert invoke_sync(EntailmentJudge(FakeListChatModel(responses=[reply])), asked) is verdict


def test_failing_entailment_judge_raises_verifier_error(invoke: Invoke) -> None:
    def fail(*_: Any) -> bool:
        msg = "no model"
        raise OSError(msg)

    with pytest.raises(VerifierError, match="entailment failed with OSError"):
        invoke(SelfConsistency(entails=fail), make_input("lima", "quito"))


def test_entailment_judge_may_be_async_or_a_runnable() -> None:
    async def entails(prompt: Any, premise: str, hypothesis: str) -> bool:
        await asyncio.sleep(0)
        del prompt
        return FACTS[premise] >= FACTS[hypothesis]

    asked = make_input("lima", "it is lima", "quito")
    expected = pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert invoke_async(SelfConsistency(entails=entails), asked) == expected
    with pytest.raises(VerifierError, match="async"):
        invoke_sync(SelfConsistency(entails=entails), asked)
    as_runnable: Any = RunnableLambda(lambda given: FACTS[given["premise"]] >= FACTS[given["hypothesis"]])
    assert invoke_sync(SelfConsistency(entails=as_runnable), asked) == expected


def test_entailment_judge_asks_a_chat_model(invoke: Invoke) -> None:
    seen: list[str] = []

    def reply(messages: list[Any]) -> str:
        seen.append(messages[-1].text)
        return "Neutral" if "quito" in messages[-1].text else "Entailment."

    verifier = SelfConsistency(entails=EntailmentJudge(RunnableLambda(reply)))
    assert invoke(verifier, make_input("lima", "it is lima", "quito")) == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert len(seen) == 3
    assert all("where?" in one for one in seen)
    assert any("<premise>\nit is lima\n</premise>\n<hypothesis>\nlima\n" in one for one in seen)


def test_entailment_judge_shows_messages_before_the_request(invoke: Invoke) -> None:
    seen: list[list[Any]] = []

    def reply(messages: list[Any]) -> str:
        seen.append(messages)
        return "contradiction"

    prompt = [("system", "Be brief."), ("human", "where?")]
    asked = VerifierInput(prompt=prompt, candidates=[DrawnCandidate("lima"), DrawnCandidate("quito")])
    assert invoke(SelfConsistency(entails=EntailmentJudge(RunnableLambda(reply))), asked) == [0.5, 0.5]
    assert [one.text for one in seen[0][:2]] == ["Be brief.", "where?"]
    assert "the conversation above" in seen[0][2].text


def test_entailment_judge_uses_the_question_function() -> None:
    seen: list[str] = []

    def reply(messages: list[Any]) -> str:
        seen.append(messages[-1].text)
        return "neutral"

    judge = EntailmentJudge(RunnableLambda(reply), question=lambda prompt: prompt["q"])
    given = VerifierInput(
        prompt={"q": "Capital?", "secret": "x"}, candidates=make_input("a", "b")["candidates"]
    )
    invoke_sync(SelfConsistency(entails=judge), given)
    assert all("Capital?" in one and "secret" not in one for one in seen)


def test_entailment_judge_asks_once_more_and_then_gives_no_verdict(invoke: Invoke) -> None:
    asked = {"prompt": "where?", "premise": "lima", "hypothesis": "quito"}
    for replies, verdict in ((["Hm.", "Entailment"], True), (["Hm.", "I think that it does."], None)):
        assert invoke(EntailmentJudge(FakeListChatModel(responses=replies)), asked) is verdict
    # Answers without a verdict stay in groups of their own.
    odd = EntailmentJudge(FakeListChatModel(responses=["Hm."]))
    assert invoke(SelfConsistency(entails=odd), make_input("lima", "quito")) == [0.5, 0.5]


def test_entailment_calls_keep_the_concurrency_limit(invoke: Invoke) -> None:
    model = ScriptedModel(texts=["neutral"] * 4)
    with apply_limits(CallLimits(ConcurrencyLimiter(1))):
        scores = invoke(SelfConsistency(entails=EntailmentJudge(model)), make_input("a", "b", "c"))
    assert scores == pytest.approx([2 / 3] * 3)
    assert len(model.drawn) == 3


def test_entailment_fingerprint_names_the_judge() -> None:
    judge = EntailmentJudge(FakeListChatModel(responses=[""]))
    stated = compute_fingerprint(SelfConsistency(entails=judge))
    assert stated["agreement"] == "entailed both ways"
    assert stated["entails.instructions"].startswith("sha256:")
    other = EntailmentJudge(FakeListChatModel(responses=[""]), question=str)
    assert compute_fingerprint(SelfConsistency(entails=other)) != stated
    # A function that says nothing about itself makes the verifier one without an id.
    assert "id" not in compute_fingerprint(SelfConsistency(entails=FactJudge()))


def test_copied_entailment_verifiers_score_alike() -> None:
    asked = make_input("lima", "quito", "it is lima")
    verifier = SelfConsistency(entails=EntailmentJudge(FakeListChatModel(responses=["entailment"])))
    for copied in copies_of(verifier):
        assert invoke_sync(copied, asked) == [0.0] * 3
        assert copied.fingerprint == verifier.fingerprint

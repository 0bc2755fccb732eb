"""Claims against further answers and against a context, by any judge of entailment."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CFCRunnable
from langchain_cfc.errors import VerifierError
from langchain_cfc.runnable import ClaimsResult
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import ClaimAgreement, ContextSupport, EntailmentJudge, VerifierInput
from tests.calls import Invoke
from tests.claims.chains import ANSWER, HEADER, make_artifact
from tests.fakes import ScriptedModel

CLAIMS = ("lima is the capital", "it has nine moons", "lima is the capital")
ANSWERS = ("whole", "lima is the capital; it is big", "quito is near", "lima is the capital")


def make_input(claims: tuple[str, ...] = CLAIMS, answers: tuple[str, ...] = ANSWERS) -> VerifierInput:
    return VerifierInput(
        prompt="peru?",
        candidates=[DrawnCandidate(one) for one in claims],
        answers=[DrawnCandidate(one) for one in answers],
    )


class HoldsJudge:
    """Says that a premise entails what it holds word for word, and counts what it was asked."""

    fingerprint = {"id": "holds"}  # noqa: RUF012 - read, never changed

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, prompt: Any, premise: str, hypothesis: str) -> bool:
        assert prompt == "peru?"
        self.asked.append((premise, hypothesis))
        return hypothesis in premise


def test_claim_agreement_equals_values_computed_by_hand(invoke: Invoke) -> None:
    judge = HoldsJudge()
    # Of the three other answers two hold the first claim; the answer that is split is not asked about.
    assert invoke(ClaimAgreement(judge), make_input()) == pytest.approx([1 / 3, 1.0, 1 / 3])
    assert len(judge.asked) == len(set(judge.asked)) == 2 * 3
    assert not any(premise == "whole" for premise, _ in judge.asked)


def test_claim_verifiers_use_probabilities_of_the_judge(invoke: Invoke) -> None:
    def judge(prompt: Any, premise: str, hypothesis: str) -> float:
        del prompt, hypothesis
        return {"a": 0.9, "b": 0.4}[premise]

    given = make_input(("c",), ("whole", "a", "b"))
    assert invoke(ClaimAgreement(judge), given) == pytest.approx([1.0 - 0.65])
    assert invoke(ContextSupport(judge, lambda _: ["a", "b"]), given) == pytest.approx([0.1])


def test_claim_agreement_with_a_chat_model_as_judge(invoke: Invoke) -> None:
    model = FakeListChatModel(responses=["entailment"])
    assert invoke(ClaimAgreement(EntailmentJudge(model)), make_input(("a",), ("w", "x"))) == [0.0]


@pytest.mark.parametrize("answers", [("whole",), ()])
def test_claim_agreement_refuses_input_without_other_answers(
    invoke: Invoke, answers: tuple[str, ...]
) -> None:
    with pytest.raises(VerifierError, match="with further answers, but there are none"):
        invoke(ClaimAgreement(HoldsJudge()), make_input(CLAIMS, answers))


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (lambda _: "lima is the capital of peru", [0.0, 1.0, 0.0]),
        (lambda _: ["no", "it has nine moons"], [1.0, 0.0, 1.0]),
        (RunnableLambda(lambda _: []), [1.0, 1.0, 1.0]),
    ],
)
def test_context_support_checks_claims_against_the_context(
    invoke: Invoke, context: Any, expected: list[float]
) -> None:
    assert invoke(ContextSupport(HoldsJudge(), context), make_input()) == expected


def test_context_support_reads_documents_of_retrievers(invoke: Invoke) -> None:
    texts = ["quito is near", "lima is the capital"]
    documents = [Document(one) for one in texts]
    expected = invoke(ContextSupport(HoldsJudge(), lambda _: texts), make_input())
    retriever: Any = RunnableLambda(lambda _: documents)
    assert invoke(ContextSupport(HoldsJudge(), retriever), make_input()) == expected
    assert invoke(ContextSupport(HoldsJudge(), lambda _: iter(texts)), make_input()) == expected
    one = invoke(ContextSupport(HoldsJudge(), lambda _: documents[1]), make_input())
    assert one == invoke(ContextSupport(HoldsJudge(), lambda _: texts[1]), make_input())


@pytest.mark.parametrize("found", [None, 5, [1], {"a": "b"}])
def test_context_support_refuses_contexts_that_are_not_text(invoke: Invoke, found: Any) -> None:
    with pytest.raises(VerifierError, match="expected texts or documents"):
        invoke(ContextSupport(HoldsJudge(), lambda _: found), make_input())


def test_claim_verifiers_refuse_a_judge_that_cannot_be_called() -> None:
    nothing: Any = "nli"
    with pytest.raises(VerifierError, match="got a str as entailment: expected a function"):
        ClaimAgreement(nothing)


def test_claim_verifier_fingerprints_name_method_and_judge() -> None:
    assert compute_fingerprint(ClaimAgreement(HoldsJudge()))["id"] == "claim-agreement"
    stated = compute_fingerprint(ContextSupport(HoldsJudge(), lambda _: ""))
    assert stated["method"] == "context-support"
    assert stated["entails.id"] == "holds"


def test_claims_chain_passes_other_answers_to_the_verifier() -> None:
    def judge(prompt: Any, premise: str, hypothesis: str) -> bool:
        del prompt
        return hypothesis.removesuffix(" [1]") in premise

    verifier = ClaimAgreement(judge)
    header = HEADER.model_copy(update={"n": 3, "verifier": {"id": "agreement"}})
    chain = CFCRunnable(
        generator=ScriptedModel(texts=[ANSWER, "Lima is the capital. It lies by the sea.", "No.", "No."]),
        generator_id="model",
        verifier=verifier,
        verifier_id="agreement",
        artifact=make_artifact(provenance=header),
        output="claims",
    )
    result = chain.invoke("peru?")
    assert isinstance(result, ClaimsResult)
    assert [one.score for one in result.claims] == [0.5, 1.0, 0.5]

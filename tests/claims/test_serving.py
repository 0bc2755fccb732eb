"""`CFCRunnable(output="claims")`: the kept claims of an answer, and that dropped ones are not shown."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CFCChatModel, CFCRunnable
from langchain_cfc.claims import SentenceSplitter, Span
from langchain_cfc.decision import decide
from langchain_cfc.errors import (
    FingerprintError,
    FingerprintWarning,
    InputError,
    SplitterError,
    VerifierError,
)
from langchain_cfc.records import tabulate
from langchain_cfc.runnable import ClaimsResult
from tests.claims.chains import ANSWER, HEADER, LEFT, SCORES, make_artifact, make_chain
from tests.claims.worlds import make_answers
from tests.fakes import ScriptedModel, StreamingModel


def invoke(chain: CFCRunnable, prompt: str = "?") -> ClaimsResult:
    result = chain.invoke(prompt)
    assert isinstance(result, ClaimsResult)
    assert asyncio.run(chain.ainvoke(prompt)) == result
    return result


def test_claims_chain_returns_the_kept_claims_of_an_answer() -> None:
    result = invoke(make_chain())
    assert result.text == result.best == LEFT
    assert [(one.kept, one.text) for one in result.claims] == [
        (True, "Lima is the capital. [1]"),
        (False, None),
        (True, "It lies by the sea."),
    ]
    assert result.reason == "answered"
    assert result.guarantee.binding == "matched"
    assert "no unsupported claim is left" in result.guarantee.sentence
    assert "2 of the 3 claims" in result.explain()
    assert result.guarantee.sentence in result.explain()
    assert "moons" not in result.model_dump_json()
    assert ClaimsResult.model_validate_json(result.model_dump_json()) == result


def test_claims_chain_shows_dropped_claims_only_if_asked() -> None:
    result = invoke(make_chain(show_rejected=True))
    assert result.mark_dropped() == ANSWER.replace("It has 9 moons.", "~~It has 9 moons.~~")
    assert result.mark_dropped("<del>", "</del>").count("<del>") == 1
    assert result.claims[1].text == "It has 9 moons."
    with pytest.raises(InputError, match="show_rejected=True"):
        invoke(make_chain()).mark_dropped()


def split_and_invent(answer: str) -> list[Span]:
    """The sentences, and two claims that no part of the answer makes."""
    invented = [Span(None, None, "Quito has trams."), Span(None, None, "Trams are red.")]
    return [*invented, *SentenceSplitter().split(answer)]


def make_inventing_chain(split: Any = split_and_invent, **fields: Any) -> CFCRunnable:
    return make_chain(
        artifact=make_artifact(provenance=HEADER.model_copy(update={"splitter": {"id": "inventing"}})),
        splitter=split,
        splitter_id="inventing",
        **fields,
    )


def test_claim_that_was_not_found_is_never_kept_and_the_result_says_so() -> None:
    seen: list[str] = []

    def trust(_: Any, candidates: list[Any]) -> list[float]:
        seen.extend(one.text for one in candidates)
        return [SCORES.get(one.text, 0.0) for one in candidates]

    result = invoke(make_inventing_chain(verifier=trust, show_rejected=True))
    assert result.text == LEFT
    assert "Quito has trams." not in seen
    located, invented = result.claims[:3], result.claims[3:]
    assert [one.kept for one in located] == [True, False, True]
    assert [(one.start, one.end, one.score, one.kept) for one in invented] == [(None, None, 1.0, False)] * 2
    assert result.unscored == {"not_located": 2}
    said = "2 of the 3 claims found in the model's answer passed the check; 2 claims could not be checked"
    assert result.explain_reason().startswith(said)
    assert "about a claim that was not found in the answer" in " ".join(result.guarantee.not_promised)
    assert "2 candidates were claims that were not found in the answer" in result.explain()
    assert result.mark_dropped() == ANSWER.replace("It has 9 moons.", "~~It has 9 moons.~~")
    assert "trams" not in invoke(make_inventing_chain()).model_dump_json()
    assert ClaimsResult.model_validate_json(result.model_dump_json()) == result


def test_claims_chain_abstains_if_no_claim_was_found() -> None:
    result = invoke(make_inventing_chain(split=lambda _: split_and_invent("")))
    assert (result.abstained, result.text, result.reason) == (True, None, "no_claim_kept")
    assert "no claim of the" in result.explain_reason()


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        ("It has 9 moons.", "no_claim_kept", "no claim of the"),
        ("...", "no_claims", "makes no claim"),
        ("", "no_claims", "makes no claim"),
    ],
)
def test_claims_chain_abstains_without_claims_or_kept_claims(answer: str, reason: str, words: str) -> None:
    chain = make_chain(generator=ScriptedModel(texts=[answer] * 4))
    result = invoke(chain)
    assert (result.abstained, result.reason, result.text, result.answers) == (True, reason, None, ())
    assert words in result.explain_reason()
    assert not result
    assert ClaimsResult.model_validate_json(result.model_dump_json()) == result
    assert chain.as_answer(text=True).invoke("?") == "I do not know."


def test_claims_chain_decides_like_decide() -> None:
    artifact = make_artifact(features="hat(count, 3) + hat(mean_score, 4)", at_most=1)
    for record in make_answers(np.random.default_rng(2), 60):
        text = " ".join(f"Claim {slot}." for slot in range(len(record.claims)))
        scores = [claim.score for claim in record.claims]
        chain = make_chain(
            artifact=artifact,
            generator=ScriptedModel(texts=[text] * 4),
            verifier=lambda _, candidates, scores=scores: scores[: len(candidates)],
        )
        result = chain.invoke("?")
        decisions = decide(artifact, tabulate([record], claims=True).draws)
        assert isinstance(result, ClaimsResult)
        assert [one.kept for one in result.claims] == decisions.accepted[0].tolist()
        assert result.threshold == decisions.thresholds[0]


def test_claims_verifier_receives_the_other_answers() -> None:
    seen: list[Any] = []

    def score(given: Any) -> list[float]:
        seen.append(given)
        return [0.1] * len(given["candidates"])

    header = HEADER.model_copy(update={"n": 3})
    chain = make_chain(
        artifact=make_artifact(provenance=header),
        generator=ScriptedModel(texts=[ANSWER, "Second.", "Third.", "Fourth."]),
        verifier=RunnableLambda(score),
    )
    result = chain.invoke("?")
    assert len(seen) == 1
    assert [one.text for one in seen[0]["answers"]] == [ANSWER, "Second.", "Third."]
    assert [one.text for one in seen[0]["candidates"]] == list(SCORES)
    assert result.best == ANSWER


def test_claims_chain_streams_nothing_before_the_decision() -> None:
    chain = make_chain(generator=StreamingModel(texts=[ANSWER] * 4)).as_answer(text=True)
    pieces = list(chain.stream("?"))
    assert "".join(map(str, pieces)) == LEFT

    async def list_events() -> list[str]:
        return [event["event"] async for event in chain.astream_events("?", version="v2")]

    assert "on_chat_model_stream" not in asyncio.run(list_events())


def test_claims_chat_model_answers_with_the_kept_claims() -> None:
    model = CFCChatModel(chain=make_chain())
    message = model.invoke("?")
    assert isinstance(message, AIMessage)
    assert message.text == LEFT
    assert message.response_metadata["cfc"]["reason"] == "answered"


def test_copied_claims_chains_serve_alike() -> None:
    chain = make_chain(generator=RunnableLambda(len) | RunnableLambda(repr), generator_id="model")
    for one in (copy.copy(chain), copy.deepcopy(chain), chain.model_copy()):
        assert one.invoke("abc") == chain.invoke("abc")
    pickled = make_chain(generator=RunnableLambda(repr), generator_id="model")
    assert pickle.loads(pickle.dumps(pickled.artifact)).unit == "claims"  # noqa: S301


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"output": "answers"}, "pass output='claims'"),
        ({"answer": str}, "answer has no meaning"),
        ({"max_wrong_rate": "0.1"}, "no certified rate"),
    ],
)
def test_claims_chain_refuses_fields_for_answers(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make_chain(**fields)


def test_answers_artifact_refuses_claims_output_and_a_splitter() -> None:
    from tests.factories import make_chain as make_answers_chain

    with pytest.raises(InputError, match="pass output='answers'"):
        make_answers_chain(output="claims")
    with pytest.raises(InputError, match="splitter has no meaning"):
        make_answers_chain(splitter=SentenceSplitter())


def test_claims_chain_refuses_another_splitter() -> None:
    with pytest.raises(FingerprintError, match="the splitter is not the one"):
        make_chain(splitter=SentenceSplitter("de"))
    with pytest.warns(FingerprintWarning, match="cannot verify that splitter"):
        chain = make_chain(splitter=lambda answer: [Span(0, len(answer))])
    assert chain.guarantee.binding == "unverified"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"splitter": lambda _: [(0, 10_000)], "splitter_id": "sentences-4"}, SplitterError),
        ({"verifier": lambda *_: [0.5]}, VerifierError),
        ({"verifier": lambda *_: [0.5, 0.5, 2.0]}, VerifierError),
    ],
)
def test_claims_chain_failures_are_typed_errors(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make_chain(**fields).invoke("?")

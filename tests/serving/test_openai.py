"""`CFCRunnable` over real HTTP: the client that users have, a server that replays what a real model said."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord
from langchain_cfc.decision import decide
from langchain_cfc.demo.replay import RecordedAnswers, RecordedMetadata
from langchain_cfc.errors import DrawError, FingerprintError, FingerprintWarning, VerifierError
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import SequenceProbability
from tests.calls import Invoke

from .openai_server import Fault, Script

MakeModel = Callable[..., ChatOpenAI]
MakeChain = Callable[..., CFCRunnable]


@pytest.fixture
def make_chain(
    chat_model: MakeModel,
    fact_artifact: CalibrationArtifact,
    facts: list[PromptRecord],
    provenance: Provenance,
) -> MakeChain:
    """A function that makes the chain that was calibrated, unless told otherwise."""

    def make(**fields: Any) -> CFCRunnable:
        parts: dict[str, Any] = {
            "generator": fields.get("generator") or chat_model(),
            "generator_id": "qwen2.5-coder-1.5b-instruct-q4_k_m",
            "verifier": SequenceProbability(),
            "artifact": fact_artifact,
            "answer": RecordedAnswers(facts, provenance),
            "metadata": RecordedMetadata(facts),
        }
        return CFCRunnable(**{**parts, **fields})

    return make


def assert_served(result: CFCResult, record: PromptRecord) -> None:
    """Texts and scores are the recorded ones, in whatever order concurrent requests got them."""
    served = sorted((str(one.text), one.score) for one in result.candidates)
    recorded = sorted((str(one.text), one.score) for one in record.candidates)
    assert [text for text, _ in served] == [text for text, _ in recorded]
    # Log-probabilities were recorded to six decimals.
    assert [score for _, score in served] == pytest.approx([score for _, score in recorded], abs=1e-6)


def test_chain_over_http_serves_the_recorded_decisions(
    make_chain: MakeChain, new_facts: list[PromptRecord], script: Script, invoke: Invoke
) -> None:
    chain = make_chain(show_rejected=True)
    decisions = decide(chain.artifact, tabulate(new_facts).draws)
    reasons = set()
    for row, record in enumerate(new_facts):
        result = invoke(chain, record.input)
        assert_served(result, record)
        assert result.reason == decisions.find_reason(row)
        slots = decisions.accepted[row].nonzero()[0]
        assert set(result.answers) == {record.candidates[slot].answer for slot in slots}
        assert result.threshold == pytest.approx(decisions.thresholds[row], abs=1e-5)
        reasons.add(result.reason)
    # Otherwise the test would show less than it says.
    assert len(reasons) > 1
    assert len(script.requests) == chain.artifact.n * len(new_facts)


def test_sequential_requests_keep_the_recorded_slots(
    make_chain: MakeChain, new_facts: list[PromptRecord]
) -> None:
    chain = make_chain(show_rejected=True)
    for record in new_facts[:5]:
        result = chain.invoke(record.input, {"max_concurrency": 1})
        assert [one.text for one in result.candidates] == [one.text for one in record.candidates]
        assert [one.answer for one in result.candidates] == [one.answer for one in record.candidates]


def test_batch_over_http_serves_the_recorded_candidates(
    make_chain: MakeChain, new_facts: list[PromptRecord]
) -> None:
    chain = make_chain(show_rejected=True)
    prompts = [record.input for record in new_facts[:8]]
    found = chain.batch(prompts, {"max_concurrency": 4})
    found += asyncio.run(chain.abatch(prompts, {"max_concurrency": 4}))
    for result, record in zip(found, new_facts[:8] * 2, strict=True):
        assert_served(result, record)


def test_scores_equal_the_log_probabilities_sent(
    make_chain: MakeChain, new_facts: list[PromptRecord], script: Script, invoke: Invoke
) -> None:
    record = new_facts[0]
    result = invoke(make_chain(), record.input)
    expected = sorted(1.0 - math.exp(one.logprob) for one in script.answers[str(record.input)])
    assert sorted(one.score for one in result.candidates) == pytest.approx(expected, abs=1e-12)


def test_requests_hold_the_calibrated_settings_and_never_stream(
    make_chain: MakeChain,
    chat_model: MakeModel,
    new_facts: list[PromptRecord],
    script: Script,
    invoke: Invoke,
) -> None:
    invoke(make_chain(generator=chat_model(streaming=True)), new_facts[0].input)
    assert len(script.requests) == 10
    for request in script.requests:
        assert not request.get("stream")
        assert request["logprobs"] is True
        assert request["temperature"] == 0.7
        assert request["stop"] == ["\n"]
        assert request["messages"] == [{"content": new_facts[0].input, "role": "user"}]


def test_model_without_chain_streams(
    chat_model: MakeModel, new_facts: list[PromptRecord], script: Script
) -> None:
    # The negative control of the test above, and a test of the server.
    prompt = str(new_facts[0].input)
    text = "".join(str(chunk.text) for chunk in chat_model(streaming=True).stream(prompt))
    assert text == script.answers[prompt][0].text
    assert script.requests[0]["stream"] is True


def test_address_without_a_server_raises_draw_error(
    make_chain: MakeChain, chat_model: MakeModel, new_facts: list[PromptRecord], invoke: Invoke
) -> None:
    # Nothing listens on the port for TCP multiplexers.
    chain = make_chain(generator=chat_model(base_url="http://127.0.0.1:1/v1"))
    with pytest.raises(DrawError, match="10 of 10 candidates could not be drawn"):
        invoke(chain, new_facts[0].input)


def test_with_retry_of_the_generator_repeats_a_broken_response(
    make_chain: MakeChain,
    chat_model: MakeModel,
    new_facts: list[PromptRecord],
    script: Script,
    invoke: Invoke,
) -> None:
    script.faults = [Fault("dropped", on={3})]
    chain = make_chain(generator=chat_model().with_retry(wait_exponential_jitter=False))
    result = invoke(chain, new_facts[0].input)
    assert len(result.candidates) == 10
    assert len(script.requests) == 11
    assert result.guarantee.binding == "matched"


@pytest.mark.parametrize("asked", [None, False])
def test_missing_log_probabilities_raise_verifier_error(
    make_chain: MakeChain, chat_model: MakeModel, new_facts: list[PromptRecord], asked: bool, invoke: Invoke
) -> None:
    chain = make_chain(generator=chat_model(logprobs=asked))
    with pytest.raises(VerifierError, match="candidate 0 carries no token log-probabilities"):
        invoke(chain, new_facts[0].input)


def test_prompt_template_before_the_model_serves_alike(
    make_chain: MakeChain,
    chat_model: MakeModel,
    new_facts: list[PromptRecord],
    script: Script,
    invoke: Invoke,
) -> None:
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("{question}")
    record = new_facts[0]
    chain = make_chain(
        generator=template | chat_model(),
        metadata=lambda prompt: {"topic": record.metadata["topic"]} if prompt else {},
        show_rejected=True,
    )
    result = invoke(chain, record.input)
    assert_served(result, record)
    assert script.requests[0]["messages"][0]["content"] == record.input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0, in calibration it was 0\.7"),
        ({"max_tokens": 64}, "max_tokens is 64, in calibration it was 16"),
        ({"stop": ["."]}, r"stop is \['\.'\]"),
    ],
)
def test_chain_refuses_other_sampling_parameters_before_any_request(
    make_chain: MakeChain, chat_model: MakeModel, script: Script, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(FingerprintError, match=said):
        make_chain(generator=chat_model(**settings))
    with pytest.raises(FingerprintError, match=said):
        make_chain(generator=chat_model().bind(**settings))
    assert script.requests == []


def test_chain_refuses_another_model_before_any_request(
    make_chain: MakeChain, chat_model: MakeModel, fact_artifact: CalibrationArtifact, script: Script
) -> None:
    stated = compute_fingerprint(chat_model())
    assert fact_artifact.provenance is not None
    header = fact_artifact.provenance.model_copy(update={"generator": stated})
    artifact = fact_artifact.model_copy(update={"provenance": header})
    same = make_chain(generator=chat_model(), generator_id=None, artifact=artifact)
    assert same.guarantee.binding == "matched"
    with pytest.raises(FingerprintError, match="model is 'gpt-4o', in calibration it was 'recorded'"):
        make_chain(generator=chat_model(model="gpt-4o"), generator_id=None, artifact=artifact)
    assert script.requests == []


def test_client_without_the_recorded_id_warns_and_is_unverified(
    make_chain: MakeChain, new_facts: list[PromptRecord]
) -> None:
    # The recording knows the model by an id of its own, which no client states by itself.
    with pytest.warns(FingerprintWarning, match="cannot verify that generator are"):
        chain = make_chain(generator_id=None)
    assert chain.invoke(new_facts[0].input).guarantee.binding == "unverified"

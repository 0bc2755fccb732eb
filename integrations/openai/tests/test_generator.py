"""Generator and judges over real HTTP: requests, errors for every fault, and README.md as printed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.failures import is_transient, read_retry_after
from langchain_cfc_openai import EndpointError, make_generator, make_judge
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from integrations.openai.tests.parts import (
    DRAWN,
    MODEL,
    REMEDIES,
    Hosted,
    N,
    Saved,
    both_samplings,
    continents,
    get_question,
)
from integrations.tests.pages import run_page
from langchain_cfc import CalibrationArtifact
from langchain_cfc.errors import DrawError, InputError, VerifierError
from langchain_cfc.sampling import Sampler, SamplingName
from tests.calls import Invoke
from tests.fakes import global_cache
from tests.serving.openai_server import FAULTS, Fault, Reply, Script, serving


@both_samplings
def test_generator_serves_the_recorded_candidates(
    hosted: Hosted, saved: Saved, sampling: SamplingName, invoke: Invoke
) -> None:
    record = continents()[-1]
    result = invoke(hosted.chain(saved, sampling=sampling, show_rejected=True), record.input)
    assert result.guarantee.binding == "matched"
    assert sorted(str(one.text) for one in result.candidates) == sorted(
        str(one.text) for one in record.candidates
    )
    # Log-probabilities were recorded to six decimals.
    assert sorted(one.score for one in result.candidates) == pytest.approx(
        sorted(one.score for one in record.candidates), abs=1e-6
    )
    assert len(hosted.script.requests) == (1 if sampling == "single_request" else N)


def test_single_request_holds_exactly_the_calibrated_settings(
    hosted: Hosted, saved: Saved, invoke: Invoke
) -> None:
    invoke(hosted.chain(saved, sampling="single_request"), get_question())
    [body] = hosted.script.requests
    assert body == {
        "model": "recorded",
        "messages": [{"content": get_question(), "role": "user"}],
        "temperature": DRAWN["temperature"],
        "top_p": DRAWN["top_p"],
        "max_completion_tokens": DRAWN["max_tokens"],
        "stop": DRAWN["stop"],
        "logprobs": True,
        "n": N,
        "stream": False,
    }


@global_cache()
def test_generator_bypasses_a_global_cache_inside_functions(hosted: Hosted) -> None:
    # There it is out of CFC's reach.
    model = hosted.generator()

    def asked(prompt: str) -> AIMessage:
        return model.invoke(prompt)

    draws = Sampler(RunnableLambda(asked)).draw(get_question(), N)
    assert len(hosted.script.requests) == N
    assert len({one.text for one in draws}) == len({one.text for one in continents()[-1].candidates})


@global_cache()
def test_plain_model_with_global_cache_raises_draw_error(hosted: Hosted) -> None:
    # The negative control.
    plain = ChatOpenAI(model=MODEL, **hosted.reached, **DRAWN)
    repeated = "repeats the message of an earlier candidate, as if from a cache"
    with pytest.raises(DrawError, match=repeated):
        Sampler(RunnableLambda(plain.invoke)).draw(get_question(), N, {"max_concurrency": 1})
    assert len(hosted.script.requests) == 1


@pytest.mark.parametrize(
    ("oddity", "requests"), [("one choice", 1 + N - 1), ("fewer choices", 2), ("more choices", 1)]
)
def test_missing_choices_are_requested_separately(
    hosted: Hosted, saved: Saved, oddity: str, requests: int, invoke: Invoke
) -> None:
    hosted.script.faults = [Fault(oddity, on={0})]
    result = invoke(hosted.chain(saved, sampling="single_request"), get_question())
    assert len(result.candidates) == N
    assert len(hosted.script.requests) == requests
    assert hosted.script.struck[oddity] == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_one_broken_response_is_repeated(hosted: Hosted, saved: Saved, fault: str, invoke: Invoke) -> None:
    hosted.script.faults = [Fault(fault, on={3})]
    assert len(invoke(hosted.chain(saved), get_question()).candidates) == N
    assert len(hosted.script.requests) == N + 1


@both_samplings
@pytest.mark.parametrize("fault", REMEDIES)
def test_draw_error_names_the_remedy_for_every_fault(
    hosted: Hosted, saved: Saved, fault: str, sampling: SamplingName, invoke: Invoke
) -> None:
    chain = hosted.chain(saved, sampling=sampling)
    hosted.script.faults = [Fault(fault)]
    status = fault if fault.startswith("status") else ""
    found = f"{N} of {N} candidates could not be drawn.*{status}.*{REMEDIES[fault]}"
    with pytest.raises(DrawError, match=found) as failed:
        invoke(chain, get_question())
    assert isinstance(failed.value.__cause__, EndpointError)
    assert failed.value.__cause__.__cause__ is not None or fault == "no choices"
    # The endpoint is back; nothing of the failure is left in the chain.
    hosted.script.faults = []
    assert invoke(chain, get_question()).candidates


@both_samplings
def test_client_waits_for_retry_after(
    hosted: Hosted, saved: Saved, sampling: SamplingName, invoke: Invoke
) -> None:
    hosted.script.faults = [Fault("status 429", on={0}, seconds=1.0)]
    chain = hosted.chain(saved, generator=hosted.generator(max_retries=2), sampling=sampling)
    began = time.monotonic()
    assert len(invoke(chain, get_question()).candidates) == N
    assert time.monotonic() - began >= 1.0
    assert hosted.script.struck == {"status 429": 1}


def test_endpoint_error_states_retry_after_and_transience(hosted: Hosted) -> None:
    for fault, seconds in (("status 429", 7.0), ("status 401", None)):
        hosted.script.faults = [Fault(fault, seconds=seconds or 0.0)]
        with pytest.raises(EndpointError) as failed:
            hosted.generator().invoke(get_question())
        assert is_transient(failed.value) == (fault == "status 429")
        assert read_retry_after(failed.value) == seconds


class OtherProtocol(Script):
    """Answers with JSON that is no chat completion."""

    def reply(self, path: str, body: Any) -> Reply:
        del path
        self.requests.append(body)
        return Reply(200, ['{"detail": "see /docs", "choices": null}'])


@both_samplings
def test_unsuitable_server_raises_draw_error(
    hosted: Hosted, saved: Saved, sampling: SamplingName, invoke: Invoke
) -> None:
    hosted.script.faults = [Fault("slow", seconds=6.0)]
    with serving(OtherProtocol({})) as other:
        for settings, said in (
            ({"timeout": 0.3}, r"did not answer in time .*: increase timeout="),
            # Nothing listens on the port for TCP multiplexers.
            ({"base_url": "http://127.0.0.1:1/v1"}, "check that a server listens at base_url="),
            ({"base_url": other}, r"is not a chat completion .*: check that base_url="),
        ):
            began = time.monotonic()
            chain = hosted.chain(saved, generator=hosted.generator(**settings), sampling=sampling)
            with pytest.raises(DrawError, match=said):
                invoke(chain, get_question())
            assert time.monotonic() - began < 4.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "Pass api_key=; if the server needs none, any text works"),
        ({"api_key": "sk-secret", "temperature": "hot"}, "temperature: .*valid number"),
        ({"api_key": "none", "extra_body": {"grammar": object()}}, "not JSON serializable"),
        ({"api_key": "none", "bse_url": "http://127.0.0.1"}, "bse_url is not a setting; .*extra_body"),
    ],
)
def test_generator_refuses_invalid_settings_and_hides_the_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        make_generator("recorded", **settings)
    assert "sk-secret" not in str(refused.value)
    assert "sk-secret" not in repr(make_generator("recorded", api_key="sk-secret"))


JUDGES = ("logprobs", "line")
both_judges = pytest.mark.parametrize("verifier", JUDGES)
# Behind the draws, which one request brings.
JUDGEMENTS = set(range(1, 100))


@both_judges
def test_verifiers_score_over_http_as_calibrated(
    hosted: Hosted, saved: Saved, verifier: str, invoke: Invoke
) -> None:
    for record in continents()[-5:]:
        chain = hosted.chain(saved, verifier, sampling="single_request", show_rejected=True)
        result = invoke(chain, record.input)
        assert result.guarantee.binding == "matched"
        correct = {one.text: one.correct for one in record.candidates}
        expected = [0.1 if correct[one.text] else 0.8 for one in result.candidates]
        assert [one.score for one in result.candidates] == pytest.approx(expected)


@both_judges
@pytest.mark.parametrize("fault", REMEDIES)
def test_verifier_error_names_the_remedy_for_every_fault(
    hosted: Hosted, saved: Saved, verifier: str, fault: str, invoke: Invoke
) -> None:
    chain = hosted.chain(saved, verifier, sampling="single_request")
    hosted.script.faults = [Fault(fault, on=JUDGEMENTS)]
    found = f"the judging model failed with EndpointError: .*{REMEDIES[fault]}"
    with pytest.raises(VerifierError, match=found):
        invoke(chain, get_question())
    hosted.script.faults = []
    assert invoke(chain, get_question()).candidates


@pytest.mark.parametrize(
    "settings", [{"top_logprobs": 1}, {"mode": "sums"}, {"temperature": "hot"}, {"n": 3}]
)
def test_judge_refuses_invalid_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        make_judge("recorded", api_key="none", **settings)


PAGE = Path(__file__).parents[1] / "README.md"


def test_readme_runs_with_recorded_answers(hosted: Hosted) -> None:
    assert run_page(PAGE) >= 6
    assert CalibrationArtifact.load("artifact.json").n == 10
    # One request for each prompt that was collected or served.
    assert len([body for body in hosted.script.requests if body.get("n") == 10]) == 61


def test_readme_fails_without_log_probabilities(hosted: Hosted) -> None:
    # The negative control of the test above.
    hosted.script.logprobs = False
    with pytest.raises(AssertionError, match="log-probabilities"):
        run_page(PAGE)
    assert not Path("artifact.json").exists()

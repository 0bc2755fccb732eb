"""The generator over real HTTP, through saved artifacts: what is asked, and what comes of every fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_cfc_openai import EndpointError, generator
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableBinding, RunnableLambda
from langchain_openai import ChatOpenAI

from integrations.openai.tests.parts import (
    DRAWN,
    MODEL,
    Hosted,
    N,
    Saved,
    Serve,
    both_samplings,
    both_ways,
    continents,
    question,
)
from langchain_cfc.errors import DrawError, InputError, SamplingWarning, VerifierError
from langchain_cfc.sampling import Sampler, SamplingName
from tests.serving.openai_server import FAULTS, Fault, Reply, Script, serving


def cause(error: BaseException) -> EndpointError:
    """What the endpoint did."""
    found = error.__cause__
    assert isinstance(found, EndpointError)
    return found


@both_ways
@both_samplings
def test_what_was_recorded_is_served_as_calibrated(
    hosted: Hosted, saved: Saved, sampling: SamplingName, serve: Serve
) -> None:
    record = continents()[-1]
    result = serve(hosted.chain(saved, sampling=sampling, show_rejected=True), record.input)
    assert result.guarantee.binding == "matched"
    assert sorted(str(one.text) for one in result.candidates) == sorted(
        str(one.text) for one in record.candidates
    )
    # Log-probabilities were recorded to six decimals.
    assert sorted(one.score for one in result.candidates) == pytest.approx(
        sorted(one.score for one in record.candidates), abs=1e-6
    )
    assert len(hosted.script.requests) == (1 if sampling == "single_request" else N)


@both_ways
def test_one_request_holds_all_that_was_calibrated_and_nothing_else(
    hosted: Hosted, saved: Saved, serve: Serve
) -> None:
    serve(hosted.chain(saved, sampling="single_request"), question())
    [body] = hosted.script.requests
    assert body == {
        "model": "recorded",
        "messages": [{"content": question(), "role": "user"}],
        "temperature": DRAWN["temperature"],
        "top_p": DRAWN["top_p"],
        "max_completion_tokens": DRAWN["max_tokens"],
        "stop": DRAWN["stop"],
        "logprobs": True,
        "n": N,
        "stream": False,
    }


@pytest.fixture
def cached() -> Iterator[None]:
    """LangChain's cache for all models."""
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("cached")
def test_a_global_cache_makes_no_candidates_even_of_a_model_inside_a_function(hosted: Hosted) -> None:
    # There it is out of CFC's reach, which would warn about one that caches.
    model = hosted.generator()

    def asked(prompt: str) -> AIMessage:
        return model.invoke(prompt)

    draws = Sampler(RunnableLambda(asked)).draw(question(), N)
    assert len(hosted.script.requests) == N
    assert len({one.text for one in draws}) == len({one.text for one in continents()[-1].candidates})


@pytest.mark.usefixtures("cached")
def test_candidates_of_a_plain_model_that_it_repeats_are_refused(hosted: Hosted) -> None:
    # The negative control.
    plain = ChatOpenAI(model=MODEL, **hosted.reached, **DRAWN)
    repeated = "repeats the response of an earlier candidate, as if from a cache"
    with pytest.warns(SamplingWarning, match="cache"), pytest.raises(DrawError, match=repeated):
        Sampler(RunnableLambda(plain.invoke)).draw(question(), N, {"max_concurrency": 1})
    assert len(hosted.script.requests) == 1


@both_ways
@pytest.mark.parametrize(
    ("oddity", "requests"), [("one choice", 1 + N - 1), ("fewer choices", 2), ("more choices", 1)]
)
def test_choices_that_do_not_come_are_made_up_for(
    hosted: Hosted, saved: Saved, oddity: str, requests: int, serve: Serve
) -> None:
    hosted.script.faults = [Fault(oddity, on={0})]
    result = serve(hosted.chain(saved, sampling="single_request"), question())
    assert len(result.candidates) == N
    assert len(hosted.script.requests) == requests
    assert hosted.script.struck[oddity] == 1


@both_ways
def test_a_server_that_always_ignores_n_is_asked_once_for_each(
    hosted: Hosted, saved: Saved, serve: Serve
) -> None:
    hosted.script.faults = [Fault("one choice")]
    chain = hosted.chain(saved, sampling="single_request")
    assert [len(serve(chain, question(-number)).candidates) for number in (1, 2)] == [N, N]
    assert len(hosted.script.requests) == 2 * N


@both_ways
@pytest.mark.parametrize("fault", FAULTS)
def test_one_broken_response_is_made_up_for(hosted: Hosted, saved: Saved, fault: str, serve: Serve) -> None:
    hosted.script.faults = [Fault(fault, on={3})]
    assert len(serve(hosted.chain(saved), question()).candidates) == N
    assert len(hosted.script.requests) == N + 1


SAID = {
    "status 400": "status 400 .*: remove parameters that the endpoint does not know",
    "status 401": "status 401 .*: pass the endpoint's key",
    "status 403": "status 403 .*: pass a key that may use this model",
    "status 404": "status 404 .*: check the model's name and base_url=",
    "status 422": "status 422 .*: remove parameters that the endpoint does not know",
    "status 429": "status 429 .*: make fewer requests at once",
    "status 500": "status 500 .*: the failure may be temporary: let the client repeat requests",
    "status 503": "status 503 .*: the failure may be temporary: let the client repeat requests",
    "malformed": "response cannot be read .*JSONDecodeError.*: check that base_url= is an OpenAI",
    "truncated": "the connection to the endpoint failed .*: check that a server listens",
    "dropped": "the connection to the endpoint failed .*: check that a server listens",
    "no choices": "response holds no choices: check that it serves this model",
}


@both_ways
@both_samplings
@pytest.mark.parametrize("fault", SAID)
def test_what_stays_broken_says_what_to_do(
    hosted: Hosted, saved: Saved, fault: str, sampling: SamplingName, serve: Serve
) -> None:
    chain = hosted.chain(saved, sampling=sampling)
    hosted.script.faults = [Fault(fault)]
    with pytest.raises(DrawError, match=f"{N} of {N} candidates could not be drawn.*{SAID[fault]}") as failed:
        serve(chain, question())
    assert cause(failed.value).__cause__ is not None or fault == "no choices"
    # The endpoint is back; nothing of the failure is left in the chain.
    hosted.script.faults = []
    assert serve(chain, question()).candidates


def test_all_faults_of_the_server_are_among_them() -> None:
    assert set(FAULTS) <= set(SAID)


@both_ways
@both_samplings
def test_the_client_waits_as_long_as_the_endpoint_asks(
    hosted: Hosted, saved: Saved, sampling: SamplingName, serve: Serve
) -> None:
    hosted.script.faults = [Fault("status 429", on={0}, seconds=1.0)]
    chain = hosted.chain(saved, generator=hosted.generator(max_retries=2), sampling=sampling)
    began = time.monotonic()
    assert len(serve(chain, question()).candidates) == N
    assert time.monotonic() - began >= 1.0
    assert hosted.script.struck == {"status 429": 1}


@both_ways
def test_without_it_the_prompt_fails_and_says_how_long_to_wait(
    hosted: Hosted, saved: Saved, serve: Serve
) -> None:
    hosted.script.faults = [Fault("status 429", on={0}, seconds=7.0)]
    with pytest.raises(DrawError, match="asks to wait for 7 seconds") as failed:
        serve(hosted.chain(saved, sampling="single_request"), question())
    assert isinstance(cause(failed.value).__cause__, openai.RateLimitError)


@both_ways
def test_a_slow_endpoint_is_given_up_in_time(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    hosted.script.faults = [Fault("slow", seconds=6.0)]
    chain = hosted.chain(saved, generator=hosted.generator(timeout=0.3), sampling="single_request")
    began = time.monotonic()
    with pytest.raises(DrawError, match=r"did not answer in time .*: increase timeout="):
        serve(chain, question())
    assert time.monotonic() - began < 4.0


@both_ways
def test_an_address_without_a_server(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    # Nothing listens on the port for TCP multiplexers.
    nowhere = hosted.generator(base_url="http://127.0.0.1:1/v1")
    with pytest.raises(DrawError, match="check that a server listens at base_url="):
        serve(hosted.chain(saved, generator=nowhere), question())


@both_ways
@both_samplings
def test_a_server_without_logprobs_is_refused_and_not_scored(
    hosted: Hosted, saved: Saved, sampling: SamplingName, serve: Serve
) -> None:
    chain = hosted.chain(saved, sampling=sampling)
    assert serve(chain, question()).candidates
    hosted.script.logprobs = False
    with pytest.raises(VerifierError, match="candidate 0 carries no token log-probabilities"):
        serve(chain, question())


@both_ways
@both_samplings
def test_choices_without_content_are_refused_and_not_scored(
    hosted: Hosted, saved: Saved, sampling: SamplingName, serve: Serve
) -> None:
    hosted.script.faults = [Fault("no content")]
    with pytest.raises(VerifierError, match="carries no token log-probabilities"):
        serve(hosted.chain(saved, sampling=sampling), question())


class Meagre(Script):
    """Returns log-probabilities with the first choice only."""

    def _completion(self, number: int, body: Any, odd: set[str]) -> Reply:
        reply = super()._completion(number, body, odd)
        first, *rest = reply.parts[0].split('"logprobs": {')
        assert len(rest) == int(body.get("n") or 1)
        # The others have the field under a name that nobody reads.
        reply.parts = [first + '"logprobs": {' + '"lost": {'.join(rest)]
        return reply


@both_ways
def test_the_first_choice_does_not_lend_its_logprobs_to_the_others(
    hosted: Hosted, saved: Saved, serve: Serve
) -> None:
    with serving(Meagre(hosted.script.answers)) as url:
        chain = hosted.chain(saved, generator=hosted.generator(base_url=url), sampling="single_request")
        with pytest.raises(VerifierError, match="candidate 1 carries no token log-probabilities"):
            serve(chain, question())


class Elsewhere(Script):
    """Answers with JSON that is no chat completion."""

    def reply(self, path: str, body: Any) -> Reply:
        del path
        self.requests.append(body)
        return Reply(200, ['{"detail": "see /docs", "choices": null}'])


@both_ways
@both_samplings
def test_what_speaks_another_language_is_named(
    hosted: Hosted, saved: Saved, sampling: SamplingName, serve: Serve
) -> None:
    with serving(Elsewhere({})) as url:
        chain = hosted.chain(saved, generator=hosted.generator(base_url=url), sampling=sampling)
        with pytest.raises(DrawError, match=r"is not a chat completion .*: check that base_url="):
            serve(chain, question())


@both_samplings
def test_a_response_format_goes_along_and_does_not_pick_answers(
    hosted: Hosted, sampling: SamplingName
) -> None:
    model = hosted.generator(response_format={"type": "json_object"}, logprobs=False)
    # These candidates are cut off. Were such drawn again, those left would be no sample.
    hosted.script.faults = [Fault("no content", on=set(range(0, 100, 2)))]
    sampler = Sampler(model, sampling)
    for draws in (sampler.draw(question(), N), asyncio.run(sampler.adraw(question(), N))):
        assert len(draws) == N
    assert len(hosted.script.requests) == 2 * (1 if sampling == "single_request" else N)
    assert hosted.script.requests[0]["response_format"] == {"type": "json_object"}
    assert "logprobs" not in hosted.script.requests[0]


def test_by_the_field_of_its_name_the_client_would_draw_again(hosted: Hosted) -> None:
    # The negative control of the test above.
    hosted.script.faults = [Fault("no content")]
    bound = RunnableBinding(bound=hosted.generator(), kwargs={"response_format": {"type": "json_object"}})
    with pytest.raises(EndpointError, match=r"cut off .*: allow more tokens \(max_tokens=\)"):
        bound.invoke(question())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "Pass api_key=; if the server needs none, any text works"),
        ({"api_key": "none", "temperature": "hot"}, "temperature: .*valid number"),
        ({"api_key": "none", "extra_body": {"grammar": object()}}, "not JSON serializable"),
        ({"api_key": "none", "bse_url": "http://127.0.0.1"}, "bse_url is not a setting; .*extra_body"),
    ],
)
def test_settings_that_make_no_model_are_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        generator("recorded", **settings)


def test_a_refusal_does_not_repeat_the_key() -> None:
    with pytest.raises(InputError) as refused:
        generator("recorded", api_key="sk-secret", max_tokens="many")  # type: ignore[arg-type]
    assert "sk-secret" not in str(refused.value)
    assert "sk-secret" not in repr(generator("recorded", api_key="sk-secret"))


def test_a_seed_is_refused(hosted: Hosted) -> None:
    with pytest.raises(InputError, match="fixed seed 7"):
        Sampler(hosted.generator(extra_body={"seed": 7}), "single_request")

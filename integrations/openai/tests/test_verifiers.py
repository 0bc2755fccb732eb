"""P(True) and the judge over real HTTP, through saved artifacts: what is asked, and what comes of faults."""

from __future__ import annotations

import time
from typing import Any

import pytest
from langchain_cfc_openai import EndpointError, judge, p_true

from integrations.openai.tests.parts import Hosted, N, Saved, Serve, both_ways, continents, question
from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import FAULTS, Fault, Reply, Script, serving

JUDGES = ("p_true", "judge")
both_judges = pytest.mark.parametrize("verifier", JUDGES)
# Behind the draws, which one request brings.
JUDGEMENTS = set(range(1, 100))


@both_ways
@both_judges
def test_scores_are_the_judgements(hosted: Hosted, saved: Saved, verifier: str, serve: Serve) -> None:
    for record in continents()[-5:]:
        chain = hosted.chain(saved, verifier, sampling="single_request", show_rejected=True)
        result = serve(chain, record.input)
        assert result.guarantee.binding == "matched"
        correct = {one.text: one.correct for one in record.candidates}
        expected = [0.1 if correct[one.text] else 0.8 for one in result.candidates]
        assert [one.score for one in result.candidates] == pytest.approx(expected)


@both_ways
def test_what_the_judge_is_asked(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    serve(hosted.chain(saved, "judge", sampling="single_request"), question())
    _, *judged = hosted.script.requests
    assert judged
    for body in judged:
        assert body["temperature"] == 0.0
        assert body["max_completion_tokens"] == 1024
        assert body["response_format"]["type"] == "json_schema"
        assert "n" not in body
        assert not body.get("stream")


@both_ways
def test_what_p_true_asks(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    serve(hosted.chain(saved, "p_true", sampling="single_request"), question())
    _, *judged = hosted.script.requests
    assert judged
    for body in judged:
        assert (body["temperature"], body["logprobs"], body["top_logprobs"]) == (0.0, True, 20)
        assert body["max_completion_tokens"] < 10
        assert not body.get("stream")


SAID = {
    "status 400": "remove parameters that the endpoint does not know, such as .*structured_output",
    "status 401": "pass the endpoint's key",
    "status 404": "check the model's name",
    "status 429": "make fewer requests at once",
    "status 500": "the failure may be temporary",
    "malformed": "check that base_url= is an OpenAI-compatible API",
    "truncated": "check that a server listens",
    "dropped": "check that a server listens",
    "no choices": "response holds no choices",
}


@both_ways
@both_judges
@pytest.mark.parametrize("fault", SAID)
def test_a_judge_that_fails_says_what_to_do(
    hosted: Hosted, saved: Saved, verifier: str, fault: str, serve: Serve
) -> None:
    chain = hosted.chain(saved, verifier, sampling="single_request")
    hosted.script.faults = [Fault(fault, on=JUDGEMENTS)]
    with pytest.raises(VerifierError, match=f"the judging model failed with EndpointError: .*{SAID[fault]}"):
        serve(chain, question())
    hosted.script.faults = []
    assert serve(chain, question()).candidates


def test_all_faults_of_the_server_are_among_them() -> None:
    assert set(FAULTS) <= set(SAID)


@both_ways
@both_judges
def test_the_client_repeats_what_passes(hosted: Hosted, saved: Saved, verifier: str, serve: Serve) -> None:
    hosted.script.faults = [Fault("status 429", on={1}, seconds=1.0)]
    chain = hosted.chain(
        saved, verifier, using=hosted.verifier(verifier, max_retries=2), sampling="single_request"
    )
    began = time.monotonic()
    assert len(serve(chain, question()).candidates) == N
    assert time.monotonic() - began >= 1.0


@both_ways
@both_judges
def test_a_slow_judge_is_given_up_in_time(hosted: Hosted, saved: Saved, verifier: str, serve: Serve) -> None:
    hosted.script.faults = [Fault("slow", on=JUDGEMENTS, seconds=3.0)]
    using = hosted.verifier(verifier, timeout=0.3)
    chain = hosted.chain(saved, verifier, using=using, sampling="single_request")
    with pytest.raises(VerifierError, match=r"did not answer in time .*: increase timeout="):
        serve(chain, question())


@both_ways
def test_p_true_without_logprobs_is_refused_and_not_scored(
    hosted: Hosted, saved: Saved, serve: Serve
) -> None:
    chain = hosted.chain(saved, "p_true")
    assert serve(chain, question()).candidates
    hosted.script.logprobs = False
    with pytest.raises(VerifierError, match=r"no token log-probabilities .*ModelJudge"):
        serve(chain, question())


@both_ways
def test_the_judge_needs_none(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    # The negative control of the test above.
    hosted.script.logprobs = False
    assert serve(hosted.chain(saved, "judge"), question()).candidates


@both_ways
def test_an_endpoint_that_overlooks_the_format_is_refused_and_not_scored(
    hosted: Hosted, saved: Saved, serve: Serve
) -> None:
    class Chatty(Script):
        def _next(self, body: Any, odd: set[str]) -> list[Answer]:
            answers = super()._next(body, odd)
            return [Answer("I am fairly sure.", -1.0)] if body.get("response_format") else answers

    with serving(Chatty(hosted.script.answers)) as url:
        using = hosted.verifier("judge", base_url=url)
        with pytest.raises(VerifierError, match="expected structured output with the whole number"):
            serve(hosted.chain(saved, "judge", using=using), question())


@both_ways
def test_a_judgement_that_is_cut_off_is_refused(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    hosted.script.faults = [Fault("no content", on=JUDGEMENTS)]
    chain = hosted.chain(saved, "judge", sampling="single_request")
    with pytest.raises(VerifierError, match=r"cut off .*: allow more tokens \(max_tokens=\)"):
        serve(chain, question())


class Strict(Script):
    """Knows tools and no `response_format`."""

    def reply(self, path: str, body: Any) -> Reply:
        if "response_format" in body:
            self.requests.append(body)
            return Reply(400, ['{"error": {"message": "unknown field response_format"}}'])
        return super().reply(path, body)

    def _next(self, body: Any, odd: set[str]) -> list[Answer]:
        if body.get("tools"):
            return [Answer(tools=((body["tools"][0]["function"]["name"], {"percent": 90}),))]
        return super()._next(body, odd)


def test_an_endpoint_without_response_formats_takes_a_tool(hosted: Hosted) -> None:
    given: Any = {"prompt": question(), "candidates": [DrawnCandidate("Asia")]}
    with serving(Strict(hosted.script.answers)) as url:
        reached = {**hosted.reached, "base_url": url}
        with pytest.raises(
            VerifierError, match=r"unknown field response_format.*structured_output"
        ) as failed:
            judge("recorded", **reached).invoke(given)
        assert isinstance(failed.value.__cause__, EndpointError)
        called = judge("recorded", structured_output="function_calling", **reached)
        assert called.invoke(given) == [pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (p_true, {"wording": "signs"}),
        (p_true, {"top_logprobs": 1}),
        (judge, {"mode": "sums"}),
        (judge, {"structured_output": "json_mode"}),
        (judge, {"temperature": "hot"}),
        (judge, {"n": 3}),
    ],
)
def test_settings_that_make_no_verifier_are_refused_at_once(make: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        make("recorded", api_key="none", **settings)

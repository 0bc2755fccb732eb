"""P(True) and the judge over real HTTP, through saved artifacts: requests, and errors for every fault."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_openai import EndpointError, make_judge, make_p_true

from integrations.openai.tests.parts import (
    REMEDIES,
    Hosted,
    Saved,
    Serve,
    both_ways,
    continents,
    get_question,
)
from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Reply, Script, serving

JUDGES = ("p_true", "judge")
both_judges = pytest.mark.parametrize("verifier", JUDGES)
# Behind the draws, which one request brings.
JUDGEMENTS = set(range(1, 100))


@both_ways
@both_judges
def test_verifiers_score_over_http_as_calibrated(
    hosted: Hosted, saved: Saved, verifier: str, serve: Serve
) -> None:
    for record in continents()[-5:]:
        chain = hosted.chain(saved, verifier, sampling="single_request", show_rejected=True)
        result = serve(chain, record.input)
        assert result.guarantee.binding == "matched"
        correct = {one.text: one.correct for one in record.candidates}
        expected = [0.1 if correct[one.text] else 0.8 for one in result.candidates]
        assert [one.score for one in result.candidates] == pytest.approx(expected)


@both_ways
@both_judges
@pytest.mark.parametrize("fault", REMEDIES)
def test_verifier_error_names_the_remedy_for_every_fault(
    hosted: Hosted, saved: Saved, verifier: str, fault: str, serve: Serve
) -> None:
    chain = hosted.chain(saved, verifier, sampling="single_request")
    hosted.script.faults = [Fault(fault, on=JUDGEMENTS)]
    found = f"the judging model failed with EndpointError: .*{REMEDIES[fault]}"
    with pytest.raises(VerifierError, match=found):
        serve(chain, get_question())
    hosted.script.faults = []
    assert serve(chain, get_question()).candidates


@both_ways
def test_judge_refuses_cut_off_replies(hosted: Hosted, saved: Saved, serve: Serve) -> None:
    hosted.script.faults = [Fault("no content", on=JUDGEMENTS)]
    chain = hosted.chain(saved, "judge", sampling="single_request")
    with pytest.raises(VerifierError, match=r"cut off .*: allow more tokens \(max_tokens=\)"):
        serve(chain, get_question())


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


def test_judge_can_use_function_calling(hosted: Hosted) -> None:
    given: Any = {"prompt": get_question(), "candidates": [DrawnCandidate("Asia")]}
    with serving(Strict(hosted.script.answers)) as url:
        reached = {**hosted.reached, "base_url": url}
        said = r"unknown field response_format.*structured_output"
        with pytest.raises(VerifierError, match=said) as failed:
            make_judge("recorded", **reached).invoke(given)
        assert isinstance(failed.value.__cause__, EndpointError)
        called = make_judge("recorded", structured_output="function_calling", **reached)
        assert called.invoke(given) == [pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_p_true, {"top_logprobs": 1}),
        (make_judge, {"mode": "sums"}),
        (make_judge, {"structured_output": "json_mode"}),
        (make_judge, {"temperature": "hot"}),
        (make_judge, {"n": 3}),
    ],
)
def test_verifiers_refuse_invalid_settings(make: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        make("recorded", api_key="none", **settings)

"""The judge in both modes over real HTTP, through saved artifacts: requests, and errors for every fault."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_openai import make_judge

from integrations.openai.tests.parts import (
    REMEDIES,
    Hosted,
    Saved,
    continents,
    get_question,
)
from langchain_cfc.errors import InputError, VerifierError
from tests.calls import Invoke
from tests.serving.openai_server import Fault

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

"""Responses that cannot be read are drawn again while collecting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, collect
from langchain_cfc_collect.failures import ends_run, is_transient
from langchain_cfc_collect.store import Store
from langchain_core.output_parsers import JsonOutputParser
from pydantic import BaseModel

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import describe_error, is_malformed_response
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import ModelJudge
from tests.execution.test_failures import (
    HEAD,
    INTERFACES,
    JSON,
    MALFORMED,
    Reply,
    catch_failure,
    make_model,
    score_equally,
    serve,
)

MESSAGE = {"role": "assistant", "content": "Lima"}


GOOD: Reply = (200, JSON, {**HEAD, "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]})


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", MALFORMED)
def test_response_that_cannot_be_read_is_transient(name: str, interface: str) -> None:
    with serve(MALFORMED[name]) as (url, _):
        model = INTERFACES[interface](url)
        for is_async in (False, True):
            error = catch_failure(model, is_async=is_async)
            assert is_malformed_response(error), repr(error)
            assert is_transient(error)
            assert not ends_run(error)
            assert "server that cannot be read" in describe_error(error)


@pytest.mark.parametrize("code", [401, 402, 404, "insufficient_quota", "invalid_api_key"])
def test_error_body_that_refuses_the_key_is_definite(code: Any) -> None:
    with serve((200, JSON, {"error": {"message": "no", "code": code}})) as (url, _):
        for interface in ("chat", "responses"):
            error = catch_failure(INTERFACES[interface](url))
            assert not is_transient(error)
            assert ends_run(error)


class City(BaseModel):
    """An answer's schema."""

    city: str


def test_errors_about_an_answer_or_a_request_are_no_malformed_responses() -> None:
    with serve(GOOD) as (url, _):
        model = make_model(url)
        for other in (
            model | JsonOutputParser(),
            model.with_structured_output(City, method="json_schema"),
            model.bind(unknown_parameter=1),
            model | (lambda message: message.additional_kwargs["missing"]),
        ):
            error = catch_failure(other)
            assert not is_malformed_response(error), repr(error)
            assert not is_transient(error)


PROMPTS = [Example(id=str(number), input=f"{number}?", reference="Lima") for number in range(2)]


FAST = CallPolicy(concurrency=4, attempts=2)


@pytest.mark.parametrize("name", ["null choices", "no choice", "HTML"])
def test_collect_retries_a_first_wave_of_malformed_responses(tmp_path: Path, name: str) -> None:
    with serve(*[MALFORMED[name]] * 3, GOOD) as (url, asked):
        made_of = Components(make_model(url), score_equally, NormalisedMatch(), n=3, verifier_id="equal")
        found = collect(PROMPTS, made_of, tmp_path / "s.db", CollectionOptions(call_policy=FAST)).status
    assert (found.labelled, found.failed, found.unanswered, len(asked)) == (2, 0, 3, 9)


def test_collect_stores_the_cause_and_draws_again_with_retry_failed(tmp_path: Path) -> None:
    notices: list[str] = []
    run = CollectionOptions(call_policy=FAST, on_notice=notices.append)
    with serve(*[MALFORMED["null choices"]] * 2, GOOD) as (url, asked):
        made_of = Components(make_model(url), score_equally, NormalisedMatch(), n=1, verifier_id="equal")
        found = collect(PROMPTS, made_of, tmp_path / "s.db", run).status
        assert (found.labelled, found.failed) == (1, 1)
        with Store(tmp_path / "s.db") as store:
            assert "server that cannot be read" in repr(store.read_failures())
        again = CollectionOptions(call_policy=FAST, retry_failed=True)
        found = collect(PROMPTS, made_of, tmp_path / "s.db", again).status
    assert (found.labelled, found.failed, len(asked)) == (2, 0, 4)


def test_malformed_response_of_a_judge_is_transient() -> None:
    with serve(MALFORMED["null choices"]) as (url, _):
        judge = ModelJudge(make_model(url))
        with pytest.raises(VerifierError, match="server that cannot be read") as caught:
            judge.invoke({"prompt": "x", "candidates": [DrawnCandidate("Lima")]})
    assert is_transient(caught.value)

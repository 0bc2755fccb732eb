"""Models that draw or judge otherwise than calibrated are refused before any request."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from langchain_cfc_openai import make_generator
from langchain_core.runnables import RunnableBinding
from pydantic import BaseModel

from integrations.openai.tests.parts import Hosted, Saved
from langchain_cfc.errors import FingerprintError, InputError
from langchain_cfc.sampling.fingerprints import compute_fingerprint

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
# What fingerprints tell by one digest.
DIGESTED = {"tools", "tool_choice", "functions", "response_format"}
# For every parameter that changes what is drawn, another value than calibrated.
OTHERS: dict[str, Any] = {
    "model": "another",
    "temperature": 0.8,
    "top_p": 0.9,
    "max_tokens": 17,
    "max_completion_tokens": 17,
    "stop": ["."],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"50256": -100},
    "seed": 7,
    "reasoning_effort": "low",
    "verbosity": "low",
    "response_format": {"type": "json_object"},
    "tools": [WEATHER],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "functions": [WEATHER["function"]],
    "function_call": "auto",
    "modalities": ["text"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "Lima"},
    "moderation": {"model": "omni-moderation-latest"},
    "web_search_options": {},
    "extra_body": {"top_k": 20},
}


class City(BaseModel):
    """A city."""

    name: str


@pytest.mark.parametrize("name", sorted(set(OTHERS) - {"response_format"}))
def test_chain_refuses_another_value_bound_to_calls(hosted: Hosted, saved: Saved, name: str) -> None:
    said = "tools_digest" if name in DIGESTED else name
    for bound in (
        hosted.generator().bind(**{name: OTHERS[name]}),
        RunnableBinding(bound=hosted.generator(), kwargs={name: OTHERS[name]}),
        hosted.generator().with_retry().bind(**{name: OTHERS[name]}),
    ):
        with pytest.raises(FingerprintError, match=f"{said} is .*, in calibration it was"):
            hosted.chain(saved, generator=bound)
    assert hosted.script.requests == []


def test_generator_refuses_a_bound_response_format(hosted: Hosted, saved: Saved) -> None:
    for held in ({"type": "json_object"}, City):
        with pytest.raises(InputError, match=r"give the format to make_generator\(response_format=\.\.\.\)"):
            hosted.generator().bind(response_format=held)
        by_hand = RunnableBinding(bound=hosted.generator(), kwargs={"response_format": held})
        with pytest.raises(FingerprintError, match=r"tools_digest is .*, in calibration it was None"):
            hosted.chain(saved, generator=by_hand)


def test_chain_refuses_another_setting_of_the_generator(hosted: Hosted, saved: Saved) -> None:
    named = {"response_format": "extra_body", "default_headers": "settings"}
    others = {**OTHERS, "default_headers": {"x-model": "other"}}
    for name in sorted(set(inspect.signature(make_generator).parameters) & set(others)):
        with pytest.raises(FingerprintError, match=f"{named.get(name, name)} is "):
            hosted.chain(saved, generator=hosted.generator(**{name: others[name]}))


def test_connection_settings_do_not_change_the_fingerprint(hosted: Hosted, saved: Saved) -> None:
    # The negative control of the tests above.
    otherwise = hosted.generator(
        api_key="another",
        timeout=3.0,
        max_retries=5,
        default_headers={"X-Request-Id": "blue"},
        logprobs=False,
    )
    for same in (otherwise, otherwise.bind(timeout=4.0), otherwise.with_retry(), hosted.generator(stop="\n")):
        assert hosted.chain(saved, generator=same).guarantee.binding == "matched"
    for name in ("logprobs", "line"):
        for settings in ({}, {"api_key": "another", "timeout": 3.0}):
            same_judge = hosted.verifier(name, **settings)
            assert hosted.chain(saved, name, using=same_judge).guarantee.binding == "matched"
    told = json.dumps(compute_fingerprint(otherwise))
    assert not any(word in told for word in ("another", "blue", hosted.url))


@pytest.mark.parametrize(
    ("verifier", "settings", "said"),
    [
        ("logprobs", {"model": "another"}, "is 'another', in calibration it was 'recorded'"),
        ("line", {"model": "another"}, "is 'another', in calibration it was 'recorded'"),
        ("logprobs", {"top_logprobs": 5}, "top_logprobs is 5, in calibration it was 20"),
        ("logprobs", {"temperature": 1.0}, r"model\.temperature is 1\.0, in calibration it was 0\.0"),
        ("logprobs", {"extra_body": {"top_k": 1}}, r"model\.extra_body is "),
        ("line", {"criterion": "An answer is correct if it is short."}, "instructions is "),
        ("line", {"mode": "logprobs"}, "mode is 'logprobs', in calibration it was 'line'"),
        ("line", {"max_tokens": 8}, r"model\.max_tokens is 8, in calibration it was 1024"),
        ("line", {"reasoning_effort": "low"}, r"reasoning_effort is 'low', in calibration it was None"),
    ],
)
def test_chain_refuses_other_verifier_settings(
    hosted: Hosted, saved: Saved, verifier: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(FingerprintError, match=said):
        hosted.chain(saved, verifier, using=hosted.verifier(verifier, **settings))
    assert hosted.script.requests == []

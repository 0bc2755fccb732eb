"""The recorded facts, an artifact calibrated on them, and a server that replays them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langchain_cfc import CalibrationArtifact, PromptRecord, calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import Provenance
from tests.recordings import list_facts

from .openai_server import Script, serving

# What the recording says of its generator, in the words of a client.
RECORDED: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.8,
    "max_tokens": 16,
    "stop": ["\n"],
    "extra_body": {"top_k": 40},
}


@pytest.fixture(scope="session")
def provenance() -> Provenance:
    """The recording's header."""
    found = load_recording().provenance
    assert found is not None
    return found


@pytest.fixture(scope="session")
def facts() -> list[PromptRecord]:
    """The recorded prompts with ten candidates each."""
    return list_facts()


@pytest.fixture(scope="session")
def fact_artifact(facts: list[PromptRecord], provenance: Provenance) -> CalibrationArtifact:
    """Calibrated on seven tenths of the facts; the rest is new to it."""
    with warnings.catch_warnings():
        # Some topics are too hard for the small model that was recorded; their prompts will be flagged.
        warnings.simplefilter("ignore", AttainabilityWarning)
        return calibrate(
            facts,
            alpha=0.2,
            features="mean_score + group(topic)",
            set_rule="unique(all)",
            test_fraction=0.3,
            provenance=provenance,
        )


@pytest.fixture(scope="session")
def new_facts(facts: list[PromptRecord], fact_artifact: CalibrationArtifact) -> list[PromptRecord]:
    """Thirty of the prompts held out."""
    split = fact_artifact.calibration.split
    return [one for one in facts if split.find_part(one.id, one.cluster) == "test"][:30]


@pytest.fixture
def script(new_facts: list[PromptRecord]) -> Script:
    """What the server will answer; tests add faults to it."""
    return Script.of(new_facts)


@pytest.fixture
def base_url(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that follows the script."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(script) as url:
        yield url


@pytest.fixture
def chat_model(base_url: str) -> Callable[..., ChatOpenAI]:
    """A function that makes a client of the server, as it was recorded unless told otherwise."""

    def make(**settings: Any) -> ChatOpenAI:
        client = {"base_url": base_url, "api_key": "none", "max_retries": 0}
        return ChatOpenAI(**{"model": "recorded", "logprobs": True, **client, **RECORDED, **settings})

    return make

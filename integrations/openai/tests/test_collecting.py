"""`collect.toml` with these factories: from questions to a served artifact, whatever fails on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langchain_cfc_collect import Store, collect
from langchain_cfc_collect.config import read_config
from langchain_cfc_collect.failures import is_transient, read_retry_after
from langchain_cfc_openai import EndpointError

from integrations.openai.tests.parts import Hosted, N, continents, get_question
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.errors import FingerprintError
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.calls import Invoke
from tests.serving.openai_server import Fault

COLLECTION = """
store = "questions.db"
n = 10

[source]
path = "questions.jsonl"
input = "question"
reference = "answers"

[generator]
factory = "langchain_cfc_openai:make_generator"
sampling = "single_request"

[generator.arguments]
model = "recorded"
temperature = 0.7
max_tokens = 16
stop = ["\\n"]
max_retries = 0

[verifiers.sequence]
factory = "langchain_cfc.verifiers:SequenceProbability"

[verifiers.logprobs]
factory = "langchain_cfc_openai:make_judge"
arguments = { model = "recorded", max_retries = 0 }

[verifiers.line]
factory = "langchain_cfc_openai:make_judge"
arguments = { model = "recorded", mode = "line", max_retries = 0 }

[labeler]
factory = "langchain_cfc.labelers:NormalisedMatch"

[run]
concurrency = 4
"""
PROMPTS = 12


def collect_artifact() -> CalibrationArtifact:
    """Collect by the settings, calibrate and save."""
    Path("collect.toml").write_text(COLLECTION)
    rows = [{"question": one.input, "answers": one.reference} for one in continents()[: 4 * PROMPTS : 4]]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = read_config("collect.toml")
    ended = collect(config.source.read_examples(), config.create_components(), config.store)
    assert ended.complete
    with Store(config.store) as store:
        records = list(store.read_records())
        artifact = calibrate(records, alpha=0.3, features="1", provenance=store.read_provenance())
    assert len(records) == PROMPTS
    assert all(len(record.candidates) == N for record in records)
    assert all(
        set(one.scores or {}) == {"sequence", "logprobs", "line"}
        for record in records
        for one in record.candidates
    )
    artifact.save("artifact.json")
    return CalibrationArtifact.load("artifact.json")


def test_components_of_the_configuration_serve_as_calibrated(hosted: Hosted, invoke: Invoke) -> None:
    artifact = collect_artifact()
    assert artifact.provenance is not None
    parts = read_config("collect.toml").create_components()
    drawn = {"generator": parts.generator, "verifier": parts.verifier}
    chain = CFCRunnable(artifact=artifact, sampling="single_request", **drawn)
    assert artifact.provenance.generator == {
        **compute_fingerprint(hosted.generator(top_p=None)),
        "model_version": "recorded",
    }
    assert chain.guarantee.binding == "matched"
    assert len(invoke(chain, get_question()).candidates) == N
    warm = read_config("collect.toml", settings=["generator.arguments.temperature=0.9"]).create_components()
    with pytest.raises(FingerprintError, match=r"temperature is 0\.9, in calibration it was 0\.7"):
        chain.model_copy(update={"generator": warm.generator})


def test_endpoint_error_states_retry_after_and_transience(hosted: Hosted) -> None:
    hosted.script.faults = [Fault("status 429", seconds=7.0)]
    with pytest.raises(EndpointError) as failed:
        hosted.generator().invoke(get_question())
    assert is_transient(failed.value)
    assert read_retry_after(failed.value) == 7.0
    hosted.script.faults = [Fault("status 401")]
    with pytest.raises(EndpointError) as failed:
        hosted.generator().invoke(get_question())
    assert not is_transient(failed.value)

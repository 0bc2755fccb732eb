"""The parts before a real model on this machine, whose answers are not known beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, Store, collect
from langchain_cfc_openai import make_generator, make_judge, make_p_true

from integrations.openai.tests.parts import continents
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.errors import DrawError, FingerprintError
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.sampling import Sampler
from langchain_cfc.verifiers import SequenceProbability
from tests.conformance.test_live import installed, local_model

N = 10
SHOTS = [
    ["system", "Answer with one name and nothing else."],
    ["human", "On which continent is Kenya?"],
    ["ai", "Africa"],
    ["human", "On which continent is Peru?"],
    ["ai", "South America"],
]
pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.skipif(
        not installed(),
        reason="no local model: pip install xllamacpp && python examples/local_model/local_model.py get",
    ),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    example = local_model()
    # As many slots as choices, so that one request can bring them all.
    with pytest.MonkeyPatch.context() as patch, example.running_server(example.get(), slots=N) as served:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield served


@pytest.mark.parametrize("verifier", ["sequence", "p_true", "judge"])
def test_collect_calibrate_and_serve_with_a_real_model(url: str, verifier: str, tmp_path: Path) -> None:
    example = local_model()
    reached: Any = {"base_url": url, "api_key": "none"}
    drawn: Any = {"temperature": 0.7, "max_tokens": 8, "stop": ["\n", "."]}
    draws = make_generator(example.MODEL_NAME, **drawn, **reached)
    using: Any = {
        "sequence": SequenceProbability,
        "p_true": lambda: make_p_true(example.MODEL_NAME, **reached),
        "judge": lambda: make_judge(example.MODEL_NAME, **reached),
    }[verifier]
    *asked, new = [
        Example(id=fact.id, input=[*SHOTS, ["human", fact.input]], reference=fact.reference)
        for fact in continents()[:13]
    ]
    parts = Components(
        generator=draws, verifier=using(), labeler=NormalisedMatch(), n=N, sampling="single_request"
    )
    ended = collect(
        asked, parts, tmp_path / "store.db", CollectionOptions(call_policy=CallPolicy(concurrency=2))
    )
    assert ended.complete
    with Store(tmp_path / "store.db") as store:
        records = list(store.read_records())
        made = calibrate(records, alpha=0.5, features="1", provenance=store.read_provenance())
    # A model that gave the same ten answers, or scores that are all one, would show nothing.
    texts = [len({one.text for one in record.candidates}) for record in records]
    assert sum(texts) > 2 * len(texts)
    # So small a model states no percent but one.
    assert verifier == "judge" or len({one.score for record in records for one in record.candidates}) > 1
    made.save(tmp_path / "artifact.json")

    artifact = CalibrationArtifact.load(tmp_path / "artifact.json")
    chain = CFCRunnable(generator=draws, verifier=using(), artifact=artifact, sampling="single_request")
    assert chain.guarantee.binding == "matched"
    for result in (chain.invoke(new.input), asyncio.run(chain.ainvoke(new.input))):
        assert len(result.candidates) == N
        assert result.models == (example.MODEL_NAME,)
        assert all(0.0 <= one.score <= 1.0 for one in result.candidates)
    warm = make_generator(example.MODEL_NAME, **{**drawn, "temperature": 0.8}, **reached)
    with pytest.raises(FingerprintError, match=r"temperature is 0\.8, in calibration it was 0\.7"):
        chain.model_copy(update={"generator": warm})


def test_refusal_of_a_real_server_names_the_remedy(url: str) -> None:
    named = local_model().MODEL_NAME
    model = make_generator(named, base_url=url, api_key="none", extra_body={"grammar": "root ="})
    with pytest.raises(DrawError, match=r"status 400 .*: remove parameters that the endpoint does not know"):
        Sampler(model, "single_request").draw("Who are you?", 2)

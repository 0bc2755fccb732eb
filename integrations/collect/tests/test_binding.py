"""An artifact of a collection is bound to its parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_collect import CollectionOptions, Components, Store, collect

from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import FingerprintError, StoreError
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.records import Example, read_records, write_records
from tests.factories import make_artifact
from tests.fakes import TEXTS, N
from tests.runnable.test_binding import GENERATOR, VERIFIER, NamedModel, NamedVerifier, make_matching

REASONED = tuple(f"<think>cusco</think>{text}" for text in TEXTS)


REASONED_TEXTS: dict[Reasoning, tuple[str, ...]] = {"strip": TEXTS, "keep": REASONED}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("drawn", "other"), [("strip", "keep"), ("keep", "strip")])
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.FingerprintWarning")
def test_reasoning_is_served_only_as_it_was_collected(
    drawn: Reasoning, other: Reasoning, named: bool, tmp_path: Path
) -> None:
    model = NamedModel(texts=REASONED, fingerprint=GENERATOR if named else {})
    notices: list[str] = []
    options = CollectionOptions(on_progress=lambda _: None, on_notice=notices.append)
    verifier = NamedVerifier(**VERIFIER)
    path, examples = tmp_path / "a.db", [Example(id="a", input="x", reference="lima")]

    def run(reasoning: Reasoning) -> None:
        parts = Components(model, verifier, NormalisedMatch(), N, reasoning=reasoning)
        collect(examples, parts, path, options)

    run(drawn)
    assert [("same generator" in one) for one in notices] == ([] if named else [True])
    with pytest.raises(StoreError, match="generator"):
        run(other)
    with Store(path) as store:
        provenance = store.read_provenance()
        write_records(tmp_path / "a.jsonl", store.read_records(), provenance)
    records = read_records(tmp_path / "a.jsonl")
    assert tuple(one.text for record in records for one in record.candidates) == REASONED_TEXTS[drawn]
    stated = (provenance.generator or {}).get("reasoning_text")
    assert stated == (None if drawn == "strip" else "kept")

    artifact = make_artifact(provenance=provenance)
    chain = make_matching(artifact, generator=model, reasoning=drawn, show_rejected=True)
    served = chain.invoke("x")
    assert sorted(str(one.text) for one in served.candidates) == sorted(REASONED_TEXTS[drawn])
    assert served.guarantee.binding == ("matched" if named else "unverified")
    with pytest.raises(FingerprintError, match="reasoning_text"):
        make_matching(artifact, generator=model, reasoning=other)
    with pytest.raises(FingerprintError, match="reasoning_text"):
        chain.model_copy(update={"reasoning": other})
    assert make_replay_parts(records)["reasoning"] == drawn

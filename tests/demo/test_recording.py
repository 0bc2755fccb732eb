"""The recording of the demo is the stated one."""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib.resources import files

from langchain_cfc.demo import load_recording
from tests.recordings import list_facts

FOLDER = files("langchain_cfc.demo")


def test_recording_has_the_stated_digest() -> None:
    stated = re.search(r"SHA-256\s+([0-9a-f]{64})", FOLDER.joinpath("DATA.md").read_text(encoding="utf-8"))
    assert stated is not None
    unpacked = gzip.decompress(FOLDER.joinpath("facts.jsonl.gz").read_bytes())
    assert hashlib.sha256(unpacked).hexdigest() == stated[1]


def test_recording_states_its_provenance() -> None:
    provenance = load_recording().provenance
    assert provenance is not None
    assert provenance.n == 10
    assert (provenance.generator or {})["id"] == "qwen2.5-coder-1.5b-instruct-q4_k_m"
    assert (provenance.verifier or {})["id"] == "sequence-probability"


def test_recording_has_the_stated_size_and_share_of_correct_draws() -> None:
    records = list_facts()
    assert len(records) == 1224
    draws = [candidate for record in records for candidate in record.candidates]
    assert round(sum(one.correct for one in draws) / len(draws), 2) == 0.68  # pass@1 as recorded
    assert len({record.metadata["topic"] for record in records}) == 9

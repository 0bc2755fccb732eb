"""Suggestions in errors: what was probably meant, or nothing if that is unclear."""

from __future__ import annotations

from pathlib import Path

import pytest

from langchain_cfc.support.suggestions import suggest_file, suggest_name, suggest_share


@pytest.mark.parametrize(
    ("given", "meant"),
    [(20, "0.2"), (5.0, "0.05"), ("2.5", "0.025"), ("80%", "0.8"), ("0.5 %", "0.005"), ("0,2", "0.2")],
)
def test_suggest_share_reads_percentages(given: object, meant: str) -> None:
    assert suggest_share(given) == f"; did you mean {meant}?"


@pytest.mark.parametrize("given", [0.2, "0.2", 0, 1, -3, 100, 250, "nan", "inf", "some", "", True, None])
def test_suggest_share_suggests_nothing_for_shares_and_other_values(given: object) -> None:
    assert suggest_share(given) == ""


def test_suggest_file_names_a_similar_file_in_the_folder(tmp_path: Path) -> None:
    for name in ("artifact.json", "records.jsonl"):
        tmp_path.joinpath(name).touch()
    assert suggest_file(tmp_path / "artefact.json") == f"; did you mean {tmp_path / 'artifact.json'}?"
    for name in ("artefact", "artifact.jsn"):
        assert suggest_file(tmp_path / name) == f"; did you mean {tmp_path / 'artifact.json'}?"
    assert suggest_file(tmp_path / "else.csv") == suggest_file(tmp_path / "artifact.jsonl") == ""
    (tmp_path / "r.jsonl").touch()
    assert suggest_file(tmp_path / "nothere.json") == ""
    assert (
        suggest_file(tmp_path / "nowhere" / "artifact.json") == f"; there is no folder {tmp_path / 'nowhere'}"
    )


def test_suggest_name_names_a_similar_name() -> None:
    assert suggest_name("topics", {"level": 1, "topic": 2}) == "; did you mean 'topic'?"
    assert suggest_name("colour", ["level", "topic"]) == ""

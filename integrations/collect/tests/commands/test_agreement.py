"""`langchain-cfc store agreement`: its printed report, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langchain_cfc_collect.review import create_review_report, format_candidate, write_review

from integrations.collect.tests.filling import fill_in
from langchain_cfc import PromptRecord
from langchain_cfc.records import Provenance, read_records, write_records
from tests.cli.running import run
from tests.recordings import list_facts


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "facts.jsonl"
    write_records(path, list_facts(), Provenance(n=10, labeler={"id": "exact"}))
    return path


def read_labels(records: list[PromptRecord]) -> dict[tuple[str, str], bool]:
    return {
        (record.id, format_candidate(candidate)): candidate.correct
        for record in records
        for candidate in record.candidates
    }


@pytest.fixture(scope="module")
def sheet(records: Path) -> Path:
    """A sheet that agrees with the labels except in every twentieth row; the last ten rows are empty."""
    path = records.parent / "review.csv"
    given = list(read_records(records))
    write_review(given, 300, path)
    labels = read_labels(given)
    seen: list[str] = []

    def says(name: str, candidate: str) -> bool | None:
        seen.append(name)
        return None if len(seen) > 290 else labels[name, candidate] ^ (len(seen) % 20 == 0)

    return fill_in(path, says)


def join_words(printed: str) -> str:
    return " ".join(printed.split())


def test_agreement_prints_the_report(records: Path, sheet: Path) -> None:
    ran = run("store", "agreement", records, sheet)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    said = join_words(ran.out)
    report = create_review_report(read_records(records), sheet)
    assert run("store", "agreement", records, sheet, "--json").data == json.loads(report.model_dump_json())
    e0 = report.error_on_wrong
    assert e0.value is not None
    for words in (
        "review.csv: 290 of 300 rows filled in, from 290 independent prompts",
        f"labelled correct {report.correct_called_correct} {report.wrong_called_correct} ",
        f"labelled wrong {report.correct_called_wrong} {report.wrong_called_wrong} ",
        f"wrong ones labelled correct {100 * e0.value:.1f} {100 * e0.low:.1f} to {100 * e0.high:.1f}",
        "10 of 300 rows are not filled in",
    ):
        assert words in said

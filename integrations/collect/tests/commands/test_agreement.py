"""`langchain-cfc store agreement`: its printed report, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.review import create_review_report, format_candidate, write_review

from integrations.collect.tests.filling import fill_in
from langchain_cfc import CalibrationArtifact, PromptRecord, calibrate
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import Provenance, read_records, tabulate, write_records
from tests.cli.running import run
from tests.recordings import list_facts

HEADER = ["id", "text", "correct"]


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


def write_artifact(
    folder: Path,
    records: list[PromptRecord],
    labeler: str = "exact",
    **options: Any,
) -> Path:
    path = folder / "artifact.json"
    header = Provenance(n=10, labeler={"id": labeler})
    first = tabulate(records, n=4)
    made = calibrate(first, alpha=["0.2", "0.3"], features="1", provenance=header, **options)
    made.save(path)
    return path


def join_words(printed: str) -> str:
    return " ".join(printed.split())


def test_agreement_prints_the_report_in_80_columns(records: Path, sheet: Path) -> None:
    ran = run("store", "agreement", records, sheet)
    assert ran.code == 0
    assert ran.err == ""
    assert max(map(len, ran.out.splitlines())) <= 80
    said = join_words(ran.out)
    report = create_review_report(read_records(records), sheet)
    assert "review.csv: 290 of 300 rows filled in, from 290 independent prompts" in said
    assert f"labelled correct {report.correct_called_correct} {report.wrong_called_correct} " in said
    assert f"labelled wrong {report.correct_called_wrong} {report.wrong_called_wrong} " in said
    e0 = report.error_on_wrong
    assert e0.value is not None
    assert (
        f"wrong ones labelled correct (e0) {100 * e0.value:.1f} {100 * e0.low:.1f} to {100 * e0.high:.1f}"
        in said
    )
    assert report.kappa is not None
    assert f"Cohen's kappa {report.kappa.value:.2f}, 95 % interval {report.kappa.low:.2f} to" in said
    assert "- independent assumes that the distinct answers of a set, at most 10, are mislabelled" in said
    assert "- of any kind assumes nothing about the mistakes." in said
    assert "holds with 97.5 % confidence" in said
    assert "- 10 of 300 rows are not filled in and were left out." in said


def test_agreement_json_is_the_review_report(records: Path, sheet: Path) -> None:
    ran = run("store", "agreement", records, sheet, "--coverage", "0.9", "--coverage", "0.8", "--json")
    assert ran.code == 0
    report = create_review_report(read_records(records), sheet, coverage=[0.9, 0.8])
    assert ran.data == json.loads(report.model_dump_json())
    assert [one["coverage"] for one in ran.data["promises"]] == [0.9, 0.8]
    assert run("store", "agreement", records, sheet, "--json").data["promises"] == ran.data["promises"][:1]


def test_agreement_reads_promised_coverage_from_an_artifact(
    records: Path, sheet: Path, tmp_path: Path
) -> None:
    given = list(read_records(records))
    path = write_artifact(tmp_path, given)
    ran = run("store", "agreement", records, sheet, "--artifact", path, "--json")
    assert ran.code == 0
    held = CalibrationArtifact.load(path)
    expected = [held.make_guarantee(alpha).target_coverage for alpha in held.alphas]
    assert [one["coverage"] for one in ran.data["promises"]] == expected == [0.8, 0.7]
    assert ran.data["n"] == 4
    run("store", "agreement", records, sheet, "--artifact", path, "--coverage", "0.8").assert_refused(
        "leave out --coverage"
    )


def test_agreement_refuses_artifacts_of_other_labels_or_without_a_promise(
    records: Path, sheet: Path, tmp_path: Path
) -> None:
    given = list(read_records(records))
    run(
        "store", "agreement", records, sheet, "--artifact", write_artifact(tmp_path, given, labeler="judge")
    ).assert_refused(
        "calibrated on labels by {'id': 'judge'}, but the records are labelled by {'id': 'exact'}"
    )
    run(
        "store",
        "agreement",
        records,
        sheet,
        "--artifact",
        write_artifact(tmp_path, given, pac=PaperPAC(ridge=0.001)),
    ).assert_refused("this artifact promises no coverage")


def test_agreement_reports_a_sheet_that_is_too_small(records: Path, tmp_path: Path) -> None:
    given = list(read_records(records))
    labels = read_labels(given)
    write_review(given, 20, tmp_path / "a.csv")
    ran = run("store", "agreement", records, fill_in(tmp_path / "a.csv", lambda *key: labels[key]))
    assert ran.code == 0
    assert "The sheet is too small to confirm any of the promised 90 %" in join_words(ran.out)
    assert join_words(ran.out).count("nothing nothing") == 2
    write_review(given, 600, tmp_path / "b.csv")
    ran = run("store", "agreement", records, fill_in(tmp_path / "b.csv", lambda *key: labels[key]))
    assert "too small" not in ran.out
    ran = run("store", "agreement", records, fill_in(tmp_path / "b.csv", lambda *_: False))
    assert ran.code == 0
    assert "With the mistakes found, nothing of the promised 90 %" in join_words(ran.out)
    assert "it is unknown how these are labelled" in join_words(ran.out)


def test_agreement_rounds_bounds_down(records: Path, sheet: Path) -> None:
    promise = run("store", "agreement", records, sheet, "--json").data["promises"][0]
    shown = [
        line.split()
        for line in run("store", "agreement", records, sheet).out.splitlines()
        if line[:3] == "90 "
    ]
    for words, kind in zip(shown, ("independent", "at_worst"), strict=True):
        for word, exact in zip(words[-2:], (promise[kind], promise[f"{kind}_limit"]), strict=True):
            assert 100 * exact - 0.1 < float(word) <= 100 * exact

"""`langchain-cfc store agreement`: its printed report, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.review import create_review_report, format_candidate, write_review

from integrations.collect.tests.filling import fill_in
from langchain_cfc import PromptRecord, calibrate
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import Provenance, read_records, tabulate, write_records
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


def write_artifact(folder: Path, records: list[PromptRecord], labeler: str = "exact", **options: Any) -> Path:
    path = folder / "artifact.json"
    header = Provenance(n=10, labeler={"id": labeler})
    first = tabulate(records, n=4)
    made = calibrate(first, alpha=["0.2", "0.3"], features="1", provenance=header, **options)
    made.save(path)
    return path


def join_words(printed: str) -> str:
    return " ".join(printed.split())


def test_agreement_prints_the_report_with_bounds_rounded_down(records: Path, sheet: Path) -> None:
    ran = run("store", "agreement", records, sheet)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    said = join_words(ran.out)
    report = create_review_report(read_records(records), sheet)
    assert run("store", "agreement", records, sheet, "--json").data == json.loads(report.model_dump_json())
    e0, kappa = report.error_on_wrong, report.kappa
    assert e0.value is not None
    assert kappa is not None
    for words in (
        "review.csv: 290 of 300 rows filled in, from 290 independent prompts",
        f"labelled correct {report.correct_called_correct} {report.wrong_called_correct} ",
        f"labelled wrong {report.correct_called_wrong} {report.wrong_called_wrong} ",
        f"(e0) {100 * e0.value:.1f} {100 * e0.low:.1f} to {100 * e0.high:.1f}",
        f"Cohen's kappa {kappa.value:.2f}, 95 % interval {kappa.low:.2f} to",
        "holds with 97.5 % confidence",
        "10 of 300 rows are not filled in",
    ):
        assert words in said
    (promise,) = report.promises
    shown = [line.split()[-2:] for line in ran.out.splitlines() if line[:3] == "90 "]
    exact = ((promise.independent, promise.independent_limit), (promise.at_worst, promise.at_worst_limit))
    for words_of, bounds in zip(shown, exact, strict=True):
        for word, bound in zip(words_of, bounds, strict=True):
            assert 100 * bound - 0.1 < float(word) <= 100 * bound


def test_agreement_reads_promised_coverage_from_a_fitting_artifact(
    records: Path, sheet: Path, tmp_path: Path
) -> None:
    given = list(read_records(records))
    command: tuple[str | Path, ...] = ("store", "agreement", records, sheet)
    path = write_artifact(tmp_path, given)
    ran = run(*command, "--artifact", path, "--json")
    assert ran.code == 0
    assert [one["coverage"] for one in ran.data["promises"]] == [0.8, 0.7]
    assert ran.data["n"] == 4
    ran = run(*command, "--coverage", "0.8", "--coverage", "0.7", "--json")
    assert [one["coverage"] for one in ran.data["promises"]] == [0.8, 0.7]
    run(*command, "--artifact", path, "--coverage", "0.8").assert_refused("leave out --coverage")
    path = write_artifact(tmp_path, given, labeler="judge")
    run(*command, "--artifact", path).assert_refused("labels by {'id': 'judge'}", "by {'id': 'exact'}")
    path = write_artifact(tmp_path, given, pac=PaperPAC(ridge=0.001))
    run(*command, "--artifact", path).assert_refused("promises no coverage")


def test_agreement_reports_a_sheet_that_is_too_small_or_has_too_many_mistakes(
    records: Path, tmp_path: Path
) -> None:
    given = list(read_records(records))
    labels = read_labels(given)
    write_review(given, 20, tmp_path / "a.csv")
    ran = run("store", "agreement", records, fill_in(tmp_path / "a.csv", lambda *key: labels[key]))
    assert "The sheet is too small to confirm any of the promised 90 %" in join_words(ran.out)
    assert join_words(ran.out).count("nothing nothing") == 2
    write_review(given, 600, tmp_path / "b.csv")
    ran = run("store", "agreement", records, fill_in(tmp_path / "b.csv", lambda *_: False))
    assert ran.code == 0
    assert "With the mistakes found, nothing of the promised 90 %" in join_words(ran.out)
    assert "it is unknown how these are labelled" in join_words(ran.out)

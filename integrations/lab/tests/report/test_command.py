"""`langchain-cfc report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_cfc_lab.report import Sources, write_report

from integrations.lab.tests.report.cases import Case, make_case, make_prompt
from langchain_cfc import CalibrationArtifact, evaluate
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import InputError
from langchain_cfc.records import write_records
from tests.cli.running import run
from tests.recordings import list_facts


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "facts.jsonl"
    write_records(path, load_recording())
    return path


@pytest.fixture(scope="module")
def artifact(records: Path, facts: Case) -> Path:
    path = records.parent / "artifact.json"
    facts.artifact.save(path)
    return path


def contains_a_prompt(html: str) -> bool:
    return any(str(record.input) in html for record in list_facts())


def test_report_command_writes_the_page_and_prints_the_evaluation(
    artifact: Path, records: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    ran = run("report", artifact, records, "-o", out, "--json")
    assert ran.code == 0
    assert ran.err == ""
    loaded = CalibrationArtifact.load(artifact)
    expected = evaluate(loaded, load_recording()).model_dump(mode="json")
    assert ran.data == {"report": str(out), **expected}
    html = out.read_text()
    assert "What artifact.json promises" in html
    assert "--alpha 0.2 --group topic" in html
    assert not contains_a_prompt(html), "texts are shown only if they are asked for"


def test_report_command_shows_texts_on_request(tmp_path: Path) -> None:
    artifact, records, out = (tmp_path / name for name in ("artifact.json", "few.jsonl", "page.html"))
    few = list_facts()[:300]
    make_case(few, alpha="0.3", features="mean_score").artifact.save(artifact)
    write_records(records, few)
    ran = run("report", artifact, records, "-o", out, "--show-text", "--prompts", "2")
    assert ran.code == 0, ran.err
    assert "Consistent with the promise: kept for 77.2 % of the questions, target 70 %." in ran.out
    html = out.read_text()
    assert html.count("<blockquote") == 2
    assert contains_a_prompt(html)


def test_report_command_exits_with_1_on_a_broken_promise(tmp_path: Path) -> None:
    path, out = tmp_path / "artifact.json", tmp_path / "page.html"
    good = [make_prompt(f"g{k}", (0.01 * (k % 50), "yes", True), (0.9, "no", False)) for k in range(200)]
    make_case(good, alpha=0.2, features="1").artifact.save(path)
    bad = [make_prompt(f"b{k}", (0.95, "yes", True), (0.9, "no", False)) for k in range(100)]
    write_records(tmp_path / "bad.jsonl", bad)
    ran = run("report", path, tmp_path / "bad.jsonl", "-o", out)
    assert ran.code == 1
    assert "Contradicts the promise, for all prompts: " in out.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--alpha", "0.1"], "was not calibrated at alpha = 0.1"),
        (["-o", "-"], "a report cannot be written to standard output"),
        (["-o", "RECORDS"], "exists and is not a report"),
    ],
)
def test_report_command_exits_with_2_on_bad_input_and_writes_nothing(
    artifact: Path, records: Path, tmp_path: Path, options: Sequence[str], said: str
) -> None:
    before = records.read_bytes()
    out = ["-o", str(tmp_path / "page.html")] if "-o" not in options else []
    ran = run(
        "report", artifact, records, *out, *(str(records) if one == "RECORDS" else one for one in options)
    )
    ran.assert_refused(said)
    assert list(tmp_path.iterdir()) == []
    assert records.read_bytes() == before


@pytest.fixture(scope="module")
def small() -> Case:
    """An artifact whose page is drawn at once."""
    prompts = [make_prompt(f"{k}", (k / 100, "yes", True), (0.9, "no", False)) for k in range(50)]
    return make_case(prompts, features="1")


def test_write_report_overwrites_reports_only(small: Case, facts: Case, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, artifact=small.artifact, evaluation=small.evaluation, sources=Sources("first"))
    first = path.read_text()
    write_report(path, artifact=small.artifact, evaluation=small.evaluation, sources=Sources("second"))
    second = path.read_text()
    assert "What first promises" in first
    assert "What second promises" in second
    for content in ("", "<!DOCTYPE html><html></html>", '{"id": "a record"}', first[1024:]):
        path.write_text(content)
        # Before anything is drawn, which would fail for the evaluation of another artifact.
        with pytest.raises(InputError, match="exists and is not a report; it will not be overwritten"):
            write_report(path, artifact=small.artifact, evaluation=facts.evaluation)
        assert path.read_text() == content


def test_write_report_keeps_the_old_page_on_failure(small: Case, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, artifact=small.artifact, evaluation=small.evaluation)
    before = path.read_bytes()
    with pytest.raises(InputError, match="another artifact"):
        write_report(path, small.artifact, small.evaluation.model_copy(update={"artifact_digest": ""}))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

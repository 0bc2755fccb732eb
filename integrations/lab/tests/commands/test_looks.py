"""Commands that show figures by setting are looks at labels, which the ledger of attempts records."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from langchain_cfc import CalibrationArtifact, calibrate, write_records
from langchain_cfc.records import Provenance
from tests.artifact.test_attempt_files import KNOWN, MORE, list_looks, list_options
from tests.cli.running import run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of records."""
    path = tmp_path / "records.jsonl"
    write_records(path, KNOWN)
    return path


def test_look_at_a_copy_of_the_records_counts(path: Path) -> None:
    other = path.with_name("other.jsonl")
    shutil.copy(path, other)
    assert run("plan", other, "--max-wrong-rate", "0.2").code == 0
    run(*list_options(path)).assert_refused("label new prompts")


@pytest.mark.skipif(os.name != "posix", reason="a folder that cannot be written")
@pytest.mark.parametrize("command", ["compare", "plan", "suggest", "report"])
def test_command_that_cannot_record_says_to_copy_the_records(
    command: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calibrate(MORE, alpha="0.5", features="1")
    made.save(tmp_path / "artifact.json")
    access = os.access  # tests may run as root, for whom every folder can be written
    folder = os.fspath(path.parent)
    monkeypatch.setattr(os, "access", lambda name, mode: os.fspath(name) != folder and access(name, mode))
    given = [tmp_path / "artifact.json", path] if command == "report" else [path]
    options = ["--max-wrong-rate", "0.2"] if command == "plan" else []
    run(command, *map(str, given), *options).assert_refused("copy the records")


def test_every_command_that_shows_figures_by_setting_is_a_look(path: Path) -> None:
    new = path.with_name("new.jsonl")
    write_records(new, MORE)
    artifact = path.with_name("artifact.json")
    assert run("calibrate", new, "--alpha", "0.5", "--features", "1", "--out", artifact).code == 0
    run("suggest", path, "--alpha", "0.5", "--features", "1", "--splits", "2", "--jobs", "1")
    run("report", artifact, path, "--out", path.with_name("report.html"))
    run("plan", path, "--max-wrong-rate", "0.2")
    assert list_looks(path) == ["suggest", "evaluate", "plan"]
    run(*list_options(path, out="bot.json")).assert_refused("label new prompts")


@pytest.mark.parametrize(("options", "kept"), [((), 1.0), (("--draws", "fixed(2)"), 0.7)])
def test_labels_that_suggest_used_certify_no_setting_that_it_may_have_chosen(
    options: tuple[str, ...], kept: float, path: Path
) -> None:
    header = Provenance(n=len(KNOWN[0].candidates), separate_scores=True)
    write_records(path, KNOWN, header)
    suggested = ("--alpha", "0.5", "--features", "1", "--splits", "2", "--jobs", "1")
    assert run("suggest", path, *suggested).code == 0
    # The choice used 30 % of the prompts; another seed does not bring them back.
    assert run(*list_options(path), "--seed", "1", *options).code == 0
    made = CalibrationArtifact.load(path.parent / "artifact.json")
    assert made.certified_bot.certificates[0].prompts == pytest.approx(kept * len(KNOWN), rel=0.1)


def test_compare_command_is_a_look_at_all_labels(path: Path) -> None:
    options = ("--max-wrong-rate", "0.2", "--features", "1", "--out", path.parent / "artifact.json")
    assert run("calibrate", path, *options).code == 0
    seen = run("compare", path, "--splits", "2", "--jobs", "1", "--method", "TopK", "--alpha", "0.5")
    assert seen.code == 0
    assert list_looks(path) == ["compare"]
    # Settings that were tried before may be tried again; others need new labels.
    assert run("calibrate", path, *options).code == 0
    run("calibrate", path, *options, "--seed", "1").assert_refused("label new prompts")

"""How the lab's commands state the guarantees of a bot."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from unittest import mock

import pytest

from langchain_cfc import CalibrationArtifact, calibrate, write_records
from langchain_cfc.errors import InputError
from langchain_cfc.records import Provenance
from tests.artifact.test_attempt_files import KNOWN, MORE, list_looks, list_options
from tests.cli.running import run
from tests.cli.test_promises import RECORDING


@pytest.fixture(autouse=True)
def _copy_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own recording: attempts on its labels are kept beside it."""
    copied = tmp_path / "recording" / RECORDING.name
    copied.parent.mkdir()
    monkeypatch.setitem(globals(), "RECORDING", Path(shutil.copy(RECORDING, copied)))


def test_pages_and_details_of_a_bot_speak_of_answers_and_not_of_sets(tmp_path: Path) -> None:
    artifact, page = tmp_path / "bot.json", tmp_path / "page.html"
    options = ["--max-wrong-rate", "0.1", "--test-fraction", "0.3"]
    shown = [
        run("calibrate", RECORDING, "-o", artifact, *options).out,
        run("inspect", artifact, "--details").out,
        run("evaluate", artifact, RECORDING).out,
    ]
    assert run("report", artifact, RECORDING, "-o", page).code == 0
    html = page.read_text(encoding="utf-8")
    for text in (*shown, html[html.index("<main") :]):
        for word in ("hat(", "alpha", "set rule", "threshold", "flagged", "Missed", "missed"):
            assert word not in text, word
    assert all("at most" in one for one in shown)
    assert "answered wrongly, " in html
    # Control: sets have all of these.
    run("calibrate", RECORDING, "-o", tmp_path / "sets.json", "--alpha", "0.3")
    assert "hat(mean_score, 5)" in run("inspect", tmp_path / "sets.json", "--details").out


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_records_of_another_verifier_do_not_test_the_promise(command: str, tmp_path: Path) -> None:
    artifact, other, page = tmp_path / "bot.json", tmp_path / "other.jsonl", tmp_path / "page.html"
    options = ["--max-wrong-rate", "0.1", "--test-fraction", "0.3"]
    assert run("calibrate", RECORDING, "-o", artifact, *options).code == 0
    header, *rest = gzip.decompress(RECORDING.read_bytes()).decode().splitlines()
    changed = json.loads(header) | {"verifier": {"id": "another"}}
    other.write_text("\n".join([json.dumps(changed), *rest]), encoding="utf-8")
    written: list[str | Path] = ["-o", page] if command == "report" else []
    ran = run(command, artifact, other, *written)
    assert ran.code == 1
    assert "another verifier than the calibration records" in " ".join(ran.out.split())
    assert "Consistent" not in ran.out
    if written:
        assert "Not comparable: " in page.read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    write_records(path, KNOWN)
    return path


@pytest.mark.parametrize("command", ["compare", "plan", "suggest", "report"])
def test_command_that_cannot_record_is_refused(
    command: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calibrate(MORE, alpha="0.5", features="1")
    made.save(tmp_path / "artifact.json")
    # Tests may run as root, for whom every folder can be written.
    refusal = mock.Mock(side_effect=InputError(f"cannot write {path}.attempts.json"))
    # Commands that compute for long find it out before.
    writer = "check_target" if command in {"compare", "suggest"} else "atomic_writer"
    monkeypatch.setattr(f"langchain_cfc.artifact.attempt_files.{writer}", refusal)
    given = [tmp_path / "artifact.json", path] if command == "report" else [path]
    options = ["--max-wrong-rate", "0.2"] if command == "plan" else []
    run(command, *map(str, given), *options).assert_refused(".attempts.json")


def test_every_command_that_shows_figures_by_setting_is_a_look(path: Path) -> None:
    new = path.with_name("new.jsonl")
    write_records(new, MORE)
    artifact = path.with_name("artifact.json")
    assert run("calibrate", new, "--alpha", "0.5", "--features", "1", "--out", artifact).code == 0
    run("suggest", path, "--alpha", "0.5", "--features", "1", "--splits", "2", "--jobs", "1")
    run("report", artifact, path, "--out", path.with_name("report.html"))
    run("plan", path, "--max-wrong-rate", "0.2")
    run("compare", path, "--splits", "2", "--jobs", "1", "--method", "TopK", "--alpha", "0.5")
    assert list_looks(path) == ["suggest", "evaluate", "plan", "compare"]
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

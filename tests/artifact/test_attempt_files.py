"""The ledger's file: two runs at once, what stops a run, copies of records, and every command that looks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from langchain_cfc import CalibrationArtifact, calibrate, read_records, write_records
from langchain_cfc.artifact import AttemptLedger, open_attempts
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate
from tests.certificates.prompts import prompts
from tests.cli.running import run

KNOWN, MORE = prompts(0, 300), prompts(1, 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of records, with options to certify a rate on them."""
    path = tmp_path / "records.jsonl"
    write_records(path, KNOWN)
    return path


def list_options(path: Path, rate: str = "0.2", out: str = "artifact.json") -> tuple[str | Path, ...]:
    return "calibrate", path, "--features", "1", "--max-wrong-rate", rate, "--out", path.parent / out


def find_ledger(path: Path) -> Path:
    return path.with_name(f"{path.name}.attempts.json")


def list_looks(path: Path) -> list[str]:
    with open_attempts([path]) as kept:
        return [one.settings.split()[0] for one in kept.ledger.attempts if one.kind == "look"]


def run_together(task: Callable[[str], None]) -> list[InputError]:
    """Run a task in 16 threads, with another text in each, and return the errors."""
    errors: list[InputError] = []

    def run_task(text: str) -> None:
        try:
            task(text)
        except InputError as error:
            errors.append(error)

    threads = [threading.Thread(target=run_task, args=(str(one),)) for one in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return errors


def test_runs_that_finish_together_lose_no_look_and_one_attempt_counts(path: Path) -> None:
    labelled, ready = tabulate(KNOWN), threading.Barrier(16)

    def attempt(settings: str) -> None:
        with open_attempts([path]) as kept:
            planned = kept.ledger.plan_attempt(labelled, settings, "")
            ready.wait()
            kept.record(planned.end(certified=True))

    def look(what: str) -> None:
        with open_attempts([path]) as kept:
            ready.wait()
            kept.record_look(labelled, what)

    # Attempts that do not know of each other would each take the first share.
    errors = run_together(attempt)
    assert len(errors) == 15
    assert all("another run" in str(one) for one in errors)
    assert not run_together(look)
    with open_attempts([path]) as kept:
        assert len(kept.ledger.attempts) == 17


def test_two_commands_at_once_end_with_two_attempts_or_one_refusal(path: Path) -> None:
    commands = [list_options(path, rate, f"{rate}.json") for rate in ("0.2", "0.3")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", "from langchain_cfc.cli import main; main()", *map(str, one)],
            stderr=subprocess.PIPE,
        )
        for one in commands
    ]
    ended = [(one.communicate()[1], one.returncode) for one in started]
    assert sorted(code for _, code in ended) in ([0, 0], [0, 2])
    assert all(code == 0 or b"another run" in said for said, code in ended)
    assert [run(*one).code for one in commands] == [0, 0]
    numbers = [
        CalibrationArtifact.load(path.parent / f"{rate}.json").certified_bot.certificates[0].attempt
        for rate in ("0.2", "0.3")
    ]
    assert sorted(numbers) == [1, 2]


def test_run_that_is_stopped_before_its_artifact_is_written_may_be_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(CalibrationArtifact, "save", lambda *_: (_ for _ in ()).throw(InputError("stopped")))
        run(*list_options(path)).assert_refused("stopped")
    assert run(*list_options(path)).code == 0
    made = CalibrationArtifact.load(path.parent / "artifact.json")
    assert [one.number for one in made.attempts] == [1]


def test_run_that_is_stopped_while_the_ledger_is_written_leaves_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*list_options(path, "0.3")).code == 0
    before = find_ledger(path).read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "disk full")))
    run(*list_options(path), "--json").assert_refused("disk full")
    assert find_ledger(path).read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"number": 1', '"number": 2'),
        lambda text: text.replace('"certified": false', '"certified": true'),
        lambda text: json.dumps({**json.loads(text), "attempts": []}),
        lambda _: "[" * 100_000,
    ],
)
def test_ledger_that_was_changed_by_hand_is_refused(change: Callable[[str], str], path: Path) -> None:
    assert run(*list_options(path, "0.001")).code == 1
    ledger = find_ledger(path)
    ledger.write_text(change(ledger.read_text()))
    run(*list_options(path)).assert_refused("not a ledger of attempts")


@pytest.mark.parametrize("kind", ["renamed", "copied", "packed", "symbolic link", "beside"])
def test_attempts_on_copies_of_the_records_in_the_folder_count(kind: str, path: Path) -> None:
    assert run(*list_options(path, "0.001")).code == 1
    other = path.with_name("other.jsonl.gz" if kind == "packed" else "other.jsonl")
    if kind == "renamed":
        path.rename(other)
    elif kind == "symbolic link":
        other.symlink_to(path)
    elif kind == "copied":
        shutil.copy(path, other)
    else:  # `beside`: other prompts under the same ids are no copy
        renamed = [old.model_copy(update={"id": new.id}) for old, new in zip(MORE, KNOWN, strict=True)]
        write_records(other, read_records(path) if kind == "packed" else renamed)
    assert run(*list_options(other, out="second.json")).code == 0
    made = CalibrationArtifact.load(path.parent / "second.json")
    assert made.certified_bot.certificates[0].attempt == (1 if kind == "beside" else 2)


def test_labels_of_a_database_or_a_pipe_have_their_ledger_in_the_current_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    database = path.with_name("questions.db")
    database.touch()
    with open_attempts(
        [f"sqlite:///{database}", "postgresql+psycopg://me:secret@host/name?x=y", "-"]
    ) as kept:
        assert [one.name for one in kept.paths] == [
            "questions.db.attempts.json",
            "host-name.attempts.json",
            ".attempts.json",
        ]


@pytest.mark.parametrize("command", ["evaluate", "calibrate", "certify"])
def test_command_that_cannot_record_is_refused(
    command: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calibrate(MORE, alpha="0.5", features="1")
    made.save(tmp_path / "artifact.json")
    # Tests may run as root, for whom every folder can be written.
    refusal = mock.Mock(side_effect=InputError(f"cannot write {path}.attempts.json"))
    monkeypatch.setattr("langchain_cfc.artifact.attempt_files.atomic_writer", refusal)
    given = [path] if command == "calibrate" else [tmp_path / "artifact.json", path]
    options = {
        "calibrate": ["--max-wrong-rate", "0.2"],
        "certify": ["--out", str(tmp_path.parent / "certified.json")],
    }
    run(command, *map(str, given), *options.get(command, [])).assert_refused(".attempts.json")
    # What rests on no labels that certify needs no ledger.
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path.parent)
        assert run("calibrate", path, "--alpha", "0.5", "--features", "1", "--out", "plain.json").code == 0


def test_ledger_of_nothing_is_not_written(path: Path) -> None:
    with open_attempts([path]) as kept:
        kept.record(AttemptLedger())
    assert not find_ledger(path).exists()

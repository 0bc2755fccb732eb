"""Progress on a terminal names each step with its count, and ends one before the next begins."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from langchain_cfc import write_records
from langchain_cfc.cli import formatting
from tests.recordings import list_facts

from .running import run

SIZE = 300


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is sent."""
    shown = io.StringIO()
    environment = {"TERM": "xterm"}  # without cursor movements, rich shows no progress
    console = Console(file=shown, force_terminal=True, width=100, _environ=environment)
    monkeypatch.setattr(formatting, "get_error_console", lambda: console)
    return shown


def list_steps(screen: io.StringIO) -> dict[str, list[str]]:
    """The counts that were shown of each step, in order."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    screen.truncate(0)
    steps: dict[str, list[str]] = {}
    for name, count in re.findall(r"([a-z][a-z ]+[a-z]) +([\d,]+(?:/[\d,]+)?) +\d:\d\d:\d\d", plain):
        steps.setdefault(name, []).append(count)
    return steps


def test_each_step_is_named_and_ends_before_the_next(tmp_path: Path, screen: io.StringIO) -> None:
    records, artifact = tmp_path / "records.jsonl", tmp_path / "artifact.json"
    write_records(records, list_facts()[:SIZE])
    options = ("--alpha", "0.3", "--test-fraction", "0.3", "--max-wrong-rate", "0.4", "--out", artifact)
    assert run("calibrate", records, *options).code == 0
    found = list_steps(screen)
    assert list(found) == ["reading records", "fitting features", "computing thresholds", "certifying"]
    for name, counts in found.items():
        whole = f"{SIZE}/{SIZE}" if name == "reading records" else "1/1"
        assert (whole in counts) == (name != "certifying")
    # How many there are is known at the end.
    assert {count.partition("/")[2] for count in found["reading records"]} == {"", str(SIZE)}
    assert run("evaluate", artifact, records).code in {0, 1}
    assert list(list_steps(screen)) == ["reading records", "evaluating"]
    assert run("certify", artifact, records).code in {0, 2}


def test_no_step_is_shown_without_a_terminal(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    write_records(records, list_facts()[:SIZE])
    ran = run("calibrate", records, "--alpha", "0.3", "--out", tmp_path / "artifact.json")
    assert "reading records" not in ran.err

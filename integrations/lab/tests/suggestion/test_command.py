"""`langchain-cfc suggest`, as a terminal of 80 columns runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from langchain_cfc import CalibrationArtifact
from langchain_cfc.demo import load_recording
from langchain_cfc.records import write_records
from tests.cli.running import Ran, run

QUICK = ["--alpha", "0.3", "--features", "1", "--features", "bins(mean_score, 5)", "--splits", "4"]
ONE_JOB = ["--jobs", "1"]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("my records") / "facts.jsonl"
    write_records(path, load_recording())
    return path


@pytest.fixture(scope="module")
def ran(records: Path) -> Ran:
    return run("suggest", records, *QUICK, *ONE_JOB, "--set-rule", "all")


def test_suggest_command_prints_a_calibrate_command_that_runs(
    ran: Ran, records: Path, tmp_path: Path
) -> None:
    assert ran.code == 0
    assert ran.err == ""
    command = ran.out.splitlines()[-1]
    program, *words = shlex.split(command)
    assert program == "langchain-cfc"
    assert words[:2] == ["calibrate", str(records)]
    path = tmp_path / "artifact.json"
    assert run(*words, "--out", path).code == 0
    data = run("suggest", records, *QUICK, *ONE_JOB, "--set-rule", "all", "--json").data
    assert data["command"] == command
    artifact = CalibrationArtifact.load(path)
    assert artifact.calibration.digests["fit"] == data["digest"]
    assert artifact.feature_map.text == data["features"] == "bins(mean_score, 5)"
    # The control: by another seed, other prompts would be selected on.
    elsewhere = run("suggest", records, *QUICK, *ONE_JOB, "--seed", "1", "--json").data
    assert elsewhere["digest"] != data["digest"]
    assert "--seed 1" in elsewhere["command"]


def test_suggest_command_exit_codes_for_unattainable_and_invalid(records: Path) -> None:
    out_of_reach = run("suggest", records, "--alpha", "0.01", *ONE_JOB)
    assert out_of_reach.code == 1
    assert "Smallest alpha here" in out_of_reach.err
    wrong = run("suggest", records, *ONE_JOB, "--features", "mean_scor")
    assert wrong.code == 2
    assert "did you mean" in wrong.err
    assert run("suggest", records.parent / "nowhere.jsonl").code == 2

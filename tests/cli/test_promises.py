"""How commands state guarantees: inspect, certify, bot mode."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.demo import ALPHA, SET_RULE, TEST_FRACTION, load_recording
from langchain_cfc.demo import FEATURES as DEMO_FEATURES
from tests.cli.running import run

FEATURES = "mean_score + hard(mean_score, 0.8) + group(topic)"
RECORDING = Path(__file__).parents[2] / "langchain_cfc" / "demo" / "facts.jsonl.gz"
SCREEN, WIDTH = 48, 80


@pytest.fixture(autouse=True)
def _copy_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own recording: attempts on its labels are kept beside it."""
    copied = tmp_path / "recording" / RECORDING.name
    copied.parent.mkdir()
    monkeypatch.setitem(globals(), "RECORDING", Path(shutil.copy(RECORDING, copied)))


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
def test_inspect_explains_the_demo_artifact_in_half_a_screen(tmp_path: Path) -> None:
    artifact = tmp_path / "demo.json"
    calibrate(
        load_recording(),
        alpha=ALPHA,
        features=DEMO_FEATURES,
        set_rule=SET_RULE,
        test_fraction=TEST_FRACTION,
    ).save(artifact)
    lines = run("inspect", artifact).out.splitlines()
    assert len(lines) <= SCREEN // 2
    assert max(map(len, lines)) <= WIDTH
    said = " ".join(" ".join(lines).split())
    for needed in (
        "With probability at least 80 %",
        "flagged as not certifiable",
        "9 groups",
        "On average over calibration sets",
        "qwen2.5-coder-1.5b",
        "calibration questions can keep the promise",
        "sha256:",
    ):
        assert needed in said, needed
    # The whole of it is longer, and names every group.
    details = run("inspect", artifact, "--details").out
    assert len(details.splitlines()) > SCREEN
    assert "multiplication" in details
    assert "multiplication" not in said


def test_certify_writes_a_certificate_that_inspect_shows(tmp_path: Path) -> None:
    artifact, certified = tmp_path / "a.json", tmp_path / "certified.json"
    plain = ["--alpha", "0.2", "--features", FEATURES]
    split = ["--test-fraction", "0.4", "--set-rule", "unique(all)"]
    assert run("calibrate", RECORDING, "-o", artifact, *plain, *split).code == 0
    before = artifact.read_bytes()
    ran = run("certify", artifact, RECORDING, "--out", certified, "--delta", "0.1", "--json")
    assert ran.code == 0
    assert artifact.read_bytes() == before
    [certificate] = ran.data["certificates"]
    assert certificate["delta"] == "0.1"
    assert certificate["artifact_digest"] == CalibrationArtifact.load(artifact).frozen_digest
    assert CalibrationArtifact.load(certified).digest == ran.data["digest"]
    assert "Certified on" in " ".join(run("inspect", certified).out.split())
    assert "Certified with failure probability 0.1" in " ".join(
        run("inspect", certified, "--details").out.split()
    )
    # Once is enough, and the same prompts do not calibrate and certify.
    assert "already has a certificate" in run("certify", certified, RECORDING).err
    assert run("calibrate", RECORDING, "-o", artifact, *plain).code == 0
    run("certify", artifact, RECORDING).assert_refused("--test-fraction")


def test_bot_mode_works_from_calibrate_to_ask_and_evaluate(tmp_path: Path) -> None:
    artifact = tmp_path / "bot.json"
    options = ["--max-wrong-rate", "0.15", "--alpha", "0.2", "--test-fraction", "0.2"]
    made = run("calibrate", RECORDING, "-o", artifact, "--features", FEATURES, *options)
    assert made.code == 0
    assert "What other cuts would cost" not in made.out
    assert " questions answered " in made.out
    assert "What other cuts would cost" in run("inspect", artifact, "--details").out
    shown = " ".join(run("inspect", artifact).out.split())
    assert "Of the questions that are answered, at most 15 %" in shown
    assert "With probability at least 80 %, the answer set" in shown
    asked = ["--replay", "demo", "--max-wrong-rate", "0.15", "--json"]
    answer = run("ask", artifact, "What is the capital of Peru?", *asked)
    assert answer.code == 0
    assert answer.data["best"].lower() == "lima"
    assert answer.data["guarantee"]["wrong_answers"]["max_wrong_rate"] == "0.15"
    evaluated = run("evaluate", artifact, RECORDING)
    assert evaluated.code == 0
    assert "at most 15 % wrong" in evaluated.out
    (report,) = run("evaluate", artifact, RECORDING, "--json").data["answers"]
    assert report["answered"] > 0
    assert not report["contradicted"]


def test_ask_shows_no_threshold_for_a_flagged_prompt(tmp_path: Path) -> None:
    artifact = tmp_path / "artifact.json"
    options = ["--alpha", "0.2", "--features", "group(topic)", "--allow-unattainable"]
    assert run("calibrate", RECORDING, "-o", artifact, *options).code == 0
    ran = run("ask", artifact, "27 * 73", "--replay", "demo")
    assert ran.code == 1
    assert "no limit can be certified for this question" in ran.out
    assert "inf" not in ran.out


def test_calibrate_exits_with_1_if_max_wrong_rate_is_out_of_reach(tmp_path: Path) -> None:
    artifact = tmp_path / "bot.json"
    ran = run("calibrate", RECORDING, "-o", artifact, "--max-wrong-rate", "0.001")
    assert ran.code == 1
    assert "is not certified" in ran.err
    assert "allow more: --max-wrong-rate 0.008. " in ran.err
    assert max(map(len, ran.err.splitlines())) < 300
    assert not artifact.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--delta", "0.1"], "delta with alpha needs features"),
        (["--wrong-rate-groups"], "needs --max-wrong-rate"),
        (["--max-wrong-rate", "1.5"], "--max-wrong-rate must be a decimal number"),
        (["--pac", "1"], "delta must be a decimal number"),
        (["--pac", "0.9", "--adaptive-alpha", "true"], "--adaptive-alpha cannot be combined with pac"),
    ],
)
def test_calibrate_refuses_options_that_conflict(options: list[str], message: str, tmp_path: Path) -> None:
    run("calibrate", RECORDING, "-o", tmp_path / "a.json", *options).assert_refused(message)

"""Serving needs only three libraries: it runs in an environment with no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from langchain_cfc import Candidate, CFCResult, PromptRecord, calibrate

CHECKOUT = Path(__file__).parents[2]
HEAVY = {
    "scipy",
    "cvxpy",
    "matplotlib",
    "pandas",
    "scikit-learn",
    "typer",
    "rich",
    "openai",
    "langchain-openai",
    "langchain",
    "torch",
}

# Megabytes: what calibrating may take on a disk, with Python's own tools in a fresh environment, and a wheel.
MOST_INSTALLED = 350
MOST_WHEEL = 1.0

Run = Callable[..., subprocess.CompletedProcess[str]]

# Both sides run this text, so that they cannot drift apart.
SERVE = """
import sys
from langchain_core.language_models import FakeListChatModel
from langchain_cfc import CalibrationArtifact, CFCRunnable

texts = ["lima|0.25", "quito|0.75", "lima|0.125", "bogota|1.0"]
chain = CFCRunnable(
    generator=FakeListChatModel(responses=texts),
    verifier=lambda _, candidates: [float(one.text.partition("|")[2]) for one in candidates],
    artifact=CalibrationArtifact.load(sys.argv[1]),
    answer=lambda text: text.partition("|")[0],
    metadata=lambda prompt: {"topic": prompt.split()[-1]},
)
for prompt in ("one easy", "one hopeless"):
    print(chain.invoke(prompt, {"max_concurrency": 1}).model_dump_json())
heavy = sorted({"scipy", "cvxpy", "openai", "typer", "rich"} & set(sys.modules))
assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A fresh environment with the package and its dependencies; a function that runs its programs."""
    home = tmp_path_factory.mktemp("light")
    venv.create(home, with_pip=True)
    programs = home / ("Scripts" if sys.platform == "win32" else "bin")

    def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        # Away from the checkout, which would be imported in place of what is installed.
        return subprocess.run(
            [programs / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=home,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )

    installed = run("python", "-m", "pip", "install", "--quiet", CHECKOUT)
    assert installed.returncode == 0, installed.stderr
    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with two topics, one of which cannot be certified; `hat` needs nothing beyond NumPy."""
    prompts = [
        PromptRecord(
            id=f"{topic} {rank}",
            input=f"{rank} {topic}",
            metadata={"topic": topic},
            candidates=tuple(
                Candidate(text=f"a{slot}", score=rank / 200 if slot == 0 else 1.0, correct=correct)
                for slot, correct in enumerate([topic == "easy", False, False, False])
            ),
        )
        for topic in ("easy", "hopeless")
        for rank in range(1, 200)
    ]
    path = tmp_path_factory.mktemp("saved") / "artifact.json"
    with pytest.warns(match="out of reach"):
        artifact = calibrate(
            prompts, alpha="0.25", features="group(topic) + hat(mean_score, 3)", allow_unattainable=True
        )
    artifact.save(path)
    return path


@pytest.mark.long
def test_installation_without_extras_holds_no_heavy_library(light: Run) -> None:
    listed = json.loads(light("python", "-m", "pip", "list", "--format=json").stdout)
    names = {one["name"].lower() for one in listed}
    assert {"langchain-cfc", "numpy", "pydantic", "langchain-core"} <= names
    assert not HEAVY & names


def measure(folder: Path) -> float:
    """Return how many megabytes the files in a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


@pytest.mark.long
def test_wheel_and_calibrate_extra_are_small(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "-w", tmp_path / "wheel", CHECKOUT], check=True)
    assert 0.0 < measure(tmp_path / "wheel") < MOST_WHEEL
    home = tmp_path / "home"
    venv.create(home, with_pip=True)
    subprocess.run([home / "bin" / "pip", "install", "--quiet", f"{CHECKOUT}[calibrate]"], check=True)
    assert 200.0 < measure(home) < MOST_INSTALLED


@pytest.mark.long
def test_artifact_serves_alike_without_extras(light: Run, saved: Path) -> None:
    found = light("python", "-W", "error", "-c", SERVE, saved)
    assert found.returncode == 0, found.stderr
    # This environment has everything installed, and other versions perhaps.
    here = subprocess.run(
        [sys.executable, "-c", SERVE, saved], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    results, expected = (
        [CFCResult.model_validate_json(line) for line in run.stdout.splitlines()] for run in (found, here)
    )
    for there, one in zip(results, expected, strict=True):
        assert there.threshold == pytest.approx(one.threshold, abs=1e-12)
        assert there.model_copy(update={"threshold": one.threshold}) == one
    assert [result.reason for result in results] == ["answered", "not_certifiable"]
    assert results[0].best == "lima"


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["demo"], ["--help"], []])
def test_command_line_without_extras_names_the_missing_extra(light: Run, arguments: list[str]) -> None:
    found = light("langchain-cfc", *arguments)
    assert found.returncode == 2
    assert "pip install 'langchain-cfc[calibrate]'" in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


@pytest.mark.long
def test_missing_extra_raises_missing_extra_error(light: Run) -> None:
    code = """
import sys
from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate, evaluate
from langchain_cfc.errors import CFCError, MissingExtraError
records = [
    PromptRecord(id=str(k), input=str(k), candidates=(Candidate(text="a", score=k / 99, correct=True),))
    for k in range(99)
]
artifact = calibrate(records, alpha=0.25, features="1", test_fraction=0.4)  # calibration is plain NumPy
try:
    evaluate(artifact, records)
except MissingExtraError as error:
    assert isinstance(error, CFCError) and isinstance(error, ImportError)
    print(error)
"""
    found = light("python", "-W", "error", "-c", code)
    assert found.returncode == 0, found.stderr
    assert "scipy" in found.stdout
    assert "pip install 'langchain-cfc[calibrate]'" in found.stdout

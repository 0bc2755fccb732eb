"""Invalid options, full disks and missing extras: one error line and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.running import run

RECORDING = str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")
QUICK = ("--splits", "2", "--jobs", "1", "--alpha", "0.4")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("paper", "synthetic", "--alpha", "foo"), "alpha must be a decimal number"),
        (("paper", "synthetic", "--alpha", "0.123"), "the paper has no level 0.123"),
        (("paper", "synthetic", "--seed", "-1"), "seed must be a whole number, at least 0"),
        (("paper", "synthetic", "--seeds", "1"), "at least two seeds"),
        (("paper", "synthetic", "--jobs", "-1"), "Invalid value for '--jobs'"),
        (("suggest", RECORDING, "--alpha", "0.4", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("compare", RECORDING, "--report", "nowhere/page.html"), "folder that does not exist"),
        (("compare", RECORDING, "--report", "."), "is a folder"),
        (("compare", RECORDING, "--figures", f"{RECORDING}/figures"), "cannot be created as a folder"),
        (("calibrate", RECORDING, "--alpha", "0.4", "--out", "-"), "give --out a path"),
        (
            ("init", "--source", RECORDING, "--model", "openai:m", "--out", "nowhere/a.toml"),
            "a folder that does not exist",
        ),
    ],
)
def test_commands_refuse_invalid_options_at_once(command: tuple[str, ...], said: str) -> None:
    ran = run(*command)
    assert ran.code == 2
    assert ran.out == ""
    assert said in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.long
def test_compare_draws_figures_for_methods_without_thresholds(tmp_path: Path) -> None:
    ran = run("compare", RECORDING, *QUICK, "--method", "TopK", "--figures", tmp_path)
    assert ran.code == 0, ran.err
    drawn = {one.stem for one in tmp_path.iterdir()}
    assert "kept_promise_by_alpha" in drawn
    assert "threshold_by_difficulty" not in drawn


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_exits_with_2_and_no_traceback() -> None:
    program = str(Path(sys.executable).with_name("langchain-cfc"))
    command = [program, "plan", RECORDING, "--alpha", "0.2", "--json"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert "No space left" in ran.stderr


def test_compare_table_of_eight_levels_fits_80_columns() -> None:
    ran = run(
        "compare", RECORDING, "--splits", "2", "--jobs", "1", "--method", "TopK", "--method", "marginal"
    )
    assert max(map(len, ran.out.splitlines())) <= 80
    (heading,) = (line for line in ran.out.splitlines() if line.startswith("kept, worst group; alpha"))
    assert heading.split()[-8:] == ["0.2", "0.25", "0.3", "0.35", "0.4", "0.45", "0.5", "0.55"]


def test_collect_names_all_missing_packages_and_one_pip_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("filelock", "sqlalchemy", "langchain_openai"):
        monkeypatch.setitem(sys.modules, module, None)
    ran = run("collect", "--model", "openai:gpt-4o-mini", "--store", tmp_path / "one.db")
    assert ran.code == 2
    said = " ".join(ran.err.split())
    assert "needs filelock, sqlalchemy and langchain_openai, which are not installed" in said
    assert "pip install 'langchain-cfc[collect,openai]'" in said


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    assert run("calibrate", RECORDING, "--alpha", "0.3", "--test-fraction", "0.3", "--out", path).code == 0
    return path


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["collect", "--store", "one.db"], "collect"),
        pytest.param(["status", "one.db"], "collect", marks=pytest.mark.long),
        pytest.param(["monitor", "status", "ARTIFACT", "one.db"], "monitor", marks=pytest.mark.long),
        (["inspect", "ARTIFACT", "--verify"], "verify"),
        (["report", "ARTIFACT", RECORDING], "report"),
        pytest.param(["compare", RECORDING, "--report", "page.html"], "report", marks=pytest.mark.long),
        pytest.param(["compare", RECORDING, "--figures", "figures"], "report", marks=pytest.mark.long),
    ],
)
def test_commands_without_their_extra_name_what_to_install(
    words: list[str], extra: str, artifact: Path, tmp_path: Path
) -> None:
    # In a process of its own: here, other tests have imported the modules of a collection already.
    code = (
        "import sys; sys.modules.update(dict.fromkeys("
        "('cvxpy', 'filelock', 'jinja2', 'matplotlib', 'sqlalchemy'))); "
        "from langchain_cfc.cli import main; main()"
    )
    given = [str(artifact) if word == "ARTIFACT" else word for word in words]
    command = [sys.executable, "-c", code, *given]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert f"pip install 'langchain-cfc[{extra}]'" in " ".join(ran.stderr.split())
    assert list(tmp_path.iterdir()) == []

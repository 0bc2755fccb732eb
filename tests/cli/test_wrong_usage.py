"""Invalid options and missing extras: one error line and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from langchain_cfc import write_records
from tests.cli.running import run
from tests.recordings import list_facts

RECORDING = str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("calibrate", RECORDING, "--alpha", "0.4", "--out", "-"), "give --out a path"),
        (("calibrate", "none.jsonl", "--alpha", "0.4", "--out", "nowhere/a.json"), "nowhere does not exist"),
    ],
)
def test_commands_refuse_invalid_options_at_once(command: tuple[str, ...], said: str) -> None:
    ran = run(*command)
    assert ran.code == 2
    assert ran.out == ""
    assert said in " ".join(ran.err.split())


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    assert run("calibrate", RECORDING, "--alpha", "0.3", "--test-fraction", "0.3", "--out", path).code == 0
    return path


@pytest.mark.parametrize(
    ("words", "extra"),
    [(["inspect", "ARTIFACT", "--verify"], "verify"), (["sign", "ARTIFACT", "--key", "key.pem"], "signing")],
)
def test_commands_without_their_extra_name_what_to_install(
    words: list[str], extra: str, artifact: Path, tmp_path: Path
) -> None:
    # In a process of its own: other tests have imported them here already.
    code = (
        "import sys; sys.modules.update(dict.fromkeys("
        "('cvxpy', 'cryptography'))); "
        "from langchain_cfc.cli import main; main()"
    )
    given = [str(artifact) if word == "ARTIFACT" else word for word in words]
    command = [sys.executable, "-c", code, *given]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert f"pip install 'langchain-cfc[{extra}]'" in " ".join(ran.stderr.split())
    assert list(tmp_path.iterdir()) == []


OTHER_FILES = {
    "questions.csv": ("question,answer\nPeru?,Lima\n", "a file of questions", "init --source {}"),
    "questions.json": ('[{"question": "Peru?"}]', "a file of questions", "init --source {}"),
    "collect.toml": ('store = "a.db"\n', "a file of settings", "collect --config {}"),
    "a.db": ("SQLite format 3\0", "a store", "store status {}"),
}


@pytest.mark.parametrize("command", [("inspect",), ("ask", "Peru?"), ("evaluate", "records.jsonl")])
@pytest.mark.parametrize("name", [*OTHER_FILES, "labelled.jsonl"])
def test_other_file_in_place_of_an_artifact_names_the_command_that_reads_it(
    tmp_path: Path, command: tuple[str, ...], name: str
) -> None:
    path = tmp_path / name
    content, what, line = OTHER_FILES.get(
        name, ("", "a file of labelled records", "calibrate {} --max-wrong-rate")
    )
    if content:
        path.write_text(content)
    else:
        write_records(path, list_facts()[:2])
    first, *more = command
    ran = run(first, path, *more)
    ran.assert_refused(f"is {what}, not an artifact")
    assert f"\n  langchain-cfc {line.format(path)}" in ran.err


@pytest.mark.parametrize("cut", [20, 200, 5000])
def test_damaged_artifact_is_no_other_file(artifact: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "artifact.json"
    path.write_bytes(artifact.read_bytes()[:-cut])
    run("inspect", path).assert_refused("not JSON")

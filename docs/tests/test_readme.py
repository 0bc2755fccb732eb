"""README.md: its extras, and "Use it" as printed, against a server on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from langchain_cfc import calibrate, evaluate
from langchain_cfc.demo import TEST_FRACTION, load_recording
from langchain_cfc.records import read_records
from langchain_cfc.sampling.models import list_required_packages
from tests.cli.running import run
from tests.pages import INSTRUCTION, hosted_model
from tests.recordings import list_facts
from tests.serving.openai_server import serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
USE_IT = README.partition("## Use it")[2].partition("## Which promise")[0]
SHELL = re.findall(r"```bash\n(.*?)```", USE_IT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", USE_IT, re.DOTALL)
COLLECT = SHELL[1]


@pytest.fixture
def hosted_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serving(hosted_model(list_facts())) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the commands read of a checkout."""
    shutil.copytree(ROOT / "examples" / "eval_dataset", tmp_path / "examples" / "eval_dataset")
    return tmp_path


def shell(command: str, folder: Path) -> str:
    """Run a command with the programs of this environment, as if that had been activated."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_readme_is_short_and_begins_with_the_set_up() -> None:
    assert len(README.splitlines()) <= 110
    first, second, *_ = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert "langchain-cfc demo" in first
    assert "pytest" in second


def test_readme_states_the_measured_draws_of_its_draw_rule() -> None:
    (rule,) = re.findall(r'draws="(below\(.*?\))"', README)
    recorded = load_recording()
    seen = evaluate(
        calibrate(recorded, max_wrong_rate=[0.05, 0.1], test_fraction=TEST_FRACTION, draws=rule), recorded
    )
    loose = seen.answers[-1]
    stated = f"{seen.mean_draws:.1f} draws a question on the recording above, and answers"
    assert (
        f"{stated} {loose.answered_rate:.0%} at the {loose.max_wrong_rate:.0%} rate".replace("%", " %")
        in README
    )


def test_readme_installs_extras_before_they_are_needed() -> None:
    (name,) = re.findall(r"--model (\S+)", COLLECT)
    needed = set(list_required_packages(name).values())
    assert "openai" in needed
    first, *_ = SHELL
    [extras] = re.findall(r"pip install -q '\.\[(.*?)\]' \./integrations/collect$", first, re.MULTILINE)
    assert set(extras.split(",")) == needed


@pytest.mark.usefixtures("hosted_server")
def test_collect_command_of_the_readme_gives_correct_candidates(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its first 400 questions are asked in the long test below.
    assert COLLECT.count("--limit 400") == 1
    monkeypatch.chdir(checkout)
    words = shlex.split(COLLECT.replace("--limit 400", "--limit 5").replace("\\\n", " "))
    assert words[0] == "langchain-cfc"
    assert run(*words[1:]).code == 0
    records = list(read_records(checkout / "records.jsonl"))
    assert len(records) == 5
    assert all(str(one.input).startswith(INSTRUCTION) for one in records)
    assert any(candidate.correct for one in records for candidate in one.candidates)
    # CSV knows text only: a list of right answers has been read as one.
    assert all(isinstance(one.reference, list) for one in records)


@pytest.mark.long
@pytest.mark.usefixtures("hosted_server")
def test_readme_code_works_as_printed(checkout: Path) -> None:
    assert "400 of 400 finished" in shell(COLLECT, checkout)
    # The first block needs a file of the reader's; tests/pages.py runs it.
    (checkout / "use_it.py").write_text("\n".join(PYTHON[1:]), encoding="utf-8")
    said = shell("python use_it.py", checkout).splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == ["at most 5% wrong", "at most 10% wrong"]
    assert "at most 10 % get a wrong answer" in said[-1]
    # The model and verifier that serve are those that were collected with.
    assert not any("FingerprintWarning" in line for line in said)

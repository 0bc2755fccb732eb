"""The example of the tutorial: its questions, the bot made of them, and all that the tutorial quotes."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.tests.quotations import Quotations, find_missing_parts, quote_outputs
from examples.tests.running import REPOSITORY
from langchain_cfc import CalibrationArtifact, read_records
from langchain_cfc.demo import load_recording
from tests.cli.running import run
from tests.recordings import list_facts
from tests.serving.openai_server import Script, serving

EXAMPLE = REPOSITORY / "examples" / "eval_dataset"
TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
OWN_DATA = (REPOSITORY / "docs" / "your-own-data.md").read_text(encoding="utf-8")
FILES = ("questions.csv", "collect.toml", "eval_dataset_parts.py")
BLOCK = r"^```(\w+)\n(.*?)^```$"
BLOCKS = re.findall(BLOCK, TUTORIAL, re.DOTALL | re.MULTILINE)
# Figures of the prose that no command prints: what is asked for, and what another page measures.
SAID_ELSEWHERE = {"0.2", "90", "95"}


@pytest.fixture(scope="module")
def quotations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quotations]:
    """The tutorial's commands, what each prints in the example's folder, and what the page quotes."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        copy_example(folder, patch)
        yield quote_outputs(BLOCKS)
    sys.modules.pop("eval_dataset_parts", None)


def copy_example(folder: Path, patch: pytest.MonkeyPatch) -> None:
    for name in FILES:
        shutil.copy(EXAMPLE / name, folder)
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))


def test_tutorial_quotes_the_output_of_its_commands(quotations: Quotations) -> None:
    assert len(quotations) == 10
    for command, printed, quoted in quotations:
        assert find_missing_parts(quoted, printed) == [], command


def test_figures_in_the_tutorial_text_were_printed(quotations: Quotations) -> None:
    printed = find_figures("\n".join(printed for _, printed, _ in quotations))
    found = find_figures(_read_prose())
    assert found >= {"526", "981", "243", "85"}
    assert found - printed - SAID_ELSEWHERE == set()
    assert "33.3" in find_figures("kept on 33.3 % of 1,224") - printed


@pytest.mark.usefixtures("quotations")
def test_tutorial_asks_held_out_questions_and_flags_a_hopeless_one() -> None:
    records = {record.input: record for record in read_records("records.jsonl")}
    part = CalibrationArtifact.load("sets.json").calibration.split.find_part
    asked = set(re.findall(r'ask \S+ "(.+?)"', TUTORIAL))
    assert len(asked) == 3
    assert {part(records[question].id, None) for question in asked} == {"test"}
    assert not any(one.correct for one in records["516 * 869"].candidates)


def test_page_builds_a_bot_from_the_example(tmp_path: Path) -> None:
    section = OWN_DATA.partition("\n## No questions yet?\n")[2].partition("\n## ")[0]
    ((_, block),) = re.findall(BLOCK, section, re.DOTALL | re.MULTILINE)
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "eval_dataset")
    command = ["bash", "-euo", "pipefail", "-c", block.replace("\npython ", f"\n{sys.executable} ")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"^answered: (\S+) of (\S+) questions .*?, (\S+) wrongly", ran.stderr, re.MULTILINE)
    assert found
    assert "It answers {} of the {} questions, {} wrongly.".format(*found.groups()) in section
    assert ran.stdout == "Jakarta\n"


def test_eval_dataset_model_can_be_changed_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_example(tmp_path, monkeypatch)
    monkeypatch.delitem(sys.modules, "eval_dataset_parts", raising=False)
    code = Path("eval_dataset_parts.py").read_text(encoding="utf-8")
    assert code.count('\nMODEL = "recorded"\n') == 1
    Path("eval_dataset_parts.py").write_text(code.replace('"recorded"', '"gpt-4o-mini"', 1), encoding="utf-8")
    script = Script.of(load_recording())
    with serving(script) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        ran = run("collect", "--config", "collect.toml", "--limit", "3", "--out", "mine.jsonl")
    monkeypatch.delitem(sys.modules, "eval_dataset_parts", raising=False)
    assert ran.code == 0, ran.err
    assert [(body["model"], body["n"], body["logprobs"]) for body in script.requests] == [
        ("gpt-4o-mini", 10, True)
    ] * 3
    header = read_records("mine.jsonl").provenance
    assert header is not None
    assert (header.generator or {})["model"] == "gpt-4o-mini"


def test_eval_dataset_questions_equal_the_recording() -> None:
    with (EXAMPLE / "questions.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["question"], json.loads(row["answers"]), row["topic"]) for row in csv.DictReader(file)]
    assert rows == [(fact.input, fact.reference, fact.metadata["topic"]) for fact in list_facts()]


def test_tutorial_shows_the_configuration_of_the_example() -> None:
    (shown,) = [block for language, block in BLOCKS if language == "toml"]
    assert shown == (EXAMPLE / "collect.toml").read_text(encoding="utf-8")


def find_figures(text: str) -> set[str]:
    """Numbers of two digits or more, and those with a decimal point."""
    return set(
        re.findall(r"(?<![\w.])(?:\d+\.\d+|\d{2,})(?![\w.]*\w)", re.sub(r"(?<=\d),(?=\d{3})", "", text))
    )


def _read_prose() -> str:
    """What the page says outside of blocks and code, without addresses and the numbers of steps."""
    text = re.sub(r"^```.*?^```$|<!---.*?-->", "", TUTORIAL, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|^#+ .*$|\bsteps? \d+(?: to \d+)?", "", text, flags=re.MULTILINE)
    return text.replace("Python 3.10", "")

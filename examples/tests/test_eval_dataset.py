"""The example of the tutorial: its README, and every output and figure that the tutorial quotes.

`tests/pages.py` runs the tutorial's commands; here what they print is held against what the page says.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from langchain_cfc import CalibrationArtifact, CFCRunnable, read_records
from langchain_cfc.demo import load_recording
from langchain_cfc.support.plugins import import_object
from langchain_cfc.verifiers import SequenceProbability, normalise_answer
from tests.cli.running import run
from tests.recordings import list_facts
from tests.serving.openai_server import Script, serving

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "eval_dataset"
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = ("questions.csv", "collect.toml", "eval_dataset_parts.py")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)
# Figures of the prose that no command prints: the confidence of intervals is in their headings.
SAID_ELSEWHERE = {"0.2", "90", "95"}


class TutorialRun(NamedTuple):
    """The example's folder after its README, what that printed, and what the tutorial's blocks printed."""

    folder: Path
    readme: str
    quoted: list[tuple[str, str, str]]

    @property
    def printed(self) -> str:
        return "\n".join(printed for _, printed, _ in self.quoted)


@pytest.fixture(scope="module")
def tutorial_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TutorialRun]:
    """The README by bash; then the tutorial's other commands, on the records and artifact that it left."""
    checkout, folder = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("tutorial")
    shutil.copytree(EXAMPLE, checkout / "examples" / "eval_dataset")
    readme = _run_in_bash(_read_commands(), checkout)
    for name in (*FILES, "records.jsonl", "artifact.json"):
        shutil.copy(checkout / "cfc-demo" / "eval_dataset" / name, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield TutorialRun(folder, readme, list(_list_quotations(readme)))
    sys.modules.pop("eval_dataset_parts", None)


@pytest.fixture(scope="module")
def served(tutorial_run: TutorialRun) -> CFCRunnable:
    """The artifact that the tutorial ends with, as a chain."""
    return CFCRunnable(
        generator=import_object("eval_dataset_parts:generator")(),
        verifier=SequenceProbability(),
        artifact=CalibrationArtifact.load(tutorial_run.folder / "artifact.json"),
    )


@pytest.mark.long
def test_eval_dataset_readme_commands_print_what_it_states(tutorial_run: TutorialRun) -> None:
    for said in (
        "1224 of 1224 finished, 0 failed",
        "with probability at least 80 %",
        "243 test prompts",
        "These results do not contradict the promise.",
        "\nJakarta\n",
    ):
        assert said in tutorial_run.readme
    assert "on 243 questions held out" in (EXAMPLE / "README.md").read_text(encoding="utf-8")


def test_tutorial_quotes_the_output_of_its_commands(tutorial_run: TutorialRun) -> None:
    assert len(tutorial_run.quoted) == 22
    for command, printed, quoted in tutorial_run.quoted:
        assert find_missing_lines(quoted, printed) == [], command


def test_control_find_missing_lines_finds_false_quotations() -> None:
    printed = "kept   88.5  \n\nflagged 5.8\nset 82.7\n"
    assert find_missing_lines("kept   88.5\n...\nset 82.7\n", printed) == []
    assert find_missing_lines("kept   88.6\n...\nset 82.7\n", printed) == ["kept   88.6"]
    assert find_missing_lines("kept   88.5\nset 82.7\n", printed) == ["set 82.7"]
    assert find_missing_lines("set 82.7\n...\nkept   88.5\n", printed) == ["kept   88.5"]


def test_figures_in_the_tutorial_text_were_printed(tutorial_run: TutorialRun) -> None:
    found = find_figures(_read_prose())
    assert found >= {"87.2", "82.3", "4.9", "2.03", "0.9237", "1224", "502"}
    assert found - find_figures(tutorial_run.printed) - SAID_ELSEWHERE == set()
    assert "33.3" in find_figures("kept on 33.3 % of 1,224") - find_figures(tutorial_run.printed)


@pytest.mark.long
def test_tutorial_certificate_is_above_the_target(tutorial_run: TutorialRun) -> None:
    said = re.search(r"is flagged with probability at\s+least ([\d.]+) %", tutorial_run.printed)
    assert said is not None
    assert float(said[1]) > 80


@pytest.mark.long
def test_tutorial_artifact_serves_held_out_questions(tutorial_run: TutorialRun, served: CFCRunnable) -> None:
    records = {record.input: record for record in read_records(tutorial_run.folder / "records.jsonl")}
    part = served.artifact.calibration.split.find_part
    for question in (
        "What is the capital of Indonesia?",
        "What is the country-code internet domain of Zimbabwe?",
        "516 * 869",
    ):
        assert part(records[question].id, None) == "test"
    assert not any(one.correct for one in records["516 * 869"].candidates)
    assert served.artifact.make_guarantee().certificate is not None
    kip = served.invoke("What is the currency of Laos?")
    assert "Laos Kip" in kip.answers
    right = {normalise_answer(answer) for answer in records["What is the currency of Laos?"].reference}
    assert "lao kip" in right
    assert not right & {normalise_answer(answer) for answer in kip.answers}


@pytest.mark.long
def test_tutorial_split_sizes_equal_its_table(tutorial_run: TutorialRun, served: CFCRunnable) -> None:
    split = served.artifact.calibration.split
    parts = [
        split.find_part(record.id, None) for record in read_records(tutorial_run.folder / "records.jsonl")
    ]
    rows = dict(re.findall(r"^\| (fit|calibration|certification|test) \| (\d+) \|", TUTORIAL, re.MULTILINE))
    assert {name: str(parts.count(name)) for name in set(parts)} == rows


@pytest.mark.long
def test_eval_dataset_model_can_be_changed_in_one_line(tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(EXAMPLE / name, tmp_path)
    parts = tmp_path / "eval_dataset_parts.py"
    code = parts.read_text(encoding="utf-8")
    assert code.count('\nMODEL = "recorded"\n') == 1
    parts.write_text(code.replace('MODEL = "recorded"', 'MODEL = "gpt-4o-mini"'), encoding="utf-8")
    script = Script.of(load_recording())
    collect = "langchain-cfc collect --config collect.toml --limit 3 --store mine.db --out mine.jsonl"
    with serving(script) as url:
        printed = _run_in_bash(collect, tmp_path, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"})
    assert "3 of 3 finished, 0 failed" in printed
    assert len(script.requests) == 3
    for body in script.requests:
        assert (body["model"], body["n"], body["temperature"], body["logprobs"]) == (
            "gpt-4o-mini",
            10,
            0.7,
            True,
        )
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
    header = read_records(tmp_path / "mine.jsonl").provenance
    assert header is not None
    assert header.generator is not None
    assert header.generator["model"] == "gpt-4o-mini"


def test_eval_dataset_questions_equal_the_recording() -> None:
    with (EXAMPLE / "questions.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["question"], json.loads(row["answers"]), row["topic"]) for row in csv.DictReader(file)]
    assert rows == [(fact.input, fact.reference, fact.metadata["topic"]) for fact in list_facts()]


def test_tutorial_and_readme_show_the_files_of_the_example() -> None:
    (shown,) = [block for language, block in BLOCKS if language == "toml"]
    assert shown == (EXAMPLE / "collect.toml").read_text(encoding="utf-8")
    listed = re.findall(
        r"^\| `([\w.]+)` \|", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(FILES)
    pictures = re.findall(r"\]\((figures/\S+)\)", TUTORIAL)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / picture).is_file() for picture in pictures)


def find_missing_lines(quoted: str, printed: str) -> list[str]:
    """Return quoted lines that are not in the output in this order; `...` stands for lines left out."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    absent, at, gap = [], 0, True
    for line in (line.rstrip() for line in quoted.splitlines() if line.strip()):
        if line == "...":
            gap = True
            continue
        places = [place for place in range(at, len(lines)) if lines[place] == line]
        if places and (gap or places[0] == at):
            at = places[0] + 1
        else:
            absent.append(line)
        gap = False
    return absent


def find_figures(text: str) -> set[str]:
    """Numbers of two digits or more, and those with a decimal point."""
    return set(
        re.findall(r"(?<![\w.])(?:\d+\.\d+|\d{2,})(?![\w.]*\w)", re.sub(r"(?<=\d),(?=\d{3})", "", text))
    )


def _list_quotations(readme: str) -> Iterator[tuple[str, str, str]]:
    """Yield the tutorial's commands, the output of each, and the output that the page quotes."""
    namespace: dict[str, Any] = {}
    for (language, block), (following, text) in pairwise(BLOCKS):
        if language not in {"shell", "python"} or following != "text":
            continue
        if language == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(block, namespace)  # noqa: S102 - a page of this repository
            yield block, out.getvalue(), text
        elif block in _read_commands():
            yield block, readme, text
        else:
            yield block, _run_block(block), text


def _run_block(block: str) -> str:
    """Run a command of the tutorial; return its output, and its exit code if the page asks for it."""
    command, _, asked = block.replace("\\\n", "").partition("||")
    words = shlex.split(command)
    if words[0] != "langchain-cfc":
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    ran = run(*words[1:])
    assert bool(ran.code) is bool(asked), ran.err
    return ran.out + (f"exit code {ran.code}\n" if asked else "")


def _read_commands() -> str:
    """The README's first block without the two lines that install."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    first = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0]
    lines = first.splitlines(keepends=True)
    assert lines[0].startswith("python3 -m venv")
    assert lines[1].startswith(". .venv/bin/activate")
    return "".join(lines[2:])


def _read_prose() -> str:
    """What the page says outside of blocks and code, without addresses and the numbers of steps."""
    text = re.sub(r"^```.*?^```$|<!---.*?-->", "", TUTORIAL, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|^#+ .*$|\bsteps? \d+(?: to \d+)?", "", text, flags=re.MULTILINE)
    return text.replace("Python 3.10", "")


def _run_in_bash(commands: str, folder: Path, more: dict[str, str] | None = None) -> str:
    """What commands print, run as a reader would in a terminal of 80 columns."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "80", "TERM": "dumb", **(more or {})},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout

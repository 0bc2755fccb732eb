"""Control characters in texts of models, records and providers are escaped in the terminal."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
from langchain_cfc_monitor import CFCMonitor
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, Candidate, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.errors import CFCWarning
from langchain_cfc.records import Provenance, tabulate, write_records
from tests.cli.running import Ran, run

# Writes the clipboard, sets the title, clears the screen; the same as one-byte controls of eight bits; and
# what rich removes, deletes or turns around.
HOSTILE = "Lima\x1b]52;c;Y3VybA==\x1b\\\x1b]0;owned\x07\x1b[2J\x1b[H\x9b2J\x08\r\x7f\u202eamiL"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
BOT = f"""
import json
from langchain_core.runnables import RunnableLambda
HOSTILE = json.loads({json.dumps(json.dumps(HOSTILE))})
def generator():
    return RunnableLambda(lambda prompt: HOSTILE)
def refusing():
    def refuse(prompt):
        raise RuntimeError("the provider said " + HOSTILE)
    return RunnableLambda(refuse)
def verifier(prompt, candidates):
    return [0.1] * len(candidates)
def failing(prompt, candidates):
    raise RuntimeError(HOSTILE)
def unexpected():
    raise SystemError(HOSTILE)
def label(prompt, reference, candidates):
    return [True] * len(candidates)
"""
COLLECT = """
store = "store.db"
n = 2
[source]
path = "questions.jsonl"
input = "question"
[generator]
factory = "hostile_bot:refusing"
[verifier]
factory = "hostile_bot:verifier"
[labeler]
factory = "hostile_bot:label"
[run]
attempts = 1
"""


class Inputs(NamedTuple):
    """Files with hostile texts."""

    folder: Path
    records: Path
    artifact: Path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Records whose every text is hostile, and an artifact calibrated on them."""
    folder = tmp_path_factory.mktemp("hostile")
    made = [
        PromptRecord(
            id=f"{number} {HOSTILE}",
            input=f"question {number} {HOSTILE}",
            reference=HOSTILE,
            metadata={"topic": HOSTILE if number % 2 else "plain"},
            candidates=tuple(
                Candidate(
                    text=f"{HOSTILE} {slot}",
                    answer=f"{HOSTILE} {slot}",
                    score=(number * 7 + slot * 31) % 97 / 97,
                    correct=slot == 0,
                )
                for slot in range(3)
            ),
        )
        for number in range(160)
    ]
    provenance = Provenance(
        n=3,
        generator={"id": HOSTILE},
        verifier={"id": HOSTILE},
        labeler={"id": HOSTILE},
        answer={"id": HOSTILE},
    )
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    write_records(records, made, provenance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        calibrate(
            tabulate(made, n=3), alpha=0.5, features="group(topic)", test_fraction=0.5, provenance=provenance
        ).save(artifact)
    (folder / "hostile_bot.py").write_text(BOT, encoding="utf-8")
    (folder / "collect.toml").write_text(COLLECT, encoding="utf-8")
    questions = [{"id": f"{number}", "question": f"{number} {HOSTILE}"} for number in range(2)]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    _fill_monitor(artifact, folder / "monitor.db")
    return Inputs(folder, records, artifact)


def _fill_monitor(path: Path, store: Path) -> None:
    """Store results of a chain with hostile answers in a monitor."""
    artifact = CalibrationArtifact.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        chain = CFCRunnable(
            generator=RunnableLambda(lambda _: HOSTILE),
            verifier=lambda _, candidates: [0.1] * len(candidates),
            metadata=lambda _: {"topic": HOSTILE},
            artifact=artifact,
            generator_id=HOSTILE,
            verifier_id=HOSTILE,
            answer=str,
            answer_id=HOSTILE,
        )
        with CFCMonitor(artifact, store) as monitor:
            for _ in range(3):
                chain.invoke("question", {"callbacks": [monitor]})


@pytest.fixture(autouse=True)
def _in_folder(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs.folder)
    monkeypatch.syspath_prepend(str(inputs.folder))


ALPHA = ("--alpha", "0.5")
COMMANDS = {
    "calibrate": ("calibrate", "records.jsonl", *ALPHA, "--features", "group(topic)", "--out", "new.json"),
    "calibrate too much": ("calibrate", "records.jsonl", *ALPHA, "--features", "meta(topic)"),
    "inspect": ("inspect", "artifact.json"),
    "evaluate": ("evaluate", "artifact.json", "records.jsonl"),
    "compare": ("compare", "records.jsonl", "--splits", "2", "--jobs", "1", *ALPHA),
    "plan": ("plan", "records.jsonl", *ALPHA),
    "report": ("report", "artifact.json", "records.jsonl", "--out", "page.html"),
    "ask": ("ask", "artifact.json", HOSTILE, "--replay", "records.jsonl"),
    "ask one recorded": (
        "ask", "artifact.json", f"question 1 {HOSTILE}", "--replay", "records.jsonl", "--show-rejected"
    ),
    "collect": ("collect", "--config", "collect.toml"),
    "status": ("store", "status", "store.db"),
    "monitor": ("monitor", "status", "artifact.json", "monitor.db"),
}  # fmt: skip


def check_no_control_characters(ran: Ran) -> None:
    for text in (ran.out, ran.err):
        assert CONTROLS.findall(text.replace("\n", "").replace("\t", "")) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_sends_control_characters(name: str) -> None:
    if name == "status":
        run(*COMMANDS["collect"])
    ran = run(*COMMANDS[name])
    check_no_control_characters(ran)
    # Control: the texts were printed; tables show the beginning of long ones.
    if name not in {"collect", "compare", "plan", "monitor", "report"}:
        assert r"Lima\x1b" in "".join((ran.out + ran.err).split())


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"calibrate too much", "ask"}])
def test_json_output_escapes_control_characters(name: str) -> None:
    ran = run(*COMMANDS[name], "--json")
    check_no_control_characters(ran)
    assert ran.code in {0, 1}, ran.err
    assert isinstance(ran.data, (dict, list))


@pytest.fixture
def unbound_artifact(inputs: Inputs) -> Path:
    """An artifact that any generator and verifier may serve."""
    path = inputs.folder / "unbound.json"
    if not path.exists():
        made = [
            PromptRecord(
                id=str(number),
                input=f"question {number}",
                candidates=(Candidate(text="right", score=0.2 + number / 1000, correct=True),) * 2,
            )
            for number in range(60)
        ]
        calibrate(made, alpha=0.2, features="1").save(path)
    return path


@pytest.mark.parametrize(
    ("generator", "verifier", "code"),
    [
        ("generator", "verifier", 0),
        ("refusing", "verifier", 2),
        ("generator", "failing", 2),
        ("unexpected", "verifier", 2),
    ],
)
def test_ask_escapes_control_characters_of_answers_and_errors(
    unbound_artifact: Path, generator: str, verifier: str, code: int
) -> None:
    parts = ("--generator", f"hostile_bot:{generator}", "--verifier", f"hostile_bot:{verifier}")
    ran = run("ask", unbound_artifact, "question", "--show-rejected", *parts)
    check_no_control_characters(ran)
    assert ran.code == code
    assert r"Lima\x1b]52;c;" in "".join((ran.out + ran.err).split())

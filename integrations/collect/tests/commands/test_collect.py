"""`collect`, `status` and `store` against a real server on this machine."""

from __future__ import annotations

import csv
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.calls import announce_requests
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from langchain_cfc import PromptRecord, read_records
from langchain_cfc.sampling.comparison import compare_fingerprints
from tests.cli.running import Ran, run
from tests.recordings import list_facts
from tests.serving.openai_server import Fault, Script, serving

COUNT = 12
N = 3
MANY = 40
MODEL = "gpt-4o-mini-2024-07-18"
TOML = """
store = "facts.db"
n = 3

[source]
path = "questions.csv"
input = "question"
reference = "answers"
cells.answers = "json"
metadata = ["topic"]

[generator]
model = "openai:gpt-4o-mini"
arguments = {{ base_url = "{url}", api_key = "none", temperature = 0.7, logprobs = true, max_retries = 0 }}

[verifier]
factory = "langchain_cfc.verifiers:SequenceProbability"

[labeler]
factory = "langchain_cfc.labelers:NormalisedMatch"

[run]
attempts = 3

[prices.gpt-4o-mini]
input = 100000
output = 100000
"""


@pytest.fixture
def facts() -> list[PromptRecord]:
    return list_facts()[:MANY]


@pytest.fixture
def script(facts: list[PromptRecord]) -> Script:
    return replace(Script.of(facts), model=MODEL)


@pytest.fixture
def folder(tmp_path: Path, facts: list[PromptRecord], script: Script) -> Iterator[Path]:
    """A folder with a dataset and its settings, and a running server."""
    with (tmp_path / "questions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answers", "topic"])
        for one in facts[:COUNT]:
            rows.writerow([one.input, json.dumps(one.reference), one.metadata["topic"]])
    many = [{"question": one.input, "answers": one.reference, "topic": "any"} for one in facts]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, many)))
    with serving(script) as url:
        (tmp_path / "collect.toml").write_text(TOML.format(url=url))
        yield tmp_path


Collect = Callable[..., Ran]
Interrupt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def collect(folder: Path) -> Collect:
    """A function that runs the command with these settings."""

    def collecting(*options: str | Path) -> Ran:
        return run("collect", "--config", folder / "collect.toml", *options)

    return collecting


# In the folder of the tests.
MANY_FACTS = ("--source", "many.jsonl", "--set", "source.cells.answers=text")


def find_next_command(printed: str) -> str:
    """The arguments of the command that is printed as the next one."""
    (command,) = [line for line in printed.splitlines() if line.startswith("next ")]
    return command.partition("langchain-cfc ")[2]


def count_draws(script: Script) -> int:
    return len(script.requests) - sum(script.struck.values())


def test_collect_dry_run_sends_no_requests_and_makes_no_store(
    collect: Collect, folder: Path, script: Script
) -> None:
    ran = collect("--dry-run", "--json")
    assert (ran.code, ran.err, script.requests) == (0, "", [])
    assert not (folder / "facts.db").exists()
    assert (ran.data["prompts"], ran.data["draws"], ran.data["measured_on"]) == (COUNT, N * COUNT, 0)
    assert ran.data["parts"]["generator"]["model"] == "gpt-4o-mini"
    assert ran.data["output_tokens"] == 250 * N * COUNT
    assert "to do         12 prompts, 36 requests" in collect("--dry-run").out
    limited = collect("--dry-run", "--json", "--set", "generator.arguments.max_tokens=8")
    assert limited.data["output_tokens"] == 8 * N * COUNT
    # A store that could be created, and one that a run would refuse as well.
    (folder / "empty.db").touch()
    assert collect("--dry-run", "--store", folder / "empty.db").code == 0
    (folder / "notes.db").write_text("no database, but notes on llamas\n" * 100)
    refused = collect("--dry-run", "--store", folder / "notes.db")
    assert refused.code == 2
    assert "notes.db" in refused.err
    assert refused.err == collect("--store", folder / "notes.db").err


def make_own(**arguments: Any) -> Any:
    """A chain with functions that no fingerprint describes."""
    prompt = ChatPromptTemplate.from_messages([("human", "{question}")])
    chain = prompt | ChatOpenAI(model="gpt-4o-mini", **arguments)
    return RunnableLambda(lambda text: {"question": text}) | chain | RunnableLambda(lambda message: message)


def test_id_given_on_the_command_line_to_a_store_ends_the_notice(
    collect: Collect, folder: Path, script: Script
) -> None:
    settings = folder / "collect.toml"
    own = "integrations.collect.tests.commands.test_collect:make_own"
    named_model = 'model = "openai:gpt-4o-mini"'
    settings.write_text(settings.read_text().replace(named_model, f'factory = "{own}"'))
    for options in (("--dry-run",), ("--dry-run", "--json"), ("--limit", "4")):
        ran = collect(*options)
        assert ran.err.count("unverified") == 1
        assert "a function without a name" in ran.err
        assert "--set generator.id=NAME" in ran.err
    spent = len(script.requests)
    assert spent == 4 * N
    # Nothing more is drawn for these prompts, so nothing is left to say before a call.
    assert "unverified" not in collect("--limit", "4").err
    named = ("--set", "generator.id=mine", "--out", folder / "records.jsonl")
    assert "unverified" not in collect("--dry-run", *named[:2]).err
    ended = collect(*named)
    assert (ended.code, "unverified" in ended.err) == (0, False)
    assert count_draws(script) == N * COUNT
    records = read_records(folder / "records.jsonl")
    assert records.provenance is not None
    generator = records.provenance.generator or {}
    assert generator["id"] == "mine"
    assert (generator["model"], generator["model_version"]) == ("gpt-4o-mini", MODEL)
    assert compare_fingerprints("generator", generator, generator) is None
    # Another id, or none any more, is another generator.
    assert collect("--set", "generator.id=other").code == 2
    assert collect().code == 2


def test_collect_dry_run_estimates_from_finished_prompts(collect: Collect) -> None:
    assert collect("--limit", "4").code == 0
    taken = collect("--limit", "4", "--json").data
    rest = collect("--dry-run", "--json").data
    assert (rest["prompts"], rest["measured_on"]) == (COUNT - 4, 4)
    assert rest["input_tokens"] == 2 * taken["input_tokens"]
    assert rest["cost"] == pytest.approx(2 * taken["cost"])


def test_collect_reports_failures_and_retries_them_on_request(
    collect: Collect, folder: Path, script: Script
) -> None:
    script.faults = (Fault("status 400", frozenset(range(N, 4 * N))),)
    ran = collect("--set", "run.concurrency=1")
    assert ran.code == 1
    assert "9 of 12 finished, 3 failed" in ran.out
    assert "--retry-failed" in ran.out
    assert "3 of 12 prompts failed (25.0 %)" in ran.err
    assert "Try them again: --retry-failed." in ran.err
    assert "the promise will be about the other ones alone" in ran.err
    held = run("store", "status", folder / "facts.db")
    assert "3 failed before they were drawn: DrawError: 3 of 3 candidates" in held.out
    script.faults = ()
    assert collect().code == 1
    assert len(script.requests) == N * COUNT
    ran = collect("--retry-failed")
    assert (ran.code, ran.err) == (0, "")
    assert count_draws(script) == N * COUNT


def test_collect_relabel_uses_new_references_and_columns(
    collect: Collect, folder: Path, script: Script
) -> None:
    path, out = folder / "questions.csv", folder / "records.jsonl"
    assert collect("--out", out).code == 0
    asked, first = len(script.requests), list(read_records(out))
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    # Nothing is right any more, and there is a new column.
    with path.open("w", newline="") as file:
        lines = [
            [question, '["unknown"]', topic, str(row % 2)] for row, (question, _, topic) in enumerate(lines)
        ]
        csv.writer(file).writerows([[*header, "level"], *lines])
    columns = ("--set", 'source.metadata=["topic", "level"]')
    collect(*columns).assert_refused("(--relabel)")
    ran = collect(*columns, "--relabel", "--out", out)
    assert ran.code == 0
    assert "labelled by a corrected reference: 12 prompts" in " ".join(ran.err.split())
    assert len(script.requests) == asked
    again = list(read_records(out))
    assert [one.input for one in again] == [one.input for one in first]
    assert not any(candidate.correct for one in again for candidate in one.candidates)
    assert {one.metadata["level"] for one in again} == {"0", "1"}
    # Two columns of references are one list of answers.
    assert (
        collect(*columns, "--relabel", "--reference", "answers", "--reference", "level", "--out", out).code
        == 0
    )
    assert [one.reference for one in read_records(out)][:2] == [["unknown", "0"], ["unknown", "1"]]
    # How references are read may change in the same way, and back again.
    for how in ("text", "json"):
        assert collect("--relabel", "--set", f"source.cells.answers={how}").code == 0
    assert len(script.requests) == asked


SQUAD = "{'text': ['Lima'], 'answer_start': [0]}"  # as SQuAD's answers are written to CSV
INSIDE = ("--reference", "right answers.text", "--set", 'source.cells."right answers"=json')


@pytest.mark.parametrize(
    ("cell", "fixes"),
    [
        ("Lima; L.", {f'source.cells."right answers"={how}': how == ";" for how in (";", "text")}),
        (SQUAD, {shlex.join(INSIDE): True}),
        ("{'city': 'Lima', 'year': '1535'}", {}),  # an object that is an answer itself
    ],
)
def test_collect_notes_cells_that_look_like_several_answers(
    collect: Collect, folder: Path, cell: str, fixes: dict[str, bool]
) -> None:
    rows = "".join(f'{one}?,"{cell}",x\n' for one in range(9))
    (folder / "questions.csv").write_text(f"question,right answers,topic\n{rows}")
    config = folder / "collect.toml"
    config.write_text(config.read_text().replace('cells.answers = "json"\n', ""))
    source = ("--reference", "right answers", "--dry-run")
    note = " ".join(collect(*source).err.split())
    assert bool(note) == bool(fixes)
    for fix, is_list in fixes.items():
        options = shlex.split(fix) if fix.startswith("--") else [*source[:2], "--set", fix]
        assert (fix if fix.startswith("--") else shlex.quote(fix)) in note
        ran = collect(*options, "--dry-run")
        assert (ran.code, ran.err) == (0, "")
        assert ("['Lima'" in ran.out) == is_list


def test_collect_refuses_or_sets_aside_bad_rows(collect: Collect, folder: Path) -> None:
    path = folder / "questions.csv"
    path.write_text(path.read_text() + "What?,no json,topic\n")
    collect().assert_refused("line 14")
    aside = ("--set", "source.bad_rows=set_aside")
    for out in ("nowhere/records.jsonl", "questions.db"):  # before anything is paid for
        collect(*aside, "--store", "questions.db", "--out", out).assert_refused(out)
        assert not (folder / "questions.db").exists()
    ran = collect(*aside)
    assert ran.code == 0
    assert "1 row of" in ran.err
    assert "14: reference" in ran.err


def test_collect_and_status_list_doubtful_labels_with_references(collect: Collect, folder: Path) -> None:
    data = collect("--json").data
    doubtful = data["doubtful_labels"]
    assert [one["correct"] for one in doubtful] == [False] * 3 + [True] * 3
    assert [one["answer"] in one["reference"] for one in doubtful] == [False] * 3 + [True] * 3
    for ran in (collect(), run("store", "status", folder / "facts.db")):
        head, *rows = ran.out[ran.out.index("answer  ") :].partition("\n\n")[0].splitlines()
        assert head.split() == ["answer", "labelled", "reference", "prompt"]
        shown = [row for row in rows if {"wrong", "correct"} & set(row.split())]
        for row, one in zip(shown, doubtful, strict=True):
            assert ("correct" if one["correct"] else "wrong") in row
            assert row.startswith(one["answer"][:20])
        assert max(map(len, rows)) <= 80
    assert run("store", "status", folder / "facts.db", "--json").data["doubtful_labels"] == doubtful


def test_collect_suggests_other_labelers_if_nothing_is_correct(collect: Collect, folder: Path) -> None:
    path = folder / "questions.csv"
    header, *lines = path.read_text().splitlines()
    # References that no answer equals, as sentences equal none of these.
    rows = [f'{line.split(",")[0]},"[""another {number}""]",topic' for number, line in enumerate(lines)]
    path.write_text("\n".join([header, *rows[:3]]) + "\n")
    said = " ".join(collect().out.split())
    assert "attainable 0 %" in said
    assert "another 0" in said
    assert "hardly any prompt has a correct candidate" in said
    assert "NormalisedMatch(anywhere=True)" in said
    assert "langchain-cfc calibrate" not in said


def test_collect_proposes_to_calibrate_only_if_the_prompts_suffice(
    collect: Collect, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(folder)
    said = collect(*MANY_FACTS, "--limit", "30", "--out", "r.jsonl").out
    assert "next          collect more: 30 prompts are too few to calibrate on" in said
    assert "langchain-cfc calibrate" not in said
    said = collect(*MANY_FACTS, "--limit", "31", "--out", "r.jsonl").out
    assert find_next_command(said) == "calibrate r.jsonl --max-wrong-rate 0.1"


@pytest.mark.filterwarnings("ignore")
def test_collect_of_claims_prints_a_next_command_that_works(
    collect: Collect, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(folder)
    options = (*MANY_FACTS, "--store", "claims.db")
    splitter = "integrations.collect.tests.claiming:find_lines"
    of_claims = ("-n", "1", "--unit", "claims", "--set", f"splitter.factory={splitter}")
    planned = collect(*options, *of_claims, "--dry-run", "--json").data
    assert (planned["draws"], planned["parts"]["unit"]) == (MANY, "claims")
    ran = collect(*options, *of_claims, "--out", "c.jsonl")
    assert ran.code == 0
    command = find_next_command(ran.out)
    assert command.startswith("calibrate c.jsonl --unit claims --at-most 1")
    assert run(*command.split()).code == 0
    claims = [claim for record in read_records("c.jsonl").read_claims() for claim in record.claims]
    status = run("store", "status", "claims.db", "--json").data
    assert (status["claims"], status["finished"]) == (len(claims), MANY)
    assert status["supported"] == sum(one.supported for one in claims) / len(claims)
    assert "pass_at_n" not in status
    shown = " ".join(run("store", "status", "claims.db").out.split())
    assert f"claims {len(claims)} in {MANY - status['answers_without_claims']} answers" in shown
    assert run("store", "export", "claims.db", "again.jsonl").code == 0
    assert Path("again.jsonl").read_bytes() == Path("c.jsonl").read_bytes()
    collect(*options).assert_refused("unit was 'claims'")


def test_collect_without_a_terminal_prints_progress_lines(
    collect: Collect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = collect("--limit", "2")
    assert (ran.code, ran.err) == (0, "")
    monkeypatch.setattr("langchain_cfc_collect.collecting._LINE_INTERVAL", 0.0)
    ran = collect("--set", "run.concurrency=1")
    lines = ran.err.splitlines()
    assert len(lines) == COUNT - 2
    assert lines[0].startswith(f"3 of {COUNT} prompts, ")
    assert "a right answer for" in lines[0]
    assert "min left" in lines[0]
    assert lines[-1].startswith(f"{COUNT} of {COUNT} prompts, ")


@pytest.fixture
def interrupted(folder: Path, script: Script) -> Interrupt:
    """A function that runs the command and sends it a number of signals while it works."""

    def interrupt(times: int, number: signal.Signals) -> subprocess.CompletedProcess[str]:
        script.faults = (Fault("slow", seconds=0.02 if times == 1 else 0.5),)
        command = [sys.executable, "-c", "from langchain_cfc.cli import main; main()", "collect"]
        options = ["--config", folder / "collect.toml", "--source", folder / "many.jsonl"]
        more = ["--set", "source.cells.answers=text", "--set", "run.concurrency=4"]
        process = subprocess.Popen(
            [*command, *map(str, options), *more], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        enough = len(script.requests) + (30 if times == 1 else 4)
        while len(script.requests) < enough and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.3)
        out, said = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, said)

    return interrupt


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_collect_interrupted_finishes_prompts_in_progress_and_at_once_cancels_them(
    interrupted: Interrupt, folder: Path, collect: Collect, script: Script, number: signal.Signals
) -> None:
    ended = interrupted(1, number)
    assert ended.returncode == 1
    assert "stopping once prompts in progress are finished" in ended.stderr
    held = run("store", "status", folder / "facts.db", "--json").data
    # All that was asked for was kept.
    assert 0 < held["finished"] < MANY
    assert held["finished"] * N == len(script.requests)
    assert "run the same command again" in ended.stdout
    asked = len(script.requests)
    ended = interrupted(2, number)
    assert ended.returncode == 130
    assert "cancelled; finished work is kept" in ended.stderr
    assert "Traceback" not in ended.stderr
    again = run("store", "status", folder / "facts.db", "--json").data
    # The first prompt is tried alone, and was finished before the others began.
    assert (again["finished"], again["failed"]) == (held["finished"] + 1, 0)
    assert len(script.requests) > asked
    script.faults = ()
    assert collect("--source", folder / "many.jsonl", "--set", "source.cells.answers=text").code == 0


def test_status_tells_requests_in_progress_from_lost_ones(collect: Collect, folder: Path) -> None:
    collect("--json")
    with Store(folder / "facts.db") as store:
        store.write(announce_requests(0, Stage.DRAWN, 5))
        with store.lock():
            running = run("store", "status", folder / "facts.db")
            data = run("store", "status", folder / "facts.db", "--json").data
    assert "in progress   5 requests of the run that uses the store" in running.out
    assert "unanswered" not in running.out
    assert (data["requests_in_progress"], data["unanswered_requests"]) == (5, 0)
    ended = run("store", "status", folder / "facts.db")
    assert "unanswered    5 requests were started but got no answer" in ended.out
    assert "in progress" not in ended.out

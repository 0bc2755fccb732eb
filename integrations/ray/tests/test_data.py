"""Pipelines of Ray Data: what they make is what `collect` makes, each prompt once and paid for once.

The blocks of README.md are run as printed, in order, as one program on a Ray of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import ray
from langchain_cfc_collect import CallPolicy, CollectionOptions, Columns, Components, Store, collect
from langchain_cfc_ray import (
    Parts,
    collect_prompts,
    encode_draw,
    label_draws,
    make_prompts,
    read_messages,
    repeat_prompts,
)
from langchain_cfc_ray.parts import Merged, _PartsSink
from langchain_cfc_ray.worker import WorkerSettings
from langchain_core.messages import AIMessage, messages_from_dict
from pyarrow.fs import LocalFileSystem  # type: ignore[import-untyped]

from integrations.ray.tests.working import (
    N,
    count_begun,
    examples,
    make_noting_parts,
    make_unclear_parts,
    quiet,
)
from langchain_cfc.errors import CollectionError, InputError, RecordError
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import LabelledRecord, PromptRecord, read_records, write_records
from langchain_cfc.support.units import Unit
from tests.recordings import list_facts
from tests.serving.openai_server import Script, serving

COLUMNS = Columns(input="question", reference="answer", id="name")
OPTIONS = CollectionOptions(call_policy=CallPolicy(8), on_notice=quiet)
SIZE = 40


def questions(folder: Path, size: int = SIZE) -> Any:
    """A dataset of `examples`, in a file whose columns have other names."""
    given = examples(size)
    table = {
        "question": [str(one.input) for one in given],
        "answer": [one.reference for one in given],
        "name": [one.id for one in given],
    }
    pq.write_table(pa.table(table), folder / "questions.parquet")
    return make_prompts(ray.data.read_parquet(str(folder / "questions.parquet")), COLUMNS)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "parts")


# A chain of one's own


@pytest.mark.parametrize("unit", ["answers", "claims"])
@pytest.mark.usefixtures("cluster")
def test_records_are_those_of_collect_to_the_byte(tmp_path: Path, parts: Parts, unit: Unit) -> None:
    parts.write(collect_prompts(questions(tmp_path), partial(make_unclear_parts, unit)))
    merged = parts.merge(tmp_path / "records.jsonl")
    source = read_records(tmp_path / "records.jsonl")
    made: list[LabelledRecord] = list(source.read_claims() if unit == "claims" else source)
    collect(examples(SIZE), make_unclear_parts(unit), tmp_path / "store.db", OPTIONS)
    with Store(tmp_path / "store.db") as store:
        collected: list[LabelledRecord] = list(
            store.read_claims() if unit == "claims" else store.read_records()
        )
        provenance = store.read_provenance()
    written = []
    for name, records, known in (("ray", made, source.provenance), ("local", collected, provenance)):
        write_records(tmp_path / f"{name}.jsonl", sorted(records, key=lambda one: one.id), known)
        written.append((tmp_path / f"{name}.jsonl").read_bytes())
    assert written[0] == written[1]
    # Every fifth answer makes no claims; of the others some have no verdict, and some no label.
    without = SIZE // 5 if unit == "claims" else 0
    assert merged == Merged(SIZE - without, {}, without)
    unclear = [b"no_verdict", b"no_label", *([b"no_answer"] if unit == "answers" else [])]
    assert all(one in written[0] for one in unclear)
    assert parts.skip_finished(questions(tmp_path), retry_failed=True).count() == 0


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_skip_finished_repeats_no_finished_prompt(tmp_path: Path, parts: Parts) -> None:
    log = tmp_path / "log"

    def run(size: int, checkpoint: Parts) -> Counter[str]:
        log.unlink(missing_ok=True)
        prompts = checkpoint.skip_finished(questions(tmp_path, size))
        parts.write(collect_prompts(prompts, partial(make_noting_parts, log, 0.001), batch_size=8))
        return count_begun(log)

    asked_first = {f"question {number}" for number in range(SIZE // 2)}
    assert run(SIZE // 2, parts) == Counter(dict.fromkeys(asked_first, N))
    again = run(SIZE, parts)
    assert set(again) == {f"question {number}" for number in range(SIZE)} - asked_first
    assert set(again.values()) == {N}
    # Without the first run's folder all is drawn again; each prompt is a record once all the same.
    assert sum(run(SIZE, Parts(tmp_path / "other")).values()) == SIZE * N
    assert parts.merge(tmp_path / "records.jsonl").labelled == SIZE
    assert [*sorted(one.id for one in read_records(tmp_path / "records.jsonl"))] == sorted(
        one.id for one in examples(SIZE)
    )


class Failing:
    """A chain that refuses one prompt, as long as a file is there."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, question: str) -> str:
        if question == "question 3" and self.flag.exists():
            text = "no such thing"
            raise ValueError(text)
        return question.replace("question", "answer")


def make_refusing_parts(flag: Path, n: int = N) -> Components:
    return Components(Failing(flag), lambda _, drawn: [0.5] * len(drawn), NormalisedMatch(), n)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_failed_prompt_is_reported_and_can_be_retried(tmp_path: Path, parts: Parts) -> None:
    flag, records = tmp_path / "flag", tmp_path / "records.jsonl"
    flag.touch()
    prompts = questions(tmp_path, 8)
    parts.write(collect_prompts(prompts, partial(make_refusing_parts, flag)))
    merged = parts.merge(records)
    assert merged.labelled == 7
    assert [*merged.failed] == ["p3"]
    assert "no such thing" in merged.failed["p3"]
    flag.unlink()
    assert parts.skip_finished(prompts).count() == 0
    left = parts.skip_finished(prompts, retry_failed=True)
    parts.write(collect_prompts(left, partial(make_refusing_parts, flag)))
    merged = parts.merge(records)
    assert (merged.labelled, merged.failed) == (8, {})
    assert len({one.id for one in read_records(records)}) == 8


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_collect_prompts_refuses_other_components(tmp_path: Path, parts: Parts) -> None:
    prompts = questions(tmp_path, 4)
    parts.write(collect_prompts(prompts, partial(make_refusing_parts, tmp_path / "flag")))
    with pytest.raises(InputError, match=r"different components .n: 3 and 4"):
        parts.write(collect_prompts(prompts, partial(make_refusing_parts, tmp_path / "flag", N + 1)))
    assert parts.merge(tmp_path / "records.jsonl").labelled == 4


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_collect_prompts_refuses_rows_that_are_no_prompts(tmp_path: Path, parts: Parts) -> None:
    rows = make_prompts(ray.data.from_items([{"question": 3, "answer": "", "name": "p"}]), COLUMNS)
    with pytest.raises(
        CollectionError, match=r"RecordError: the row \{'question': 3.* found 3; expected text"
    ):
        parts.write(collect_prompts(rows, partial(make_noting_parts, tmp_path / "log")))


# Components


def fail_to_make_parts() -> Components:
    text = "no key"
    raise KeyError(text)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("nowhere:parts", "the factory nowhere:parts failed on a worker with ModuleNotFoundError"),
        (fail_to_make_parts, "failed on a worker with KeyError: 'no key'"),
        (dict, "returned a dict; expected"),
    ],
)
def test_worker_reports_failing_factories(factory: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        WorkerSettings(factory, CallPolicy(4), None).create_executor()


def test_worker_takes_a_factory_by_import_path() -> None:
    settings = WorkerSettings("tests.test_data:make_four", CallPolicy(4), None)
    assert settings.create_executor().configuration["n"] == 4


def make_four() -> Components:
    return make_refusing_parts(Path("nowhere"), 4)


def test_collect_prompts_refuses_a_factory_that_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def factory() -> Components:
        with lock:
            return make_four()

    with pytest.raises(InputError, match="cannot be sent to other machines"):
        WorkerSettings(factory, CallPolicy(4), None).check_picklable()


# Candidates that a processor draws; README.md draws some over HTTP


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"model": "m-1", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def drawn(prompt: int, slot: int, output: Any = None) -> dict[str, Any]:
    given = {"id": f"p{prompt}", "input": f'"question {prompt}"', "reference": '"yes"'}
    row = {**given, "metadata": "{}", "cluster": None, "slot": slot, "draw": f"p{prompt}#{slot}"}
    return encode_draw(row, completion("yes") if output is None else output)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_label_draws_reports_incomplete_prompts(tmp_path: Path, parts: Parts) -> None:
    refused = {"error": {"message": "content policy"}}
    rows = [
        *(drawn(0, slot) for slot in range(N)),
        *(drawn(1, slot) for slot in range(N - 1)),
        *(drawn(2, slot, refused if slot == 1 else None) for slot in range(N)),
        *(drawn(3, slot) for slot in range(N + 1)),
        *(drawn(4, slot) for slot in (*range(N), 0)),  # a task that was repeated
    ]
    dataset = ray.data.from_items(rows)
    parts.write(label_draws(dataset, partial(make_refusing_parts, tmp_path / "flag")))
    merged = parts.merge(tmp_path / "records.jsonl")
    assert sorted(one.id for one in read_records(tmp_path / "records.jsonl")) == ["p0", "p4"]
    assert sorted(merged.failed) == ["p1", "p2", "p3"]
    assert "2 candidates were drawn; expected n = 3; slots [2] are missing" in merged.failed["p1"]
    assert "slot 1: no answer: {'message': 'content policy'}" in merged.failed["p2"]
    assert "4 candidates were drawn; expected n = 3" in merged.failed["p3"]


def test_encode_draw_keeps_log_probabilities_and_usage() -> None:
    body = completion("yes")
    body["choices"][0]["logprobs"] = {"content": [{"token": "yes", "logprob": -0.5}]}
    [message] = messages_from_dict([json.loads(drawn(0, 0, body)["message"])])
    assert isinstance(message, AIMessage)
    assert message.text == "yes"
    assert message.response_metadata["logprobs"]["content"][0]["logprob"] == -0.5
    assert message.response_metadata["model_name"] == "m-1"
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 5
    for usage in ("many", [3], {"prompt_tokens": None, "completion_tokens": 2.0}):
        odd = drawn(0, 0, {**completion("yes"), "usage": usage})
        [counted] = messages_from_dict([json.loads(odd["message"])])
        assert isinstance(counted, AIMessage)
        assert (counted.usage_metadata is None) == (not isinstance(usage, dict))
    [plain] = messages_from_dict([json.loads(drawn(0, 0, "yes")["message"])])
    assert plain.text == "yes"


@pytest.mark.parametrize("body", [{}, {"error": {"message": "busy"}}, {"choices": []}, {"choices": [{}]}])
def test_encode_draw_reports_a_body_without_answer(body: dict[str, Any]) -> None:
    row = drawn(0, 0, body)
    assert row["message"] == ""
    assert row["error"].startswith("no answer: ")


def test_read_messages_returns_chat_messages() -> None:
    assert read_messages({"id": "p", "input": '"why?"'}) == [{"role": "user", "content": "why?"}]
    given = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    assert read_messages({"id": "p", "input": json.dumps(given)}) == given
    with pytest.raises(RecordError, match=r"found an object \(topic\); expected text or a list of messages"):
        read_messages({"id": "p", "input": '{"topic": "why?"}'})


@pytest.mark.parametrize("n", [0, 1.5])
def test_repeat_prompts_refuses_invalid_n(n: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number of candidates"):
        repeat_prompts(None, n)


# The folder


def add_part(parts: Parts, task: int, *rows: dict[str, Any]) -> None:
    """Add a file as a write task does."""
    sink = _PartsSink(LocalFileSystem(), parts.path, None)
    sink.on_write_start()
    sink.write([pa.Table.from_pylist(list(rows))], SimpleNamespace(task_idx=task))


def row(name: str, given: str = '"why?"', error: str = "") -> dict[str, Any]:
    record = {
        "id": name,
        "input": json.loads(given),
        "candidates": [{"text": "so", "score": 0.5, "correct": True}],
    }
    fields = {"id": name, "input": given, "reference": None, "metadata": None, "cluster": None}
    notes = {"error": error, "models": ["m"], "configuration": '{"n": 1}'}
    return {**fields, "record": "" if error else json.dumps(record), **notes}


def test_merge_writes_each_prompt_once(tmp_path: Path, parts: Parts) -> None:
    add_part(parts, 0, row("a"), row("b", error="failed"))
    add_part(parts, 1, row("a"), row("b"), row("c", error="failed"))
    (Path(parts.path) / ".half.parquet").write_bytes(b"PAR1")
    merged = parts.merge(tmp_path / "records.jsonl")
    assert (merged.labelled, merged.failed) == (2, {"c": "failed"})
    records = read_records(tmp_path / "records.jsonl")
    assert [one.id for one in records] == ["a", "b"]
    assert all(isinstance(one, PromptRecord) for one in records)
    assert records.provenance is not None
    assert records.provenance.generator == {"model_version": "m"}


def test_merge_refuses_two_prompts_with_one_id(tmp_path: Path, parts: Parts) -> None:
    add_part(parts, 0, row("a"), row("a", '"how?"'))
    with pytest.raises(RecordError, match="two prompts are called 'a'"):
        parts.merge(tmp_path / "records.jsonl")
    assert not (tmp_path / "records.jsonl").exists()


def test_merge_refuses_parts_without_labels(tmp_path: Path, parts: Parts) -> None:
    with pytest.raises(CollectionError, match="no prompt was labelled"):
        parts.merge(tmp_path / "records.jsonl")
    add_part(parts, 0, row("a", error="refused"))
    with pytest.raises(CollectionError, match=r"1 failed, such as .*refused"):
        parts.merge(tmp_path / "records.jsonl")


PAGE = Path(__file__).parents[1] / "README.md"
FACTS, DRAWN = 48, 10


def program() -> str:
    """The page's blocks, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    return "\n".join(blocks)


def list_judged(record: PromptRecord) -> list[tuple[str, float, bool]]:
    """Return a record's candidates without their order, which depends on timing."""
    return sorted((str(one.text), one.score, one.correct) for one in record.candidates)


@pytest.mark.long
def test_readme_code_gives_the_stated_records(tmp_path: Path) -> None:
    facts = list_facts()[:FACTS]
    (tmp_path / "page.py").write_text(program(), encoding="utf-8")
    script = Script.of(facts)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with serving(script, own_process=True) as url:
        environment = {
            **os.environ,
            "PATH": path,
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
            "RAY_LOG_TO_DRIVER": "0",
            # Not the cluster that other tests have started and take nodes from.
            "RAY_ADDRESS": "local",
        }
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert f"{FACTS} questions labelled, 0 failed" in done.stdout
    found = {}
    for name in ("records", "hosted"):
        records = read_records(tmp_path / f"{name}.jsonl")
        assert len({record.id for record in records}) == FACTS
        assert records.provenance is not None
        assert records.provenance.n == DRAWN
        generators = records.provenance.generator or {}
        found[name] = {record.id: list_judged(record) for record in records}
    expected = {fact.id: list_judged(fact) for fact in facts}
    assert found["records"] == expected
    # The endpoint was asked for each candidate once, and states log-probabilities to six decimals.
    assert len(script.requests) == FACTS * DRAWN
    assert generators["model"] == "gpt-4o-mini"
    for name, candidates in found["hosted"].items():
        assert [text for text, *_ in candidates] == [text for text, *_ in expected[name]]
        scores = [[score for _, score, _ in one] for one in (candidates, expected[name])]
        assert scores[0] == pytest.approx(scores[1], abs=1e-6)

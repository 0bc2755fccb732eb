"""Export and import of records: the same bytes, resumable, and never incomplete."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from langchain_cfc_langsmith import pull_records, push_records

from integrations.langsmith.tests.conftest import KEY
from integrations.langsmith.tests.endpoint import Fault, LangSmith
from langchain_cfc import Candidate, PromptRecord, read_records, write_records
from langchain_cfc.errors import CollectionError, InputError, RecordError
from langchain_cfc.records import Provenance
from tests.lengths import repetitions
from tests.recordings import list_facts

ODD = [
    PromptRecord(
        id="messages",
        input=[{"role": "human", "content": "é 😀 \u0000"}],
        reference={"any": [1, 2.5, None, True, 1e300, 10**15]},
        metadata={"cfc": "mine", "dataset_split": "train", "n": 1, "x": 0.1, "b": False},
        cluster="talk",
        candidates=(
            Candidate(message={"tool_calls": [{"name": "f", "args": {}}]}, score=1 / 3, correct=True),
            Candidate(text="", answer="none", score=0.0, correct=False, scores={"judge": -1e-9}),
        ),
    ),
    PromptRecord(
        id="object ",
        input={"a": {"b": []}},
        candidates=(
            Candidate(text="x", score=1.0, correct=True),
            Candidate(text="y", score=0.1, correct=False),
        ),
    ),
]


# Several batches and pages.
SIZE = repetitions(1224, share=0.2)


@pytest.mark.parametrize("bulk_only", [False, True])
@pytest.mark.parametrize("page_size", [20, 100])
def test_pull_records_returns_the_pushed_bytes(
    langsmith: LangSmith, tmp_path: Path, provenance: Provenance, bulk_only: bool, page_size: int
) -> None:
    langsmith.bulk_only, langsmith.page_size = bulk_only, page_size
    before, after = tmp_path / "records.jsonl", tmp_path / "back.jsonl"
    count = write_records(before, list_facts()[:SIZE], provenance)
    pushed = push_records(read_records(before), "facts")
    assert (pushed.created, pushed.already) == (count, 0)
    assert pull_records("facts", after) == count
    assert after.read_bytes() == before.read_bytes()


def test_pull_records_returns_every_kind_of_content(langsmith: LangSmith, tmp_path: Path) -> None:
    header = Provenance(n=2, generator={"model": "m", "temperature": 0.7}, verifier={"id": "v"})
    before, after = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_records(before, ODD, header)
    push_records(ODD, "odd", provenance=header)
    pull_records("odd", after)
    assert after.read_bytes() == before.read_bytes()
    # LangSmith adds a split to the metadata of every example, which must not be taken for the record's.
    assert all(
        one["metadata"]["dataset_split"] == ["base"]
        for one in langsmith.datasets["odd"].versions[-1][1].values()
    )


def test_push_records_resumes_and_adds_nothing_twice(langsmith: LangSmith) -> None:
    records = list_facts()[:120]
    langsmith.faults.append(Fault("/v1/platform", status=400, method="POST", times=1))
    langsmith.faults.insert(0, Fault("/v1/platform", seconds=0.01, method="POST", times=2))
    with pytest.raises(CollectionError, match="adding 20 records to 'facts' failed") as caught:
        push_records(records, "facts")
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert len(langsmith.ids("facts")) == 100
    pushed = push_records(records, "facts")
    assert (pushed.created, pushed.already) == (20, 100)
    pushed = push_records(records, "facts")
    assert (pushed.created, pushed.already) == (0, 120)
    assert len(langsmith.ids("facts")) == 120


def test_pull_records_refuses_incomplete_datasets(langsmith: LangSmith, tmp_path: Path) -> None:
    records = list_facts()[:120]
    push_records(records, "facts")
    assert pull_records("facts", tmp_path / "all.jsonl") == 120
    langsmith.edit("facts", {langsmith.ids("facts")[7]: None})
    with pytest.raises(RecordError, match=r"found 119 of 120 records \(missing: \d+\); push them again"):
        pull_records("facts", tmp_path / "half.jsonl")
    assert not (tmp_path / "half.jsonl").exists()
    # The version before is still whole.
    first = langsmith.datasets["facts"].versions[-2][0].isoformat()
    assert pull_records("facts", tmp_path / "whole.jsonl", as_of=first) == 120


def test_push_records_does_not_overwrite_edited_labels(langsmith: LangSmith, tmp_path: Path) -> None:
    records = list_facts()[:5]
    push_records(records, "facts")
    name = langsmith.ids("facts")[0]
    outputs = langsmith.datasets["facts"].versions[-1][1][name]["outputs"]
    first = {**outputs["candidates"][0], "correct": not outputs["candidates"][0].get("correct")}
    langsmith.edit(
        "facts", {name: {"outputs": {**outputs, "candidates": [first, *outputs["candidates"][1:]]}}}
    )
    pull_records("facts", tmp_path / "back.jsonl")
    changed = [
        (old, new)
        for old, new in zip(records, read_records(tmp_path / "back.jsonl"), strict=True)
        if old != new
    ]
    assert len(changed) == 1
    assert changed[0][0].candidates[0].correct != changed[0][1].candidates[0].correct
    with pytest.raises(InputError, match="holds 1 of these records with other content"):
        push_records(records, "facts")


def test_push_records_refuses_a_second_file_in_a_dataset(langsmith: LangSmith, tmp_path: Path) -> None:
    records = list_facts()
    push_records(records[:5], "facts")
    with pytest.raises(
        InputError, match="holds 5 of these records with other content, or as part of another"
    ):
        push_records(records[:6], "facts")
    push_records(records[5:8], "facts")
    with pytest.raises(RecordError, match="found 8 of"):
        pull_records("facts", tmp_path / "mixed.jsonl")
    assert len(langsmith.ids("facts")) == 8


def test_pull_records_refuses_other_datasets(langsmith: LangSmith, tmp_path: Path) -> None:
    langsmith.dataset("questions", [{"inputs": {"question": "x"}}])
    with pytest.raises(RecordError, match="is not a record made by push_records: KeyError: 'cfc'"):
        pull_records("questions", tmp_path / "x.jsonl")
    langsmith.dataset("empty", [])
    with pytest.raises(RecordError, match="no records"):
        pull_records("empty", tmp_path / "x.jsonl")
    assert not list(tmp_path.iterdir())


def test_push_records_refuses_duplicate_records_before_sending(langsmith: LangSmith) -> None:
    records = list_facts()[:3]
    with pytest.raises(RecordError):
        push_records([*records, records[0]], "facts")
    assert not langsmith.asked

"""Datasets of LangSmith as a source: rows of one version, errors, and a collection up to serving."""

from __future__ import annotations

import json
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Columns, Rows, Store, read_examples
from langchain_cfc_collect.sources.files import open_rows
from langchain_cfc_langsmith import read_dataset_rows
from langsmith import Client

from integrations.langsmith.tests.conftest import KEY
from integrations.langsmith.tests.endpoint import START, Fault, LangSmith
from langchain_cfc import PromptRecord, read_records
from langchain_cfc.errors import CollectionError, InputError, RecordError
from tests.cli.running import Ran, run

COLUMNS = Columns(input="question", reference="answers", metadata=("topic",), id="id")


def make_facts(count: int) -> list[dict[str, Any]]:
    return [
        {
            "inputs": {"question": f"question {number}"},
            "outputs": {"answers": [f"answer {number}"]},
            "metadata": {"topic": "even" if number % 2 == 0 else "odd"},
        }
        for number in range(count)
    ]


def read_inputs(rows: Rows) -> list[Any]:
    return [one.input for one in read_examples(rows, COLUMNS)]


@pytest.mark.parametrize("count", [1, 100, 101, 230])
@pytest.mark.parametrize("page_size", [7, 100])
def test_dataset_rows_yields_every_example_once(langsmith: LangSmith, count: int, page_size: int) -> None:
    langsmith.dataset("facts", make_facts(count))
    langsmith.page_size = page_size
    rows = open_rows("langsmith:facts")
    examples = list(read_examples(rows, COLUMNS))
    assert [one.input for one in examples] == [f"question {number}" for number in range(count)]
    assert [one.id for one in examples] == langsmith.ids("facts")
    assert examples[0].reference == ["answer 0"]
    assert examples[0].metadata == {"topic": "even"}
    assert [number for number, _ in rows if isinstance((number, _), tuple)] == list(range(1, count + 1))  # type: ignore[misc]


def test_paging_of_the_client_loses_examples(langsmith: LangSmith, client: Client) -> None:
    langsmith.dataset("facts", make_facts(20))
    langsmith.page_size = 7
    assert len(list(client.list_examples(dataset_name="facts"))) == 7


def test_dataset_can_be_named_by_its_id(langsmith: LangSmith) -> None:
    held = langsmith.dataset("facts?", make_facts(2))
    rows = open_rows(f"langsmith:{held.id}")
    assert rows.name.startswith(f"langsmith:{held.id}?as_of=")
    assert read_inputs(open_rows(rows.name)) == ["question 0", "question 1"]


def test_dataset_rows_reads_one_version(langsmith: LangSmith) -> None:
    langsmith.dataset("facts", make_facts(3))
    rows = open_rows("langsmith:facts")
    first, second, _ = langsmith.ids("facts")
    before = read_inputs(rows)
    langsmith.edit("facts", {first: None, second: {"inputs": {"question": "edited"}}})
    assert read_inputs(rows) == before
    # In another process, by the name that the first run noted.
    assert read_inputs(open_rows(rows.name)) == before
    again = open_rows("langsmith:facts")
    assert again.name != rows.name
    assert read_inputs(again) == ["edited", "question 2"]


def test_as_of_takes_a_tag_or_a_time_with_zone(langsmith: LangSmith) -> None:
    held = langsmith.dataset("facts", make_facts(1))
    langsmith.edit("facts", {"00000000-0000-4000-8000-000000000000": make_facts(2)[1]})
    held.tags["prod"] = held.versions[1][0]
    first = held.versions[1][0]
    for as_of in ("prod", first, first.isoformat(), "2026-01-01T00:00:02.5Z", "2026-01-01T01:00:02+01:00"):
        rows = read_dataset_rows("facts", as_of=as_of)
        assert rows.name == f"langsmith:facts?as_of={first.isoformat()}"
        assert len(read_inputs(rows)) == 2
    assert len(read_inputs(read_dataset_rows("facts", as_of=START.replace(second=1)))) == 1
    with pytest.raises(InputError, match="has no time zone; add one"):
        read_dataset_rows("facts", as_of=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused
    with pytest.raises(CollectionError, match="the version staging of 'facts'"):
        read_dataset_rows("facts", as_of="staging")


def test_split_option_selects_examples_of_a_split(langsmith: LangSmith) -> None:
    of = [["train"], ["train", "hard"], ["test"]]
    examples = make_facts(3)
    for one, splits in zip(examples, of, strict=True):
        one["metadata"]["dataset_split"] = splits
    langsmith.dataset("facts", examples)
    rows = open_rows("langsmith:facts?split=train")
    assert read_inputs(rows) == ["question 0", "question 1"]
    assert read_inputs(open_rows(rows.name)) == read_inputs(rows)
    columns = Columns(input="question", id="id", metadata=("split",))
    said = [one.metadata["split"] for one in read_examples(rows, columns)]
    assert said == ["train", "hard+train"]


@pytest.mark.parametrize("query", ["split=train&split=tset", "split=tset", "split=Train"])
def test_langsmith_source_refuses_an_unknown_split(langsmith: LangSmith, query: str) -> None:
    examples = make_facts(2)
    examples[0]["metadata"]["dataset_split"] = ["train"]
    langsmith.dataset("facts", examples)
    with pytest.raises(InputError, match=r"no split '[tT].*'; its splits are base, train"):
        open_rows(f"langsmith:facts?{query}")


def test_ambiguous_column_names_need_a_prefix(langsmith: LangSmith) -> None:
    said = {"inputs": {"text": "in", "id": "own"}, "outputs": {"text": "out"}, "metadata": {"only": 1}}
    langsmith.dataset("facts", [said])
    (_, values), *_ = open_rows("langsmith:facts")  # type: ignore[misc]  # no bad rows come from LangSmith
    assert "text" not in values
    assert values["id"] == langsmith.ids("facts")[0]
    assert values["only"] == 1
    columns = Columns(
        input="inputs.text", reference="outputs.text", id="inputs.id", metadata=("metadata.only",)
    )
    (example,) = read_examples(open_rows("langsmith:facts"), columns)
    assert (example.id, example.input, example.reference) == ("own", "in", "out")
    with pytest.raises(RecordError, match="no column 'text'"):
        list(read_examples(open_rows("langsmith:facts"), Columns(input="text")))


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("facts?version=1", "found 'version=1'; expected as_of=VERSION or split=SPLIT"),
        ("facts?as_of=", "found 'as_of='"),
        ("facts?as_of=a&as_of=b", "found as_of 2 times"),
    ],
)
def test_langsmith_source_refuses_unknown_options(langsmith: LangSmith, rest: str, words: str) -> None:
    langsmith.dataset("facts", make_facts(1))
    with pytest.raises(InputError, match=words):
        open_rows(f"langsmith:{rest}")


def test_langsmith_source_refuses_missing_and_empty_datasets(langsmith: LangSmith) -> None:
    with pytest.raises(
        CollectionError, match="finding the dataset 'facts' failed with LangSmithNotFoundError"
    ):
        open_rows("langsmith:facts")
    langsmith.dataset("facts", [])
    with pytest.raises(RecordError, match="no rows"):
        read_inputs(open_rows("langsmith:facts"))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_langsmith_source_retries_transient_errors(langsmith: LangSmith, status: int) -> None:
    langsmith.dataset("facts", make_facts(3))
    langsmith.faults.append(Fault("/examples", status=status))
    assert len(read_inputs(open_rows("langsmith:facts"))) == 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/examples", status=401, times=9),
        Fault("/examples", status=500, times=9),
        Fault("/examples", content=b"<html>", times=9),
        Fault("/examples", content=b'[{"id": 7}]', times=9),
        Fault("/examples", content=b'{"detail": "odd"}', times=9),
    ],
)
def test_langsmith_source_raises_errors_without_the_key(langsmith: LangSmith, fault: Fault) -> None:
    langsmith.dataset("facts", make_facts(3))
    langsmith.faults.append(fault)
    with pytest.raises(CollectionError, match="reading 'facts' from example 1 on failed") as caught:
        read_inputs(open_rows("langsmith:facts"))
    assert ("LANGSMITH_API_KEY" in str(caught.value)) == (fault.status == 401)
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_langsmith_source_refuses_duplicate_examples(langsmith: LangSmith) -> None:
    langsmith.dataset("facts", make_facts(1))
    (one,) = langsmith.ids("facts")
    held = {"id": one, "dataset_id": langsmith.datasets["facts"].id, "metadata": {}, **make_facts(1)[0]}
    page = json.dumps([{**held, "created_at": START.isoformat()}]).encode()
    langsmith.faults.append(Fault("/examples", content=page, times=2))
    with pytest.raises(CollectionError, match=f"lists the example {one} twice"):
        read_inputs(open_rows("langsmith:facts"))


TOML = """
store = "facts.db"
n = 2
[source]
path = "langsmith:facts"
input = "question"
reference = "answers"
metadata = ["topic", "split"]
[generator]
factory = "langchain_core.language_models:FakeListChatModel"
arguments = { responses = ["Lima"] }
id = "capitals-bot"
[verifier]
factory = "langchain_cfc.verifiers:SelfConsistency"
[labeler]
factory = "langchain_cfc.labelers:NormalisedMatch"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, langsmith: LangSmith) -> Path:
    """A folder with settings, and a dataset of forty questions in LangSmith."""
    (tmp_path / "collect.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    answers = [{"answers": ["Lima" if number % 2 else "Quito"]} for number in range(40)]
    rows = zip(make_facts(40), answers, strict=True)
    langsmith.dataset("facts", [{**row, "outputs": outputs} for row, outputs in rows])
    langsmith.page_size = 15
    return tmp_path


def collect(folder: Path, *more: str) -> Ran:
    return run("collect", "--config", folder / "collect.toml", "--out", folder / "records.jsonl", *more)


def records(folder: Path) -> list[PromptRecord]:
    return list(read_records(folder / "records.jsonl"))


def test_collect_notices_a_dataset_edited_between_runs(folder: Path, langsmith: LangSmith) -> None:
    assert collect(folder, "--limit", "10").code == 0
    version = langsmith.datasets["facts"].versions[-1][0]
    with Store(folder / "facts.db") as store:
        noted = store.configuration["source"]
    assert noted == f"langsmith:facts?as_of={version.isoformat()}"
    langsmith.edit("facts", {langsmith.ids("facts")[3]: {"outputs": {"answers": ["edited"]}}})
    refused = collect(folder)
    assert refused.code == 2
    assert "source" in refused.err
    assert "2026-01-01T00:00:01" in " ".join(refused.err.split())
    # The version that the store was begun with is still there to be read.
    assert run("collect", "--config", folder / "collect.toml", "--source", noted).code == 0
    # The new version labels what was drawn.
    again = collect(folder, "--relabel")
    assert again.code == 0
    assert "labelled by a corrected reference: 1 prompt" in " ".join(again.err.split())
    made = records(folder)
    assert {str(one.input) for one in made} == {f"question {number}" for number in range(40)}
    assert {one.metadata["split"] for one in made} == {"base"}
    assert {one.metadata["topic"] for one in made} == {"even", "odd"}
    assert sum(one.candidates[0].correct for one in made) == 19
    [edited] = (one for one in made if one.input == "question 3")
    assert not any(candidate.correct for candidate in edited.candidates)
    assert run("collect", "--config", folder / "collect.toml", "--source", noted).code == 2

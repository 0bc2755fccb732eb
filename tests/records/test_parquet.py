from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc.errors import MissingExtraError, RecordError, SamplingWarning
from langchain_cfc.records import (
    Candidate,
    PromptRecord,
    Provenance,
    make_parquet_schema,
    read_records,
    tabulate,
    write_records,
)
from langchain_cfc.records import parquet as parquet_writing
from tests.records.same import get_parts
from tests.records.test_reading import make_fields as json_fields
from tests.records.test_reading import write_lines

pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")


def make_record(name: str, texts: str = "aba", **changes: Any) -> PromptRecord:
    candidates = tuple(
        Candidate(text=text, score=slot / 10, correct=text == "b", scores={"judge": slot + 0.5})
        for slot, text in enumerate(texts)
    )
    return PromptRecord(id=name, input=name, candidates=candidates, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.parquet"


def make_candidate(**changes: Any) -> dict[str, Any]:
    return {"text": "a", "score": 0.5, "correct": True} | changes


def make_row(name: str = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "input": f'"{name}"',
        "candidates": [make_candidate(), make_candidate(text="b")],
    } | changes


def change_second(**changes: Any) -> dict[str, Any]:
    return make_row(candidates=[make_candidate(), make_candidate(**changes)])


def table(path: Path, rows: list[dict[str, Any]], schema: Any = None, **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema or make_parquet_schema()), path, **options)
    return path


def test_write_records_writes_the_parquet_schema_and_provenance(path: Path) -> None:
    provenance = Provenance(n=3, verifier={"id": "judge"})
    records = [make_record("q1"), make_record("q2", metadata={"topic": "é"})]
    assert write_records(path, records, provenance) == 2
    schema = pq.read_schema(path)
    assert schema.equals(make_parquet_schema())
    assert schema.metadata == make_parquet_schema(provenance).metadata
    assert pq.read_table(path)["metadata"].to_pylist() == [None, '{"topic":"é"}']
    again = read_records(path)
    assert again.provenance == provenance
    assert [one.metadata for one in again] == [{}, {"topic": "é"}]


def test_write_records_gives_equal_parquet_bytes_for_equal_records(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_records(tmp_path / name, [make_record("q1"), make_record("q2")])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_write_records_keeps_the_old_parquet_file_after_a_failure(path: Path) -> None:
    write_records(path, [make_record("q1")])
    before = path.read_bytes()
    with pytest.raises(RecordError, match="the id of an earlier record too"):
        write_records(path, [make_record("q1"), make_record("q1")])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_write_records_writes_parquet_in_row_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writing, "_GROUP_ITEMS", 10)
    records = [make_record(f"q{number}") for number in range(9)]
    write_records(path, records)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert list(read_records(path)) == records


def test_read_records_joins_parquet_and_json_lines(path: Path, tmp_path: Path) -> None:
    write_records(path, [make_record("q1"), make_record("q2")])
    write_records(tmp_path / "more.jsonl", [make_record("q3")])
    both = read_records(path, tmp_path / "more.jsonl")
    assert [one.id for one in both] == ["q1", "q2", "q3"]
    assert tabulate(both).ids == ("q1", "q2", "q3")
    write_records(tmp_path / "more.jsonl", [make_record("q2")])
    expected = r"more\.jsonl, line 1: id: 'q2' is the id of an earlier record too"
    for read in (tabulate, list):
        with pytest.raises(RecordError, match=expected):
            read(both)
    write_records(tmp_path / "more.jsonl", [make_record("q3")], Provenance(n=3))
    with pytest.raises(RecordError, match="contradicting provenance: one here, but none in"):
        list(read_records(path, tmp_path / "more.jsonl"))


def test_read_records_recognises_parquet_by_its_first_bytes(tmp_path: Path) -> None:
    write_records(tmp_path / "a.parquet", [make_record("q1")])
    (tmp_path / "a.parquet").rename(tmp_path / "a.jsonl")
    assert len(list(read_records(tmp_path / "a.jsonl"))) == 1
    assert len(list(read_records(write_lines(tmp_path / "b.parquet", json_fields())))) == 1


GOOD: list[dict[str, Any]] = [
    make_row(),
    make_row(metadata="{}", reference="null", cluster="c"),
    make_row(metadata='{"a": 1, "b": true, "c": -0.0, "d": 12345678901234567890}'),
    make_row(input="[]", reference='{"a": [1.5]}'),
    make_row(input='{"a": null}'),
    make_row(input="[" * 30 + "]" * 30),
    make_row(candidates=[make_candidate(score=-0.0), make_candidate(answer="")]),
    make_row(candidates=[make_candidate(scores=[]), make_candidate(scores=[("a", 1.0), ("b", -2.5)])]),
    make_row(candidates=[make_candidate(text=None, message="{}"), make_candidate(text="{}")]),
    make_row(
        candidates=[
            make_candidate(text=None, message='{"b": 1, "a": 2}'),
            make_candidate(text='{"a":2,"b":1}'),
        ]
    ),
    make_row(candidates=[make_candidate(answer="b"), make_candidate(text="b")]),
    make_row(candidates=[make_candidate(text="é\x00\U0001f600"), make_candidate(text="")]),
]
BAD: list[tuple[dict[str, Any], str, str]] = [
    (make_row(id=None), "id", "missing"),
    (make_row(name=""), "id", "found ''; expected text, not empty"),
    (make_row("fine 3"), "id", "'fine 3' is the id of an earlier record"),
    (make_row(cluster=""), "cluster", "found ''"),
    (make_row(input=None), "input", "missing"),
    (make_row(input="What?"), "input", "not JSON"),
    (make_row(input="5"), "input", "found 5"),
    (make_row(input='{"a": 1, "a": 1}'), "input", "the key 'a' twice"),
    (make_row(input="[NaN]"), "input[0]", "found nan"),
    (make_row(input='["\\ud800"]'), "input[0]", "half of a surrogate pair"),
    (make_row(input="[" * 101 + "]" * 101), "input", "more than 100 nested levels"),
    (make_row(reference="[1e999]"), "reference[0]", "found inf"),
    (make_row(reference=""), "reference", "not JSON"),
    (make_row(metadata="null"), "metadata", "found None"),
    (make_row(metadata="[]"), "metadata", "found []"),
    (make_row(metadata='{"a": null}'), "metadata.a", "found None"),
    (make_row(metadata='{"a": 1, "a": 1}'), "metadata", "the key 'a' twice"),
    (make_row(candidates=None), "candidates", "missing"),
    (make_row(candidates=[]), "candidates", "at least one"),
    (make_row(candidates=[make_candidate()]), "candidates", "found 1; expected 2"),
    (make_row(candidates=[None, make_candidate()]), "candidates[0]", "found None"),
    (change_second(score=None), "candidates[1].score", "found None"),
    (change_second(score=1.5), "candidates[1].score", "found 1.5"),
    (change_second(score=float("nan")), "candidates[1].score", "found nan"),
    (change_second(correct=None), "candidates[1].correct", "unlabelled"),
    (change_second(text=None), "candidates[1]", "neither of text and message"),
    (change_second(message="{}"), "candidates[1]", "both of text and message"),
    (change_second(text=None, message="[]"), "candidates[1].message", "found []"),
    (change_second(text=None, message="{"), "candidates[1].message", "not JSON"),
    (change_second(scores=[("a", None)]), "candidates[1].scores.a", "found None"),
    (change_second(scores=[("a", np.inf)]), "candidates[1].scores.a", "found inf"),
    (change_second(scores=[("a", 1.0), ("b", 1.0), ("a", 1.0)]), "candidates[1].scores", "the key 'a' twice"),
]


def parse_row(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row as they would be in JSON Lines, without nulls."""
    fields = {name: value for name, value in row.items() if value is not None}
    for name in fields.keys() & {"input", "reference", "metadata", "message"}:
        fields[name] = json.loads(fields[name])
    for name in fields.keys() & {"candidates", "claims"}:
        fields[name] = [parse_row(one) for one in fields[name]]
    return fields | ({"scores": dict(fields["scores"])} if "scores" in fields else {})


def test_read_records_gives_the_records_of_parquet_rows(path: Path) -> None:
    rows = [one | {"id": f"q{number}"} for number, one in enumerate(GOOD)]
    records = read_records(table(path, rows))
    expected = [PromptRecord.model_validate(parse_row(one)) for one in rows]
    assert repr(list(records)) == repr(expected)
    with pytest.warns(SamplingWarning, match="repeat the input"):
        found, made = tabulate(records), tabulate(expected)
    assert get_parts(found) == get_parts(made)


@pytest.mark.parametrize(("bad", "field", "words"), BAD, ids=range(len(BAD)))
def test_read_records_names_the_bad_parquet_row(
    path: Path, bad: dict[str, Any], field: str, words: str
) -> None:
    place = 260  # in the second batch of rows
    rows = [make_row(f"fine {number}") for number in range(300)]
    rows.insert(place, bad if bad["id"] != "q1" else bad | {"id": "this"})
    table(path, rows)
    with pytest.raises(RecordError) as caught:
        list(read_records(path))
    assert (caught.value.source, caught.value.line, caught.value.field) == (str(path), place + 1, field)
    assert words in caught.value.problem


TEXTS = pa.struct({"text": pa.large_string(), "score": pa.float32(), "correct": pa.bool_()})
SCHEMAS = {
    "large": pa.schema(
        {"id": pa.large_string(), "input": pa.large_string(), "candidates": pa.large_list(TEXTS)}
    ),
    "dictionary": pa.schema(
        {
            "candidates": pa.list_(TEXTS),
            "input": pa.dictionary(pa.int32(), pa.string()),
            "id": pa.string(),
            "cluster": pa.dictionary(pa.int8(), pa.string()),
        }
    ),
    "whole scores": pa.schema(
        {
            "id": pa.string(),
            "input": pa.string(),
            "candidates": pa.list_(
                pa.struct({"correct": pa.bool_(), "score": pa.int64(), "text": pa.string()})
            ),
        }
    ),
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_read_records_accepts_related_parquet_types(path: Path, kind: str) -> None:
    rows = [
        make_row(f"q{number}", candidates=[make_candidate(score=1), make_candidate(score=0)])
        for number in range(10)
    ]
    table(path, rows, SCHEMAS[kind])
    assert [[one.score for one in made.candidates] for made in read_records(path)] == [[1.0, 0.0]] * 10


LESS = make_row()
CHANGED: list[tuple[dict[str, Any], str, str]] = [
    (LESS | {"topic": "a"}, "topic", "unknown field"),
    ({"id": "q1", "input": '"q1"'}, "candidates", "missing"),
    (LESS | {"id": 5}, "id", "found 5; expected text"),
    (LESS | {"input": b'"q1"'}, "input", "found b'"),
    (LESS | {"candidates": "a"}, "candidates", "found 'a'"),
    (LESS | {"candidates": ["a"]}, "candidates[0]", "found 'a'"),
    (LESS | {"candidates": [make_candidate(score="0.5")]}, "candidates[0].score", "found '0.5'"),
    (LESS | {"candidates": [{"text": "a", "score": 0.5}]}, "candidates[0].correct", "unlabelled"),
    (LESS | {"candidates": [make_candidate(scores=[1.0, 2.0])]}, "candidates[0].scores", "found"),
    (LESS | {"metadata": {"topic": [1]}}, "metadata.topic", "found [1]"),
]


@pytest.mark.parametrize(("row", "field", "words"), CHANGED, ids=range(len(CHANGED)))
def test_read_records_checks_columns_of_other_names_and_types_as_json_lines(
    path: Path, row: dict[str, Any], field: str, words: str
) -> None:
    pq.write_table(pa.Table.from_pylist([row]), path)
    for read in (list, tabulate):
        with pytest.raises(RecordError) as caught:
            read(read_records(path))
        assert (caught.value.line, caught.value.field) == (1, field)
        assert words in caught.value.problem


def test_read_records_reads_nested_columns_as_objects(path: Path) -> None:
    nested = make_row(metadata={"topic": "a"}, candidates=[make_candidate(scores={"judge": 1.5})])
    pq.write_table(pa.Table.from_pylist([nested]), path)
    (record,) = read_records(path)
    assert (record.metadata, record.candidates[0].scores) == ({"topic": "a"}, {"judge": 1.5})


def test_read_records_refuses_two_parquet_columns_of_one_name(path: Path) -> None:
    rows = pa.Table.from_pylist([make_row()], schema=make_parquet_schema())
    pq.write_table(rows.append_column("id", pa.array(["other"])), path)
    for read in (list, tabulate):
        with pytest.raises(RecordError, match="two columns of one name among id, input"):
            read(read_records(path))


def test_read_records_refuses_a_parquet_file_without_rows(path: Path) -> None:
    pq.write_table(make_parquet_schema().empty_table(), path)
    for read in (list, tabulate):
        with pytest.raises(RecordError, match=r"records\.parquet: no records"):
            read(read_records(path))


@pytest.mark.parametrize("damage", ["cut", "middle"])
def test_read_records_names_a_damaged_parquet_file(path: Path, damage: str) -> None:
    write_records(path, [make_record(f"q{number} {os.urandom(50).hex()}") for number in range(500)])
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 4] ^= 0xFF
        content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    for read in (list, tabulate):
        with pytest.raises(RecordError, match="damaged or unreadable Parquet"):
            read(read_records(path))


def test_read_records_refuses_parquet_texts_that_are_not_utf8(path: Path) -> None:
    binary = pa.array([b"q\xff"], pa.binary()).view(pa.string())
    rows = pa.Table.from_pylist([make_row()], schema=make_parquet_schema()).set_column(0, "id", binary)
    pq.write_table(rows, path)
    for read in (list, tabulate):
        with pytest.raises(RecordError, match="damaged"):
            read(read_records(path))


def test_read_records_names_a_bad_parquet_provenance(path: Path) -> None:
    text = json.dumps({"format": "langchain-cfc/records", "version": 2, "n": 2})
    table(path, [make_row()], make_parquet_schema().with_metadata({"langchain-cfc": text}))
    with pytest.raises(RecordError, match=r"version: found 2; expected 1"):
        list(read_records(path))


def test_parquet_records_without_pyarrow_name_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(path, [make_record("q1")])
    before = path.read_bytes()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for act in (lambda: list(read_records(path)), lambda: write_records(path, [make_record("q2")])):
        with pytest.raises(MissingExtraError, match=r"langchain-cfc\[parquet\]"):
            act()
    assert path.read_bytes() == before


def write_huge_rows(path: Path, size: int, count: int = 64) -> None:
    """A small file of prompts that are all one long text, which stands in it once."""
    rows = [{**make_row(f"q{number}"), "input": json.dumps("a" * size)} for number in range(count)]
    pq.write_table(pa.Table.from_pylist(rows, schema=make_parquet_schema()), path, compression="zstd")


def test_read_records_refuses_parquet_rows_that_unpack_to_too_much(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huge_rows(path, 50_000)
    assert path.stat().st_size < 20_000
    assert len(list(read_records(path))) == 64
    # A limit that takes less time to reach than that of 256 MiB.
    monkeypatch.setattr("langchain_cfc.records.parquet.MAX_BATCH_BYTES", 1 << 20)
    for read in (list, tabulate):
        with pytest.raises(RecordError, match="line 1: unpacks to 3 MiB in 64 rows; expected at most 1 MiB"):
            read(read_records(path))


def test_read_records_does_not_unpack_a_parquet_bomb(path: Path) -> None:
    rows = [{**make_row(f"q{number}"), "input": json.dumps("a" * 30_000_000)} for number in range(3)]
    table = pa.Table.from_pylist(rows, schema=make_parquet_schema())
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 50_000
    before = pa.total_allocated_bytes()
    with pytest.raises(RecordError, match=r"the column input unpacks from .* KiB to 86 MiB"):
        list(read_records(path))
    assert pa.total_allocated_bytes() - before < 1 << 20

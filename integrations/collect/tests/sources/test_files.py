"""`read_rows`: file formats, row numbers, bad rows and damaged files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped] # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped] # it has no types
import pytest
from langchain_cfc_collect import Columns, read_examples
from langchain_cfc_collect.sources.files import BadRow, read_rows, to_plain

from integrations.collect.tests.sources.writing import (
    WRITERS,
    catch_record_error,
    write,
    write_jsonl,
    write_parquet,
)
from langchain_cfc.errors import RecordError

QUESTION = Columns(input="question", reference="answer")
ROWS = [{"question": "Capital of Perú?", "answer": "Lima"}, {"question": "日本\u2028🙂\n", "answer": ""}]


def list_rows(path: Path) -> list[Any]:
    return [row if isinstance(row, BadRow) else (row[0], to_plain(row[1])) for row in read_rows(path)]


def catch_damage(path: Path) -> RecordError:
    """Return the error that reading ends with under either policy for bad rows."""
    errors = [catch_record_error(path, QUESTION, policy) for policy in ("refuse", "set_aside")]
    assert str(errors[0]) == str(errors[1])
    assert "bad row" not in errors[0].problem
    return errors[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_read_rows_decompresses_gzip_and_ignores_a_byte_order_mark(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, ROWS)
    content, expected = path.read_bytes(), list_rows(path)
    assert list_rows(write(path, b"\xef\xbb\xbf" + content)) == expected
    for packed in (path, tmp_path / f"{name}.gz"):  # whatever the name
        assert list_rows(write(packed, gzip.compress(content))) == expected


def test_jsonl_rows_are_numbered_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1}\r\n\n  \n{"a": 2}\nnull\n{"a": 3')
    numbers = [row.number if isinstance(row, BadRow) else row[0] for row in read_rows(path)]
    assert numbers == [1, 4, 5, 6]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_delimiter_is_detected_from_the_header(tmp_path: Path, delimiter: str) -> None:
    header = delimiter.join(["id", '"question; or, so"', "answer"])
    row = delimiter.join(["1", '"Lima, Cusco; or\tIca?"', "Lima"])
    path = write(tmp_path / "a.csv", f"{header}\n{row}\n".encode())
    assert list_rows(path) == [
        (2, {"id": "1", "question; or, so": "Lima, Cusco; or\tIca?", "answer": "Lima"})
    ]


def test_csv_rows_are_numbered_by_their_first_line(tmp_path: Path) -> None:
    content = '\nquestion,answer\r\n"two\r\nlines, ""quoted""",x\n\n"a\n\nb",y\nlast,z'
    assert list_rows(write(tmp_path / "a.csv", content)) == [
        (3, {"question": 'two\r\nlines, "quoted"', "answer": "x"}),
        (6, {"question": "a\n\nb", "answer": "y"}),
        (9, {"question": "last", "answer": "z"}),
    ]


BAD_LINES = [
    pytest.param(b"{", "not JSON", id="cut off"),
    pytest.param(b"[1]", "found [1]; expected one JSON object per line", id="list"),
    pytest.param(b'{"a": 1, "a": 2}', "the key 'a' twice", id="key twice"),
    pytest.param(b"[" * 100_000, "nested too deeply", id="deep"),
    pytest.param(b'{"question": "\xe9"}', "not UTF-8: byte 0xe9 at position 15", id="Latin-1"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_jsonl_line_that_is_no_object_is_a_bad_row(tmp_path: Path, line: bytes, words: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    path.write_bytes(line + b"\n" + path.read_bytes())
    first, *others = read_rows(path)
    assert isinstance(first, BadRow)
    assert (first.number, first.field) == (1, "")
    assert words in first.problem
    assert [row[0] for row in others if not isinstance(row, BadRow)] == [2, 3]


BAD_CELLS = [
    pytest.param(b"one", "found 1 cells; expected 2, as in the header", id="short"),
    pytest.param(b"one,two,three", "found 3 cells; expected 2, as in the header", id="long"),
    pytest.param(b'"x\ny\xff",z', "the cell 'question' is not UTF-8: byte 0xff at position 2", id="Latin-1"),
]


@pytest.mark.parametrize(("row", "problem"), BAD_CELLS)
def test_csv_row_that_does_not_fit_the_header_is_a_bad_row(tmp_path: Path, row: bytes, problem: str) -> None:
    path = write(tmp_path / "a.csv", b"question,answer\n1,2\n" + row + b"\n5,6\n")
    first, bad, last = read_rows(path)
    assert isinstance(bad, BadRow)
    assert (bad.number, bad.field) == (3, "")
    assert bad.problem.startswith(problem)
    assert not isinstance(first, BadRow)
    assert first[0] == 2
    assert last == (4 + row.count(b"\n"), {"question": "5", "answer": "6"})


# Encodings, delimiters and blank rows are in the table of docs/records.md, which `test_read_table.py` tries.
@pytest.mark.parametrize("content", ['question, answer\n"q", "a"\n', "question , answer\nq,a\n"])
def test_read_rows_leaves_out_spaces_around_names_and_cells(tmp_path: Path, content: str) -> None:
    assert list_rows(write(tmp_path / "a.csv", content)) == [(2, {"question": "q", "answer": "a"})]


DAMAGED = [
    ("a.csv", b'question,answer\na,b\n"c" d,e\nf,g\n', 3, "quotation mark in this row"),
    ("a.csv", b'question,answer\na,b\n"c,d\ne,f\n', 3, "unexpected end of data"),
    ("a.csv", b"question,answer,question\n1,2,3\n", 1, "found the column 'question' twice"),
    ("a.csv", b"question,answer,\xe9\n1,2,3\n", 1, "not UTF-8: byte 0xe9 at position 17"),
    ("a.csv", "question,answer\n1,2\n".encode("utf-16")[:-1], 2, "damaged or cut off"),
    ("a.json", b'{"data": 5}', 0, "expected one list of objects"),
    ("a.json", b'{"train": [{"a": 1}], "test": [{"a": 2}]}', 0, "expected one list of objects"),
    ("a.json", b'{"question": "a"}\n{"question": "b"}\n', 0, "name it .jsonl if each line is an object"),
    ("a.json", b"[{}, \xe9]", 0, "not UTF-8: byte 0xe9 at position 6"),
    ("a.json.gz", gzip.compress(b'[{"question": "a"}]', mtime=0)[:-10], 1, "damaged or cut off"),
    ("a.parquet", b"PAR1 but not really PAR1", 0, "damaged, or not Parquet"),
    ("a.parquet", b"", 0, "damaged, or not Parquet"),
]


@pytest.mark.parametrize(("name", "content", "line", "words"), DAMAGED)
def test_damaged_file_is_refused_under_any_bad_rows_policy(
    tmp_path: Path, name: str, content: bytes, line: int, words: str
) -> None:
    path = write(tmp_path / name, content)
    error = catch_damage(path)
    assert (error.source, error.line, error.field) == (str(path), line, "")
    assert words in error.problem


def test_parquet_with_a_changed_byte_or_equal_columns_is_refused(tmp_path: Path) -> None:
    rows = [{"question": f"question {number}", "answer": "?"} for number in range(1000)]
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    path = write_parquet(tmp_path / "a.parquet", rows, **options)
    whole = path.read_bytes()
    assert len(list(read_rows(path))) == 1000
    write(path, whole.replace(b"question 500", b"question 5O0"))
    assert "damaged" in catch_damage(path).problem
    table = pa.table([pa.array(["x"]), pa.array(["y"])], names=["question", "question"])
    pq.write_table(table, path)
    assert "found the column 'question' twice" in catch_damage(path).problem


@pytest.mark.parametrize("content", ["", "\n \n", "[]", "question,answer\n"])
def test_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    name = {"[]": "a.json", "question,answer\n": "a.csv"}.get(content, "a.jsonl")
    assert catch_damage(write(tmp_path / name, content)).problem == "no rows; expected at least one"


@pytest.mark.parametrize("name", ["a.txt", "a.csv.zip", "a", "a.gz", "a.xlsx"])
def test_read_examples_refuses_unknown_file_endings(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "{}")
    with pytest.raises(RecordError, match=r"expected one of \.jsonl, \.json, \.csv, \.tsv, \.parquet"):
        read_examples(path, QUESTION)


def test_read_examples_refuses_missing_files_and_folders_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file"):
        read_examples(str(tmp_path / "a.csv"), QUESTION)
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(RecordError, match="not a regular file"):
        read_examples(tmp_path / "b.csv", QUESTION)


def test_read_rows_names_a_file_that_was_deleted_before_reading(tmp_path: Path) -> None:
    for name, writer in WRITERS.items():
        path = writer(tmp_path / name, ROWS)
        rows = read_rows(path)
        path.unlink()
        with pytest.raises(RecordError, match=f"{name}: "):
            list(rows)


def test_json_list_may_exceed_the_line_limit_of_jsonl(tmp_path: Path) -> None:
    # Longer than a line of JSON Lines may be.
    long = "x" * (17 * 1024 * 1024)
    path = write(tmp_path / "a.json", json.dumps([{"question": long}]))
    assert list_rows(path) == [(1, {"question": long})]
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": long}])
    assert "longer than 16,777,216 bytes" in catch_damage(path).problem


def test_parquet_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"question": ["a" * 50_000] * 64, "answer": ["b"] * 64})
    pq.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 20_000
    assert len(list_rows(path)) == 64
    monkeypatch.setattr("langchain_cfc_collect.sources.files.MAX_BATCH_BYTES", 1 << 20)
    with pytest.raises(RecordError, match="unpacks to 3 MiB in 64 rows"):
        list_rows(path)


@pytest.mark.parametrize("lines", [1, 1000])
def test_json_decompression_bomb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    monkeypatch.setattr("langchain_cfc_collect.sources.files._MAX_LIST_BYTES", 1 << 20)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[" + (b" " * (2_000_000 // lines) + b"\n") * lines + b"]"))
    assert path.stat().st_size < 10_000
    with pytest.raises(RecordError, match=r"more than 1 MiB|longer than 1,048,576 bytes"):
        list_rows(path)

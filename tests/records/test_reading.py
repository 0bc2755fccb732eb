from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records import Provenance, read_records
from langchain_cfc.support.json_text import read_lines

HEADER: dict[str, Any] = {"format": "langchain-cfc/records", "version": 1, "n": 2}


def make_fields(name: str = "q1", n: int = 2, **changes: Any) -> dict[str, Any]:
    candidates = [{"text": f"answer {slot}", "score": 0.5, "correct": slot == 0} for slot in range(n)]
    return {"id": name, "input": name, "candidates": candidates} | changes


def make_line(**changes: Any) -> str:
    """A record whose second candidate is changed; a change to ... leaves the field out."""
    whole = make_fields()
    changed = whole["candidates"][1] | changes
    whole["candidates"][1] = {name: value for name, value in changed.items() if value is not ...}
    return json.dumps(whole)


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text(
        "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines), "utf-8"
    )
    return path


def catch_first_error(*paths: Path) -> RecordError:
    with pytest.raises(RecordError) as caught:
        list(read_records(*paths))
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def test_read_records_iterates_in_order_and_repeatedly(path: Path) -> None:
    records = read_records(
        write_lines(path, HEADER, make_fields("q1"), make_fields("q2", metadata={"topic": "geo"}))
    )
    assert [record.id for record in records] == ["q1", "q2"]
    assert [record.metadata for record in records] == [{}, {"topic": "geo"}]
    assert records.provenance == Provenance(n=2)


def test_read_records_without_a_header_has_no_provenance(path: Path) -> None:
    assert read_records(write_lines(path, make_fields())).provenance is None


def test_read_records_accepts_paths_as_text(path: Path) -> None:
    assert read_records(str(write_lines(path, make_fields()))).paths == (path,)


def test_read_records_joins_several_files(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.jsonl", HEADER, make_fields("q1"))
    two = write_lines(tmp_path / "b.jsonl", HEADER, make_fields("q2"))
    assert [record.id for record in read_records(one, two)] == ["q1", "q2"]


@pytest.mark.parametrize("name", ["records.jsonl.gz", "records.jsonl"])
def test_read_records_recognises_gzip_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    plain = write_lines(tmp_path / "plain", HEADER, make_fields()).read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(plain))
    assert list(read_records(tmp_path / name)) == list(read_records(tmp_path / "plain"))


def test_read_records_accepts_a_plain_file_called_gz(tmp_path: Path) -> None:
    assert len(list(read_records(write_lines(tmp_path / "records.gz", make_fields())))) == 1


def test_read_records_accepts_byte_order_mark_blank_lines_and_crlf(path: Path) -> None:
    lines = [
        "\ufeff",
        json.dumps(HEADER),
        "",
        json.dumps(make_fields(input="é\u2028"), ensure_ascii=False),
        " ",
        "",
    ]
    path.write_bytes("\r\n".join(lines).encode())
    records = read_records(path)
    assert records.provenance == Provenance(n=2)
    assert [record.input for record in records] == ["é\u2028"]


def test_read_records_accepts_a_missing_last_line_end(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(make_fields()).encode())
    assert len(list(read_records(path))) == 1


# By kind of fault: the line, the field that is named, and words of the message.
LINES: dict[str, tuple[object, str, list[str]]] = {
    "not JSON": ("{", "", ["not JSON", "character 2", "one object per line"]),
    "no comma": ('{"id": "q1" "input": 1}', "", ["Expecting ',' delimiter", "character 13"]),
    "two values": (json.dumps(make_fields()) + " {}", "", ["not JSON", "Extra data"]),
    "no object": ("[1, 2]", "", ["found [1, 2]", "one JSON object"]),
    "NaN": ("NaN", "", ["found nan", "one JSON object"]),
    "repeated key": ('{"id": 1, "id": 2}', "", ["the key 'id' twice"]),
    "repeated key, as many quotes": (r'{"id": 1, "id": "\u0022\u0022"}', "", ["the key 'id' twice"]),
    "deep": ("[" * 200_000, "", ["nested too deeply"]),
    "digits": ('{"id": ' + "1" * 5000 + "}", "", ["unusable JSON", "digits"]),
    "no fields": ("{}", "id", ["missing", "text, not empty"]),
    "empty id": (make_fields(name=""), "id", ["found ''", "not empty"]),
    "surrogate": (make_fields(name="\ud800"), "id", ["found '\\ud800'"]),
    "input": (make_fields(input=None), "input", ["found None", "a list of messages"]),
    "input NaN": (make_fields(input=[{"content": float("nan")}]), "input[0].content", ["found nan"]),
    "inf": (make_fields(reference={"a b": [0, -1e999]}), "reference['a b'][1]", ["found -inf"]),
    "first of two": (make_fields(id=1, reference=float("nan")), "id", ["found 1;"]),
    "metadata": (make_fields(metadata={"a": {}}), "metadata.a", ["found {}", "texts, finite numbers"]),
    "metadata inf": (make_fields(metadata={"a": float("inf")}), "metadata.a", ["found inf"]),
    "metadata list": (make_fields(metadata=[1]), "metadata", ["found [1]", "an object"]),
    "cluster": (make_fields(cluster=3), "cluster", ["found 3"]),
    "none": (make_fields(candidates=[]), "candidates", ["found ()", "at least one"]),
    "candidates": (make_fields(candidates={}), "candidates", ["found {}", "a list"]),
    "candidate": (make_fields(candidates=[5]), "candidates[0]", ["found 5", "a JSON object"]),
    "unknown": (
        make_fields(refrence=1),
        "refrence",
        ["did you mean 'reference'?", "known fields: id, input"],
    ),
    "unknown, far": (make_fields(zzz=1), "zzz", ["unknown field; known fields: id, input"]),
    "field of a candidate": (make_fields(text="a"), "text", ["known fields: id, input"]),
    "no score": (make_line(score=...), "candidates[1].score", ["missing", "smaller is better"]),
    "score large": (make_line(score=1.5), "candidates[1].score", ["found 1.5", "in [0, 1]"]),
    "score small": (make_line(score=-1), "candidates[1].score", ["found -1", "in [0, 1]"]),
    "score text": (make_line(score="0.5"), "candidates[1].score", ["found '0.5'", "a number"]),
    "score bool": (make_line(score=True), "candidates[1].score", ["found True", "a number"]),
    "score NaN": (make_line(score=float("nan")), "candidates[1].score", ["found nan", "in [0, 1]"]),
    "unlabelled": (make_line(correct=...), "candidates[1].correct", ["unlabelled", "label it"]),
    "label null": (make_line(correct=None), "candidates[1].correct", ["unlabelled", "label it"]),
    "label text": (make_line(correct="yes"), "candidates[1].correct", ["found 'yes'", "true or false"]),
    "no content": (make_line(text=...), "candidates[1]", ["neither of text and message"]),
    "both contents": (make_line(message={}), "candidates[1]", ["both of text and message"]),
    "text": (make_line(text=5), "candidates[1].text", ["found 5", "text"]),
    "answer": (make_line(answer=5), "candidates[1].answer", ["found 5", "text"]),
    "scores": (make_line(scores={"a": "b"}), "candidates[1].scores.a", ["found 'b'", "finite"]),
    "scores inf": (make_line(scores={"a": 1e999}), "candidates[1].scores.a", ["found inf", "finite"]),
    "typo": (make_line(scroe=0.5), "candidates[1].scroe", ["did you mean 'score'?", "known fields: text"]),
    "only typo": (
        make_line(scroe=0.5, score=...),
        "candidates[1].scroe",
        ["unknown field; known fields: text", "did you mean 'score'?"],
    ),
    "repeated key in a candidate": (
        make_line().replace('"score": 0.5, "correct": false', '"score": 0.1, "correct": false, "score": 0.9'),
        "",
        ["the key 'score' twice"],
    ),
    "message": (
        make_line(text=..., message={"calls": [{"a": float("nan")}]}),
        "candidates[1].message.calls[0].a",
        ["found nan"],
    ),
}


@pytest.mark.parametrize(("bad", "field", "words"), LINES.values(), ids=LINES)
def test_read_records_names_the_first_bad_line(path: Path, bad: object, field: str, words: list[str]) -> None:
    error = catch_first_error(write_lines(path, make_fields("fine"), "", bad, "{"))
    assert (error.source, error.line, error.field) == (str(path), 3, field)
    for word in words:
        assert word in error.problem
    assert len(error.problem) < 250


def test_read_records_shortens_long_values_in_errors(path: Path) -> None:
    error = catch_first_error(write_lines(path, make_fields(cluster=["x" * 10_000] * 1000)))
    assert "found ['xxx" in error.problem
    assert len(error.problem) < 100


def test_read_records_names_bytes_that_are_not_utf8(path: Path) -> None:
    path.write_bytes(json.dumps(make_fields()).encode() + b'\n{"id": "\xe9"}\n')
    error = catch_first_error(path)
    assert (error.line, error.field) == (2, "")
    assert "not UTF-8: byte 0xe9 at position 9" in error.problem


def test_read_records_refuses_a_byte_order_mark_in_a_later_line(path: Path) -> None:
    path.write_bytes(json.dumps(make_fields()).encode() + b"\n\xef\xbb\xbf{}\n")
    assert (catch_first_error(path).line, "not JSON" in catch_first_error(path).problem) == (2, True)


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ((make_fields("q1"), make_fields("q2", n=3)), "{path}, line 1"),
        ((HEADER, make_fields(n=3)), "the provenance"),
    ],
)
def test_read_records_takes_n_from_the_first_record_or_provenance(
    path: Path, lines: tuple[object, ...], where: str
) -> None:
    error = catch_first_error(write_lines(path, *lines))
    assert (error.line, error.field) == (2, "candidates")
    assert "found 3 candidates; expected 2 candidates" in error.problem
    assert where.format(path=path) in error.problem


def test_read_records_refuses_a_repeated_id(path: Path) -> None:
    error = catch_first_error(write_lines(path, make_fields("q1"), make_fields("q2"), make_fields("q1")))
    assert (error.line, error.field) == (3, "id")
    assert "'q1' is the id of an earlier record too" in error.problem


def test_read_records_compares_ids_and_n_across_files(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.jsonl", make_fields("q1"))
    error = catch_first_error(one, write_lines(tmp_path / "b.jsonl", make_fields("q2"), make_fields("q1")))
    assert (error.source, error.line, error.field) == (str(tmp_path / "b.jsonl"), 2, "id")
    error = catch_first_error(one, write_lines(tmp_path / "c.jsonl", make_fields("q2", n=5)))
    assert (error.source, error.line, error.field) == (str(tmp_path / "c.jsonl"), 1, "candidates")
    assert f"{one}, line 1" in error.problem


def test_read_records_refuses_the_same_file_twice(path: Path) -> None:
    write_lines(path, make_fields())
    assert (catch_first_error(path, path).line, catch_first_error(path, path).field) == (1, "id")


@pytest.mark.parametrize(
    ("header", "field", "words"),
    [
        (HEADER | {"version": 2}, "version", ["found 2; expected 1"]),
        (HEADER | {"format": "other"}, "format", ["found 'other'", "langchain-cfc/records"]),
        ({"format": "langchain-cfc/records", "version": 1}, "n", ["missing", "whole number"]),
        (HEADER | {"n": 2.5}, "n", ["found 2.5", "whole number"]),
        (HEADER | {"generater": {}}, "generater", ["did you mean 'generator'?"]),
        (HEADER | {"generator": {"t": float("nan")}}, "generator.t", ["found nan", "a JSON object"]),
        (HEADER | {"verifier": "judge"}, "verifier", ["found 'judge'", "a JSON object"]),
    ],
)
def test_read_records_names_a_bad_provenance(
    path: Path, header: object, field: str, words: list[str]
) -> None:
    error = catch_first_error(write_lines(path, header, make_fields()))
    assert (error.line, error.field) == (1, field)
    for word in words:
        assert word in error.problem
    with pytest.raises(RecordError, match=field):
        _ = read_records(path).provenance


@pytest.mark.parametrize(
    "lines", [(HEADER, make_fields(), HEADER), (HEADER, HEADER), (make_fields(), HEADER)]
)
def test_read_records_allows_a_provenance_on_the_first_line_only(
    path: Path, lines: tuple[object, ...]
) -> None:
    error = catch_first_error(write_lines(path, *lines))
    assert (error.line, error.field) == (len(lines), "format")
    assert "only be the first line" in error.problem


@pytest.mark.parametrize(
    ("one", "two", "field", "words"),
    [
        (HEADER, HEADER | {"n": 3}, "n", "found 3, but 2"),
        (HEADER | {"generator": {"id": "a"}}, HEADER | {"generator": {"id": "b"}}, "generator", "'b'"),
        (HEADER, "", "format", "found None, but 'langchain-cfc/records'"),
        ("", HEADER, "format", "found 'langchain-cfc/records', but None"),
    ],
)
def test_read_records_refuses_files_with_different_provenance(
    tmp_path: Path, one: object, two: object, field: str, words: str
) -> None:
    first = write_lines(tmp_path / "a.jsonl", one, make_fields("q1"))
    second = write_lines(tmp_path / "b.jsonl", two, make_fields("q2"))
    error = catch_first_error(first, second)
    assert (error.source, error.field) == (str(second), field)
    assert "contradicting provenance" in error.problem
    assert words in error.problem
    assert str(first) in error.problem


@pytest.mark.parametrize("lines", [(), ("", " "), (HEADER,), (HEADER, "")])
def test_read_records_refuses_a_file_without_records(path: Path, lines: tuple[object, ...]) -> None:
    error = catch_first_error(write_lines(path, *lines))
    assert (error.line, error.problem.startswith("no records")) == (0, True)


def test_read_records_refuses_an_empty_file_among_several(tmp_path: Path, path: Path) -> None:
    write_lines(path, make_fields())
    empty = write_lines(tmp_path / "empty.jsonl")
    assert catch_first_error(path, empty).source == str(empty)


def test_read_records_names_the_line_where_a_gzip_is_cut(tmp_path: Path) -> None:
    # Ids that do not compress, so that whole lines come before the cut.
    lines = [make_fields(f"{number}-{os.urandom(500).hex()}") for number in range(100)]
    packed = gzip.compress(write_lines(tmp_path / "plain", *lines).read_bytes())
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    names: list[str] = []
    with pytest.raises(RecordError, match="damaged or cut off") as caught:
        names.extend(record.id for record in read_records(path))
    assert 1 < caught.value.line < 100
    assert names == [one["id"] for one in lines[: caught.value.line - 1]]


@pytest.mark.parametrize("damage", ["checksum", "middle", "start"])
def test_read_records_names_a_damaged_gzip(tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(write_lines(tmp_path / "plain", make_fields()).read_bytes()))
    position = {"checksum": len(packed) - 5, "middle": len(packed) // 2, "start": 2}[damage]
    packed[position] ^= 0xFF
    path = tmp_path / "damaged.jsonl.gz"
    path.write_bytes(packed)
    assert "the file is damaged" in catch_first_error(path).problem


def test_length_of_a_line_bounds_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(write_lines(path, make_fields("q1")).read_bytes())
    write_lines(path, make_fields("q1"), make_fields("q2", input="x" * 30_000_000))
    monkeypatch.setattr(read_lines, "__defaults__", (100_000,))
    tracemalloc.start()
    try:
        error = catch_first_error(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (error.line, "longer than 100,000 bytes" in error.problem) == (2, True)
    assert peak < 3_000_000
    # The end of the line counts.
    for most in (size, size - 1):
        monkeypatch.setattr(read_lines, "__defaults__", (most,))
        assert catch_first_error(path).line == (2 if most == size else 1)


def test_read_records_names_a_missing_file_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.jsonl: no such file"):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match="not a regular file"):
        read_records(tmp_path)


def test_read_records_names_a_file_that_disappears(path: Path) -> None:
    records = read_records(write_lines(path, make_fields()))
    path.unlink()
    with pytest.raises(RecordError, match="cannot be opened: No such file"):
        list(records)


def test_read_records_refuses_no_files() -> None:
    with pytest.raises(InputError, match="no file"):
        read_records()


def test_read_records_yields_records_before_a_bad_line(path: Path) -> None:
    stream = iter(read_records(write_lines(path, HEADER, make_fields("q1"), "{")))
    assert next(stream).id == "q1"
    with pytest.raises(RecordError, match="line 3"):
        next(stream)


@pytest.mark.long
def test_read_records_keeps_ids_and_not_records_in_memory(path: Path) -> None:
    size = 20_000
    with path.open("w", encoding="utf-8") as file:
        for number in range(size):
            file.write(json.dumps(make_fields(f"q{number}", input=f"{number} " * 100)) + "\n")
    tracemalloc.start()
    try:
        read = sum(1 for _ in read_records(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == size
    assert peak < 10_000_000 < path.stat().st_size

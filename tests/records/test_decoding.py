"""The fast reader of lines against the strict one: the same arrays, or the same error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from langchain_cfc.errors import RecordError
from langchain_cfc.records import Provenance, jsonl, read_records, tabulate, write_records
from langchain_cfc.records import jsonl as decoding_module
from langchain_cfc.records.batches import BATCH_SIZE, make_batch
from langchain_cfc.records.jsonl import decode_lines, parse_record
from tests.lengths import mostly_long, repetitions
from tests.records.same import get_outcome, get_parts
from tests.records.test_reading import HEADER, LINES, make_fields, make_line, write_lines
from tests.records.test_writing import draw_datasets

# What fast parsers let pass, or read otherwise than Python's, beside the lines of the strict reader's tests.
DIFFICULT_LINES: list[object] = [
    *(line for line, _, _ in LINES.values()),
    '{"id": "a", "id": "b", ' + json.dumps(make_fields())[1:],
    json.dumps(make_fields(reference={"a": 1})).replace('{"a": 1}', '{"a": 1, "a": 2}'),
    json.dumps(make_fields(metadata={"a": 1})).replace('{"a": 1}', '{"a": 1, "a": 1}'),
    json.dumps(make_fields(input=[{"a": [{"b": 1}]}])).replace('{"b": 1}', '{"b": 1, "b": 1}'),
    make_line(scores={"a": 1.0}).replace('{"a": 1.0}', '{"a": 1.0, "\\u0061": 1.0}'),
    make_line(text=..., message={"a": 1}).replace('{"a": 1}', '{"a": 1, "a": 1}'),
    make_line(answer='"\\').replace('"answer"', '"text": "again", "answer"'),
    make_line(score=-0.0),
    make_line(score=1),
    make_line(score=0),
    make_line(score=10**400),
    make_line().replace("0.5", "1e-400"),
    make_line().replace("0.5", "0.5000000000000000277555756156289135105907917022705078125"),
    make_line(scores={"a": 2**53 + 1}),
    make_line(scores={"a": 10**400}),
    make_line(scores={"a": True}),
    make_line(scores={"a": None}),
    make_line(scores={"a": 1e308, "b": 1e308}),
    make_line(scores={"a": 10**308 * 5, "b": -(10**308) * 5}),
    make_line(scores={}),
    make_line(scores=None),
    make_line(scores=[]),
    make_line(answer=None),
    make_line(message=None),
    make_line(text=None),
    make_line(text=None, message={"a": ["b", {"c": None}]}),
    make_line(text=..., message={}),
    make_line(text=..., message=None),
    make_line(text=..., message={"a": 1e999}),
    make_line(text=..., message="a"),
    make_line(correct=1),
    make_line(correct=0),
    make_fields(cluster=None),
    make_fields(cluster="c"),
    make_fields(cluster=""),
    make_fields(reference=None),
    make_fields(reference=[[[]]]),
    make_fields(reference=float("-inf")),
    make_fields(metadata={}),
    make_fields(metadata=None),
    make_fields(metadata={"a": 2**70, "b": -0.0, "c": True, "d": "", "": 1.0}),
    make_fields(metadata={"a": None}),
    make_fields(metadata={"a": []}),
    make_fields(metadata={"a": "\ud800"}),
    make_fields(input={"a": "\udfff"}),
    make_fields(input=""),
    make_fields(input=[]),
    make_fields(input=5),
    make_fields(input=True),
    make_fields(input=json.loads("[" * 19 + "]" * 19)),
    make_fields(input=json.loads("[" * 25 + "]" * 25)),
    make_fields(input=json.loads("[" * 100 + "]" * 100)),
    make_fields(input=json.loads("[" * 101 + "]" * 101)),
    make_fields(
        candidates=[
            {"text": "a", "score": 0.5},
            {"correct": True, "text": "b"},
            {"score": 0.5, "correct": False},
        ]
    ),
    make_fields(candidates="ab"),
    make_fields(candidates=None),
    make_fields(candidates=[[], []]),
    make_fields(candidates=[{}, {}]),
    make_fields(candidates=["text", "score"]),
    make_fields(n=3),
    make_fields(id="fine"),
    HEADER,
    "",
    " \t ",
    "\x0c",
    "null",
    '"text"',
    json.dumps(make_fields()) + "\x0b\x0c",
    json.dumps(make_fields()) + ",",
    json.dumps(make_fields()) + json.dumps(make_fields("q2")),
    json.dumps(make_fields())[:-1],
    json.dumps(make_fields()).replace("answer 0", "answer \x01"),
    json.dumps(make_fields()).replace("answer 0", "answer \x7f\\u0000\\/\\ud83d\\ude00"),
    json.dumps(make_fields()).replace("answer 0", '\\\\\\" \\\\'),
    json.dumps(make_fields()).replace("0.5", "00.5"),
    json.dumps(make_fields()).replace("0.5", "NaN"),
    json.dumps(make_fields()).replace("0.5", "-Infinity"),
    json.dumps(make_fields(reference=1)).replace(": 1,", ": " + "1" * 4300 + ","),
    json.dumps(make_fields(reference=1)).replace(": 1,", ": " + "1" * 4301 + ","),
]


def read_both_ways(path: Path, **options: Any) -> Any:
    """What the strict reader says, and that the fast one says the same."""
    records = read_records(path)

    def strictly() -> Any:
        # A generator is no `Records`: its records are made one by one.
        yield from records

    expected, found = get_outcome(strictly(), **options), get_outcome(records, **options)
    assert found == expected
    return found


@mostly_long("place", [2 * BATCH_SIZE + 5, 0, 1, 40, BATCH_SIZE], quick=1)
@pytest.mark.parametrize("nasty", DIFFICULT_LINES, ids=range(len(DIFFICULT_LINES)))
def test_fast_reader_reads_a_line_in_a_file_like_the_strict_one(
    tmp_path: Path, nasty: object, place: int
) -> None:
    lines: list[object] = [
        make_fields("fine"),
        *(make_fields(f"fine {row}") for row in range(2 * BATCH_SIZE + 10)),
    ]
    lines.insert(place, nasty)
    read_both_ways(write_lines(tmp_path / "records.jsonl", *lines))


@pytest.mark.parametrize("nasty", DIFFICULT_LINES, ids=range(len(DIFFICULT_LINES)))
def test_fast_reader_reads_a_single_line_like_the_strict_one(tmp_path: Path, nasty: object) -> None:
    read_both_ways(write_lines(tmp_path / "records.jsonl", nasty, HEADER | {"n": 2}))
    read_both_ways(write_lines(tmp_path / "records.jsonl", HEADER | {"n": 2}, nasty))


def test_decode_lines_rejects_repeated_keys_that_the_parser_accepts() -> None:
    # Negative control: the parser alone takes the last of two keys, and only the count of marks shows it.
    text = make_line().replace(
        '"score": 0.5, "correct": false', '"score": 0.1, "correct": false, "score": 0.9'
    )
    assert from_json(text)["candidates"][1]["score"] == 0.9
    assert decode_lines([text.encode()]) is None
    assert decode_lines([make_line().encode()]) is not None


def test_decode_lines_without_the_quotation_count_accepts_repeated_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Negative control of the whole comparison: it fails for a decoder that does not count.
    text = json.dumps(make_fields()).replace('"score": 0.5', '"score": 0.1, "score": 0.5').encode()
    original = decoding_module._count_quotation_marks
    monkeypatch.setattr(decoding_module, "_count_quotation_marks", lambda lines: original(lines) - 4)
    assert decode_lines([text]) is not None
    with pytest.raises(RecordError, match="twice"):
        parse_record(text, "records", 1)


LINE = json.dumps(
    make_fields(
        metadata={"a": 1.5, "b": True},
        cluster="c",
        reference=['"', 1],
        candidates=[
            {"text": 'a "\\ b', "score": 0.25, "correct": True, "answer": "é", "scores": {"x": -1.5, "y": 2}},
            {"message": {"k": [None, -0.0]}, "score": 0, "correct": False},
        ],
    )
).encode()
DAMAGES = [
    *(bytes([byte]) for byte in b'"\\{}[]:,0123456789-+.eE \t\x00\x1f\x80\xff'),
    *(
        b"null",
        b"true",
        b"NaN",
        b"Infinity",
        b"1e999",
        b"\\u0041",
        b"\\ud800",
        b"\\u0022",
        b'"a":',
        b'"score":',
    ),
    *(b'"text":"x",', b'"id":"y",', b"1" * 400, b"\xed\xa0\x80", b"\xc3\xa9", b"\xef\xbb\xbf", b"{}", b"[]"),
]


@st.composite
def draw_damaged_line(draw: st.DrawFn) -> bytes:
    """The line with a few bytes taken out, put in, or repeated elsewhere."""
    content = LINE
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 12)))
        bit = draw(st.sampled_from([b"", content[start:end], *DAMAGES]))
        place = start if draw(st.booleans()) else draw(st.integers(0, len(content)))
        content = content[:start] + content[end:] if bit == b"" else content[:place] + bit + content[place:]
    return content


@settings(max_examples=repetitions(3000, share=0.05), derandomize=True)
@given(draw_damaged_line())
@example(LINE)
def test_decode_lines_of_damaged_bytes_equals_the_strict_reader(content: bytes) -> None:
    content = content.replace(b"\n", b" ").rstrip()
    batch = decode_lines([content]) if content else None
    if batch is not None:
        record = parse_record(content, "records", 1)
        table, expected = (one.make_table(batch.recorded) for one in (batch, make_batch([record])))
        assert get_parts(table) == get_parts(expected)


def test_decode_lines_accepts_the_undamaged_line() -> None:
    assert decode_lines([LINE]) is not None


@settings(max_examples=repetitions(2000, share=0.05), derandomize=True)
@given(st.from_regex(rb"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_from_json_reads_numbers_to_the_bit_like_python(text: bytes) -> None:
    assert repr(from_json(text)) == repr(json.loads(text))


@settings(max_examples=repetitions(100, share=0.1), derandomize=True)
@given(data=draw_datasets(), suffix=st.sampled_from([".jsonl", ".jsonl.gz", ".parquet"]))
def test_tabulate_gives_the_same_table_for_files_and_records(
    tmp_path_factory: pytest.TempPathFactory, data: list[Any], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("same") / f"records{suffix}"
    write_records(path, data)
    n = len(data[0].candidates)
    for slots in (None, 1, n, n + 1):
        read_both_ways(path, n=slots)


def test_tabulate_makes_no_model_of_ordinary_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uneven = [
        {"message": {"a": 1}, "score": 0.5, "correct": True},
        {"text": "b", "score": 0, "correct": False},
    ]
    lines = [make_fields(f"q{row}") | ({"candidates": uneven} if row % 3 else {}) for row in range(500)]
    path = write_lines(tmp_path / "records.jsonl", HEADER, *lines)
    expected = read_both_ways(path)

    def made(*_: object) -> None:
        pytest.fail("a model was made")

    monkeypatch.setattr(decoding_module, "parse_record", made)
    assert get_outcome(read_records(path)) == expected
    # Negative control: a line in doubt does need the strict reader.
    with pytest.raises(pytest.fail.Exception, match="a model was made"):
        tabulate(
            read_records(
                write_lines(path, HEADER, *lines, make_fields("odd", input=json.loads("[" * 30 + "]" * 30)))
            )
        )


def test_tabulate_reads_strictly_only_around_a_doubtful_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [make_fields(f"q{row}") for row in range(10 * BATCH_SIZE)]
    lines[300] = make_fields("odd", input=json.loads("[" * 30 + "]" * 30))
    strict: list[int] = []

    def counted(content: bytes, source: str, number: int) -> Any:
        strict.append(number)
        return parse_record(content, source, number)

    monkeypatch.setattr(jsonl, "parse_record", counted)
    table = tabulate(read_records(write_lines(tmp_path / "records.jsonl", *lines)))
    assert table.ids == tuple(one["id"] for one in lines)
    assert 301 in strict
    assert len(strict) <= 16


def test_tabulate_compares_files_with_each_other(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "a.jsonl", *(make_fields(f"q{row}") for row in range(100)))
    for other in (make_fields("q7"), make_fields("new", n=3), make_fields("new"), HEADER, "{"):
        two = write_lines(tmp_path / "b.jsonl", make_fields("x"), other)
        records = read_records(one, two)
        assert get_outcome(records) == get_outcome(iter(records))


@pytest.mark.parametrize("cut", [0.3, 0.9])
@pytest.mark.parametrize("bad", [False, True])
def test_tabulate_reports_a_bad_line_before_later_damage(tmp_path: Path, cut: float, bad: bool) -> None:
    lines: list[object] = [make_fields(f"q{row} {row * 7919 % 1009}" * 5) for row in range(300)]
    if bad:
        lines[3] = make_fields("bad", input=5)
    packed = gzip.compress(write_lines(tmp_path / "plain", *lines).read_bytes())
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: int(cut * len(packed))])
    kind, message = read_both_ways(path)
    assert kind is RecordError
    assert ("line 4: input" if bad else "damaged or cut off") in message


def test_tabulate_compares_records_with_a_given_provenance(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "records.jsonl", *(make_fields(f"q{row}") for row in range(100)))
    read_both_ways(path, provenance=Provenance(n=2))
    kind, message = read_both_ways(path, provenance=Provenance(n=3))
    assert kind is RecordError
    assert "found 2; expected 3 for every prompt, by the provenance" in message

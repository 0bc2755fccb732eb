"""Lines that parsers read in different ways: each is a record, or one typed error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from langchain_cfc.errors import RecordError
from langchain_cfc.records import Provenance, read_records, tabulate, write_records
from tests.lengths import repetitions
from tests.records.same import check_line, get_parts, holds_repeated_key, parse_with_json
from tests.records.test_reading import HEADER, LINES, make_fields, make_line, write_lines
from tests.records.test_writing import draw_datasets

# Beside the lines of `test_reading`, what parsers let pass or read in different ways.
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
    {"\ud800": 3, **make_fields()},
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


def encode(line: object) -> bytes:
    return (line if isinstance(line, str) else json.dumps(line)).encode()


def compact(content: bytes) -> bytes:
    return content.replace(b": ", b":").replace(b", ", b",")


@pytest.mark.parametrize("line", DIFFICULT_LINES, ids=range(len(DIFFICULT_LINES)))
def test_difficult_line_is_a_record_that_json_gives_or_a_typed_error(tmp_path: Path, line: object) -> None:
    check_line(tmp_path / "records.jsonl", encode(line))
    # As `write_records` writes them.
    check_line(tmp_path / "records.jsonl", compact(encode(line)))


def test_difficult_lines_are_of_every_kind() -> None:
    # Otherwise the test above could pass because no line, or every line, is refused.
    lines = [encode(one) for one in DIFFICULT_LINES]
    assert sum(parse_with_json(one) is not None for one in lines) > 30
    # A parser that keeps the last of two keys makes an ordinary record of these.
    assert sum(parse_with_json(one) is not None and holds_repeated_key(one) for one in lines) >= 4


LINE = json.dumps(
    make_fields(
        metadata={"a": 1.5, "b": True},
        cluster="c",
        reference=['"', 1],
        candidates=[
            {"text": 'a "\\ b', "score": 0.25, "correct": True, "answer": "é", "scores": {"x": -1.5, "y": 2}},
            {"message": {"k": [None, -0.0]}, "score": 0, "correct": False},
        ],
    ),
    ensure_ascii=False,
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
    content = draw(st.sampled_from([LINE, compact(LINE)]))
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
def test_damaged_line_is_a_record_that_json_gives_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    check_line(tmp_path_factory.mktemp("damaged") / "records.jsonl", content.replace(b"\n", b" "))


@settings(max_examples=repetitions(100, share=0.1), derandomize=True)
@given(data=draw_datasets(), suffix=st.sampled_from([".jsonl", ".jsonl.gz"]))
def test_tabulate_gives_the_same_table_for_files_and_records(
    tmp_path_factory: pytest.TempPathFactory, data: list[Any], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("same") / f"records{suffix}"
    write_records(path, data)
    n = len(data[0].candidates)
    for slots in (None, 1, n):
        assert get_parts(tabulate(read_records(path), n=slots)) == get_parts(tabulate(data, n=slots))


@pytest.mark.parametrize("cut", [0.3, 0.9])
@pytest.mark.parametrize("bad", [False, True])
def test_tabulate_reports_a_bad_line_before_later_damage(tmp_path: Path, cut: float, bad: bool) -> None:
    lines: list[object] = [make_fields(f"q{row} {row * 7919 % 1009}" * 5) for row in range(300)]
    if bad:
        lines[3] = make_fields("bad", input=5)
    packed = gzip.compress(write_lines(tmp_path / "plain", *lines).read_bytes())
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: int(cut * len(packed))])
    with pytest.raises(RecordError, match="line 4: input" if bad else "damaged or cut off"):
        tabulate(read_records(path))


def test_tabulate_compares_a_file_with_a_given_provenance(tmp_path: Path) -> None:
    records = read_records(write_lines(tmp_path / "records.jsonl", make_fields("q1"), make_fields("q2")))
    assert len(tabulate(records, provenance=Provenance(n=2))) == 2
    with pytest.raises(
        RecordError, match="found 2 candidates; expected 3 candidates for every prompt, by the provenance"
    ):
        tabulate(records, provenance=Provenance(n=3))

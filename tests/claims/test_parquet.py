"""Records of claims as Parquet: the same as JSON Lines."""

from __future__ import annotations

import importlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc import calibrate
from langchain_cfc.errors import RecordError
from langchain_cfc.records import (
    Claim,
    ClaimsRecord,
    Provenance,
    make_parquet_schema,
    read_records,
    tabulate,
    write_records,
)
from tests.claims.worlds import make_answers
from tests.cli.running import run
from tests.lengths import repetitions
from tests.records.test_parquet import make_record as candidates_record

pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")

HEADER = Provenance(n=1, unit="claims", splitter={"id": "sentences"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.parquet"


def make_claim(**changes: Any) -> dict[str, Any]:
    return {"text": "Lima.", "score": 0.5, "supported": True} | changes


def make_row(name: str = "this", **changes: Any) -> dict[str, Any]:
    return {"id": name, "input": f'"{name}"', "claims": [make_claim(), make_claim(text="9 moons.")]} | changes


def change_second(**changes: Any) -> dict[str, Any]:
    return make_row(claims=[make_claim(), make_claim(**changes)])


def write_table(path: Path, rows: list[dict[str, Any]], schema: Any = None) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema or make_parquet_schema(HEADER)), path)
    return path


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def draw_record(draw: st.DrawFn, name: str) -> ClaimsRecord:
    answer = draw(st.none() | texts)
    claims = []
    for _ in range(draw(st.integers(1, 3))):
        place: dict[str, int] = {}
        if draw(st.booleans()):
            end = draw(st.integers(1, 9 if answer is None else len(answer)))
            place = {"start": draw(st.integers(0, end - 1)), "end": end}
        claims.append(
            Claim(
                text=draw(texts),
                score=draw(st.floats(0, 1)),
                supported=draw(st.booleans()),
                scores=draw(st.none() | st.dictionaries(texts, numbers, max_size=2)),
                start=place.get("start"),
                end=place.get("end"),
            )
        )
    return ClaimsRecord(
        id=name,
        input=draw(texts | st.just([{"role": "user", "content": "?"}])),
        reference=draw(st.none() | texts),
        metadata=draw(st.dictionaries(texts, texts | st.booleans() | st.integers() | numbers, max_size=2)),
        cluster=draw(st.none() | texts),
        answer=answer,
        claims=tuple(claims),
    )


@settings(max_examples=repetitions(100, share=0.1))
@given(data=st.data(), header=st.sampled_from([None, HEADER]))
def test_claims_round_trip_between_parquet_and_json_lines(
    data: st.DataObject, header: Provenance | None
) -> None:
    written = [data.draw(draw_record(f"q{place}")) for place in range(data.draw(st.integers(1, 3)))]
    with TemporaryDirectory() as folder:
        lines, rows, again = (Path(folder, name) for name in ("a.jsonl", "a.parquet", "b.jsonl"))
        write_records(lines, written, header)
        assert write_records(rows, read_records(lines)) == len(written)
        found = read_records(rows)
        assert found.provenance == header
        assert list(found.read_claims()) == written
        write_records(again, found)
        assert again.read_bytes() == lines.read_bytes()


# Cells that JSON does not have, and one of each check across cells; the values are checked as in JSON Lines.
BAD: list[tuple[dict[str, Any], str, str]] = [
    (make_row("fine 3"), "id", "'fine 3' is the id of an earlier record"),
    (make_row(claims=None), "claims", "missing"),
    (make_row(claims=[None, make_claim()]), "claims[0]", "found None"),
    (change_second(score=float("nan")), "claims[1].score", "found nan"),
    (change_second(supported=None), "claims[1].supported", "the claim is unlabelled"),
    (change_second(start=3), "claims[1]", "expected start < end"),
    (make_row(answer="éé", claims=[make_claim(start=0, end=3)]), "", "the answer has 2 characters"),
    (change_second(scores=[("a", 1.0), ("a", 1.0)]), "claims[1].scores", "'a' twice"),
]


@pytest.mark.parametrize(("bad", "field", "words"), BAD, ids=range(len(BAD)))
def test_read_records_names_the_bad_claims_row(
    path: Path, bad: dict[str, Any], field: str, words: str
) -> None:
    write_table(path, [*(make_row(f"fine {number}") for number in range(5)), bad])
    with pytest.raises(RecordError) as caught:
        list(read_records(path).read_claims())
    assert (caught.value.source, caught.value.line, caught.value.field) == (str(path), 6, field)
    assert words in caught.value.problem


FIELDS = {"text": pa.string(), "score": pa.float64(), "supported": pa.bool_()}


def make_schema(*, of_rows: dict[str, Any] | None = None, **of_claims: Any) -> Any:
    fields = {name: kind for name, kind in {**FIELDS, **of_claims}.items() if kind is not None}
    listed = pa.large_list(pa.struct(fields))
    return pa.schema({"id": pa.string(), "input": pa.string(), "claims": listed} | (of_rows or {}))


def test_read_records_accepts_related_claims_types(path: Path) -> None:
    schema = make_schema(text=pa.large_string(), score=pa.float32(), start=pa.int16(), end=pa.uint32())
    rows = [make_row(f"q{number}", claims=[make_claim(), make_claim(start=2, end=4)]) for number in range(10)]
    write_table(path, rows, schema)
    assert [[one.end for one in made.claims] for made in read_records(path).read_claims()] == [[None, 4]] * 10


def test_claims_and_candidates_cannot_share_a_file(path: Path, tmp_path: Path) -> None:
    claims = make_answers(np.random.default_rng(0), 3)
    mixed: list[Any] = [*claims, candidates_record("q1")]
    with pytest.raises(RecordError, match="found candidates; expected claims"):
        write_records(path, mixed)
    assert not path.exists()
    write_records(path, claims)
    write_records(tmp_path / "more.parquet", [candidates_record("q1")])
    both = read_records(path, tmp_path / "more.parquet")
    for read in (lambda: list(both.read_all()), lambda: tabulate(both, claims=True)):
        with pytest.raises(
            RecordError, match=r"more\.parquet, line 1: candidates: found candidates; expected"
        ):
            read()
    with pytest.raises(RecordError, match=r'line 1: claims: found claims; .*says "unit": "claims"'):
        write_records(path, claims, Provenance(n=2))
    write_records(tmp_path / "more.jsonl", make_answers(np.random.default_rng(1), 2))
    write_records(path, claims)
    assert len(tabulate(read_records(path, tmp_path / "more.jsonl"), claims=True)) == 5


def test_commands_accept_claims_in_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    lines, rows, fresh, made = (tmp_path / name for name in ("a.jsonl", "a.parquet", "b.parquet", "a.json"))
    write_records(lines, make_answers(np.random.default_rng(2), 400), HEADER)
    write_records(rows, read_records(lines))
    write_records(fresh, make_answers(np.random.default_rng(3), 200), HEADER)
    one, other = (
        calibrate(read_records(path), unit="claims", at_most=1, alpha=0.2, features="1")
        for path in (lines, rows)
    )
    assert one.digest == other.digest
    promise = ["--unit", "claims", "--at-most", "1", "--alpha", "0.2", "--features", "1"]
    assert run("calibrate", rows, *promise, "--test-fraction", "0.4", "--out", made).code == 0
    assert run("evaluate", made, rows, "--json") == run("evaluate", made, lines, "--json")
    assert run("evaluate", made, rows, "--json").data["methods"]["conditional"]["claims"]["kept"] > 0.1
    assert run("certify", made, fresh, "--json").code == 0

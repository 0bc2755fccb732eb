from __future__ import annotations

import gzip
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records import Candidate, PromptRecord, Provenance, read_records, write_records
from langchain_cfc.records.splits import digest_inputs
from tests.lengths import repetitions


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def make_record(name: str = "q1", n: int = 2, **changes: Any) -> PromptRecord:
    candidates = tuple(Candidate(text=f"answer {slot}", score=0.5, correct=slot == 0) for slot in range(n))
    return PromptRecord(id=name, input=name, candidates=candidates, **changes)


def draw_json_values() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )


def draw_json_objects() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(), draw_json_values(), max_size=3)


def candidates() -> st.SearchStrategy[Candidate]:
    common: dict[str, Any] = {
        "score": st.floats(0, 1),
        "correct": st.booleans(),
        "answer": st.none() | st.text(),
        "scores": st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    }
    texts = st.builds(Candidate, text=st.text(), **common)
    return texts | st.builds(Candidate, message=draw_json_objects(), **common)


def draw_datasets() -> st.SearchStrategy[list[PromptRecord]]:
    scalars = st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)

    def of_n(n: int) -> st.SearchStrategy[list[PromptRecord]]:
        one = st.builds(
            PromptRecord,
            id=st.text(min_size=1),
            input=st.text() | st.lists(draw_json_values(), max_size=2) | draw_json_objects(),
            reference=draw_json_values(),
            metadata=st.dictionaries(st.text(), scalars, max_size=3),
            cluster=st.none() | st.text(min_size=1),
            candidates=st.lists(candidates(), min_size=n, max_size=n).map(tuple),
        )
        # Prompts that repeat an input form a cluster, with a warning.
        distinct = (lambda made: made.id, lambda made: int(digest_inputs([made.input])[0]))
        return st.lists(one, min_size=1, max_size=4, unique_by=distinct)

    return st.integers(1, 3).flatmap(of_n)


@settings(max_examples=repetitions(100, share=0.1), derandomize=True)
@given(
    data=draw_datasets(),
    generator=st.none() | draw_json_objects(),
    suffix=st.sampled_from([".jsonl", ".jsonl.gz"]),
)
def test_write_records_and_read_records_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[PromptRecord],
    generator: dict[str, Any] | None,
    suffix: str,
) -> None:
    path = tmp_path_factory.mktemp("round") / f"records{suffix}"
    provenance = Provenance(n=len(data[0].candidates), generator=generator)
    assert write_records(path, data, provenance) == len(data)
    again = read_records(path)
    assert list(again) == data
    assert again.provenance == provenance
    # 1, 1.0 and True are equal in Python, but are written differently.
    before = path.read_bytes()
    write_records(path, again)
    assert path.read_bytes() == before


def test_write_records_may_rewrite_the_file_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, [make_record("q1"), make_record("q2")], Provenance(n=2, verifier={"id": "judge"}))
    assert write_records(path, read_records(path)) == 2
    assert read_records(path).provenance == Provenance(n=2, verifier={"id": "judge"})


def test_write_records_prefers_the_given_provenance(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, [make_record()], Provenance(n=2, verifier={"id": "judge"}))
    write_records(path, read_records(path), Provenance(n=2))
    assert read_records(path).provenance == Provenance(n=2)


def test_write_records_omits_missing_fields_and_keeps_empty_answers(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    empty = Candidate(text="", score=0.0, correct=False, answer="")
    write_records(
        path, [PromptRecord(id="é", input={"a": None}, candidates=(empty,))], Provenance(n=1, answer={})
    )
    assert path.read_text("utf-8") == (
        '{"format":"langchain-cfc/records","version":1,"n":1,"answer":{}}\n'
        '{"id":"é","input":{"a":null},"candidates":[{"text":"","score":0.0,"correct":false,"answer":""}]}\n'
    )


def test_write_records_gives_equal_gzip_bytes_for_equal_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "a.jsonl.gz", [make_record()])
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    write_records(tmp_path / "b.jsonl.gz", [make_record()])
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()
    write_records(tmp_path / "a.jsonl", [make_record()])
    assert gzip.decompress(packed) == (tmp_path / "a.jsonl").read_bytes()


BAD: list[tuple[list[Any], Provenance | None, tuple[int, str], str]] = [
    ([], None, (0, ""), "no records"),
    (
        [make_record("q1"), make_record("q2", n=3)],
        None,
        (2, "candidates"),
        "found 3 candidates; expected 2 candidates for every prompt",
    ),
    (
        [make_record("q1"), make_record("q2"), make_record("q1")],
        None,
        (3, "id"),
        "'q1' is the id of an earlier record too",
    ),
    (
        [make_record()],
        Provenance(n=3),
        (1, "candidates"),
        "found 2 candidates; expected 3 candidates for every prompt, by the provenance",
    ),
    ([make_record(), {"id": "q2"}], None, (2, "input"), "missing; expected text"),
    ([make_record(), "q2"], None, (2, ""), "expected a PromptRecord"),
]


@pytest.mark.parametrize(("bad", "provenance", "place", "words"), BAD)
def test_write_records_keeps_the_old_file_if_records_are_invalid(
    tmp_path: Path, bad: list[Any], provenance: Provenance | None, place: tuple[int, str], words: str
) -> None:
    path = tmp_path / "records.jsonl.gz"
    write_records(path, [make_record("old")])
    old = path.read_bytes()
    with pytest.raises(RecordError) as caught:
        write_records(path, bad, provenance)
    error = caught.value
    assert (error.source, error.line, error.field) == ("records", *place)
    assert words in error.problem
    assert path.read_bytes() == old
    assert list_names(tmp_path) == ["records.jsonl.gz"]


@pytest.mark.parametrize("failure", [OSError("interrupted"), KeyboardInterrupt()])
def test_write_records_keeps_the_old_file_after_a_failure(tmp_path: Path, failure: BaseException) -> None:
    def failing() -> Iterator[PromptRecord]:
        yield from (make_record(f"q{number}") for number in range(1000))
        raise failure

    path = tmp_path / "records.jsonl"
    write_records(path, [make_record("old")])
    old = path.read_bytes()
    with pytest.raises(type(failure)):
        write_records(path, failing())
    assert path.read_bytes() == old
    assert list_names(tmp_path) == ["records.jsonl"]


def test_write_records_names_a_bad_source_like_the_reader(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    write_records(source, [make_record()])
    with source.open("a") as file:
        file.write("{")
    with pytest.raises(RecordError, match=r"source\.jsonl, line 2: not JSON"):
        write_records(tmp_path / "copy.jsonl", read_records(source))
    assert list_names(tmp_path) == ["source.jsonl"]


def test_write_records_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none does not exist"):
        write_records(tmp_path / "none" / "records.jsonl", [make_record()])


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_write_records_makes_files_readable_by_the_owner_only(tmp_path: Path, name: str) -> None:
    write_records(tmp_path / name, [make_record()])
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_write_records_replaces_only_files_of_records(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    write_records(path, [make_record()])
    write_records(path, [make_record(), make_record("another")])
    assert len(list(read_records(path))) == 2
    for content in (b"SQLite format 3\0", b"id,question\n1,why?\n", b'{"question": "why?"}\n', b"\x1f\x8bno"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="exists and holds no records"):
            write_records(path, [make_record()])
        assert path.read_bytes() == content

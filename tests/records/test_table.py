from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records import (
    Candidate,
    PromptRecord,
    read_records,
    tabulate,
    write_records,
)


def make_record(name: str, texts: str = "aba", **changes: Any) -> PromptRecord:
    candidates = tuple(
        Candidate(text=text * (slot + 1 if text == "c" else 1), score=slot / 10, correct=text == "b")
        for slot, text in enumerate(texts)
    )
    return PromptRecord(id=name, input=name, candidates=candidates, **changes)


def test_tabulate_turns_records_into_arrays() -> None:
    table = tabulate([make_record("q1", cluster="c"), make_record("q2", "bcb", metadata={"topic": "geo"})])
    np.testing.assert_array_equal(table.draws.scores, [[0.0, 0.1, 0.2], [0.0, 0.1, 0.2]])
    np.testing.assert_array_equal(table.correct, [[False, True, False], [True, False, True]])
    np.testing.assert_array_equal(table.draws.answer_codes, [[0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(table.draws.lengths, [[1, 1, 1], [1, 2, 1]])
    assert table.correct.dtype == np.bool_
    assert (table.ids, table.clusters) == (("q1", "q2"), ("c", None))
    assert table.draws.metadata == ({}, {"topic": "geo"})


def test_tabulate_compares_answers_by_the_extracted_answer() -> None:
    answers = ["42", "42", None]
    texts = ["It is 42.", "42!", "42"]
    candidates = tuple(
        Candidate(text=text, answer=answer, score=0.5, correct=True)
        for text, answer in zip(texts, answers, strict=True)
    )
    table = tabulate([PromptRecord(id="q", input="?", candidates=candidates)])
    np.testing.assert_array_equal(table.draws.answer_codes, [[0, 0, 0]])
    np.testing.assert_array_equal(table.draws.lengths, [[2, 2, 2]])


def test_tabulate_n_uses_the_first_slots() -> None:
    table = tabulate([make_record("q1"), make_record("q2", "bab")], n=2)
    whole = tabulate([make_record("q1"), make_record("q2", "bab")])
    assert table.draws.n == 2
    np.testing.assert_array_equal(table.draws.scores, whole.draws.scores[:, :2])
    np.testing.assert_array_equal(table.correct, whole.correct[:, :2])


@pytest.mark.parametrize("n", [4, 0, -1])
def test_tabulate_refuses_more_candidates_than_recorded(n: int) -> None:
    with pytest.raises(InputError, match=rf"n is {n}; expected at least 1 and at most 3"):
        tabulate([make_record("q1")], n=n)


BAD: list[tuple[list[Any], int, str, str]] = [
    ([], 0, "", "no records"),
    (
        [make_record("q1"), make_record("q2", "ab")],
        2,
        "candidates",
        "found 2 candidates; expected 3 candidates for every prompt",
    ),
    ([make_record("q1"), make_record("q1")], 2, "id", "'q1' is the id of an earlier record too"),
    (["records.jsonl"], 1, "", "or a mapping of its fields"),
]


@pytest.mark.parametrize(("bad", "line", "field", "words"), BAD)
def test_tabulate_checks_records_in_memory_like_files(
    bad: list[Any], line: int, field: str, words: str
) -> None:
    with pytest.raises(RecordError) as caught:
        tabulate(bad)
    error = caught.value
    assert (error.source, error.line, error.field) == ("records", line, field)
    assert words in error.problem


def test_tabulate_refuses_unequal_records_even_with_small_n() -> None:
    with pytest.raises(RecordError, match="line 2: candidates"):
        tabulate([make_record("q1"), make_record("q2", "ab")], n=1)


def test_tabulate_of_a_file_equals_tabulate_of_its_records(tmp_path: Path) -> None:
    # More than one batch.
    records = [make_record(f"q{number}", "abc" if number % 3 else "cbb") for number in range(1000)]
    write_records(tmp_path / "records.jsonl", records)
    table, other = tabulate(read_records(tmp_path / "records.jsonl")), tabulate(records)
    assert len(table) == 1000
    np.testing.assert_array_equal(table.draws.scores, other.draws.scores)
    np.testing.assert_array_equal(table.draws.answer_codes[::3], np.tile([0, 1, 1], (334, 1)))  # type: ignore[index]
    np.testing.assert_array_equal(table.correct, other.correct)
    assert table.ids == other.ids == tuple(one.id for one in records)


def test_tabulate_does_not_hold_texts() -> None:
    def large() -> Iterator[PromptRecord]:
        for number in range(3000):
            answer = Candidate(text=f"{number}" * 2000, score=0.5, correct=True)
            yield PromptRecord(id=f"q{number}", input=f"{number}" + "?" * 4000, candidates=(answer,))

    tracemalloc.start()
    try:
        table = tabulate(large())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.draws.lengths is not None
    # 3,000 prompts of 4 kB and answers of up to 8 kB are about 34 MB.
    assert table.draws.lengths.sum() > 20_000_000
    assert peak < 10_000_000

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records import (
    Candidate,
    PromptRecord,
    read_records,
    tabulate,
    tabulate_raw,
    with_scores,
    write_records,
)
from langchain_cfc.scoring import Combination


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
    ([make_record("q1"), make_record("q2", "ab")], 2, "candidates", "found 2; expected 3 for every prompt"),
    ([make_record("q1"), make_record("q1")], 2, "id", "'q1' is also the id of records, line 1"),
    (["records.jsonl"], 1, "", "use read_records for files"),
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


def make_scored_record(name: str, *outputs: dict[str, float] | None) -> PromptRecord:
    candidates = tuple(Candidate(text="?", score=0.5, correct=True, scores=one) for one in outputs)
    return PromptRecord(id=name, input=name, candidates=candidates)


JUDGE = Combination(names=("judge",), centres=(1.0,), scales=(2.0,), coefficients=(0.5,), intercept=0.1)


def test_tabulate_raw_orders_outputs_by_the_names() -> None:
    records = [
        make_scored_record("q1", {"b": 2.0, "a": 1.0, "c": 9.0}, {"a": 3.0, "b": 4.0}),
        make_scored_record("q2", {"a": 5, "b": 6}, {"a": 5, "b": 6}),
    ]
    labelled, raw = tabulate_raw(records, ["a", "b"])
    np.testing.assert_array_equal(raw, [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [5.0, 6.0]]])
    np.testing.assert_array_equal(labelled.draws.scores, np.full((2, 2), 0.5))
    np.testing.assert_array_equal(tabulate_raw(records, ["b"], n=1)[1], [[[2.0]], [[6.0]]])


def test_tabulate_scores_candidates_by_a_combination() -> None:
    # More than one batch.
    outputs = np.random.default_rng(0).normal(size=(600, 2))
    records = [
        make_scored_record(f"q{row}", *({"judge": float(one)} for one in outputs[row])) for row in range(600)
    ]
    table = tabulate(records, combination=JUDGE)
    expected = [[JUDGE.score([[one]])[0] for one in row] for row in outputs]
    np.testing.assert_array_equal(table.draws.scores, expected)
    np.testing.assert_array_equal(
        tabulate(records, n=1, combination=JUDGE).draws.scores, table.draws.scores[:, :1]
    )
    without = tabulate(records)
    np.testing.assert_array_equal(without.draws.scores, np.full((600, 2), 0.5))
    assert table.ids == without.ids


@pytest.mark.parametrize("position", [0, 255, 256, 300])
def test_tabulate_names_the_place_of_a_missing_raw_output(position: int) -> None:
    records = [make_scored_record(f"q{row}", {"judge": 0.1}, {"judge": 0.2}) for row in range(400)]
    records[position] = make_scored_record("bad one", {"judge": 0.1}, {"p_true": 0.2})
    with pytest.raises(RecordError) as caught:
        tabulate(records, combination=JUDGE)
    error = caught.value
    assert (error.source, error.line, error.field) == ("records", position + 1, "candidates[1].scores")
    assert "candidate 1 of record 'bad one' has no raw output of 'judge'; it has 'p_true'" in error.problem
    # It need not be there where its slot is not used, or no combination asks for it.
    tabulate(records, n=1, combination=JUDGE)
    tabulate(records)


def test_tabulate_raw_refuses_repeated_names() -> None:
    with pytest.raises(InputError, match="distinct verifier names"):
        tabulate_raw([make_scored_record("q1", {"a": 1.0})], ["a", "a"])


def test_with_scores_changes_only_the_scores() -> None:
    table = tabulate([make_record("q1", cluster="c"), make_record("q2", "bcb", metadata={"topic": "geo"})])
    other = with_scores(table, np.full((2, 3), 0.25))
    np.testing.assert_array_equal(other.draws.scores, np.full((2, 3), 0.25))
    again = with_scores(other, table.draws.scores)
    assert list_fields(again) == list_fields(table)


def list_fields(table: LabelledBatch) -> list[Any]:
    """List the fields of a table and of its draws; lists are equal if they hold the same arrays."""
    return [
        getattr(one, field.name)
        for one in (table, table.draws)
        for field in fields(one)
        if field.name != "draws"
    ]

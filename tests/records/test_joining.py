"""Tables joined from batches of numbers that are at hand already, for instance in a database."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.records import Candidate, PromptRecord, tabulate
from tests.records.same import get_parts

N = 3


def make_records(size: int = 50) -> list[PromptRecord]:
    rng = np.random.default_rng(0)
    return [
        PromptRecord(
            id=f"q{row}",
            input=f"q{row}",
            metadata={"topic": "ab"[row % 2]},
            cluster=f"c{row // 4}" if row % 3 else None,
            candidates=tuple(
                Candidate(
                    text="xyz"[int(rng.integers(3))] * (slot + 1),
                    answer="xyz"[int(rng.integers(3))],
                    score=float(rng.uniform()),
                    correct=bool(rng.integers(2)),
                )
                for slot in range(N)
            ),
        )
        for row in range(size)
    ]


def make_batch(several: list[PromptRecord], **changes: Any) -> LabelledBatch:
    rows = [one.candidates for one in several]
    given: dict[str, Any] = {
        "ids": [one.id for one in several],
        "scores": np.array([[one.score for one in row] for row in rows]),
        "correct": np.array([[one.correct for one in row] for row in rows]),
        "answers": [[one.answer_key for one in row] for row in rows],
        "clusters": [one.cluster for one in several],
        "metadata": [one.metadata for one in several],
        "extracted": True,
    }
    return LabelledBatch.from_arrays(**given | changes)


def test_concatenated_batches_equal_the_table_of_their_records() -> None:
    data = make_records()
    joined = LabelledBatch.concatenate(
        make_batch(data[start : start + 7]) for start in range(0, len(data), 7)
    )
    labelled = tabulate(data)
    assert get_parts(joined) == get_parts(labelled)
    # Batches in another order give another table.
    other = LabelledBatch.concatenate([make_batch(data[7:]), make_batch(data[:7])])
    assert get_parts(other) != get_parts(labelled)


def test_take_and_keep_first_candidates_equal_the_table_of_the_part() -> None:
    data = make_records()
    rows = np.array([5, 3, 49, 3 + 8])
    picked = [data[row] for row in rows]
    assert get_parts(make_batch(data).take(rows)) == get_parts(make_batch(picked))
    assert get_parts(make_batch(data).keep_first_candidates(2)) == get_parts(tabulate(data, n=2))
    for n in (0, N + 1):
        with pytest.raises(InputError, match=rf"n is {n}; expected at least 1 and at most 3"):
            make_batch(data).keep_first_candidates(n)


def test_tabulate_of_a_table_equals_tabulate_of_its_records() -> None:
    data = make_records()
    assert get_parts(tabulate(make_batch(data), n=2)) == get_parts(tabulate(data, n=2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": ["a", "b", "a"]}, "the id 'a' occurs 2 times"),
        ({"ids": ["a", "b", ""]}, "must be non-empty texts; got ''"),
        ({"ids": ["a", "b", 3]}, "must be non-empty texts"),
        ({"ids": ["a", "b"]}, "as many entries as the candidates"),
        ({"clusters": ["a", "", None]}, "must be non-empty texts"),
        ({"clusters": ["a"]}, "as many entries as the candidates"),
        ({"scores": np.full((3, N), np.nan)}, "score of candidate 0 of prompt 0 is nan"),
        ({"scores": np.full((3, 2), 0.5)}, "answers must be 3 lists of 2 texts"),
        ({"correct": np.ones((3, N))}, "labels must be True or False, got an array of type float64"),
        ({"correct": np.ones((3, 2), dtype=np.bool_)}, "as many entries as the candidates"),
        ({"metadata": [{}]}, "metadata must hold 3 mappings"),
    ],
)
def test_labelled_batch_refuses_invalid_arrays(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_batch(make_records(3), **changes)


def test_concatenate_refuses_tables_that_differ() -> None:
    data = make_records(6)
    shorter = [one.model_copy(update={"candidates": one.candidates[:2]}) for one in data[3:]]
    with pytest.raises(InputError, match="need the same n"):
        LabelledBatch.concatenate([make_batch(data[:3]), make_batch(shorter)])
    with pytest.raises(InputError, match="at least one"):
        LabelledBatch.concatenate([])
    with pytest.raises(InputError, match="the id 'q2' occurs 2 times"):
        LabelledBatch.concatenate([make_batch(data[:3]), make_batch(data[2:])])


def test_concatenate_of_extracted_answers_and_texts_is_mixed() -> None:
    data = make_records(6)
    for first, second, both in (
        (True, True, True),
        (False, False, False),
        (True, False, None),
        (None, True, None),
    ):
        one, other = make_batch(data[:3], extracted=first), make_batch(data[3:], extracted=second)
        assert LabelledBatch.concatenate([one, other]).extracted is both


def test_concatenate_keeps_answers_only_if_all_parts_have_them() -> None:
    known, unknown = CandidateBatch.from_arrays([[0.5]], [["a"]]), CandidateBatch.from_arrays([[0.5]])
    assert CandidateBatch.concatenate([known, unknown]).answer_codes is None
    assert CandidateBatch.concatenate([known, known]).answer_codes is not None

"""Frozen spellings of answers, more than half of them from models and from public test suites.

Each line of the files in `spellings` has the text of an answer, a reference, whether a careful reader calls
the answer right, and where the text is from. The spellings were written down before the readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.labelers import ClosedSet, MultipleChoice, NumericMatch
from langchain_cfc.labelers.matching import TextMatcher
from tests.calls import is_correct

FILES = [
    Path(__file__).parent / "spellings" / f"{name}.jsonl"
    for name in ("choices", "numbers", "held_out", "doubts")
]


def label_spelling(row: Mapping[str, Any]) -> bool:
    if "members" in row:
        labeler: TextMatcher = ClosedSet(row["members"])
    else:
        labeler = MultipleChoice(row.get("options")) if row["reference"].isalpha() else NumericMatch()
    return is_correct(labeler, row["reference"], row["text"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_readers_call_no_wrong_spelling_right_and_read_most_right_ones(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    right = [row for row in rows if row["right"]]
    wrongly_right = [row for row in rows if not row["right"] and label_spelling(row)]
    unread = [row["text"] for row in right if not label_spelling(row)]
    share = 1 - len(unread) / len(right)
    assert not wrongly_right, f"{len(wrongly_right)} wrong ones called right: {wrongly_right}"
    assert share >= 0.85, f"{share:.1%} of {len(right)} right ones read; not read: {unread}"


def test_spellings_are_mostly_from_models_and_public_test_suites() -> None:
    rows = [json.loads(line) for path in FILES for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 220
    assert sum(not row["source"].startswith("own") for row in rows) > len(rows) / 2

"""Find the columns of a dataset that hold the question and its reference, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import ValidationError

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.support.text import join_names
from langchain_cfc_collect.sources.columns import Columns, parse_json_cell
from langchain_cfc_collect.sources.files import BadRow, Rows

# Usual column names, the likeliest first; case does not matter.
_QUESTION_NAMES = ("question", "prompt", "input", "query", "problem", "instruction", "text", "q")
_REFERENCE_NAMES = (
    "reference",
    "answers",
    "answer",
    "expected",
    "expected_output",
    "ground_truth",
    "gold",
    "target",
    "label",
    "output",
    "solution",
    "a",
)
# Number of rows to look at when deciding whether a column holds JSON.
_SAMPLE_ROWS = 50


def find_columns(
    names: Sequence[str], question: str | None = None, reference: str | None = None
) -> tuple[str | None, str | None]:
    """Return the columns of the question and the reference, each None if the names do not tell.

    A column is recognised by a usual name, or because it is the only one besides the other column.
    """
    reference = reference or _find_usual_name(names, _REFERENCE_NAMES, question)
    question = question or _find_usual_name(names, _QUESTION_NAMES, reference)
    return question, reference or _find_usual_name(names, _REFERENCE_NAMES, question)


def detect_columns(
    rows: Rows, question: str | None = None, reference: str | None = None, prompt: str | None = None
) -> Columns:
    """Return the meaning of a dataset's columns, guessed from their names where not given.

    A reference column of text is read as JSON if its first values (up to 50) are all lists. Without a
    prompt template, which may name any columns, the question itself is the input. Raises `RecordError` if
    there are no rows, and `InputError` if a column cannot be guessed.
    """
    sample = read_sample(rows)
    names = list(sample[0])
    question, reference = find_columns(names, question, reference)
    if reference is None or (question is None and prompt is None):
        part = "reference" if reference is None else "question"
        msg = (
            f"{rows.name}: which column holds the {part}? The names do not show it: {join_names(names, 20)}. "
            f"Name it (on the command line --{part})"
        )
        raise InputError(msg)
    values = [row[reference] for row in sample if reference in row]
    try:
        return Columns(
            input=question if prompt is None else None,
            prompt=prompt,
            reference=reference,
            json_columns=(reference,) if values and all(map(_is_json_list, values)) else (),
        )
    except ValidationError as error:
        msg = f"{rows.name}: the prompt {prompt!r} cannot be used: {error.errors()[0]['msg']}"
        raise InputError(msg) from error


def read_sample(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the first rows that can be read, at most 50; raise `RecordError` if there are none."""
    sample = [row[1] for row in islice((row for row in rows if not isinstance(row, BadRow)), _SAMPLE_ROWS)]
    if not sample or not sample[0]:
        raise RecordError(rows.name, 0, "", "no rows; expected at least one with a question and a reference")
    return sample


def _find_usual_name(names: Sequence[str], usual: Sequence[str], other: str | None) -> str | None:
    free = [name for name in names if name != other]
    by_lower_case = {name.strip().lower(): name for name in reversed(free)}
    found = next((by_lower_case[name] for name in usual if name in by_lower_case), None)
    if found is None and other is not None and len(free) == 1:
        return free[0]
    return found


def _is_json_list(value: Any) -> bool:
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return False
    try:
        return isinstance(parse_json_cell(value), list)
    except ValueError:
        return False

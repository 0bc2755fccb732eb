"""`list_examples`: questions with references in any usual form, as `Example`s."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue, StringPromptValue

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.records import Example
from langchain_cfc.records.schema import validate_fields
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc_collect.sources.columns import Columns, References, read_examples
from langchain_cfc_collect.sources.detection import describe_lists, detect_columns
from langchain_cfc_collect.sources.files import IN_MEMORY, BadRow, Rows, is_frame, open_rows, to_plain
from langchain_cfc_collect.sources.templates import serialize_messages

# A question with its reference: a pair, a mapping of both under usual names, or an `Example`.
Question: TypeAlias = tuple[Any, Any] | Mapping[str, Any] | Example
# Questions: any number of the above, a file of them, or a pandas DataFrame.
Questions: TypeAlias = Iterable[Question] | str | os.PathLike[str]
_PAIR_LENGTH = 2
# Keys that a mapping may have besides the question and the reference; they mean the same as in records.
_EXAMPLE_FIELDS = ("id", "metadata", "cluster")


def list_examples(given: Questions, notify: Callable[[str], None]) -> list[Example]:
    """List questions with references as `Example`s, whatever form they have.

    Args:
        given: Pairs of question and reference, mappings with both under usual names, `Example`s, a pandas
            DataFrame, or a file or `SCHEME:REST` as `open_rows` takes it. Mappings may also have `id`,
            `metadata` and `cluster`, as documented in `Example`; other keys and columns are not read.
        notify: Called with a sentence about rows of a file or DataFrame that are set aside, and about
            references that look like several answers in one text.

    Returns:
        The examples, at least one. LangChain messages in a question have become objects
        (`{"role": "user", "content": ...}`), which records can store and LangChain accepts.

    Raises:
        RecordError: If a file cannot be read, or no row or any pair or mapping cannot be used.
        InputError: If the columns of question and reference cannot be found by their names, or an example is
            none of these.
    """
    if isinstance(given, str | os.PathLike) or is_frame(given):
        return _read_table(open_rows(given), notify)
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        msg = f"examples are {short_repr(given)}; expected pairs, mappings, Examples, a DataFrame or a path"
        raise InputError(msg)
    listed = list(given)
    if listed and all(isinstance(one, Example) for one in listed):
        return listed  # type: ignore[return-value]  # all were looked at
    return _read_mappings([_make_row(number, one) for number, one in enumerate(listed, start=1)])


@dataclass(frozen=True)
class Table:
    """Questions with references from a file or another table; rows that cannot be used are set aside."""

    columns: Columns
    examples: list[Example]
    bad_rows: Sequence[BadRow]


def read_table(
    rows: Rows, question: str | None = None, reference: References | None = None, prompt: str | None = None
) -> Table:
    """Read questions with references, guessing the columns that are not given; see `detect_columns`."""
    columns = detect_columns(rows, question, reference, prompt)
    examples = read_examples(rows, columns, "set_aside")
    examples.check = _require_reference
    return Table(columns, list(examples), examples.bad_rows)


def _read_table(rows: Rows, notify: Callable[[str], None]) -> list[Example]:
    table = read_table(rows)
    for note in describe_lists(rows, table.columns, in_python=True):
        notify(note)
    if table.bad_rows:
        notify(rows.describe_bad(table.bad_rows))
    return table.examples


def _require_reference(example: Example) -> None:
    answers = example.reference if isinstance(example.reference, list) else [example.reference]
    if all(one is None or not str(one).strip() for one in answers):
        msg = "empty; expected the right answer"
        raise LabelerError(msg)


def _read_mappings(rows: list[Mapping[str, Any]]) -> list[Example]:
    columns = detect_columns(
        Rows.from_iterable([{key: row[key] for key in row if key not in _EXAMPLE_FIELDS} for row in rows])
    )
    for number, row in enumerate(rows, start=1):
        for key in row.keys() - {*_EXAMPLE_FIELDS, columns.input, columns.reference}:
            # Other keys are not read, like other columns of a file, unless they look misspelt.
            if likely := suggest_name(str(key), _EXAMPLE_FIELDS):
                msg = f"example {number} has the unknown key {short_repr(key)}{likely}"
                raise InputError(msg)
    stated = {name: name for name in ("id", "cluster") if any(name in row for row in rows)}
    if "cluster" in stated:
        rows = [{"cluster": None, **row} for row in rows]
    made = read_examples(Rows.from_iterable(rows), columns.model_copy(update=stated))
    return [
        _add_metadata(one, row.get("metadata"), number)
        for number, (one, row) in enumerate(zip(made, rows, strict=True), start=1)
    ]


def _make_row(number: int, given: Any) -> Mapping[str, Any]:
    try:
        if isinstance(given, Mapping):
            return {key: _replace_messages(value) for key, value in given.items()}
        if isinstance(given, (tuple, list)) and len(given) == _PAIR_LENGTH:
            return {"question": _replace_messages(given[0]), "reference": given[1]}
    except ValueError as error:
        msg = f"example {number}: {error}"
        raise InputError(msg) from error
    msg = (
        f"example {number} is {short_repr(given)}; expected a pair of question and reference, a mapping of "
        "both, or Examples alone"
    )
    raise InputError(msg)


def _replace_messages(value: Any) -> Any:
    """Return a prompt with its messages as objects, which records can store and LangChain accepts."""
    if isinstance(value, PromptValue):
        return value.text if isinstance(value, StringPromptValue) else serialize_messages(value.to_messages())
    if isinstance(value, list) and any(isinstance(one, BaseMessage) for one in value):
        return serialize_messages(convert_to_messages(value))
    if isinstance(value, Mapping):  # the input of an agent, or of a prompt with a placeholder
        return {key: _replace_messages(item) for key, item in value.items()}
    return value


def _add_metadata(example: Example, metadata: Any, number: int) -> Example:
    """Return the example with its metadata, without nulls, as `read_examples` does for columns."""
    if metadata is None:
        return example
    plain = to_plain(metadata)
    if isinstance(plain, dict):
        plain = {key: value for key, value in plain.items() if value is not None}
    return validate_fields(Example, {**dict(example), "metadata": plain}, IN_MEMORY, number)

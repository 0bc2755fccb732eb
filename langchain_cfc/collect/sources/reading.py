"""From the rows of a source to the examples of a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from langchain_cfc.collect.sources.columns import Columns
from langchain_cfc.collect.sources.files import IN_MEMORY, BadRow, Row, Rows, in_memory, open_rows
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records._json import shown
from langchain_cfc.records.schema import Example

BadRowPolicy: TypeAlias = Literal["refuse", "set_aside"]

_MOST_LISTED = 20


def read_examples(
    source: str | os.PathLike[str] | Rows | Iterable[Mapping[str, Any]],
    columns: Columns,
    bad_rows: BadRowPolicy = "refuse",
) -> Examples:
    """Open an evaluation dataset.

    Args:
        source: A file or `SCHEME:REST` as `open_rows` takes it, its `Rows`, or whatever iterates over
            mappings, such as a list of dicts or a dataset of Hugging Face.
        columns: What its columns mean. The first row that can be read must have them all, whatever `bad_rows`
            says; a later one that lacks one is a bad row.
        bad_rows: What to do about rows that cannot be used, or whose id an earlier row has: `refuse` the
            whole dataset, or go on without them (`set_aside`).

    Returns:
        The examples, to iterate over as often as the source allows.

    Raises:
        RecordError: If a file or scheme is not there, or a file is of no known kind.
        InputError: If the source is a mapping, such as several datasets by name, or `bad_rows` is neither.
    """
    if bad_rows not in get_args(BadRowPolicy):
        msg = f"bad_rows is {bad_rows!r}; expected refuse or set_aside"
        raise InputError(msg)
    if isinstance(source, str | os.PathLike):
        source = open_rows(source)
    return Examples(source if isinstance(source, Rows) else in_memory(source), columns, bad_rows)


class Examples:
    """The examples of a dataset; every iteration reads the source anew and keeps ids and row numbers only.

    When bad rows are refused, the first ends what is yielded, the rest is only read to list the others, and
    then one `RecordError` names them all. So take every example before anything is paid for on their account.
    When they are set aside, there must still be one row that is good.

    Attributes:
        source: What errors call the dataset.
        bad_rows: The bad rows that the latest iteration has met so far.
    """

    def __init__(self, rows: Rows, columns: Columns, policy: BadRowPolicy) -> None:
        self.source = rows.name
        self.bad_rows: list[BadRow] = []
        self._rows = rows
        self._columns = columns
        self._policy = policy

    def __iter__(self) -> Iterator[Example]:
        """Read from the start.

        Raises:
            RecordError: If there are no rows, a column is missing, the source is damaged, or bad rows are
                refused.
        """
        bad = self.bad_rows = []
        good = 0
        for made in self._made():
            if isinstance(made, BadRow):
                bad.append(made)
            elif self._policy == "set_aside" or not bad:
                good += 1
                yield made
        if not bad and not good:
            again = " (an iterator gives its rows only once)" if self.source == IN_MEMORY else ""
            raise RecordError(self.source, 0, "", f"no rows; expected at least one{again}")
        if bad and (self._policy == "refuse" or not good):
            raise self._refusal(bad)

    def _made(self) -> Iterator[Example | BadRow]:
        first_seen: dict[str, int] = {}
        readable = False
        for row in self._rows:
            if isinstance(row, BadRow):
                yield row
                continue
            if not readable:
                self._check_columns(row)
                readable = True
            yield self._checked(row, first_seen)

    def _check_columns(self, first: Row) -> None:
        # A name that is misspelt would make a bad row of every row.
        number, values = first
        missing = self._columns.missing(values)
        if missing is not None:
            raise RecordError(self.source, number, *missing)

    def _checked(self, row: Row, first_seen: dict[str, int]) -> Example | BadRow:
        number, values = row
        try:
            example = self._columns.example(values, self.source, number)
        except RecordError as error:
            return BadRow(number, error.field, error.problem)
        if example.id not in first_seen:
            first_seen[example.id] = number
            return example
        earlier = f"{self._rows.unit} {first_seen[example.id]}"
        if self._columns.id is None:
            return BadRow(number, "", f"the same input and reference as {earlier}; expected rows to differ")
        problem = f"{shown(example.id)} is the id of {earlier} too; expected ids to differ"
        return BadRow(number, "id", problem)

    def _refusal(self, bad: list[BadRow]) -> RecordError:
        lines = [f"{self._rows.unit} {row}" for row in bad[:_MOST_LISTED]]
        if len(bad) > _MOST_LISTED:
            lines.append(f"and {len(bad) - _MOST_LISTED} more")
        rows = "row" if len(bad) == 1 else "rows"
        advice = "correct them, or leave them out with bad_rows='set_aside'"
        problem = f"{len(bad)} bad {rows}; {advice}:"
        return RecordError(self.source, 0, "", "\n  ".join([problem, *lines]))

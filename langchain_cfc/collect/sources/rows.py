"""What a source is: a name, and rows with the numbers by which a person finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from langchain_cfc.errors import InputError
from langchain_cfc.records.strict_json import shown

Row: TypeAlias = tuple[int, Mapping[str, Any]]

# What errors call rows that come from no file.
IN_MEMORY = "rows"


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        number: Its number in the source, counted from 1.
        field: The part of the `Example` concerned, such as `reference[2]`; empty where it is the whole row.
        problem: What was found and what was expected.
    """

    number: int
    field: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.number}: {self.field}: {self.problem}" if self.field else f"{self.number}: {self.problem}"
        )


@dataclass(frozen=True)
class Rows:
    """The rows of one source, read anew by every iteration.

    Attributes:
        name: What errors call the source.
        unit: What is counted: lines of a file, each row by its first, or rows.
        read: Starts reading: yields the number of a row and its values by column, or why it has none. What
            it raises ends the reading, whatever is done about bad rows.
    """

    name: str
    unit: Literal["line", "row"]
    read: Callable[[], Iterator[Row | BadRow]]

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Read from the start."""
        return self.read()


def in_memory(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Number whatever iterates over mappings.

    Args:
        rows: Values by column; iterated over once for every reading.

    Returns:
        The rows, counted from 1.

    Raises:
        InputError: If this is itself a mapping, such as several datasets by name.
    """
    if isinstance(rows, Mapping):
        msg = f"found a mapping of {', '.join(map(shown, rows))}; expected rows, so choose one of them"
        raise InputError(msg)
    return Rows(IN_MEMORY, "row", partial(numbered, rows))


def numbered(values: Iterable[Any]) -> Iterator[Row | BadRow]:
    """Count values from 1, and set apart what is no mapping."""
    for number, value in enumerate(values, start=1):
        if isinstance(value, Mapping):
            yield number, value
        else:
            yield BadRow(number, "", f"found {shown(value)}; expected an object of values by column")

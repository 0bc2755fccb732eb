"""Prompt templates that make the input of an example from the columns of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from langchain_cfc.support.json_text import check_json, short_repr


@dataclass(frozen=True)
class Template:
    """Template text with the names of its columns, in which dots lead into objects."""

    text: str
    required: tuple[str, ...]  # columns that every row must have

    def render(self, values: Mapping[str, Any]) -> str:
        """Render the prompt of one row.

        Args:
            values: Values of all columns.

        Returns:
            The text.

        Raises:
            ValueError: If a value cannot be part of a prompt. Lists and objects cannot, because they would be
                written as Python does.
            Exception: Any exception of a format.
        """
        for name, value in values.items():
            check_json(value)
            if value is None:
                msg = f"the column {name!r} is null"
                raise ValueError(msg)
            if isinstance(value, list | dict):
                msg = f"the column {name!r} holds {short_repr(value)}; expected text, a number, true or false"
                raise ValueError(msg)  # noqa: TRY004 - handled like any other value that does not fit
        formatter, written = Formatter(), ""
        for literal, column, form, conversion in formatter.parse(self.text):
            written += literal
            if column is not None:
                shown: Any = formatter.convert_field(values[column], conversion)
                written += format(shown, form or "")
        return written


def parse_template(text: str) -> Template:
    """Parse a prompt template with named columns.

    Args:
        text: Text that contains `{column}`.

    Returns:
        The template.

    Raises:
        ValueError: If the text is no template, or names no column.
    """
    names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    if not names or "" in names:
        msg = "it names no column, so every prompt would be the same; expected a column such as {question}"
        raise ValueError(msg)
    return Template(text, tuple(sorted(names)))

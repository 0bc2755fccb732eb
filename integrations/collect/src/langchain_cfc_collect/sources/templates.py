"""Prompt templates that make the input of an example from the columns of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages

from langchain_cfc.support.json_text import check_json, short_repr

# Template text, or messages as pairs of role and template text.
Prompt: TypeAlias = str | tuple[tuple[str, str], ...]


class _ColumnFormatter(Formatter):
    """Formats text as LangChain's templates do, but takes names with dots for columns."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a column, and its name."""
        del args
        return kwargs[field_name], field_name


_FORMATTER = _ColumnFormatter()


@dataclass(frozen=True)
class Template:
    """Prompt template with the names of its columns."""

    prompt: Prompt
    required: tuple[str, ...]  # columns that every row must have

    def render(self, values: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        """Render the prompt of one row.

        Args:
            values: Values of all columns.

        Returns:
            Text, or messages as objects that LangChain converts back to the same messages.

        Raises:
            ValueError: If a value cannot be part of a prompt.
            Exception: Any exception of a format.
        """
        for name, value in values.items():
            check_json(value)
            if isinstance(value, list | dict | None):  # they would be written as Python does
                msg = f"the column {name!r} holds {short_repr(value)}; expected text, a number, true or false"
                raise ValueError(msg)  # noqa: TRY004 - handled like values that are not JSON
        if isinstance(self.prompt, str):
            return _FORMATTER.vformat(self.prompt, (), values)
        filled = [(role, _FORMATTER.vformat(text, (), values)) for role, text in self.prompt]
        return serialize_messages(convert_to_messages(filled))


def parse_template(prompt: Prompt) -> Template:
    """Parse a prompt template with named columns.

    Args:
        prompt: Text that contains `{column}`, or pairs of a role and such a text.

    Returns:
        The template.

    Raises:
        ValueError: If a text is no template, a role is unknown, or no column is named.
    """
    texts = [prompt] if isinstance(prompt, str) else [text for _, text in prompt]
    if not isinstance(prompt, str):
        convert_to_messages(prompt)  # raises for other roles
    names = {name for text in texts for _, name, _, _ in _FORMATTER.parse(text) if name is not None}
    if not names:
        msg = "it names no column, so every prompt would be the same; expected a column such as {question}"
        raise ValueError(msg)
    return Template(prompt, tuple(sorted(names)))


def serialize_messages(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Return messages as objects that LangChain converts back to the same; `ValueError` if it cannot."""
    # Keep the content as it is: the conversion would join text blocks, which gives another message.
    objects = [{**convert_to_openai_messages(one), "content": one.content} for one in messages]
    try:
        back = convert_to_messages(objects)
    except ValueError:
        back = []
    if back != messages:
        msg = "its messages hold more than role, content, name and tool calls, which an input cannot carry"
        raise ValueError(msg)
    return objects

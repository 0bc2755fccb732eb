"""Prompt templates that make the input of an example from the columns of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.prompt_values import StringPromptValue
from langchain_core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate

from langchain_cfc.support.json_text import check_json, short_repr

# Stands for the dots of a column's name in LangChain's templates, which allow none; for private use.
_DOT = "\ue000"
# Template text, or messages as pairs of role and template text.
Prompt: TypeAlias = str | tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Template:
    """Prompt template with the names of its variables."""

    prompt: BasePromptTemplate[Any]
    required: tuple[str, ...]  # variables that every row must have

    def render(self, values: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        """Render the prompt of one row.

        Args:
            values: Values of all variables.

        Returns:
            Text, or messages as objects that LangChain converts back to the same messages.

        Raises:
            ValueError: If a value cannot be part of a prompt, or the messages cannot be written as JSON.
            Exception: Any exception of the template.
        """
        for name, value in values.items():
            check_json(value)
            if isinstance(value, list | dict | None):  # LangChain would write them as Python does
                msg = f"the column {name!r} holds {short_repr(value)}; expected text, a number, true or false"
                raise ValueError(msg)  # noqa: TRY004 - handled like values that are not JSON
        given = {name.replace(".", _DOT): value for name, value in values.items()}
        rendered = self.prompt.format_prompt(**given)
        if isinstance(rendered, StringPromptValue):
            return rendered.text
        return serialize_messages(rendered.to_messages())


def parse_template(prompt: Prompt) -> Template:
    """Parse a prompt template with named columns.

    Args:
        prompt: Text that contains `{column}`, or pairs of a role and such a text.

    Returns:
        The template.

    Raises:
        ValueError: If LangChain rejects the prompt, or it names no column or a column of messages.
    """
    made: BasePromptTemplate[Any]
    if isinstance(prompt, str):
        made = PromptTemplate.from_template(_hide_dots(prompt))
    else:
        made = ChatPromptTemplate.from_messages([(role, _hide_dots(text)) for role, text in prompt])
    if made.optional_variables:
        msg = "a placeholder cannot be filled from a column; expected roles such as system and user"
        raise ValueError(msg)
    if not made.input_variables:
        msg = "it names no column, so every prompt would be the same; expected a column such as {question}"
        raise ValueError(msg)
    return Template(made, tuple(sorted(name.replace(_DOT, ".") for name in made.input_variables)))


def _hide_dots(text: str) -> str:
    """Return template text whose columns may have dots in their names; `ValueError` if it is no template."""
    parts = []
    for literal, name, form, conversion in Formatter().parse(text):
        parts.append(literal.replace("{", "{{").replace("}", "}}"))
        if name is not None:
            converted = f"!{conversion}" if conversion else ""
            parts.append(f"{{{name.replace('.', _DOT)}{converted}{f':{form}' if form else ''}}}")
    return "".join(parts)


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

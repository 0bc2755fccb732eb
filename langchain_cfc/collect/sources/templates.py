"""Prompts made from the columns of a row by a LangChain prompt template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.load import dumps
from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.prompt_values import StringPromptValue
from langchain_core.prompts import BasePromptTemplate, ChatPromptTemplate, MessagesPlaceholder, PromptTemplate

from langchain_cfc.records.strict_json import check_json, shown

# As it is written: template text, or messages as pairs of role and template text; or as LangChain has it.
Prompt: TypeAlias = str | tuple[tuple[str, str], ...] | BasePromptTemplate[Any]


@dataclass(frozen=True)
class Template:
    """A prompt template that knows what it needs.

    Attributes:
        prompt: The template.
        required: Variables that every row must have.
        optional: Variables that a row may have.
        texts: Those that become part of a text by LangChain's plainest rules, which would write a list the
            way Python does.
    """

    prompt: BasePromptTemplate[Any]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    texts: frozenset[str]

    def render(self, values: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        """The prompt of one row.

        Args:
            values: By variable; all required ones, and those of the optional ones that there are.

        Returns:
            Text, or messages as objects that LangChain takes back for the same messages.

        Raises:
            ValueError: If a value cannot stand in a prompt, or the messages are more than JSON can say.
            Exception: Whatever the template raises.
        """
        for name, value in values.items():
            check_json(value)
            if value is None:
                msg = f"the column {name!r} is null"
                raise ValueError(msg)
            if name in self.texts and isinstance(value, list | dict):
                msg = f"the column {name!r} holds {shown(value)}; expected text, a number, true or false"
                raise ValueError(msg)
        rendered = self.prompt.format_prompt(**values)
        if isinstance(rendered, StringPromptValue):
            return rendered.text
        return _written(rendered.to_messages())


def template(prompt: Prompt) -> Template:
    """Make a template of what was written.

    Args:
        prompt: Text with `{column}` in it, pairs of a role and such a text (the role `placeholder` and the
            text `{column}` for a column of messages), or a LangChain prompt.

    Returns:
        The template.

    Raises:
        ValueError: If LangChain refuses it, it names no column, or it is no plain data.
    """
    if isinstance(prompt, BasePromptTemplate):
        _check_plain(prompt)
        made = Template(
            prompt, _sorted(prompt.input_variables), _sorted(prompt.optional_variables), frozenset()
        )
    else:
        made = _made(prompt)
    if not made.required:
        msg = "it names no column, so every prompt would be the same; expected such as {question} in it"
        raise ValueError(msg)
    return made


def _made(prompt: str | tuple[tuple[str, str], ...]) -> Template:
    if isinstance(prompt, str):
        text = PromptTemplate.from_template(prompt)
        return Template(text, _sorted(text.input_variables), (), frozenset(text.input_variables))
    chat = ChatPromptTemplate.from_messages(list(prompt))
    messages = {one.variable_name for one in chat.messages if isinstance(one, MessagesPlaceholder)}
    # A placeholder is optional to LangChain; here it names a column, and a column that is named is needed.
    required = {*chat.input_variables, *messages}
    return Template(chat, _sorted(required), (), frozenset(required - messages))


def _sorted(names: Any) -> tuple[str, ...]:
    return tuple(sorted(names))


def _check_plain(prompt: BasePromptTemplate[Any]) -> None:
    # A part that cannot be written could render anything tomorrow, and no fingerprint would know.
    if '"not_implemented"' in dumps(prompt):
        msg = (
            "LangChain does not write the prompt as plain data: its kind cannot be written, or it has a part "
            "that cannot, such as a function among its partial variables"
        )
        raise ValueError(msg)


def _written(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    # Else blocks of text are joined, which makes another message of them.
    written = [{**convert_to_openai_messages(one), "content": one.content} for one in messages]
    try:
        back = convert_to_messages(written)
    except ValueError:
        back = []
    if back != messages:
        msg = "its messages hold more than role, content, name and tool calls, which an input cannot carry"
        raise ValueError(msg)
    return written

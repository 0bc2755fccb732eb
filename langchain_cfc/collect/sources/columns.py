"""Which columns of a dataset mean what."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, TypeAlias

from langchain_core.load import dumpd, dumps
from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.prompt_values import StringPromptValue
from langchain_core.prompts import BasePromptTemplate, ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    field_serializer,
    model_validator,
)

from langchain_cfc.collect.sources.files import plain
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import check_json, parse_json, shown
from langchain_cfc.records.schema import Example, validated

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


# Long enough that two of a million examples share one by chance with a probability of 3e-8.
_ID_DIGITS = 16
_MOST_LISTED = 20
_ABSENT = object()
_UNCHECKED_ID = "?"


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _check_prompt(value: Any) -> Any:
    if value is None or isinstance(value, str | BasePromptTemplate):
        written = value
    else:
        written = _tuples(value)
        pairs = written if isinstance(written, tuple) else (value,)
        for pair in pairs:
            if not isinstance(pair, tuple) or [type(part) for part in pair] != [str, str]:
                expected = "template text, a list of [role, text], or a LangChain prompt"
                msg = f"found {shown(pair)}; expected {expected}"
                raise ValueError(msg)
    if written is not None:
        template(written)
    return written


_Column: TypeAlias = Annotated[str, Field(min_length=1)]
_ColumnList: TypeAlias = Annotated[tuple[_Column, ...], BeforeValidator(_tuples)]
_Prompt: TypeAlias = Annotated[
    str | tuple[tuple[str, str], ...] | InstanceOf[BasePromptTemplate[Any]] | None,
    BeforeValidator(_check_prompt),
]


class Columns(BaseModel):
    """Which columns of a dataset become which part of an `Example`.

    A value inside an object is named with dots, as in `answer.aliases`, unless a column is called just that;
    inside null, all is null. Values stay what they are, lists and objects included; scalars and arrays of
    NumPy and Arrow become plain JSON, and anything else that is no JSON makes the row a bad one. No column is
    guessed: what is not named is not used.

    Attributes:
        input: The column whose value is the input: text, a list of messages, or an object. Exactly one of
            `input`, `prompt` and `inputs` is given.
        prompt: The template that makes the input from columns: text such as `Question: {question}`, which
            gives text; a list of `[role, text]`, which gives messages (`["placeholder", "{column}"]` inserts
            a column of messages); or, in Python, a LangChain prompt. A null in one of its columns, or an
            object or list where text should be, makes the row a bad one.
        inputs: The columns that make an object, for chains that take several values by name.
        id: The column with a text or number of its own for every row. Without it, the id is a digest of
            input and reference: it stays the same when rows move, and a row that says the same as an earlier
            one is a bad row.
        reference: The column that labels are made with.
        metadata: Columns of texts, numbers and booleans, for feature maps and groups; a null is left out.
        cluster: The column that names the conversation or set of paraphrases, by a text or number; null or
            empty where the row stands alone.
        json_columns: Which of the columns above hold JSON written as text, such as a list of answers in CSV,
            or an object that others lead into.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    input: _Column | None = Field(default=None, description="the name of a column")
    prompt: _Prompt = Field(default=None, description="template text, or a list of [role, text]")
    inputs: Annotated[_ColumnList, Field(min_length=1)] | None = Field(
        default=None, description="a list of at least one column"
    )
    id: _Column | None = Field(default=None, description="the name of a column")
    reference: _Column | None = Field(default=None, description="the name of a column")
    metadata: _ColumnList = Field(default=(), description="a list of columns")
    cluster: _Column | None = Field(default=None, description="the name of a column")
    json_columns: _ColumnList = Field(
        default=(), description="a list of columns that are named elsewhere too"
    )

    @model_validator(mode="after")
    def _check_whole(self) -> Columns:
        given = [name for name in ("input", "prompt", "inputs") if getattr(self, name) is not None]
        if len(given) != 1:
            msg = f"found {' and '.join(given) or 'none'} of input, prompt and inputs; expected exactly one"
            raise ValueError(msg)
        optional = self._template.optional if self._template else ()
        used = {*(name for _, name in self._named), *optional}
        unused = set(self.json_columns) - used - {name.partition(".")[0] for name in used}
        if unused:
            names = ", ".join(sorted(unused))
            msg = f"found {names} in json_columns, but nowhere else; expected columns in use"
            raise ValueError(msg)
        return self

    @field_serializer("prompt", when_used="json")
    def _write_prompt(self, prompt: Any) -> Any:
        return dumpd(prompt) if isinstance(prompt, BasePromptTemplate) else prompt

    def missing(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        """What a row lacks.

        Args:
            row: Values by column.

        Returns:
            The part of the example for which it has no column, and the problem; None if it has all.
        """
        for part, name in self._named:
            if self._lacks(row, name):
                return part, _absence(row, name)
        return None

    def example(self, row: Mapping[str, Any], source: str, number: int) -> Example:
        """Make the example of one row.

        Args:
            row: Values by column.
            source: What errors call the dataset.
            number: What errors call the row.

        Returns:
            The example.

        Raises:
            RecordError: If a column is missing, or its value is not what its part of an example takes.
        """
        try:
            fields = self._fields(row)
        except _FlawError as flaw:
            raise RecordError(source, number, flaw.part, flaw.problem) from flaw
        example = validated(Example, fields, source, number)
        return example if self.id is not None else example.model_copy(update={"id": _digest(example)})

    def _fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {name: self._value(row, "metadata", name) for name in self.metadata}
        cluster = self._value(row, "cluster", self.cluster)
        return {
            "id": _UNCHECKED_ID if self.id is None else _as_name(self._value(row, "id", self.id)),
            "input": self._input(row),
            "reference": self._value(row, "reference", self.reference),
            "metadata": {name: value for name, value in metadata.items() if value is not None},
            # CSV has no other way to say that there is none.
            "cluster": None if cluster == "" else _as_name(cluster),
        }

    def _input(self, row: Mapping[str, Any]) -> Any:
        if self.inputs is not None:
            return {name: self._value(row, "inputs", name) for name in self.inputs}
        made = self._template
        if made is None:
            return self._value(row, "input", self.input)
        names = [*made.required, *(name for name in made.optional if name in row)]
        values = {name: self._value(row, "prompt", name) for name in names}
        try:
            return made.render(values)
        except Exception as error:  # whatever a template of the user's own raises
            problem = f"the prompt cannot be made: {type(error).__name__}: {error}"
            raise _FlawError(problem, "prompt") from error

    def _value(self, row: Mapping[str, Any], part: str, name: str | None) -> Any:
        if name is None:
            return None
        try:
            value = self._found(row, name)
        except RecursionError as error:
            problem = f"the column {name!r} is nested too deeply"
            raise _FlawError(problem, part) from error
        except ValueError as error:
            problem = f"the column {name!r} cannot be read: {error}"
            raise _FlawError(problem, part) from error
        if value is _ABSENT:
            raise _FlawError(_absence(row, name), part)
        return value

    def _lacks(self, row: Mapping[str, Any], name: str) -> bool:
        try:
            return self._found(row, name) is _ABSENT
        except (ValueError, RecursionError):  # what cannot be read is there
            return False

    def _found(self, row: Mapping[str, Any], name: str) -> Any:
        """The value of a column, or of a path into one; `_ABSENT` if there is neither."""
        if name in row:
            value = plain(row[name])
        else:
            head, dot, rest = name.partition(".")
            value = _inside(self._found(row, head), rest) if dot and head in row else _ABSENT
        json_text = name in self.json_columns and value is not None and value is not _ABSENT
        return _parsed(value) if json_text else value

    @cached_property
    def _template(self) -> Template | None:
        return None if self.prompt is None else template(self.prompt)

    @cached_property
    def _named(self) -> tuple[tuple[str, str], ...]:
        """The columns that every row must have, each with the part that it is for."""
        single = [(part, getattr(self, part)) for part in ("id", "input", "reference", "cluster")]
        several = {
            "prompt": self._template.required if self._template else (),
            "inputs": self.inputs or (),
            "metadata": self.metadata,
        }
        return (
            *((part, name) for part, name in single if name is not None),
            *((part, name) for part, names in several.items() for name in names),
        )


class _FlawError(Exception):
    """A part of an example that cannot be made from its row."""

    def __init__(self, problem: str, part: str) -> None:
        self.problem = problem
        self.part = part
        super().__init__(problem, part)


def _absence(row: Mapping[str, Any], name: str) -> str:
    names = list(map(str, row))
    near = get_close_matches(name, names, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    more = len(names) - _MOST_LISTED
    listed = ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"no column {name!r}{hint} there are {listed}"


def _inside(value: Any, path: str) -> Any:
    """What a path leads to: inside null, null; `_ABSENT` if it leads nowhere."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return _ABSENT
    if path in value:
        return value[path]
    head, dot, rest = path.partition(".")
    return _inside(value[head], rest) if dot and head in value else _ABSENT


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        msg = f"found {shown(value)}; expected JSON written as text, by json_columns"
        raise ValueError(msg)  # noqa: TRY004 - of the same kind as text that is no JSON
    try:
        return parse_json(value)
    except ValueError as error:
        msg = f"found {shown(value)}, which json_columns says is JSON: {error}"
        raise ValueError(msg) from error


def _as_name(value: Any) -> Any:
    """A finite number as text; anything else is for the model to judge."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number and math.isfinite(value) else value


def _digest(example: Example) -> str:
    content = [example.input, example.reference]
    written = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:_ID_DIGITS]

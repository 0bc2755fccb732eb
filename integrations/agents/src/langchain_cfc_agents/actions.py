"""Actions: what a message of a model would do, as plain data in a form that equal actions share."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from langchain_cfc.errors import DrawError, InputError
from langchain_cfc.extend import make_candidate
from langchain_cfc.sampling import DrawnCandidate

Call: TypeAlias = Mapping[str, Any]
"""A tool call: its `name` and its `args`, in a message also its `id`."""


class Toolbox:
    """The tools of an agent: which of them are guarded, and what makes two calls equal.

    Args:
        tools: The tools that the agent's model is shown. Tools of the provider are mappings, and the agent
            does not run them.
        unguarded: The names of the tools that need no guard. All other names are guarded, also unknown ones.

    Raises:
        InputError: If the agent has no tool of a name in `unguarded`, or a tool that the provider runs is not
            there: it acts while messages are drawn.
    """

    def __init__(self, tools: Iterable[BaseTool | dict[str, Any]], unguarded: Collection[str]) -> None:
        listed = list(tools)
        # Making these schemas takes longer than all else that a turn does besides drawing.
        self._schemas = {tool.name: tool.tool_call_schema for tool in listed if isinstance(tool, BaseTool)}
        shown = [_read_tool(tool) for tool in listed]
        names = [name for name, _, _ in shown]
        # Several tools of a provider may have one name, such as `mcp`.
        self._shown = {
            f"{name} {again}" if (again := names[:place].count(name)) else name: one
            for place, (name, one, _) in enumerate(shown)
        }
        unknown = sorted(set(unguarded) - set(names))
        if unknown:
            msg = (
                f"unguarded names no tool of this agent: {', '.join(unknown)}. It has "
                f"{', '.join(sorted(names)) or 'none'}"
            )
            raise InputError(msg)
        acting = {name for name, _, is_run in shown if is_run}
        if not acting <= set(unguarded):
            msg = (
                f"the provider runs {', '.join(sorted(acting))} while messages are drawn, before a decision: "
                "name it in unguarded, or leave it out"
            )
            raise InputError(msg)

    def describe(self) -> dict[str, str]:
        """Return a digest of what the model is shown of each tool, by name."""
        return {name: sha256(write_json(one).encode()).hexdigest()[:16] for name, one in self._shown.items()}

    def read_candidate(self, message: AIMessage) -> DrawnCandidate:
        """Return a drawn message as a candidate, whose text and data are its action.

        Text without calls is the action without calls. What was cut off, refused or blank is no answer, as
        everywhere; nor is a message with calls whose arguments cannot be parsed.
        """
        try:
            read = make_candidate(0, message)
            if read.no_answer is not None:
                return read
            if not message.invalid_tool_calls:
                data = {"tool_calls": self.normalise_calls(message.tool_calls)}
                return DrawnCandidate(write_json(data), message, data)
        except (DrawError, ValueError):  # an argument is NaN or infinite, which JSON does not know
            pass
        return DrawnCandidate("", message, no_answer="unparsable")

    def normalise_calls(self, calls: Iterable[Call]) -> list[dict[str, Any]]:
        """Return calls without ids, with the arguments that the tools' schemas make of theirs, sorted.

        Defaults are filled in and types converted. Arguments that a schema does not show stay beside them, as
        a tool may read those as well. Arguments stay as they are if a schema refuses them, if JSON does not
        hold all that it reads, such as a secret, or if a default is another one each time.
        """
        read = [{"name": call["name"], "args": self._normalise(call)} for call in calls]
        return sorted(read, key=write_json)

    def _normalise(self, call: Call) -> Any:
        schema = self._schemas.get(call["name"])
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            try:
                read, again = (schema.model_validate(call["args"]) for _ in range(2))
                written = read.model_dump(mode="json", by_alias=True)
                if schema.model_validate(written) == read == again:
                    return {**call["args"], **written}
            except (TypeError, ValueError):
                pass
        return call["args"]


# Of a provider's tools, those that it leaves to its client to run, or that are functions.
_LEFT_TO_CLIENTS = re.compile("function|custom|bash|text_editor|computer|memory|shell|apply_patch")
_SCHEMAS = {"function", "input_schema", "parameters", "properties"}


def _read_tool(tool: BaseTool | dict[str, Any]) -> tuple[str, Any, bool]:
    """Return a tool's name, what the model is shown of it, and whether the provider runs it."""
    if isinstance(tool, dict) and _SCHEMAS.isdisjoint(tool):
        kind = str(tool.get("type") or next(iter(tool), ""))
        return tool.get("name", kind), tool, _LEFT_TO_CLIENTS.match(kind) is None
    shown = convert_to_openai_tool(tool)
    return shown.get("function", shown)["name"], shown, False


def list_open_calls(messages: Sequence[BaseMessage], unguarded: Collection[str] = ()) -> list[Any]:
    """List the calls of the last message of a model that no message after it answers, but for unguarded ones.

    LangChain itself answers calls that are structured output, and nothing runs them.
    """
    last = find_last(messages)
    if last is None:
        return []
    # Only later messages, because some providers use the ids of calls again.
    later = takewhile(lambda one: one is not last, reversed(messages))
    answered = {one.tool_call_id for one in later if isinstance(one, ToolMessage)}
    return [call for call in last.tool_calls if call["name"] not in unguarded and call["id"] not in answered]


def find_last(messages: Sequence[BaseMessage]) -> AIMessage | None:
    """Return the last message of a model; None if there is none."""
    return next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)


def write_json(data: Any) -> str:
    """Return JSON that is equal for equal data."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

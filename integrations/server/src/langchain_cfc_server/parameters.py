"""The fields of a request that could change the model: which change nothing, and which are ignored.

The guarantee holds for the generator as it was calibrated. A field that would change it is refused, unless
the operator lets it be ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from langchain_cfc.errors import InputError
from langchain_cfc_server.errors import RefusedError

# Names of settings for parts of a conversation: system and developer messages with the instructions of the
# Responses API, the messages before the user's last one, and what begins with MESSAGE is a field of messages.
SYSTEM, HISTORY, MESSAGE = "system", "history", "messages."
_CALLED = {SYSTEM: "system messages", HISTORY: "messages before the last one"}
# Parameters of both APIs with the values that mean the same as leaving them out: OpenAI's defaults. Without
# a value here, only an empty one does.
PARAMETERS: Mapping[str, Any] = {
    **dict.fromkeys(("audio", "function_call", "functions", "include", "logit_bias", "prediction")),
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tool_calls")),
    **dict.fromkeys(("reasoning", "reasoning_effort", "seed", "stop", "tools", "web_search_options")),
    "background": False,
    "frequency_penalty": 0,
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "temperature": 1,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1,
    "verbosity": "medium",
}
# Whether a generator is called with these is not in its fingerprint, or the server could not return them.
NEVER_REPEATED = frozenset({"audio", "background", "include", "logprobs", "modalities", "n", "top_logprobs"})
# How tools are called, with values that change nothing if there are none.
_WITHOUT_TOOLS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "parallel_tool_calls": (True, False),
}
# An empty object switches web search on.
_NEVER_EMPTY = frozenset({"web_search_options"})
EMPTY_VALUES: tuple[Any, ...] = (None, "", [], {})
_ALWAYS_READ = frozenset({"model", "messages", "input", "stream", "stream_options", "cfc"})
_ALWAYS_READ |= {f"{MESSAGE}{name}" for name in ("role", "content", "tool_calls", "tool_call_id")}
# Number of fields that a refusal names.
_MAX_NAMED = 20
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


def is_neutral(name: str, value: Any) -> bool:
    """Return whether a parameter has OpenAI's default, or is empty, so that it changes nothing."""
    if name in _NEVER_EMPTY:
        return value is None
    default = PARAMETERS.get(name)
    if isinstance(value, dict) and isinstance(default, dict):
        return all(is_empty(one) or one == default.get(key) for key, one in value.items())
    return is_empty(value) or (value == default and isinstance(value, bool) == isinstance(default, bool))


def list_neutral_values(name: str, *, has_structure: bool) -> list[Any]:
    """Return the values of a parameter that mean the same as leaving it out."""
    values = [*EMPTY_VALUES, PARAMETERS[name]]
    found = [one for at, one in enumerate(values) if is_neutral(name, one) and one not in values[:at]]
    return found + [one for one in _WITHOUT_TOOLS.get(name, ()) if not has_structure and one not in found]


def calls_no_tools(name: str, value: Any) -> bool:
    """Return whether a parameter is about calling tools and changes nothing if there are none."""
    return any(type(value) is type(one) and value == one for one in _WITHOUT_TOOLS.get(name, ()))


def is_empty(value: Any) -> bool:
    """Return whether a value is null, an empty text, list or object, or an object of such values."""
    values = value.values() if isinstance(value, dict) else [value]
    return all(one in EMPTY_VALUES for one in values)


def asks_for_nothing(value: Any) -> bool:
    """Return whether a field beyond OpenAI's API is null, false, empty, or an object of such values."""
    if isinstance(value, dict):
        return all(map(asks_for_nothing, value.values()))
    return value is False or is_empty(value)


def is_ignorable(name: str) -> bool:
    """Return whether the operator may have a field ignored."""
    return bool(_FIELD.fullmatch(name)) and name not in _ALWAYS_READ


def parse_ignored(texts: Sequence[str], models: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the fields that each model ignores.

    Args:
        texts: Names of fields, joined by commas; after `MODEL=`, they hold for that model only.
        models: The models' names.

    Raises:
        InputError: If there is no such model, or a field cannot be ignored.
    """
    found: dict[str, set[str]] = {name: set() for name in models}
    for text in texts:
        model, _, names = text.rpartition("=")
        if model and model not in found:
            msg = f"ignore: there is no model {model!r}; there are: {', '.join(found)}"
            raise InputError(msg)
        for name in map(str.strip, names.split(",")):
            if not is_ignorable(name):
                msg = f"ignore: {name!r} cannot be ignored; expected fields such as temperature, or {SYSTEM}"
                raise InputError(msg)
            for one in [model] if model else found:
                found[one].add(name)
    return {name: frozenset(names) for name, names in found.items()}


def make_parameter_refusal(refused: Mapping[str, str]) -> RefusedError:
    """Return the refusal of what would change the model: paths in the request, by the setting's name."""
    named = dict(islice(refused.items(), _MAX_NAMED))
    listed = ", ".join(_CALLED.get(name, path) for name, path in named.items())
    listed += f" and {more} more" if (more := len(refused) - len(named)) else ""
    msg = (
        f"{listed}: the model was calibrated with another value or without one, so its guarantee would not "
        f"hold; leave it out, or let the operator have it ignored (--ignore {','.join(named)})"
    )
    return RefusedError(400, "unsupported_parameter", msg, param=next(iter(refused.values())))

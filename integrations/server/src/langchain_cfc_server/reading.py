"""Parse the bytes of a body as a request, or refuse them with a reason.

JSON is parsed strictly: whatever parsers interpret differently, such as duplicate names, is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import ValidationError
from starlette.datastructures import Headers

from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.parameters import MESSAGE, PARAMETERS, asks_for_nothing, is_ignorable
from langchain_cfc_server.schema import MESSAGE_FIELDS, StrictRequest

Asked = TypeVar("Asked", bound=StrictRequest)

# Maximum number of problems in a message, and of characters of a name.
_MAX_PROBLEMS = 5
_MAX_NAME_LENGTH = 100
# Fields of messages whose values are validated even if they are null or empty.
_REQUIRED = frozenset({"role", "content"})
# Escaped surrogates, which nearly always come in pairs.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _UnreadableError(ValueError):
    """JSON that different parsers would interpret differently."""


def check_type(headers: Headers) -> None:
    """Check that the headers declare an uncompressed body of JSON in UTF-8.

    Raises:
        RefusedError: If they declare anything else, or no content type.
    """
    kind, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in {"", "charset=utf-8"}:
        msg = "expected a body of JSON with the header `Content-Type: application/json`"
        raise RefusedError(415, "unsupported_media_type", msg)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(415, "unsupported_content_encoding", "expected a body that is not compressed")


@dataclass(frozen=True)
class ReadRequest(Generic[Asked]):
    """A request as it was read.

    Attributes:
        asked: The request, without its parameters.
        parameters: Fields that could change the model, with values other than empty ones.
        ignored: Names of fields that the body holds and the model ignores.
        unknown: Where other fields are that the operator may have ignored, by the setting's name.
    """

    asked: Asked
    parameters: dict[str, Any]
    ignored: list[str]
    unknown: dict[str, str]


def read_request(
    body: bytes, kind: type[Asked], ignored: Mapping[str, AbstractSet[str]]
) -> ReadRequest[Asked]:
    """Return the request that a body holds, parsed strictly.

    Args:
        body: The whole body.
        kind: The request's schema.
        ignored: Names of the fields that each model ignores.

    Returns:
        The request, its parameters and what is ignored.

    Raises:
        RefusedError: If the body is not a valid request; the reason quotes field names but no values.
    """
    data = _parse_json(body)
    if not isinstance(data, dict):
        raise RefusedError(400, "invalid_request", "expected a JSON object")
    model = data.get("model")
    passed_over = ignored.get(model, frozenset()) if isinstance(model, str) else frozenset()
    fields = _Fields(passed_over)
    data = fields.select(data, kind.model_fields.keys() | PARAMETERS.keys())
    for name, known in MESSAGE_FIELDS.items():
        if isinstance(messages := data.get(name), list):
            data[name] = [
                fields.select_of_message(one, known, f"{name}.{at}.") if isinstance(one, dict) else one
                for at, one in enumerate(messages)
            ]
    parameters = {name: one for name, one in data.items() if name in PARAMETERS and one is not None}
    try:
        asked = kind.model_validate({name: value for name, value in data.items() if name not in PARAMETERS})
    except ValidationError as error:
        raise _make_refusal(data, error) from error
    return ReadRequest(asked, parameters, fields.ignored, fields.unknown)


class _Fields:
    """Separates known fields from those that are ignored, unknown, or ask for nothing."""

    def __init__(self, passed_over: AbstractSet[str]) -> None:
        self.ignored: list[str] = []
        self.unknown: dict[str, str] = {}
        self._passed_over = passed_over

    def select(
        self, given: Mapping[str, Any], known: Container[str], prefix: str = "", path: str = ""
    ) -> dict[str, Any]:
        """Return the fields to be validated, and remember the names of others."""
        kept = {}
        for name, value in given.items():
            setting = prefix + name
            if setting in self._passed_over:
                if value is not None and setting not in self.ignored:
                    self.ignored.append(setting)
            elif name in known:
                kept[name] = value
            elif not asks_for_nothing(value):
                if is_ignorable(setting):
                    self.unknown.setdefault(setting, path + name)
                else:
                    kept[name] = value
        return kept

    def select_of_message(
        self, message: Mapping[str, Any], known: Container[str], path: str
    ) -> dict[str, Any]:
        """Return the fields of a message, without those that are null or an empty list."""
        kept = self.select(message, known, MESSAGE, path)
        return {name: one for name, one in kept.items() if name in _REQUIRED or one not in (None, [])}


def _parse_json(body: bytes) -> Any:
    try:
        text = body.decode()
        data = json.loads(
            text,
            object_pairs_hook=_reject_duplicate_names,
            parse_constant=_reject_constant,
            parse_float=_to_finite,
        )
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        problem = f"it is not UTF-8 at byte {error.start}"
    except UnicodeEncodeError:
        problem = "it holds half a character: a surrogate without the other"
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "it is too deeply nested"
    except _UnreadableError as error:
        problem = str(error)
    except ValueError:
        # Raised by Python's limit on the number of digits of an integer.
        problem = "it holds a number with too many digits"
    else:
        return data
    raise RefusedError(400, "invalid_json", f"the body cannot be read as JSON: {problem}")


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name, count in times.items() if count > 1)
        msg = f"the name {_shorten(twice)} occurs twice in one object"
        raise _UnreadableError(msg)
    return found


def _reject_constant(constant: str) -> NoReturn:
    msg = f"{constant} is not JSON"
    raise _UnreadableError(msg)


def _to_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        msg = "it holds a number that is too large"
        raise _UnreadableError(msg)
    return number


def _make_refusal(data: Any, error: ValidationError) -> RefusedError:
    problems = error.errors(include_url=False, include_input=False)
    listed = [f"{_find_path(data, one)}: {_describe_problem(one)}" for one in problems[:_MAX_PROBLEMS]]
    more = len(problems) - len(listed)
    message = "; ".join(listed) + (f"; and {more} more" if more else "")
    return RefusedError(400, "invalid_request", message, param=_find_path(data, problems[0]))


def _describe_problem(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "extra_forbidden":
        return "unknown field"
    if problem["type"] == "union_tag_invalid":
        # Pydantic's own message quotes the value, which may be of any length.
        return f"expected one of {problem['ctx']['expected_tags']}"
    return str(problem["msg"])


def _find_path(data: Any, problem: Mapping[str, Any]) -> str:
    """Return the path of a problem in the data, without the names of types that pydantic adds to it."""
    parts = []
    *_, last = problem["loc"]
    for part in problem["loc"]:
        named = isinstance(data, dict) and part in data
        if named or (isinstance(data, list) and isinstance(part, int)):
            data = data[part]
        elif problem["type"] != "missing" or part is not last:
            continue
        parts.append(_shorten(part) if isinstance(part, str) else str(part))
    return ".".join(parts)


def _shorten(name: str) -> str:
    """Return a name, shortened, and as a JSON string if it has non-ASCII or unprintable characters."""
    shown = name if len(name) <= _MAX_NAME_LENGTH else f"{name[:_MAX_NAME_LENGTH]}..."
    return shown if shown.isascii() and shown.isprintable() else json.dumps(shown)

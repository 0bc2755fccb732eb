"""From pydantic's list of errors to one sentence about one field."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import Candidate
from langchain_cfc.records.strict_json import NotJsonError, shown

ModelT = TypeVar("ModelT", bound=BaseModel)

_UNLABELLED = (
    'the candidate is unlabelled; calibration needs "correct": true or false for every candidate, so label '
    "it by hand or with a labeler, or leave the prompt out"
)


def validated(model: type[ModelT], fields: dict[str, Any], source: str, line: int) -> ModelT:
    """Make a model of one parsed line.

    Args:
        model: `PromptRecord` or `Provenance`.
        fields: The parsed line.
        source: The file.
        line: Line number, counted from 1.

    Returns:
        The model.

    Raises:
        RecordError: About the first field that does not fit.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False)
    detail = _misspelt(details) or details[0]
    flaw = detail.get("ctx", {}).get("error")
    path = (*detail["loc"], *flaw.path) if isinstance(flaw, NotJsonError) else detail["loc"]
    raise RecordError(source, line, _written(path), _problem(model, detail, flaw))


def _misspelt(details: list[ErrorDetails]) -> ErrorDetails | None:
    """The unknown field that explains the first error, where that is a missing field of a similar name."""
    if details[0]["type"] != "missing":
        return None
    *parent, missing = details[0]["loc"]
    for detail in details:
        if detail["type"] == "extra_forbidden":
            *here, name = detail["loc"]
            if here == parent and _nearest(name, [missing]):
                return detail
    return None


def _problem(model: type[BaseModel], detail: ErrorDetails, flaw: Exception | None) -> str:
    kind, value = detail["type"], detail["input"]
    owner, name = _field(model, detail["loc"])
    if kind == "extra_forbidden":
        nearest = _nearest(name, owner.model_fields)
        hint = f", did you mean {nearest[0]}?" if nearest else ""
        return f"unknown field{hint}; known are {', '.join(owner.model_fields)}"
    if name == "correct" and (kind == "missing" or value is None):
        return _UNLABELLED
    if kind == "model_type":
        return f"found {shown(value)}; expected a JSON object"
    if isinstance(flaw, NotJsonError):
        found = f"found {flaw.found}"
    elif flaw:
        return str(flaw)
    else:
        found = "missing" if kind == "missing" else f"found {shown(value)}"
    return f"{found}; expected {owner.model_fields[name].description}"


def _field(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[type[BaseModel], str]:
    match path:
        case ("candidates", int(), str() as name, *_):
            return Candidate, name
        case _:
            return model, str(path[0])


def _nearest(name: str | int, known: Iterable[str | int]) -> list[str]:
    return get_close_matches(str(name), [str(one) for one in known], n=1)


def _written(path: Iterable[str | int]) -> str:
    """A path the way one would write it in code, as in `candidates[3].score`."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{shown(step)}]"
    return text

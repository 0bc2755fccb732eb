"""Flags of the command line that are made of the fields of `CalibrationConfig`.

The first paragraph of a field's docstring is the help, with names of options as flags; the field's metadata
are settings of `typer.Option`. Levels, rules and feature maps are text here, which `calibrate` reads.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from langchain_cfc.calibration import CalibrationConfig


def make_flag(name: str, **changes: Any) -> Any:
    """Make the flag of an option of `calibrate`; `changes` are other settings of `typer.Option`."""
    summary = re.sub(r"`(\w+)`", lambda found: _format_flag(found[1]), _SUMMARIES[name])
    if list[str] in get_args(_TYPES[name]):
        summary += " Repeatable."
    # A switch cannot be turned off.
    names = [_format_flag(name)] if _TYPES[name] is bool else []
    return typer.Option(*names, **{"help": summary, **_FIELDS[name].metadata, **changes})


def add_calibration_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each option of `calibrate` to a command, which gets them as `**options`."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=str(one.default) if _TYPES[name] is str else one.default,
            annotation=Annotated[_TYPES[name], make_flag(name)],
        )
        for name, one in _FIELDS.items()
    ]
    parameters = [*(one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD), *added]
    # Typer reads both.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _format_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_summaries(cls: type) -> dict[str, str]:
    """Return the first paragraph of the docstring below each field of a class."""
    definition: Any = ast.parse(inspect.getsource(cls)).body[0]
    return {
        ast.unparse(one.target): " ".join(ast.literal_eval(below.value).partition("\n\n")[0].split())
        for one, below in pairwise(definition.body)
        if isinstance(one, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def _convert_type(python_type: Any) -> Any:
    """Return the type of a flag: numbers, switches and choices as they are, everything else as text."""
    members = set(get_args(python_type)) or {python_type}
    if members <= {bool, int, float, type(None)} or all(isinstance(one, str) for one in members):
        return python_type
    text = list[str] if any(get_origin(one) is Sequence for one in members) else str
    return text | None if type(None) in members else text


_FIELDS = {one.name: one for one in fields(CalibrationConfig)}
_TYPES = {name: _convert_type(one) for name, one in get_type_hints(CalibrationConfig).items()}
_SUMMARIES = _read_summaries(CalibrationConfig)

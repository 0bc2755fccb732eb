"""Parts of the user's own code by their import path, for command lines and for files."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_cfc._text import quote
from langchain_cfc.errors import InputError

FACTORY = "MODULE:NAME of a function without arguments that returns it, of a class, or of the object itself"


def imported(path: str) -> Any:
    """What stands at an import path.

    Args:
        path: `MODULE:NAME`. A module beside where the command was given is found as well, as by `python -m`.

    Returns:
        The object.

    Raises:
        InputError: If it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module does while it is imported
        msg = (
            f"cannot import {path!r}: {type(error).__name__}: {quote(str(error))}; expected MODULE:NAME, "
            "such as mybot:model"
        )
        raise InputError(msg) from error


def made(path: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """A part by the import path of its factory, or of itself.

    Args:
        path: As in `imported`.
        arguments: What the factory is called with.

    Returns:
        What a class, or a function that can be called with these arguments alone, gives; any other object is
        the part itself.

    Raises:
        InputError: If it cannot be imported or made, or there are arguments and nothing to call.
    """
    part = imported(path)
    if not arguments and not _is_factory(part):
        return part
    try:
        return part(**(arguments or {}))
    except Exception as error:
        msg = f"the factory {path} failed with {type(error).__name__}: {quote(str(error))}"
        raise InputError(msg) from error


def _is_factory(part: Any) -> bool:
    """Whether it makes a part: a class, or a function that wants nothing."""
    if inspect.isclass(part):
        return True
    return inspect.isfunction(part) and not any(
        parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        for parameter in inspect.signature(part).parameters.values()
    )

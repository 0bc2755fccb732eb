"""Load plugins of other distributions by entry point (`SCHEME:REST`), and objects by import path."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from langchain_cfc.errors import CFCError, InputError, RecordError
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.text import quote

PluginT = TypeVar("PluginT")

# At least two characters, because a single letter is a Windows drive.
_SOURCE_WITH_SCHEME = re.compile(r"([a-z][a-z0-9+-]+):(.+)")


def is_plugin_source(source: str | os.PathLike[str], folder: Path = Path()) -> bool:
    """Return whether a source has the form `SCHEME:REST` and is not an existing file in `folder`."""
    schemed = isinstance(source, str) and _SOURCE_WITH_SCHEME.fullmatch(source) is not None
    return schemed and not (folder / source).exists()


def load_plugin(group: str, kind: str, returns: type[PluginT], source: str, *given: object) -> PluginT:
    """Return the result of the plugin for `SCHEME:REST`, called with REST and `given`.

    `kind` names the plugins in messages. Raises a RecordError if there is no plugin, and an InputError if it
    fails or returns another type than `returns`.
    """
    scheme, _, rest = source.partition(":")
    found = entry_points(group=group)
    points = [point for point in found if point.name == scheme]
    if not points and rest.startswith("//"):
        raise RecordError(source, 0, "", "no such file; if it is a URL, download it first")
    if not points:
        known = ", ".join(sorted({point.name for point in found}))
        listed = f"found {known}" if known else "none is installed"
        problem = f"no such file, and no {kind} {scheme}: {listed}; langchain-cfc-{scheme} may provide it"
        raise RecordError(source, 0, "", problem)
    point = points[0]
    with _explain_failure(f"{source}: {_find_owner(point)} failed with"):
        made = point.load()(rest, *given)
    if not isinstance(made, returns):
        msg = f"{source}: {_find_owner(point)} returned a {type(made).__name__}; expected {returns.__name__}"
        raise InputError(msg)
    return made


@contextmanager
def _explain_failure(failed: str, hint: str = "") -> Iterator[None]:
    """Turn what code of others raises, which may be anything, into an InputError."""
    try:
        yield
    except CFCError:  # it says itself what is wrong
        raise
    except Exception as error:
        msg = f"{failed} {type(error).__name__}: {quote(str(error))}{hint}"
        raise InputError(msg) from error


def _find_owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


FACTORY = (
    "MODULE:NAME or FILE.py:NAME of a function without arguments that returns it, of a class, or of the "
    "object itself; of this package the name alone, such as SequenceProbability"
)
# Packages whose names need no module.
_OWN_MODULES = ("langchain_cfc.verifiers", "langchain_cfc.labelers")


def complete_path(path: str) -> str:
    """Return an import path with its module, which names of this package may leave out.

    Examples:
        >>> complete_path("SequenceProbability"), complete_path("mybot:judge")
        ('langchain_cfc.verifiers:SequenceProbability', 'mybot:judge')

    Raises:
        InputError: If a name without a module is no verifier, labeler or extractor of this package.
    """
    if ":" in path:
        return path
    known = {name: one for one in _OWN_MODULES for name in importlib.import_module(one).__all__}
    if path not in known:
        msg = (
            f"{path!r} names no object; expected MODULE:NAME or FILE.py:NAME, such as mybot:model, or the "
            f"name of a verifier or labeler of langchain-cfc{suggest_name(path, known)}"
        )
        raise InputError(msg)
    return f"{known[path]}:{path}"


def load_object(path: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Return the object at `MODULE:NAME` or `FILE.py:NAME`, or at the name alone for one of this package.

    A factory, or any object with `arguments`, is called first. The working directory is searched first, as
    with `python -m`; for a file its own folder, as with `python FILE.py`.
    """
    path = complete_path(path)
    # Only a file path may contain further colons.
    module, _, name = path.rpartition(":") if ".py:" in path else path.partition(":")
    file = Path(module).resolve() if module.endswith(".py") else None
    folder = str(Path.cwd() if file is None else file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    expected = "; expected MODULE:NAME or FILE.py:NAME, such as mybot:model"
    with _explain_failure(f"cannot import {path!r}:", expected):
        loaded = importlib.import_module(module if file is None else file.stem)
        if file is not None and not (loaded.__file__ and file.samefile(loaded.__file__)):
            msg = f"a module named {file.stem!r} is loaded already, from another file: rename this one"
            raise ImportError(msg)
        part = getattr(loaded, name)
    if not arguments and not _is_factory(part):
        return part
    with _explain_failure(f"the factory {path} failed with"):
        return part(**(arguments or {}))


def _is_factory(part: Any) -> bool:
    """Return whether an object is a class, or a function that can be called without arguments."""
    if inspect.isclass(part):
        return True
    return inspect.isfunction(part) and not any(
        parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        for parameter in inspect.signature(part).parameters.values()
    )

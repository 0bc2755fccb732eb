"""Sources of other distributions, `SCHEME:REST`, found by their entry points."""

from __future__ import annotations

import os
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from langchain_cfc.collect.sources.files import read_rows
from langchain_cfc.collect.sources.rows import Rows
from langchain_cfc.errors import CFCError, InputError, RecordError

GROUP = "langchain_cfc.sources"
# At least two signs, for a single letter is a drive of Windows.
_SCHEMED = re.compile(r"([a-z][a-z0-9+-]+):(.+)")


def names_no_file(source: str | os.PathLike[str], folder: Path = Path()) -> bool:
    """Whether a source has the form `SCHEME:REST`, and is not the name of a file that just looks like it.

    Args:
        source: A path, or what other distributions read.
        folder: Where relative paths start.

    Returns:
        True if its scheme says how to read it.
    """
    schemed = isinstance(source, str) and _SCHEMED.fullmatch(source) is not None
    return schemed and not (folder / source).exists()


def open_rows(source: str | os.PathLike[str]) -> Rows:
    """Open a dataset file, or what the scheme before the colon stands for.

    Schemes are entry points of the group `langchain_cfc.sources`, each a function from what follows the colon
    to `Rows`.

    Args:
        source: A file as `read_rows` takes it, or `SCHEME:REST`. What exists as a file is a file.

    Returns:
        Its rows.

    Raises:
        RecordError: If the file or the scheme is not there, or the source refuses the rest.
        InputError: If what brings the scheme cannot be loaded, is there twice, or returns anything else.
    """
    if not names_no_file(source):
        return read_rows(source)
    scheme, _, rest = str(source).partition(":")
    found = entry_points(group=GROUP)
    points = [point for point in found if point.name == scheme]
    if not points:
        raise RecordError(str(source), 0, "", _absence(scheme, sorted({point.name for point in found})))
    if len(points) > 1:
        brought = ", ".join(sorted(f"{_owner(point)} ({point.value})" for point in points))
        msg = f"{source}: several distributions bring {scheme}: {brought}; uninstall all but one"
        raise InputError(msg)
    return _opened(points[0], rest)


def _opened(point: EntryPoint, rest: str) -> Rows:
    try:
        rows = point.load()(rest)
    except CFCError:
        raise
    except Exception as error:  # whatever another distribution raises
        msg = f"{point.name}:{rest}: {_owner(point)} failed with {type(error).__name__}: {error}"
        raise InputError(msg) from error
    if not isinstance(rows, Rows):
        msg = f"{point.name}:{rest}: {_owner(point)} returned a {type(rows).__name__}; expected Rows"
        raise InputError(msg)
    return rows


def _absence(scheme: str, known: list[str]) -> str:
    listed = f"found {', '.join(known)}" if known else "none is installed"
    return f"no such file, and no source {scheme}: {listed}; langchain-cfc-{scheme} may bring it"


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value

"""Sources of other distributions, `SCHEME:REST`, found by their entry points."""

from __future__ import annotations

import os

from langchain_cfc.collect.sources.files import read_rows
from langchain_cfc.collect.sources.rows import Rows
from langchain_cfc.plugged import brought, names_no_file

GROUP = "langchain_cfc.sources"


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
    return brought(GROUP, "source", Rows, str(source)) if names_no_file(source) else read_rows(source)

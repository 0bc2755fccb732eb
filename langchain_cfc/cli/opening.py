"""Opening records files with a bar that shows how many records have been read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from langchain_cfc.cli.output import err
from langchain_cfc.records import Records, read_records


@contextmanager
def opened(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Records]:
    """Open files, and show on standard error how far they have been read; nothing where it is no terminal.

    Args:
        paths: At least one records file.

    Yields:
        Their records. Unlike what iterates over them, it can be read in batches.
    """
    console = err()
    columns = (SpinnerColumn(), TextColumn("reading records"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading records", total=None)
        yield replace(read_records(*paths), on_read=lambda more: progress.advance(task, more))

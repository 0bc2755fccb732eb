"""Opening what is calibrated and evaluated on: records files, with a bar, or the store of a collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from langchain_cfc.cli.output import err
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import InputError
from langchain_cfc.records import Provenance, Records, read_records

DATASET = "Labelled records: .jsonl, .jsonl.gz or .parquet; or the store of a collection"
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class Dataset:
    """Labelled records, as `calibrate` and `evaluate` take them.

    Attributes:
        records: The files' records, or the table of a store.
        provenance: Where they come from; None where nothing says.
    """

    records: Records | LabelledDraws
    provenance: Provenance | None


@contextmanager
def opened(paths: Sequence[str], outputs: Sequence[str] = ()) -> Iterator[Dataset]:
    """Open files or a store; how far files have been read is shown on standard error, if it is a terminal.

    Args:
        paths: At least one records file, or one store.
        outputs: Verifiers whose raw outputs are wanted.

    Yields:
        What they hold.

    Raises:
        InputError: If a store is given together with anything else.
    """
    if any(map(_is_store, paths)):
        yield _stored(paths, outputs)
        return
    console = err()
    columns = (SpinnerColumn(), TextColumn("reading records"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading records", total=None)
        records = replace(read_records(*paths), on_read=lambda more: progress.advance(task, more))
        yield Dataset(records, records.provenance)


def _stored(paths: Sequence[str], outputs: Sequence[str]) -> Dataset:
    if len(paths) > 1:
        msg = "a store is read by itself: give one store, or files only"
        raise InputError(msg)
    # Late, for it needs an extra of its own.
    from langchain_cfc.collect.store import Store

    with Store(paths[0]) as store:
        return Dataset(store.table(outputs), store.provenance())


def _is_store(path: str) -> bool:
    if "://" in path:
        return True
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE

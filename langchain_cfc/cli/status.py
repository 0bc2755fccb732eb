"""`langchain-cfc status`, `export` and `import`: what a store holds, and records out of it and into it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from langchain_cfc.cli.output import counted, emit_json, failures_explained, out
from langchain_cfc.records import read_records, write_records

_MOST_LISTED = 10
_STORE = "SQLite file, or URL of a PostgreSQL database."


def status(
    store: Annotated[str, typer.Argument(help=_STORE)],
    check: Annotated[
        bool,
        typer.Option("--check", help="Read all of it first, and compare every prompt with its digests."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show how far a collection is, its labels, and what failed.

    A damaged store is refused with exit code 2, by this command and by all others that read one. Each looks
    at what it reads; `--check` looks at everything.
    """
    with failures_explained():
        # Late, for they need the extra.
        from langchain_cfc.cli.standing import say_standing, standing_data
        from langchain_cfc.collect.standing import Standing
        from langchain_cfc.collect.store import Store

        with Store(store) as opened:
            if check:
                opened.check()
            standing, failures = Standing.of(opened), opened.failures()
            configuration, versions = opened.configuration, opened.versions()
    if as_json:
        failed = [{"id": one.id, "stage": one.stage.name.lower(), "error": one.error} for one in failures]
        emit_json(
            {
                **standing_data(standing),
                **({"checked": True} if check else {}),
                "failures": failed,
                "models": versions,
                "configuration": configuration,
            }
        )
        return
    console = out()
    say_standing(console, standing, configuration.get("n", 0))
    if check:
        console.print("checked       all of it is what was written")
    if versions:
        console.print(escape(f"drawn by      {', '.join(versions)}"), soft_wrap=True)
    reasons = Counter((one.stage.name.lower(), one.error) for one in failures)
    for (stage, error), count in reasons.most_common(_MOST_LISTED):
        console.print(escape(f"{count} failed before they were {stage}: {error}"), soft_wrap=True)
    if len(reasons) > _MOST_LISTED:
        console.print(f"and for {len(reasons) - _MOST_LISTED} more reasons; --json lists all")


def export(
    store: Annotated[str, typer.Argument(help=_STORE)],
    records: Annotated[Path, typer.Argument(help="File to write: .jsonl, .jsonl.gz or .parquet.")],
    sample_for_review: Annotated[
        int | None,
        typer.Option(metavar="K", help="Write a sheet of K candidates for people to label instead, .csv."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the finished records of a store to a file, all or nothing."""
    with failures_explained():
        from langchain_cfc.collect.review import write_review
        from langchain_cfc.collect.store import Store

        with Store(store) as opened:
            finished = counted(opened.records(), "writing records")
            if sample_for_review is None:
                written = write_records(records, finished, opened.provenance())
            else:
                write_review(finished, sample_for_review, records)
                written = sample_for_review
    _say(records, written, as_json=as_json, what="records" if sample_for_review is None else "candidates")


def import_(
    records: Annotated[list[Path], typer.Argument(help="Labelled records that were made elsewhere.")],
    store: Annotated[str, typer.Argument(help=f"{_STORE} Made if it is not there.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was added as JSON.")] = False,
) -> None:
    """Add records that were made elsewhere to a store.

    Records that it holds already are passed over; others of the same id are refused.
    """
    with failures_explained():
        from langchain_cfc.collect.store import Store

        source = read_records(*records)
        with Store(store, create=True) as opened, opened.locked():
            added = opened.add_records(counted(source, "reading records"), source.provenance)
    _say(store, added, as_json=as_json, what="records")


def _say(where: Any, count: int, *, as_json: bool, what: str) -> None:
    if as_json:
        emit_json({what: count, "written": str(where)})
    else:
        out().print(escape(f"{count} {what} written to {where}"), soft_wrap=True)

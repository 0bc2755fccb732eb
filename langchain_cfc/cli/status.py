"""`langchain-cfc status`, `export` and `import`: what a store holds, and records out of it and into it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.cli._format import emit_json, failures_explained, out, percent, track_progress
from langchain_cfc.collect.collecting import format_cost, format_mean_scores
from langchain_cfc.collect.status import CollectionStatus
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
        from langchain_cfc.collect.status import CollectionStatus
        from langchain_cfc.collect.store import Store

        with Store(store) as opened:
            if check:
                opened.check()
            standing, failures = CollectionStatus.from_store(opened), opened.failures()
            configuration, versions = opened.configuration, opened.models()
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
            finished = track_progress(opened.records(), "writing records")
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
        with Store(store, create=True) as opened, opened.lock():
            added = opened.add_records(track_progress(source, "reading records"), source.provenance)
    _say(store, added, as_json=as_json, what="records")


def _say(where: Any, count: int, *, as_json: bool, what: str) -> None:
    if as_json:
        emit_json({what: count, "written": str(where)})
    else:
        out().print(escape(f"{count} {what} written to {where}"), soft_wrap=True)


def standing_data(standing: CollectionStatus) -> dict[str, Any]:
    """What a store holds, as plain data."""
    wrong, correct = standing.mean_scores
    return {
        "prompts": standing.total,
        "finished": standing.labelled,
        "failed": standing.failed,
        "left": standing.remaining,
        "pass_at_n": standing.coverage,
        "mean_score_correct": correct,
        "mean_score_wrong": wrong,
        "input_tokens": sum(one.input_tokens for one in standing.usage.calls),
        "output_tokens": sum(one.output_tokens for one in standing.usage.calls),
        "cost": standing.cost,
        "unanswered_requests": standing.unanswered,
    }


def say_standing(console: Console, standing: CollectionStatus, n: int) -> None:
    """Print what a store holds.

    Args:
        console: Where to.
        standing: What it holds.
        n: Number of candidates for each prompt.
    """
    data = standing_data(standing)
    left = f", {standing.remaining} left" if standing.remaining else ""
    lines = [
        f"prompts       {standing.labelled} of {standing.total} finished, {standing.failed} failed{left}"
    ]
    if standing.coverage is not None:
        lines.append(f"attainable    {percent(standing.coverage)} have a correct one among {n} candidates")
        lines.append(f"scores        {format_mean_scores(standing)} on average")
    lines.append(f"tokens        {data['input_tokens']:,} in, {data['output_tokens']:,} out")
    if standing.cost is not None:
        lines.append(f"cost          {format_cost(standing.cost)}")
    if standing.unanswered:
        lines.append(
            f"unanswered    {standing.unanswered} requests were begun and their answers never received; "
            "budgets count them like the dearest that were answered"
        )
    for line in lines:
        console.print(escape(line), soft_wrap=True)

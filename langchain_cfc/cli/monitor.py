"""`langchain-cfc monitor`: what results and labels show about the promise where it is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.output import EXIT_NO, emit_json, failures_explained, group_label, out, percent

if TYPE_CHECKING:
    from langchain_cfc.monitor import CFCMonitor, MonitorStatus

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Watch the promise where it is served.")
_STORE = "SQLite file that a monitor writes, or URL of a PostgreSQL database."
# Tests that are listed though they do not alarm.
_MOST_LISTED = 10

Artifact = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="The artifact that serves.")]
Level = Annotated[
    float,
    typer.Option(help="Probability of any false alarm, ever: of drift, and of broken promises."),
]
Least = Annotated[
    float,
    typer.Option(help="Smallest probability with which any result is chosen to be labelled."),
]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command("status")
def status(
    artifact: Artifact,
    store: Annotated[str, typer.Argument(help=_STORE)],
    level: Level = 0.01,
    least_probability: Least = 1.0,
    as_json: Json = False,
) -> None:
    """Say whether prompts have drifted or certified rates are broken; exit with 1 if a test alarms.

    Tests may be looked at as often as one likes: the chance that one of them ever alarms without a cause is
    at most the level, for drift; for certified rates, the level and the certificate's own delta together.
    """
    settings = {"level": level, "least_probability": least_probability}
    with failures_explained(), _opened(artifact, store, **settings) as monitor:
        found = monitor.status()
    if as_json:
        emit_json({**found.model_dump(mode="json"), "alarms": len(found.alarms)})
    else:
        _say(out(), found)
    raise typer.Exit(EXIT_NO if found.alarms else 0)


@app.command("report")
def report(
    artifact: Artifact,
    store: Annotated[str, typer.Argument(help=_STORE)],
    out_path: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("monitor.html"),
    level: Level = 0.01,
    least_probability: Least = 1.0,
    as_json: Json = False,
) -> None:
    """Write a page: what alarms, how the evidence grew, and what to do; exit with 1 if a test alarms."""
    with failures_explained():
        from langchain_cfc.monitor.page import write_page

        with _opened(artifact, store, level=level, least_probability=least_probability) as monitor:
            found = monitor.status()
            write_page(out_path, found, monitor.curves())
    if as_json:
        emit_json({"alarms": len(found.alarms), "written": str(out_path)})
    else:
        out().print(escape(f"{len(found.alarms)} alarms; page written to {out_path}"), soft_wrap=True)
    raise typer.Exit(EXIT_NO if found.alarms else 0)


@app.command("labels")
def labels(
    artifact: Artifact,
    store: Annotated[str, typer.Argument(help=_STORE)],
    file: Annotated[
        Path,
        typer.Argument(
            help='JSON Lines: {"id": RUN, "correct": [true, false, ...] or true, "probability": 1.0}.'
        ),
    ],
    least_probability: Least = 1.0,
    as_json: Json = False,
) -> None:
    """Add labels of results, all or none; a result keeps the first it gets.

    `id` is the run that gave the result. `correct` speaks of all candidates in draw order, or in one word of
    the best answer; null stands for a set that was empty or flagged.
    """
    with failures_explained():
        from langchain_cfc.monitor import read_labels

        given = read_labels(file)
        with _opened(artifact, store, least_probability=least_probability) as monitor:
            added = monitor.label(*given)
    if as_json:
        emit_json({"labels": added, "known": len(given) - added, "store": store})
    else:
        known = f", {len(given) - added} were there already" if added < len(given) else ""
        out().print(escape(f"{added} labels added to {store}{known}"), soft_wrap=True)


def _opened(artifact: Path, store: str, **settings: float) -> CFCMonitor:
    """The monitor of an artifact, whose store must be there."""
    # Late, for it needs the extra.
    from langchain_cfc.monitor import CFCMonitor

    known: Any = settings
    return CFCMonitor(CalibrationArtifact.load(artifact), store, create=False, **known)


def _say(console: Console, found: MonitorStatus) -> None:
    """Print what was found."""
    console.print(escape(f"artifact   {found.artifact[:15]}, {found.age_days:.1f} days old"))
    shares = ""
    if found.answered is not None and found.flagged is not None:
        shares = f": {percent(found.answered)} with a set, {percent(found.flagged)} flagged"
    console.print(f"results    {found.results:,}{shares}")
    console.print(f"labels     {found.labels:,}")
    console.print(f"failures   {found.failures:,} prompts could not be served")
    if found.seconds is not None:
        median, most = found.seconds
        console.print(f"took       {median:.3g} s at the median, {most:.3g} s at the 99th percentile")
    for model in found.models:
        console.print(f"[yellow]another model[/]  {escape(model)} was not calibrated", soft_wrap=True)
    for alarm in found.alarms:
        console.print(f"[bold red]alarm[/]      {escape(alarm.sentence())}", soft_wrap=True)
    for doubt in found.doubts:
        console.print(
            f"[yellow]labels[/]     {escape(doubt.sentence())}: they do not speak of all results",
            soft_wrap=True,
        )
    if not found.alarms:
        console.print("[green]no alarm[/]")
    console.print("", _table(found))
    for note in found.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if found.alarms:
        console.print(
            "what is promised rests on prompts, model and verifier being as they were: find what changed, "
            "label some of the latest results, and calibrate again",
            soft_wrap=True,
        )


def _table(found: MonitorStatus) -> Table:
    """The tests with most evidence."""
    from langchain_cfc.monitor.status import amount

    tests = [one for one in found.tests if one.kind != "labelled"]
    listed = tests[: max(_MOST_LISTED, len(found.alarms))]
    left = len(tests) - len(listed)
    title = f"Tests by evidence{f', {left} with less left out' if left else ''}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, width in (("what", 24), ("of", 18)):
        table.add_column(heading, overflow="ellipsis", no_wrap=True, max_width=width)
    for heading, width in (("seen", 6), ("share", 5), ("evidence", 8), ("alarm at", 8)):
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for one in listed:
        table.add_row(
            escape(one.what),
            group_label(one.group),
            f"{one.outcomes:,}",
            "" if one.seen is None else percent(one.seen),
            amount(one.evidence),
            amount(one.needed),
        )
    return table

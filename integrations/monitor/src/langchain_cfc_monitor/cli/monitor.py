"""`langchain-cfc monitor`: watch served results, and calibrate again on them."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact, open_attempts
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.cli.calibration_options import make_flag
from langchain_cfc.cli.commands import make_app
from langchain_cfc.cli.formatting import (
    EXIT_NO,
    emit_json,
    get_console,
    make_summary_table,
    make_table,
    print_lines,
    print_notes,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson, check_output
from langchain_cfc.errors import InputError
from langchain_cfc.support.display import summarise
from langchain_cfc.support.imports import require
from langchain_cfc.support.plugins import is_plugin_source
from langchain_cfc.support.text import format_percent, redact_secrets

if TYPE_CHECKING:
    from langchain_cfc_monitor import CFCMonitor, MonitorStatus

app = make_app(no_args_is_help=True, help="Watch a served artifact: drift, broken promises, new labels.")
# At most this many tests are listed, unless more of them alarm.
_MOST_LISTED = 10
# How far below the target a new artifact is asked to be certified: a bound from few labels lies below it.
_LEAST_KEPT_MARGIN = 0.05

ServedArtifact = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="The served artifact.")]
StorePath = Annotated[
    str, typer.Argument(help="SQLite file written by a monitor, or URL of a PostgreSQL database.")
]
LeastProbability = Annotated[
    float,
    typer.Option(help="Smallest probability with which any result is selected for labelling."),
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only results since then, e.g. 2026-11-01 or 2026-11-01T12:30, UTC."),
]


@app.command("status")
def status(
    artifact: ServedArtifact,
    store: StorePath,
    level: Annotated[
        float,
        typer.Option(
            help="Probability of ever raising a false alarm, separately for drift and broken promises."
        ),
    ] = 0.01,
    least_probability: LeastProbability = 1.0,
    max_age_days: Annotated[
        float | None, typer.Option(min=0.0, help="Maximum age of the artifact, in days.")
    ] = None,
    max_failing: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Maximum share of failures among the latest 1,000 prompts."),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Maximum 99th percentile of the time to serve the latest of them, in seconds."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write one HTML page: alarms, evidence over time, and what to do."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show whether anything has drifted, a promise is broken or a limit exceeded.

    Exit code 1 if so. You may look as often as you like. The probability that any test of drift ever raises a
    false alarm is at most the level; for tests of certified rates, at most the level plus the certificate's
    delta.
    """
    with report_errors():
        from langchain_cfc_monitor import Limits

        with _open_monitor(
            artifact,
            store,
            limits=Limits(max_age_days, max_failing, max_seconds),
            level=level,
            least_probability=least_probability,
        ) as monitor:
            found = monitor.read_status()
            recalibration = _format_recalibration(monitor.artifact, artifact, store)
            if report is not None:
                page: Any = require("langchain_cfc_monitor.page", "lab", "the page of a monitor")
                page.write_page(report, found, monitor.read_curves(), recalibrate=recalibration)
    if as_json:
        emit_json({**found.model_dump(mode="json"), "alarms": len(found.alarms)})
    else:
        _print_status(get_console(), found, recalibration)
        if report is not None:
            get_console().print(escape(f"page written to {report}"), soft_wrap=True)
    raise typer.Exit(0 if found.sound and found.results else EXIT_NO)


@app.command("labels")
def labels(
    artifact: ServedArtifact,
    store: StorePath,
    source: Annotated[
        str,
        typer.Argument(
            metavar="LABELS",
            help='JSON Lines: {"id": RUN, "correct": [true, false, ...] or true, "probability": 1.0}; or '
            "langsmith:KEY, for feedback of that key.",
        ),
    ],
    least_probability: LeastProbability = 1.0,
    as_json: AsJson = False,
) -> None:
    """Add labels of results, all or none.

    A result keeps its first label. `id` is the run that produced the result. `correct` lists all candidates
    in draw order, or is one value for the best answer; null stands for an empty or flagged set.
    """
    with report_errors():
        from langchain_cfc_monitor import read_labels

        with _open_monitor(artifact, store, least_probability=least_probability) as monitor:
            given = read_labels(source, monitor.list_unlabelled() if is_plugin_source(source) else ())
            # Feedback from another service may hold labels that do not fit: leave these out, add the others.
            added = monitor.label(*given, leave_out_unfit=is_plugin_source(source))
    if as_json:
        emit_json({"labels": added, "known": len(given) - added, "store": store})
    else:
        known = f", {len(given) - added} were already there" if added < len(given) else ""
        get_console().print(escape(f"{added} labels added to {store}{known}"), soft_wrap=True)


@app.command("recalibrate")
def recalibrate(
    artifact: ServedArtifact,
    store: StorePath,
    out_path: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write the new artifact, if it is certified.")
    ] = Path("recalibrated.json"),
    min_kept: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="How often the promise must be certified to be kept, e.g. 0.85. Required unless the "
            "artifact was made with --delta or --max-wrong-rate.",
        ),
    ] = None,
    since: Since = None,
    alpha: Annotated[
        list[str] | None, make_flag("alpha", rich_help_panel=None, show_default="those of the artifact")
    ] = None,
    features: Annotated[
        str | None, make_flag("features", rich_help_panel=None, show_default="that of the artifact")
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(help="Probability that a bound or test is wrong. Default: the artifact's, else 0.05."),
    ] = None,
    leave_out_incomplete: Annotated[
        bool,
        typer.Option(
            "--leave-out-incomplete",
            help="Skip labels that do not cover every candidate. Only valid if their being incomplete "
            "depends neither on correctness nor on the results.",
        ),
    ] = False,
    least_probability: LeastProbability = 1.0,
    as_json: AsJson = False,
) -> None:
    """Calibrate again on labelled results of the monitor.

    The new artifact has the options of the old one, and is written only if it is certified; exit code 1 if
    not. Some results are held out, to certify the new artifact and to compare both on the same draws.
    """
    given: dict[str, Any] = {"alpha": alpha, "features": features}
    changes = {name: value for name, value in given.items() if value is not None}
    with report_errors():
        check_output(out_path)
        if out_path.exists() and out_path.samefile(artifact):
            msg = (
                f"--out {out_path} is the artifact being served: write to another path, and replace it later"
            )
            raise InputError(msg)
        import langchain_cfc_monitor as monitoring

        with (
            _open_monitor(artifact, store, least_probability=least_probability) as monitor,
            open_attempts([store], out_path) as attempts,
        ):
            found = monitoring.recalibrate(
                monitor,
                min_kept=min_kept,
                since=_parse_time(since),
                delta=delta,
                leave_out_incomplete=leave_out_incomplete,
                after=attempts.ledger,
                **changes,
            )
            attempts.record(found.artifact)
        if found.certifies:
            found.artifact.save(out_path)
    if as_json:
        written = str(out_path) if found.certifies else None
        data = found.model_dump(mode="json", exclude={"artifact"})
        emit_json({**data, "certifies": found.certifies, "written": written})
    else:
        console = get_console()
        for name, report in zip((artifact.name, "the new artifact"), found.compared, strict=True):
            console.print(f"{escape(name)}, {report.n_test:,} results held out of calibration")
            console.print(make_summary_table(summarise(report).table), "")
        for level, kept in found.certified.items():
            share = format_percent(kept, ".1f")
            console.print(f"alpha = {level}: certified to be kept at least {share} of the time")
        for certificate in () if found.artifact.bot is None else found.artifact.bot.certificates:
            console.print(escape(certificate.sentence))
        for objection in found.objections:
            console.print(f"[bold red]no[/]  {escape(objection)}", soft_wrap=True)
        if found.certifies:
            console.print(f"[green]certified[/]; artifact written to {escape(str(out_path))}", soft_wrap=True)
        else:
            console.print("nothing was written")
    raise typer.Exit(0 if found.certifies else EXIT_NO)


def _parse_time(since: str | None) -> float | None:
    """Convert an ISO 8601 time, UTC unless it has an offset, to seconds since 1970."""
    if since is None:
        return None
    try:
        time = datetime.fromisoformat(since)
        return (time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)).timestamp()
    except (OverflowError, ValueError) as error:
        msg = f"--since {since}: expected a time such as 2026-11-01 or 2026-11-01T12:30"
        raise InputError(msg) from error


def _open_monitor(artifact: Path, store: str, **settings: Any) -> CFCMonitor:
    """Open the monitor of an artifact; its store must exist."""
    # Imported late, because it takes long.
    from langchain_cfc_monitor import CFCMonitor

    # Only the monitor that serves deletes old results.
    loaded = CalibrationArtifact.load(artifact)
    return CFCMonitor(loaded, store, create=False, keep_days=None, **settings)


def _print_status(console: Console, found: MonitorStatus, recalibration: str) -> None:
    console.print(escape(f"artifact   {found.artifact[:15]}, {found.age_days:.1f} days old"))
    shares = ""
    if found.answered is not None and found.flagged is not None:
        shares = f": {format_percent(found.answered)} {found.traits.shown}"
        if found.flagged:
            shares += f", {format_percent(found.flagged)} flagged as not certifiable"
    console.print(f"results    {found.results:,}{shares}")
    for rate in found.rates:
        console.print(escape(f"{found.traits.shown:<10} {rate.sentence}"))
    console.print(f"labels     {found.labels:,}")
    console.print(f"failures   {found.failures:,} {found.traits.prompt}s could not be served")
    if found.seconds is not None:
        median, most = found.seconds
        console.print(f"took       {median:.3g} s at the median, {most:.3g} s at the 99th percentile")
    _print_verdict(console, found)
    console.print("", _make_test_table(found))
    print_notes(console, found.notes)
    if found.alarms:
        console.print(
            f"The promise holds only if {found.traits.prompt}s, model and verifier stay as in calibration. "
            "Find what changed, label some of the results since then, and calibrate again:"
        )
        print_lines(console, [f"  {recalibration}"])


def _format_recalibration(artifact: CalibrationArtifact, path: Path, store: str) -> str:
    """Return the command that calibrates the artifact again on labels in the store, without its password."""
    config = CalibrationConfig.from_artifact(artifact)
    parts = ["langchain-cfc", "monitor", "recalibrate", str(path), redact_secrets(store)]
    if not config.is_confident and config.max_wrong_rate is None:
        kept = float(artifact.make_guarantee(artifact.alphas[-1]).target_coverage) - _LEAST_KEPT_MARGIN
        parts += ["--min-kept", f"{max(kept, 0.01):.2g}"]
    return shlex.join(parts)


def _print_verdict(console: Console, found: MonitorStatus) -> None:
    for breach in found.breaches:
        console.print(f"[bold red]limit[/]      {escape(breach)}")
    for alarm in found.alarms:
        console.print(f"[bold red]alarm[/]      {escape(alarm.sentence)}")
    for doubt in found.doubts:
        console.print(f"[yellow]labels[/]     {escape(doubt.sentence)}: they do not represent all results")
    if not found.results:
        console.print("[yellow]no results[/] of this artifact in this store, so nothing is tested")
        return
    if not found.alarms:
        console.print("[green]no alarm[/]")
    for one in found.together:
        console.print(escape(one.sentence))


def _make_test_table(found: MonitorStatus) -> Table:
    """Make a table of the tests with the most evidence."""
    from langchain_cfc_monitor.status import format_evidence

    tests = [one for one in found.tests if one.kind != "labelled"]
    listed = tests[: max(_MOST_LISTED, len(found.alarms))]
    left = len(tests) - len(listed)
    table = make_table(title=f"Tests by evidence{f', {left} with less not shown' if left else ''}")
    for heading in ("what", "of"):
        table.add_column(heading)
    for heading, width in (("seen", 6), ("share", 5), ("evidence", 8), ("alone at", 8)):
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for one in listed:
        table.add_row(
            escape(one.what_name),
            escape(one.group_name),
            f"{one.outcomes:,}",
            "" if one.seen is None else format_percent(one.seen),
            format_evidence(one.evidence),
            format_evidence(one.needed),
        )
    return table

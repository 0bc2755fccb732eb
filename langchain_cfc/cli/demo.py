"""`langchain-cfc demo`: the whole method on a real recording, in one command."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from langchain_cfc.cli._format import (
    EXIT_NO,
    emit_json,
    format_verdict,
    get_console,
    make_report_tables,
    make_tracker,
    report_errors,
)
from langchain_cfc.cli._inputs import OutArtifact, ReportAsJson, check_output
from langchain_cfc.demo import DemoResult, run_demo
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import PromptRecord
from langchain_cfc.runnable import CFCResult


def demo(
    seed: Annotated[str, typer.Option(help="Another seed gives another split of the recording.")] = "0",
    out_path: OutArtifact = Path("cfc-demo/artifact.json"),
    as_json: ReportAsJson = False,
) -> None:
    """Calibrate and serve recorded answers, without key or network.

    A real model answered the questions. One part calibrates, the rest is served through CFCRunnable. Exit
    code 1 if the promise was kept too rarely for chance on some guaranteed group.
    """
    with report_errors():
        check_output(out_path)
        out_path.parent.mkdir(parents=True, exist_ok=True)
        seen = run_demo(seed, out_path, make_tracker("serving held-out prompts"))
    if as_json:
        emit_json(
            {
                "artifact": str(out_path),
                "seed": seed,
                "notes": list(seen.notes),
                **seen.report.model_dump(mode="json"),
            }
        )
    else:
        console = get_console()
        print_report(console, seen)
        _print_prompts(console, seen)
        _print_next(console, seen, out_path)
    raise typer.Exit(EXIT_NO if seen.report.contradicted else 0)


def print_report(console: Console, seen: DemoResult) -> None:
    """Print what the demo promised and what happened."""
    report, facts = seen.report, seen.artifact.calibration
    everything = facts.fit_size + facts.size + facts.held_out_size
    console.rule("Conditional Factuality Control, on real recorded answers")
    console.print(
        f"A small real model answered {everything} questions about countries, elements and sums, "
        f"{report.n_candidates} times each and often wrongly. {facts.fit_size} of them fitted the features, "
        f"{facts.size} calibrated the threshold, and {report.n_test} were held out and have just been served "
        "through CFCRunnable.\n"
    )
    console.print(
        f"[bold]Promised:[/] with probability at least {format_share(report.target_coverage)}, the answer "
        "set holds a correct answer or the prompt is flagged as not certifiable; over all prompts, and over "
        "each group below as well.\n"
    )
    console.print(
        "[bold]What happened[/] on the held-out prompts, beside the usual single threshold for all "
        "([italic]marginal[/]):\n"
    )
    for table in make_report_tables(report):
        console.print(Padding(table, (0, 0, 1, 1)))
    console.print(
        f"{format_verdict(report)} In brackets 95 % intervals, for all groups together; red where the "
        "interval lies below the target.\n"
    )
    for note in seen.notes:
        console.print(f"[yellow]note:[/] {escape(note)}\n")


def _print_prompts(console: Console, seen: DemoResult) -> None:
    """Print three answered and two abstained prompts, chosen by the hash of their ids."""
    console.rule("Three answered, two abstained")
    mixed = sorted(seen.served, key=lambda pair: hashlib.sha256(pair[0].id.encode()).digest())
    answered = [pair for pair in mixed if not pair[1].abstained]
    first, *others = [pair for pair in mixed if pair[1].abstained]
    second = next((pair for pair in others if pair[1].reason != first[1].reason), others[0])
    for record, result in [*answered[:3], first, second]:
        _print_prompt(console, record, result)


def _print_next(console: Console, seen: DemoResult, path: Path) -> None:
    question = next(record.input for record, result in seen.served if not result.abstained)
    name, command = escape(str(path)), _find_command()
    console.rule()
    console.print(f"The artifact is in [bold]{name}[/]. Go on with\n", soft_wrap=True)
    console.print(f"  {command} inspect {name}", soft_wrap=True)
    console.print(f'  {command} ask {name} --replay demo "{escape(str(question))}"', soft_wrap=True)


def _find_command() -> str:
    """Return the console script as it was called, so that the printed commands work."""
    called = Path(sys.argv[0])
    return escape(str(called)) if called.name == "langchain-cfc" else "langchain-cfc"


def _print_prompt(console: Console, record: PromptRecord, result: CFCResult) -> None:
    console.print(f"\n[bold]{escape(str(record.input))}[/]")
    correct = {candidate.answer_key for candidate in record.candidates if candidate.correct}
    by_answer: dict[str, list[float]] = {}
    for candidate in record.candidates:
        by_answer.setdefault(candidate.answer_key, []).append(candidate.score)
    for answer, scores in sorted(by_answer.items(), key=lambda entry: min(entry[1])):
        inside = answer in result.answers
        label = "[green]correct[/]" if answer in correct else "[red]wrong[/]"
        mark = "[bold]in the set[/]" if inside else "[dim]rejected[/]  "
        console.print(
            f"  {mark}  score {min(scores):.3f}  {len(scores):>2} x  {label:<22} {escape(answer)}",
            no_wrap=True,
            overflow="ellipsis",
        )
    console.print(Padding(escape(result.explain()), (0, 0, 0, 2)), style="dim")

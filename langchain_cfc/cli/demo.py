"""`langchain-cfc demo`: the whole method on a real recording, in one command."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from langchain_cfc.cli.output import (
    EXIT_NO,
    counted,
    emit_json,
    failures_explained,
    out,
    report_tables,
    verdict,
)
from langchain_cfc.demo import Demo, run_demo
from langchain_cfc.records import PromptRecord
from langchain_cfc.runnable import CFCResult


def demo(
    seed: Annotated[str, typer.Option(help="Another seed gives another split of the recording.")] = "0",
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the artifact.")] = Path(
        "cfc-demo/artifact.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Calibrate on real recorded answers and serve held-out questions, with no key and no network.

    Exit code 1 if the promise was kept too rarely for chance on some guaranteed group.
    """
    with failures_explained():
        out_path.parent.mkdir(parents=True, exist_ok=True)
        seen = run_demo(
            seed, out_path, lambda prompts, total: counted(prompts, "serving held-out prompts", total)
        )
    if as_json:
        emit_json({"artifact": str(out_path), "seed": seed, **seen.report.model_dump(mode="json")})
    else:
        _show(out(), seen, out_path)
    raise typer.Exit(EXIT_NO if seen.report.contradicted else 0)


def _show(console: Console, seen: Demo, path: Path) -> None:
    report, facts = seen.report, seen.artifact.calibration
    target = f"{100 * report.target_coverage:g} %"
    console.rule("Conditional Factuality Control, on real recorded answers")
    console.print(
        f"A small real model answered {facts.size + facts.fit_size + facts.held_out_size} questions about "
        "countries, elements and "
        f"sums, {report.n_candidates} times each, often wrongly. {facts.fit_size} of them fitted the "
        f"features, {facts.size} calibrated the "
        f"threshold, and {report.n_test} were held out and have just been served through CFCRunnable."
    )
    console.print(
        f"\n[bold]Promised:[/] with probability at least {target}, the answer set holds a correct answer "
        "or the prompt is "
        "flagged as not certifiable - over all prompts, and also over each group below.\n\n[bold]What "
        "happened[/] on the held-out prompts, "
        "beside the usual single threshold ([italic]marginal[/]):\n"
    )
    for table in report_tables(report):
        console.print(Padding(table, (0, 0, 1, 1)))
    console.print(f"{verdict(report)} Red: the whole interval lies below the target.\n")
    console.rule("Three answered, two abstained")
    for record, result in _examples(seen.served):
        _show_prompt(console, record, result)
    console.rule()
    console.print(f"The artifact is in [bold]{escape(str(path))}[/]. Go on with\n", soft_wrap=True)
    question = seen.served[0][0].input
    console.print(f"  langchain-cfc inspect {escape(str(path))}", soft_wrap=True)
    console.print(
        f'  langchain-cfc ask {escape(str(path))} --replay demo "{escape(str(question))}"', soft_wrap=True
    )


def _examples(served: tuple[tuple[PromptRecord, CFCResult], ...]) -> list[tuple[PromptRecord, CFCResult]]:
    """Three answered and two abstained prompts, one of each reason: the first by hash of their names, not the best ones."""
    mixed = sorted(served, key=lambda pair: hashlib.sha256(pair[0].id.encode()).digest())
    wanted = {"answered": 3, "no_candidate_accepted": 1, "not_certifiable": 1}
    return [
        pair
        for reason, number in wanted.items()
        for pair in [one for one in mixed if one[1].reason == reason][:number]
    ]


def _show_prompt(console: Console, record: PromptRecord, result: CFCResult) -> None:
    """A prompt in full: its candidates by distinct answer, the decision and why."""
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
        )
    console.print(Padding(escape(result.explain()), (0, 0, 0, 2)), style="dim")

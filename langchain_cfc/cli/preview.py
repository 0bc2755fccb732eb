"""`langchain-cfc preview`: what a chain answers to questions, before anything is labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn

from langchain_cfc._internal.plugins import FACTORY, load_object
from langchain_cfc._internal.text import format_percent
from langchain_cfc.cli._format import (
    EXIT_NO,
    make_progress,
    make_table,
    print_list,
    print_result,
    report_errors,
)
from langchain_cfc.errors import InputError
from langchain_cfc.runnable.preview import Preview, preview_answers

# Rows and characters that fit a screen.
_MOST_LISTED = 15
_QUESTION, _ANSWERS = 36, 30


def preview(
    generator: Annotated[str, typer.Argument(help=f"The chat model or chain: {FACTORY}.")],
    questions: Annotated[Path, typer.Argument(help="A text file with one question a line.")],
    n: Annotated[int, typer.Option("-n", "--n", help="Candidates drawn for each question.")] = 5,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    verifier: Annotated[
        str | None,
        typer.Option(help=f"The verifier: {FACTORY}. Agreement is the score if left out."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="The answer extractor: MODULE:NAME of the function.")
    ] = None,
    max_concurrency: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the preview as JSON.")] = False,
) -> None:
    """Ask each question several times; show where answers agree.

    A first look that needs no labels, and guarantees nothing: a model may be wrong with one voice.

        langchain-cfc preview chain.py:chain questions.txt

    Exit code 1 if a question failed.
    """
    with report_errors():
        asked = _read_questions(questions)[:limit]
        parts: dict[str, Any] = {
            "verifier": None if verifier is None else load_object(verifier),
            "answer": None if answer is None else load_object(answer),
        }
        with make_progress(BarColumn(bar_width=24)) as progress:
            task = progress.add_task("asking", total=len(asked))
            found = preview_answers(
                load_object(generator),
                asked,
                n=n,
                config={"max_concurrency": max_concurrency},
                on_progress=lambda done: progress.update(task, completed=done),
                **parts,
            )
    print_result(found, _print_preview, as_json=as_json)
    raise typer.Exit(EXIT_NO if len(found.answered) < len(found.questions) else 0)


def _read_questions(path: Path) -> list[str]:
    """Return the lines of a file that are not blank."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read as text in UTF-8 with one question a line ({error})"
        raise InputError(msg) from error
    if not any(lines):
        msg = f"{path}: holds no question; expected one a line"
        raise InputError(msg)
    return [line for line in lines if line]


def _print_preview(console: Console, found: Preview) -> None:
    asked, answered = len(found.questions), len(found.answered)
    console.print(
        f"{asked} questions, {found.n} answers each. On {format_percent(found.unanimous_rate)} of them all "
        f"{found.n} agree; {found.mean_distinct_answers:.2f} distinct answers on average."
    )
    if found.usage is not None:
        console.print(
            f"{found.usage['input_tokens']:,} tokens in, {found.usage['output_tokens']:,} out for "
            f"{asked * found.n} answers."
        )
    table = make_table("least agreement first", "answers", texts=2)
    for column, width in zip(table.columns, (_QUESTION, _ANSWERS), strict=True):
        column.no_wrap, column.max_width = True, width
    table.add_column("agree", justify="right")
    for one in found.answered[:_MOST_LISTED]:
        answers = " | ".join(
            f"{cluster.count}x {' '.join(cluster.answer.split())}" for cluster in one.clusters
        )
        table.add_row(escape(one.question), escape(answers), format_percent(one.agreement or 0.0))
    console.print("", table)
    if answered > _MOST_LISTED:
        console.print(f"... and {answered - _MOST_LISTED} with at least as much agreement (--json has all)")
    failed = [f"{one.question}: {one.error}" for one in found.questions if one.error is not None]
    if failed:
        print_list(console, failed[:_MOST_LISTED], f"{len(failed)} failed")
    console.print(
        "\nNo guarantee: agreement is not correctness. Label some questions and calibrate to know how often "
        "answers are right: langchain-cfc collect --help"
    )

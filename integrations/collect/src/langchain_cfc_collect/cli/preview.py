"""`langchain-cfc preview`: a first look at a chain, without labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.cli.formatting import (
    EXIT_NO,
    make_progress,
    make_table,
    print_lines,
    print_result,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records.splits import draw_sample
from langchain_cfc.support.plugins import FACTORY, load_object
from langchain_cfc.support.text import format_percent
from langchain_cfc_collect.preview import Preview, QuestionPreview
from langchain_cfc_collect.preview import preview as run_preview

# Most questions to show, and most answers to each.
_MOST_QUESTIONS, _MOST_ANSWERS = 10, 3
# Widths of the table's columns, in characters.
_QUESTION_WIDTH, _ANSWERS_WIDTH = 32, 27
_TEXT_FILES = {".txt", ""}


def preview(
    chain: Annotated[str, typer.Argument(help=f"The chat model or chain: {FACTORY}.")],
    questions: Annotated[
        str,
        typer.Argument(
            help="Text file with one question per line, or a dataset (.csv, .jsonl, .json, .parquet)."
        ),
    ],
    question: Annotated[str | None, typer.Option(help="Column of the questions in a dataset.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Candidates per question.")] = 5,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only LIMIT questions, drawn at random.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="Verifier to score with, instead of agreement of the candidates.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(help="Answer extractor, a function of the text; the extracted answers are compared."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent calls.")] = 8,
    as_json: AsJson = False,
) -> None:
    r"""Show which questions a chain is unsure of, without labels.

    Draws a few answers per question, and shows how far they agree, what the distinct answers are, and what
    they cost. This is a first look, not a promise: answers can agree and be wrong.

        langchain-cfc preview chain.py:chain questions.txt

    Exit code 1 if any question failed.
    """
    with report_errors():
        asked = list(_read_questions(questions, question))
        asked = asked if limit is None else draw_sample(asked, limit, str)
        generator = load_object(chain)
        with make_progress() as progress:
            task = progress.add_task("asking", total=len(asked))
            found = run_preview(
                generator,
                asked,
                n=n,
                verifier=None if verifier is None else load_object(verifier),
                answer=None if answer is None else load_object(answer),
                max_concurrency=concurrency,
                on_progress=lambda: progress.advance(task),
            )
    print_result(found, _print_preview, as_json=as_json)
    raise typer.Exit(EXIT_NO if found.failed else 0)


def _read_questions(source: str, column: str | None) -> Iterator[Any]:
    """Yield the questions of a text file or of a dataset."""
    if Path(source).suffix.lower() in _TEXT_FILES and column is None:
        yield from _read_lines(Path(source))
        return
    if column is None:
        msg = f"{source} is a dataset: name the column of the questions with --question"
        raise InputError(msg)
    # Imported late: a text file does not need it.
    from langchain_cfc_collect.sources import BadRow, open_rows

    for row in open_rows(source):
        if isinstance(row, BadRow):
            raise RecordError(source, row.number, row.field, row.problem)
        number, values = row
        if column not in values:
            msg = f"not found; the columns are {', '.join(map(str, values))}"
            raise RecordError(source, number, column, msg)
        yield values[column]


def _read_lines(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text: {error}"
        raise InputError(msg) from error
    yield from (line.strip() for line in lines if line.strip())


def _print_preview(console: Console, found: Preview) -> None:
    shown = [one for one in found.questions if one.error is None][:_MOST_QUESTIONS]
    if shown:
        table = make_table("least sure first", "answers", "agree", "score", texts=2)
        for one in shown:
            table.add_row(
                escape(_shorten(str(one.question), _QUESTION_WIDTH)),
                "\n".join(escape(line) for line in _list_answers(one)),
                format_percent(one.agreement or 0.0),
                f"{one.mean_score:.2f}",
            )
        console.print(table)
        console.print("Score: mean over the candidates, in [0, 1], smaller is better.", style="dim")
    for one in found.questions:
        if one.error is not None:
            question = escape(_shorten(str(one.question), _QUESTION_WIDTH))
            console.print(f"[bold red]failed[/] {question}: {escape(one.error)}", soft_wrap=True)
    console.print()
    print_lines(console, _list_summary(found, len(shown)))
    console.print(f"[bold yellow]{escape(found.note)}[/]")


def _list_answers(one: QuestionPreview) -> Iterator[str]:
    for cluster in one.clusters[:_MOST_ANSWERS]:
        yield f"{cluster.size} x {_shorten(cluster.text, _ANSWERS_WIDTH)}"
    rest = len(one.clusters) - _MOST_ANSWERS
    if rest > 0:
        yield f"and {rest} more"


def _list_summary(found: Preview, shown: int) -> Iterator[str]:
    answered = len(found.questions) - found.failed
    rest = f", the {shown} least sure shown" if shown < answered else ""
    yield f"questions     {len(found.questions)}, {found.n} candidates each{rest}"
    if found.failed:
        yield f"failed        {found.failed}"
    if found.unanimous is not None and found.mean_clusters is not None:
        yield f"all agree     on {format_percent(found.unanimous)} of the questions"
        yield f"answers       {found.mean_clusters:.1f} distinct ones per question"
    tokens = f"{found.input_tokens:,} tokens in, {found.output_tokens:,} out"
    if found.silent_calls == found.calls:
        tokens = "tokens not reported"
    elif found.silent_calls:
        tokens += f" ({found.silent_calls} calls did not report theirs)"
    yield f"cost          {found.calls:,} calls, {tokens}"


def _shorten(text: str, width: int) -> str:
    """Return a text on one line, cut off at a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."

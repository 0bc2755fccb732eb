"""`langchain-cfc init`: propose the settings of a collection, given a file of questions and a model."""

from __future__ import annotations

import shlex
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from langchain_cfc.cli.formatting import (
    EXIT_NO,
    emit_json,
    format_answer_cell,
    get_console,
    get_error_console,
    make_table,
    print_notes,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.errors import InputError
from langchain_cfc.no_answers import Unscored, describe_unscored
from langchain_cfc.sampling.models import list_required_packages
from langchain_cfc.support.files import atomic_writer, check_target
from langchain_cfc.support.imports import check_installed
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_collect import proposal
from langchain_cfc_collect.proposal import Proposal, format_part
from langchain_cfc_collect.sources.detection import describe_lists
from langchain_cfc_collect.sources.files import Rows, open_rows
from langchain_cfc_collect.sources.questions import Table

_dataset_option = partial(typer.Option, rich_help_panel="The dataset")
_model_option = partial(typer.Option, rich_help_panel="The model")


def init(
    source: Annotated[
        str, _dataset_option(help="CSV, JSON Lines, JSON or Parquet file of questions and references.")
    ],
    model: Annotated[str, _model_option(help="Name of the chat model, such as openai:gpt-4o-mini.")],
    question: Annotated[
        str | None, _dataset_option(help="Column of the questions. Default: guessed by its name.")
    ] = None,
    reference: Annotated[
        list[str] | None,
        _dataset_option(
            help="Column of the right answers; repeat it for several. Default: guessed by its name."
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        _dataset_option(help="Prompt around each question. Default: 'Give the answer alone: {question}'."),
    ] = None,
    base_url: Annotated[
        str | None,
        _model_option(help="URL of an OpenAI-compatible server that hosts the model, such as a local one."),
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Candidates for each prompt.")] = 10,
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the settings.")] = Path(
        "collect.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    r"""Propose the settings of a collection from a few real answers.

    Asks the model five of the questions, shows its answers with the references and their labels, and writes
    `collect.toml`. The file holds no API key: set it in the environment, such as OPENAI_API_KEY.

        langchain-cfc init --source questions.csv --model openai:gpt-4o-mini

        langchain-cfc init --source questions.csv \
          --base-url http://127.0.0.1:11434/v1 --model llama3.2

    Exit code 1 if no answer is correct: check the answers before you collect.
    """
    with report_errors():
        name, connection = proposal.parse_model(model, base_url)
        check_installed(list_required_packages(name), "a collection")
        if out_path.exists() and not force:
            msg = f"{out_path} exists: give --out another path, or --force to overwrite it"
            raise InputError(msg)
        check_target(out_path)
        rows = open_rows(source)
        table, around = proposal.read_questions(rows, question, tuple(reference or ()) or None, prompt)
        print_notes(get_error_console(), describe_lists(rows, table.columns))
        choices = proposal.list_labelers(table.examples)
        if prompt is None:
            around = proposal.propose_prompt(name, table.examples, choices)
        with get_error_console().status("asking the model a few questions"):
            found = proposal.propose(name, table.examples, choices, prompt=around, connection=connection)
        settings = proposal.make_settings(
            found, table, path=source, model=name, connection=connection, n=n, folder=out_path.parent
        )
        reasons = {
            **found.reasons,
            "source.bad_rows": f"{pluralize(len(table.bad_rows), 'row')} cannot be used",
        }
        with atomic_writer(out_path) as file:
            file.write(proposal.format_toml(settings, reasons).encode())
    following = f"langchain-cfc collect --config {shlex.quote(str(out_path))} --out records.jsonl"
    if as_json:
        shown = {"settings": settings, "reasons": found.reasons, "answers": _list_answers(found)}
        emit_json({**shown, "written": str(out_path), "next": following})
    else:
        console = get_console()
        _print_proposal(console, found, table, rows)
        requests = len(table.examples) * n
        console.print(f"\n{escape(str(out_path))} written. Next, with {requests:,} requests:", soft_wrap=True)
        console.print(f"  {escape(following)}", soft_wrap=True)
    raise typer.Exit(0 if any(found.correct) else EXIT_NO)


def _print_proposal(console: Console, found: Proposal, table: Table, rows: Rows) -> None:
    tables, reasons, columns = found.tables, found.reasons, table.columns
    names = [columns.reference] if isinstance(columns.reference, str) else list(columns.reference or ())
    questions = pluralize(len(table.examples), "question")
    console.print(escape(f"{questions} in {rows.name}, answers in {join_names(names)}"), soft_wrap=True)
    if table.bad_rows:
        console.print(escape(rows.describe_bad(table.bad_rows)), soft_wrap=True)
    console.print()
    shown = make_table("question", "answer", "reference", "labelled", texts=4)
    for one, correct in zip(found.answers, found.correct, strict=True):
        shown.add_row(
            format_answer_cell(one.example.input, columns.prompt),
            f"[yellow]({one.candidate.no_answer.replace('_', ' ')})[/]"
            if one.candidate.no_answer is not None
            else format_answer_cell(one.candidate.text),
            format_answer_cell(one.example.reference),
            "[green]correct[/]" if correct else "[red]wrong[/]",
        )
    console.print(shown)
    console.print()
    generator = tables["generator"]
    lines = {
        "prompt": (f"{generator.get('prompt', columns.prompt or 'none')}", ""),
        "max_tokens": (f"{generator['arguments']['max_tokens']}", reasons["generator.arguments"]),
        "verifier": (format_part(tables["verifier"]), reasons["verifier.factory"]),
        "labeler": (format_part(tables["labeler"]), reasons["labeler.factory"]),
    }
    if "answer" in tables:
        lines["extractor"] = (format_part(tables["answer"]), reasons["answer.factory"])
    grid = Grid.grid(padding=(0, 2))
    for name, (value, reason) in lines.items():
        grid.add_row(name, f"[bold]{escape(value)}[/]{escape(f': {reason}' if reason else '')}")
    console.print(grid)
    kinds = [one.candidate.no_answer for one in found.answers]
    counts = Counter[Unscored](kind for kind in kinds if kind is not None)
    if counts:
        console.print()
        print_notes(console, describe_unscored(counts, len(kinds)))
    if not any(found.correct):
        console.print(
            "\n[yellow]note:[/] no answer is labelled correct. If the answers are right, the labeler does "
            "not recognise them: try another --prompt, or another labeler (docs/labelers.md). If they are "
            "wrong, try another model."
        )


def _list_answers(found: Proposal) -> list[dict[str, Any]]:
    return [
        {
            "input": one.example.input,
            "answer": one.candidate.text,
            "reference": one.example.reference,
            "correct": correct,
        }
        for one, correct in zip(found.answers, found.correct, strict=True)
    ]

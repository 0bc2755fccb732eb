"""`langchain-cfc init`: propose the settings of a collection, given a file of questions and a model."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.cli.formatting import (
    EXIT_NO,
    emit_json,
    format_answer_cell,
    get_console,
    get_error_console,
    make_table,
    print_note,
    print_notes,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.errors import InputError
from langchain_cfc.no_answers import Unscored, describe_unscored
from langchain_cfc.support.files import atomic_writer
from langchain_cfc.support.text import join_names, pluralize
from langchain_cfc_collect.cli.collect import check_collection_installed

if TYPE_CHECKING:
    from langchain_cfc_collect.proposal import Dataset, Model, Proposal
    from langchain_cfc_collect.sources.columns import References

_dataset_option = partial(typer.Option, rich_help_panel="The dataset")
_model_option = partial(typer.Option, rich_help_panel="The model")


def init(
    source: Annotated[
        str | None, _dataset_option(help="CSV, JSON Lines, JSON or Parquet file of questions and references.")
    ] = None,
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
        _dataset_option(help="Template of the prompt. Default: 'Give the answer alone: {question}'."),
    ] = None,
    model: Annotated[
        str | None, _model_option(help="Name of the chat model, such as openai:gpt-4o-mini.")
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
    `collect.toml`. On a terminal, prompts for options that are missing. The file holds no API key: set it in
    the environment, such as OPENAI_API_KEY.

        langchain-cfc init --source questions.csv --model openai:gpt-4o-mini

        langchain-cfc init --source questions.csv \
          --base-url http://127.0.0.1:11434/v1 --model llama3.2

    Exit code 1 if no answer is correct: check the answers before you collect.
    """
    with report_errors():
        check_collection_installed(model)
        # Imported late: they need the extra.
        from langchain_cfc_collect import proposal as proposals
        from langchain_cfc_collect.sources import open_rows
        from langchain_cfc_collect.sources.detection import describe_lists

        is_asking = sys.stdin.isatty() and not as_json
        _check_output(out_path, force=force)
        if not is_asking:
            _check_options(source, model)
        source = source or _ask_user("File of questions and references (CSV, JSON Lines, JSON, Parquet)")
        references: References | None = tuple(reference or ()) or None
        if is_asking:
            question, references = _ask_columns(source, question, references)
        dataset = proposals.Dataset.read(source, question, references, prompt)
        if model is None:
            model, base_url = _ask_model(base_url)
        for note in describe_lists(open_rows(source), dataset.columns):
            print_note(get_error_console(), note)
        chat = proposals.Model.parse(model, base_url)
        check_collection_installed(chat.name)
        if is_asking and prompt is None:
            given = _ask_user("Prompt", default=str(dataset.columns.prompt))
            dataset = proposals.Dataset.read(source, question, references, given)
        proposal = _propose(dataset, chat, n, out_path)
        while is_asking and not _confirm(proposal, dataset):
            given = _ask_user("Another prompt", default=str(dataset.columns.prompt))
            dataset = proposals.Dataset.read(source, question, references, given)
            proposal = _propose(dataset, chat, n, out_path)
        with atomic_writer(out_path) as file:
            file.write(proposal.format_toml().encode())
    following = f"langchain-cfc collect --config {shlex.quote(str(out_path))} --out records.jsonl"
    if as_json:
        emit_json({**_summarize_proposal(proposal), "written": str(out_path), "next": following})
    else:
        console = get_console()
        if not is_asking:
            _print_proposal(console, proposal, dataset)
        requests = len(dataset.all) * n
        console.print(f"\n{escape(str(out_path))} written. Next, with {requests:,} requests:", soft_wrap=True)
        console.print(f"  {escape(following)}", soft_wrap=True)
    raise typer.Exit(0 if any(proposal.correct) else EXIT_NO)


def _propose(dataset: Dataset, model: Model, n: int, out_path: Path) -> Proposal:
    from langchain_cfc_collect.proposal import propose

    with get_error_console().status("asking the model a few questions"):
        return propose(dataset, model, n=n, folder=out_path.parent)


# Checks of options


def _check_output(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        msg = f"{path} exists: give --out another path, or --force to overwrite it"
        raise InputError(msg)
    if not path.parent.is_dir():
        msg = f"{path} is in a folder that does not exist"
        raise InputError(msg)


def _check_options(source: str | None, model: str | None) -> None:
    missing = [name for name, value in (("--source", source), ("--model", model)) if value is None]
    if missing:
        msg = (
            f"give {join_names(missing)}: missing options are asked for only if standard input is a terminal"
        )
        raise InputError(msg)


# Questions to the user


def _ask_user(text: str, default: str | None = None) -> str:
    answer: str = typer.prompt(text, default=default, err=True)
    return answer.strip()


def _ask_columns(
    source: str, question: str | None, reference: References | None
) -> tuple[str | None, References | None]:
    """Ask for the columns that cannot be recognised by their names."""
    from langchain_cfc_collect.sources import detection, open_rows

    sample = detection.read_sample(open_rows(source))
    question, reference = detection.find_columns(sample, question, reference)
    listed = join_names(list(sample[0]), 20)
    if question is None:
        question = _ask_user(f"Column of the questions ({listed})")
        _, reference = detection.find_columns(sample, question, reference)
    return question, reference or _ask_user(f"Column of the right answers ({listed})")


def _ask_model(base_url: str | None) -> tuple[str, str | None]:
    if base_url is None:
        given = _ask_user("Model (such as openai:gpt-4o-mini, or the URL of an OpenAI-compatible server)")
        if not given.startswith(("http://", "https://")):
            return given, None
        base_url = given
    return _ask_user("Name of the model on that server"), base_url


def _confirm(proposal: Proposal, dataset: Dataset) -> bool:
    _print_proposal(get_error_console(), proposal, dataset)
    confirmed: bool = typer.confirm("\nWrite these settings? (n: try another prompt)", default=True, err=True)
    return confirmed


# Output


def _print_proposal(console: Console, proposal: Proposal, dataset: Dataset) -> None:
    from langchain_cfc_collect.proposal import format_part

    settings, reasons = proposal.settings, proposal.reasons
    columns = dataset.columns
    names = [columns.reference] if isinstance(columns.reference, str) else list(columns.reference or ())
    console.print(
        escape(
            f"{pluralize(len(dataset.all), 'question')} in {dataset.path}, answers in {join_names(names)}"
        ),
        soft_wrap=True,
    )
    if bad_rows := dataset.examples.bad_rows:
        listed = "; ".join(str(row) for row in bad_rows[:3])
        console.print(escape(f"set aside: {pluralize(len(bad_rows), 'row')} ({listed})"), soft_wrap=True)
    console.print()
    table = make_table("question", "answer", "reference", "labelled", texts=4)
    for one, correct in zip(proposal.answers, proposal.correct, strict=True):
        table.add_row(
            format_answer_cell(one.example.input, columns.prompt),
            f"[yellow]({one.candidate.no_answer.replace('_', ' ')})[/]"
            if one.candidate.no_answer is not None
            else format_answer_cell(one.candidate.text),
            format_answer_cell(one.example.reference),
            "[green]correct[/]" if correct else "[red]wrong[/]",
        )
    console.print(table)
    console.print()
    arguments = settings["generator"]["arguments"]
    lines = {
        "prompt": (f"{columns.prompt}", ""),
        "max_tokens": (f"{arguments['max_tokens']}", reasons["generator.arguments"]),
        "verifier": (format_part(settings["verifier"]), reasons["verifier.factory"]),
        "labeler": (format_part(settings["labeler"]), reasons["labeler.factory"]),
    }
    if "answer" in settings:
        lines["extractor"] = (format_part(settings["answer"]), reasons["answer.factory"])
    grid = Table.grid(padding=(0, 2))
    for name, (value, reason) in lines.items():
        grid.add_row(name, f"[bold]{escape(value)}[/]{escape(f': {reason}' if reason else '')}")
    console.print(grid)
    kinds = [one.candidate.no_answer for one in proposal.answers]
    counts = Counter[Unscored](kind for kind in kinds if kind is not None)
    if counts:
        console.print()
        print_notes(console, describe_unscored(counts, len(kinds)))
    if not any(proposal.correct):
        console.print(
            "\n[yellow]note:[/] no answer is labelled correct. If the answers are right, the labeler does "
            "not recognise them: try another --prompt, or another labeler (docs/labelers.md). If they are "
            "wrong, try another model."
        )


def _summarize_proposal(proposal: Proposal) -> dict[str, Any]:
    return {
        "settings": proposal.settings,
        "reasons": {name: reason for name, reason in proposal.reasons.items() if _is_used(name, proposal)},
        "answers": [
            {
                "input": one.example.input,
                "answer": one.candidate.text,
                "reference": one.example.reference,
                "correct": correct,
            }
            for one, correct in zip(proposal.answers, proposal.correct, strict=True)
        ],
    }


def _is_used(name: str, proposal: Proposal) -> bool:
    table, _, setting = name.partition(".")
    return setting in proposal.settings.get(table, {})

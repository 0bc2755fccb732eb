"""`langchain-cfc ask`: put one question, or a batch of them, to `CFCRunnable`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.batch_files import check_batch_output, read_questions, write_answers
from langchain_cfc.cli.formatting import EXIT_NO, get_error_console, print_result, report_errors
from langchain_cfc.cli.inputs import (
    ArtifactAlpha,
    ArtifactPath,
    AsJson,
    RequiredSignature,
)
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import InputError, MissingExtraError
from langchain_cfc.records import read_records
from langchain_cfc.runnable import BatchResult, CFCResult, CFCRunnable, ClaimsResult
from langchain_cfc.runnable.batch import ScoredListener
from langchain_cfc.support.plugins import FACTORY, load_object
from langchain_cfc.support.text import format_limit

# Options under a heading of their own in the help.
_part_option = partial(typer.Option, rich_help_panel="Model and verifier, or a recording")
_batch_option = partial(typer.Option, rich_help_panel="A batch of questions")


def ask(
    artifact_path: ArtifactPath,
    prompt: Annotated[
        str | None, typer.Argument(help="The question; left out with --batch.", show_default=False)
    ] = None,
    generator: Annotated[str | None, _part_option(help=f"The chat model or chain: {FACTORY}.")] = None,
    verifier: Annotated[str | None, _part_option(help=f"The verifier: {FACTORY}.")] = None,
    answer: Annotated[
        str | None, _part_option(help="The answer extractor: MODULE:NAME of the function.")
    ] = None,
    metadata: Annotated[str | None, _part_option(help="The metadata function: MODULE:NAME.")] = None,
    config: Annotated[
        Path | None,
        _part_option(
            "--config",
            "-c",
            help="Settings file of the collection, instead of these options; its prompt template is applied, "
            "too.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        _part_option(help="Records to replay instead of calling a model; 'demo' replays the demo's."),
    ] = None,
    alpha: ArtifactAlpha = None,
    max_wrong_rate: Annotated[
        str | None,
        typer.Option(help="Certified rate of wrong answers, if the artifact holds other promises too."),
    ] = None,
    max_wrong_of_all: Annotated[
        str | None,
        typer.Option(help="Rate of wrong answers among all questions, likewise."),
    ] = None,
    batch: Annotated[
        Path | None,
        _batch_option(
            "--batch",
            metavar="CSV",
            help="Questions in a column named question or input, or in the only column.",
        ),
    ] = None,
    max_wrong_share: Annotated[
        str | None,
        _batch_option(
            help="Of the answered questions of a batch, at most this share gets a wrong answer, on average "
            "over batches; 0.05 by default."
        ),
    ] = None,
    out_path: Annotated[
        Path | None, _batch_option("--out", "-o", metavar="CSV", help="Where to write the answers.")
    ] = None,
    require_signature: RequiredSignature = None,
    show_rejected: Annotated[
        bool, typer.Option("--show-rejected", help="Show rejected candidates as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    r"""Ask one question or a batch, and print the answers.

    Give the model and the verifier that the artifact was calibrated with, or a recording of them.

        langchain-cfc ask artifact.json "What is the capital of Peru?" \
          --config collect.toml

        langchain-cfc ask artifact.json "What is the capital of Peru?" \
          --generator mybot:model --verifier mybot:judge

    A batch is answered once all questions are drawn and scored:

        langchain-cfc ask artifact.json --batch questions.csv --max-wrong-share 0.05 --out answers.csv

    What is drawn is kept in OUT.journal.jsonl, so a run that was stopped goes on: repeat the command. Share
    and questions are fixed from the first run on. Exit code 1 if nothing is answered.
    """
    with report_errors():
        artifact = CalibrationArtifact.load(artifact_path, require_signature=require_signature)
        named = {"generator": generator, "verifier": verifier, "answer": answer, "metadata": metadata}
        brought = [one for one in (replay, config) if one is not None]
        if brought and (len(brought) > 1 or any(one is not None for one in named.values())):
            instead = "--config" if replay is None else "--replay"
            msg = f"{instead} already sets generator, verifier, answer and metadata: leave those options out"
            raise InputError(msg)
        _check_batch_options(
            prompt, batch, out_path, max_wrong_share, [alpha, max_wrong_rate, max_wrong_of_all]
        )
        # A batch has a promise of its own, and any of the artifact's makes the chain.
        promise = {"alpha": alpha, "max_wrong_rate": max_wrong_rate, "max_wrong_of_all": max_wrong_of_all}
        if batch is not None and len(artifact.promises) > 1:
            promise = dict([artifact.promises[0]])
        parts: dict[str, Any] = {"output": artifact.unit}
        render: Callable[[str], Any] = str
        if replay is not None:
            parts |= _make_replay_arguments(replay, prompt)
        elif config is not None:
            render, collected = _read_collection_arguments(config)
            parts |= collected
        else:
            parts |= _import_components(named)
        chain = CFCRunnable(
            artifact=artifact,
            **promise,
            show_rejected=show_rejected,
            **parts,
        )
        answered: BatchResult | None = None
        if batch is not None and out_path is not None:
            questions = read_questions(batch)
            answered = _ask_batch(chain, questions, out_path, max_wrong_share or "0.05", render)
        elif prompt is not None:
            with get_error_console().status("drawing and scoring candidates"):
                result = chain.invoke(render(prompt))
    if answered is not None and out_path is not None:
        print_result(answered, partial(_print_batch, questions=questions, out_path=out_path), as_json=as_json)
        raise typer.Exit(EXIT_NO if all(one.abstained for one in answered.results) else 0)
    print_result(result, _print_answers, as_json=as_json)
    raise typer.Exit(EXIT_NO if result.abstained else 0)


def _check_batch_options(
    prompt: str | None,
    batch: Path | None,
    out_path: Path | None,
    max_wrong_share: str | None,
    promises: Sequence[str | None],
) -> None:
    """Refuse options of a batch and of a single question beside each other."""
    given = [one is not None for one in (batch, out_path, max_wrong_share)]
    alone = prompt is not None and not any(given)
    if not alone and (prompt is not None or not all(given[:2]) or any(one is not None for one in promises)):
        msg = (
            "give one question, whose promise --alpha, --max-wrong-rate or --max-wrong-of-all names; or no "
            "question, and --batch with a CSV file and --out, whose promise is --max-wrong-share"
        )
        raise InputError(msg)


def _ask_batch(
    chain: CFCRunnable,
    questions: Mapping[int, str],
    out_path: Path,
    max_wrong_share: str,
    render: Callable[[str], Any],
) -> BatchResult:
    """Answer the questions of a CSV file, and write the answers once all are decided."""
    check_batch_output(out_path)
    with get_error_console().status("drawing and scoring candidates") as status:
        total = f"questions scored in this run, of {len(questions)} rows"
        listener = ScoredListener(lambda count: status.update(f"{count} {total}"))
        answered = chain.answer_batch(
            [render(one) for one in questions.values()],
            max_wrong_share,
            {"callbacks": [listener]},
            journal=f"{out_path}.journal.jsonl",
        )
    write_answers(out_path, list(questions.values()), answered)
    return answered


def _print_batch(
    console: Console, answered: BatchResult, *, questions: Mapping[int, str], out_path: Path
) -> None:
    console.print(escape(answered.guarantee.sentence))
    failed = {line: one for line, one in zip(questions, answered.errors, strict=True) if one is not None}
    if failed:
        count = f"{len(failed)} of {len(questions)} rows failed"
        line, first = next(iter(failed.items()))
        console.print(f"[yellow]{count}[/], the first in line {line}: {escape(first)}")
    console.print(f"answers written to [bold]{escape(str(out_path))}[/]", soft_wrap=True)


def _print_answers(console: Console, result: CFCResult) -> None:
    if result.abstained:
        console.print("[bold yellow]no answer[/]")
    for number, text in enumerate(result.answers):
        console.print(f"[bold green]{escape(text)}[/]" if number == 0 else escape(text))
    by_score = sorted(result.candidates, key=lambda one: (one.score, one.slot))
    scored = [(one.score, one.accepted, one.text) for one in by_score]
    if isinstance(result, ClaimsResult):
        scored = [(one.score, one.kept, one.text) for one in result.claims]
    for score, is_kept, shown in scored:
        if shown is not None:
            console.print(f"  {'+' if is_kept else ' '} {score:.4f}  {escape(shown)}", style="dim")
    if scored:
        console.print(f"  {_describe_scores(result, [score for score, *_ in scored])}", style="dim")
    console.print(escape(result.explain()))


def _describe_scores(result: CFCResult, scores: Sequence[float]) -> str:
    """Return the numbers that decided: the mean score and its limit, or the threshold and lowest score."""
    certified = result.guarantee.wrong_answers
    if isinstance(result, ClaimsResult):  # uncertified, one is kept if 1 - its score is above the threshold
        if certified is not None:
            return f"claims kept up to a score of {format_limit(certified.cut)} (lower is better)"
        if result.threshold is not None and math.isfinite(result.threshold):
            return f"claims kept below a score of {1 - result.threshold:.4g} (lower is better)"
    score, limit = sum(scores) / len(scores), result.threshold
    if certified is not None:
        limit = certified.cut
    elif result.guarantee.is_about_best:  # answered if 1 - the mean score is above the threshold
        limit = None if limit is None else 1 - limit
    else:
        score = min((one.level for one in result.candidates if one.level is not None), default=min(scores))
    if limit is None or math.isinf(limit):
        return f"score {score:.2g} (no limit can be certified for this question; lower is better)"
    digits = next((one for one in (2, 4) if f"{score:.{one}g}" != f"{limit:.{one}g}"), 6)
    return f"score {score:.{digits}g} (limit {limit:.{digits}g}; lower is better)"


def _make_replay_arguments(path: Path, prompt: str | None) -> dict[str, Any]:
    from langchain_cfc.demo import load_recording

    source = load_recording() if str(path) == "demo" else read_records(path)
    parts = make_replay_parts(source)
    if prompt is not None:
        # Fail here if it was not recorded, rather than later because candidates could not be drawn.
        parts["generator"].find_record(prompt)
    return parts


def _read_collection_arguments(path: Path) -> tuple[Callable[[str], Any], dict[str, Any]]:
    """Return what makes a collection's prompt of a question, and its components as arguments."""
    readers = entry_points(group="langchain_cfc.settings", name="collect")
    if not readers:
        msg = (
            "--config needs langchain-cfc-collect: pip install langchain-cfc-collect, or in a checkout pip "
            "install ./integrations/collect"
        )
        raise MissingExtraError(msg)
    render_question, parts = next(iter(readers)).load()(path)
    return render_question, parts


def _import_components(places: Mapping[str, str | None]) -> dict[str, Any]:
    if places["generator"] is None or places["verifier"] is None:
        msg = (
            "model and verifier are missing: give --config with the settings of the collection, --generator "
            "and --verifier with MODULE:NAME each, or --replay with a records file"
        )
        raise InputError(msg)
    return {name: None if place is None else load_object(place) for name, place in places.items()}

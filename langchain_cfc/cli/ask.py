"""`langchain-cfc ask`: put one question to `CFCRunnable`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.formatting import EXIT_NO, get_error_console, print_result, report_errors
from langchain_cfc.cli.inputs import ArtifactAlpha, ArtifactPath, AsJson, RequiredSignature
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import InputError, MissingExtraError
from langchain_cfc.records import read_records
from langchain_cfc.runnable import CFCResult, CFCRunnable, ClaimsResult
from langchain_cfc.support.plugins import FACTORY, load_object
from langchain_cfc.support.suggestions import suggest_file
from langchain_cfc.support.text import format_limit

# Options under a heading of their own in the help.
_part_option = partial(typer.Option, rich_help_panel="Model and verifier, or a recording")


def ask(
    artifact_path: ArtifactPath,
    prompt: Annotated[str, typer.Argument(help="The question.")],
    generator: Annotated[str | None, _part_option(help=f"The chat model or chain: {FACTORY}.")] = None,
    verifier: Annotated[str | None, _part_option(help=f"The verifier: {FACTORY}.")] = None,
    answer: Annotated[
        str | None, _part_option(help="The answer extractor: MODULE:NAME of the function.")
    ] = None,
    metadata: Annotated[str | None, _part_option(help="The metadata function: MODULE:NAME.")] = None,
    generator_id: Annotated[str | None, _part_option(help="Id of the generator in the records.")] = None,
    verifier_id: Annotated[str | None, _part_option(help="Id of the verifier in the records.")] = None,
    answer_id: Annotated[str | None, _part_option(help="Id of the answer extractor in the records.")] = None,
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
    require_signature: RequiredSignature = None,
    show_rejected: Annotated[
        bool, typer.Option("--show-rejected", help="Show rejected candidates as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    r"""Ask one question: print the answer set, or why there is none.

    Give the model and the verifier that the artifact was calibrated with, or a recording of them.

        langchain-cfc ask artifact.json "What is the capital of Peru?" \
          --config collect.toml

        langchain-cfc ask artifact.json "What is the capital of Peru?" \
          --generator mybot:model --verifier mybot:judge

    Exit code 1 if it abstains.
    """
    with report_errors():
        artifact = CalibrationArtifact.load(artifact_path, require_signature=require_signature)
        named = {"generator": generator, "verifier": verifier, "answer": answer, "metadata": metadata}
        brought = [one for one in (replay, config) if one is not None]
        if brought and (len(brought) > 1 or any(one is not None for one in named.values())):
            instead = "--config" if replay is None else "--replay"
            msg = f"{instead} already sets generator, verifier, answer and metadata: leave those options out"
            raise InputError(msg)
        # A recording or a collection may bring ids of its parts, which take precedence.
        parts: dict[str, Any] = {
            "output": artifact.unit,
            "generator_id": generator_id,
            "verifier_id": verifier_id,
            "answer_id": answer_id,
        }
        if replay is not None:
            parts |= _make_replay_arguments(replay, prompt)
        elif config is not None:
            prompt, collected = _read_collection_arguments(config, prompt)
            parts |= collected
        else:
            parts |= _import_components(named)
        chain = CFCRunnable(
            artifact=artifact,
            alpha=alpha,
            max_wrong_rate=max_wrong_rate,
            max_wrong_of_all=max_wrong_of_all,
            show_rejected=show_rejected,
            **parts,
        )
        with get_error_console().status("drawing and scoring candidates"):
            result = chain.invoke(prompt)
    print_result(result, _print_answers, as_json=as_json)
    raise typer.Exit(EXIT_NO if result.abstained else 0)


def _print_answers(console: Console, result: CFCResult) -> None:
    if result.abstained:
        console.print(f"[bold yellow]abstained[/] ({result.reason})")
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
        described = _describe_scores(result, [score for score, *_ in scored])
        console.print(f"  {described} (smaller is better)", style="dim")
    console.print(escape(result.explain()))


def _describe_scores(result: CFCResult, scores: Sequence[float]) -> str:
    """Return the numbers that decided: the mean score and its limit, or the threshold and lowest score."""
    certified = result.guarantee.wrong_answers
    if certified is not None and certified.max_mean_score is not None:
        limit = format_limit(certified.max_mean_score)
        return f"mean score {sum(scores) / len(scores):.4g}, answered up to {limit}"
    lowest = f"lowest score {min(scores):.4g}"
    if result.threshold is None or math.isinf(result.threshold):
        return f"no threshold can be certified for this prompt, {lowest}"
    if result.guarantee.is_about_best:  # answered if 1 - the mean score is above the threshold
        limit = format_limit(1 - result.threshold)
        return f"mean score {sum(scores) / len(scores):.4g}, answered below {limit}"
    if isinstance(result, ClaimsResult):  # a claim is kept if 1 - its score is above the threshold
        return f"claims are kept below a score of {1 - result.threshold:.4g}"
    return f"threshold {result.threshold:.4g}, {lowest}"


def _make_replay_arguments(path: Path, prompt: str) -> dict[str, Any]:
    from langchain_cfc.demo import load_recording

    if str(path) != "demo" and not path.exists():
        msg = f"--replay {path}: no such file; 'demo' replays the demo's recording{suggest_file(path)}"
        raise InputError(msg)
    source = load_recording() if str(path) == "demo" else read_records(path)
    parts = make_replay_parts(source)
    # Fail here if the prompt was not recorded, rather than later because candidates could not be drawn.
    parts["generator"].find_record(prompt)
    return parts


def _read_collection_arguments(path: Path, question: str) -> tuple[Any, dict[str, Any]]:
    """Return a collection's prompt for a question, and its components as arguments of `CFCRunnable`."""
    readers = entry_points(group="langchain_cfc.settings", name="collect")
    if not readers:
        msg = (
            "--config needs langchain-cfc-collect: pip install langchain-cfc-collect, or in a checkout pip "
            "install ./integrations/collect"
        )
        raise MissingExtraError(msg)
    render_question, parts = next(iter(readers)).load()(path)
    return render_question(question), parts


def _import_components(places: Mapping[str, str | None]) -> dict[str, Any]:
    if places["generator"] is None or places["verifier"] is None:
        msg = (
            "model and verifier are missing: give --config with the settings of the collection, --generator "
            "and --verifier with MODULE:NAME each, or --replay with a records file"
        )
        raise InputError(msg)
    return {name: None if place is None else load_object(place) for name, place in places.items()}

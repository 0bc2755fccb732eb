"""`langchain-cfc collect`: collect labelled records for a dataset, resumably."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from langchain_cfc.cli.formatting import EXIT_NO, report_errors
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.sampling.models import list_required_packages
from langchain_cfc.support.imports import check_installed
from langchain_cfc.support.plugins import FACTORY
from langchain_cfc.support.units import Unit

# Options under headings of their own in the help.
_settings_option = partial(typer.Option, rich_help_panel="Settings")
_dataset_option = partial(typer.Option, rich_help_panel="Dataset")
_part_option = partial(typer.Option, rich_help_panel="Model, verifier and labeler")
_call_option = partial(typer.Option, rich_help_panel="Concurrency and cost")


ConfigPath = Annotated[
    Path | None,
    _settings_option("--config", "-c", help="TOML file with the settings; options here take precedence."),
]
Settings = Annotated[
    list[str] | None,
    _settings_option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting of the file, with a TOML value: generator.arguments.temperature=0.7",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Retry prompts that failed in an earlier run.")
]


def collect(
    config: ConfigPath = None,
    settings: Settings = None,
    store: Annotated[
        str | None,
        _settings_option(help="Store of the collection: SQLite file, or URL of a PostgreSQL database."),
    ] = None,
    n: Annotated[int | None, _settings_option("--n", "-n", help="Candidates per prompt.")] = None,
    draws: Annotated[
        str | None,
        _settings_option(
            help="Instead of --n, a rule that stops drawing, e.g. 'lead(3, at_most=10)': cheaper, but "
            "calibration must then use the same rule."
        ),
    ] = None,
    source: Annotated[
        str | None,
        _dataset_option(
            help="JSON Lines, JSON, CSV or Parquet file, or SCHEME:DATASET of an installed plugin."
        ),
    ] = None,
    question: Annotated[
        str | None, _dataset_option(help="Column of the questions, each the whole prompt.")
    ] = None,
    prompt: Annotated[
        str | None,
        _dataset_option(help="Template that makes the prompt from columns, e.g. 'Question: {question}'."),
    ] = None,
    reference: Annotated[
        list[str] | None,
        _dataset_option(
            help="Column with the right answer, used to label candidates. Repeat it if several columns hold "
            "right answers."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        _dataset_option(help="Use only LIMIT prompts, drawn at random; a larger LIMIT keeps them."),
    ] = None,
    model: Annotated[
        str | None, _part_option(help="Name of the chat model, such as openai:gpt-4o-mini.")
    ] = None,
    generator: Annotated[
        str | None, _part_option(help=f"Instead of --model, a model or chain of your own: {FACTORY}.")
    ] = None,
    verifier: Annotated[str | None, _part_option(help="The verifier, such as SequenceProbability.")] = None,
    labeler: Annotated[str | None, _part_option(help="The labeler, such as NormalisedMatch.")] = None,
    unit: Annotated[
        Unit | None,
        _part_option(
            help="What is scored and labelled: answers (the default), or the claims of one answer per prompt."
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        _call_option(help="Maximum total cost; needs [prices] in the file, or --set prices.'*'=..."),
    ] = None,
    batch: Annotated[
        bool,
        _call_option(
            "--batch",
            help="Send the requests of ChatOpenAI and ChatAnthropic as batches: half the price, and up to 24 "
            "hours each for draws, scores and labels. Requests that a batch leaves unanswered are sent live. "
            "After a kill or Ctrl-C, batches go on at the provider; the same command fetches them.",
        ),
    ] = False,
    retry_failed: RetryFailed = False,
    relabel: Annotated[
        bool,
        typer.Option(
            "--relabel",
            help="Label all candidates again, with another labeler or corrected references, "
            "without drawing again.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Read the dataset, create all parts and estimate the cost, without calling a model.",
        ),
    ] = False,
    out_path: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write the finished records: .jsonl or .jsonl.gz."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    r"""Draw, score and label n candidates for each prompt of a dataset.

    With --unit claims, one answer is split, and its claims are scored and labelled instead of candidates.

    Each finished step is saved at once. After an interruption or a failure, run the same command again to
    resume. Exit code 1 if prompts are unfinished or have failed.

        langchain-cfc collect --source questions.csv \
          --prompt 'Give the answer alone: {question}' \
          --reference answer -n 10 \
          --model openai:gpt-4o-mini \
          --set generator.arguments.logprobs=true \
          --verifier SequenceProbability \
          --labeler NormalisedMatch \
          --store questions.db --out records.jsonl
    """
    with report_errors():
        check_collection_installed(model)
        # Imported late: they need the extra.
        from langchain_cfc_collect.cli import _collection
        from langchain_cfc_collect.config import read_config

        given = {
            "store": store,
            "n": n,
            "draws": draws,
            "source": {
                "path": source,
                "input": question,
                "prompt": prompt,
                "reference": reference or None,
                "limit": limit,
            },
            "generator": {"model": model, "factory": generator},
            "verifier": {"factory": verifier},
            "labeler": {"factory": labeler},
            "unit": unit,
            "run": {"max_cost": max_cost, "batch": batch or None},
        }
        read = read_config(config, given, settings or ())
        if dry_run:
            _collection.show_estimate(read, as_json=as_json)
            return
        finished = _collection.run_collection(
            read, out_path, retry_failed=retry_failed, relabel=relabel, as_json=as_json
        )
    raise typer.Exit(0 if finished else EXIT_NO)


def check_collection_installed(model: str | None) -> None:
    """Raise an error that names all missing packages that a collection with this chat model needs.

    It comes before anything that needs them is imported, so that one error names all of them.
    """
    if model:
        check_installed(list_required_packages(model), "a collection")

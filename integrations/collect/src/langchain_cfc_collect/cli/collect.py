"""`langchain-cfc collect`: collect labelled records for a dataset, resumably."""

from __future__ import annotations

import asyncio
import shlex
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from langchain_cfc.cli.formatting import (
    EXIT_INTERRUPTED,
    EXIT_NO,
    emit_json,
    get_console,
    get_error_console,
    print_lines,
    print_notes,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.errors import CFCWarning, InputError
from langchain_cfc.records import Example, write_records
from langchain_cfc.records.files import check_records_target
from langchain_cfc.records.schema import name_part
from langchain_cfc.sampling.models import list_required_packages
from langchain_cfc.support.database import StoreNotFoundError
from langchain_cfc.support.files import check_target
from langchain_cfc.support.imports import check_installed
from langchain_cfc.support.plugins import FACTORY
from langchain_cfc.support.units import Unit
from langchain_cfc_collect import collecting
from langchain_cfc_collect.cli.status import print_status, summarize_status
from langchain_cfc_collect.collecting import (
    check_references,
    explain_unverified_parts,
    format_cost,
    show_progress,
)
from langchain_cfc_collect.config import CollectionConfig, ScoringConfig, read_config
from langchain_cfc_collect.costs import Stage, assume_output
from langchain_cfc_collect.executor import Executor
from langchain_cfc_collect.rescoring import rescore
from langchain_cfc_collect.run import CollectionOptions, CollectionResult, Run
from langchain_cfc_collect.sources.detection import describe_lists
from langchain_cfc_collect.status import CollectionStatus, estimate_remaining
from langchain_cfc_collect.store import Store

# Below this attainable coverage, the next step is to look at the labels, not to calibrate.
_LEAST_COVERAGE = 0.1
# With fewer prompts, the proposed rate of 10 % cannot be certified: 0.9 ** 30 is more than the level of its
# first test, 80 % of delta = 0.05.
_LEAST_PROMPTS = 31
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
        if model:
            check_installed(list_required_packages(model), "a collection")
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
            show_estimate(read, as_json=as_json)
            return
        finished = run_collection(read, out_path, retry_failed=retry_failed, relabel=relabel, as_json=as_json)
    raise typer.Exit(0 if finished else EXIT_NO)


def run_collection(
    config: CollectionConfig,
    records: Path | None,
    *,
    retry_failed: bool,
    relabel: bool,
    as_json: bool,
) -> bool:
    """Collect, write the finished records and print the outcome; return whether every prompt is finished."""
    if records is not None:  # before anything is paid for
        check_records_target(records)
        check_target(records)
        if records.resolve() == Path(config.store).resolve():
            msg = f"--out {records} is the store: give another path"
            raise InputError(msg)
    with _exit_on_interrupt():
        examples = config.source.read_examples()
        print_notes(get_error_console(), describe_lists(config.source.rows, config.source))
        with _make_options(config, retry_failed=retry_failed, relabel=relabel) as options:
            ended = collecting.collect(examples, config.create_components(), config.store, options)
        if examples.bad_rows:
            print_notes(get_error_console(), [config.source.rows.describe_bad(examples.bad_rows)])
        return _report(ended, config.store, records, as_json=as_json)


def _report(
    ended: CollectionResult,
    name: str,
    records: Path | None = None,
    *,
    as_json: bool,
    is_rescored: bool = False,
) -> bool:
    """Write the finished records and print the outcome; return whether every prompt is finished."""
    written: dict[str, Any] = {"store": name}
    with Store(name) as store:
        if records is not None and ended.status.labelled > ended.status.without_claims:
            write_records(records, store.read_all(), store.read_provenance())
            written["records"] = str(records)
        configuration, summary = store.configuration, summarize_status(ended.status, store)
        unlabelled = store.count_stages()[Stage.SCORED] if is_rescored else 0
    if as_json:
        emit_json({**summary, "complete": ended.complete, **written})
    else:
        print_status(get_console(), ended.status, summary, configuration)
        next_steps = _list_next_steps(written, ended, configuration.get("draws"))
        if unlabelled and ended.status.remaining:
            left = f"not labelled  {unlabelled} scored prompts: collect with --store {name} and the new "
            next_steps = iter([f"{left}verifier labels them, and draws nothing again"])
        print_lines(get_console(), next_steps)
    return ended.complete and not ended.status.failed


@contextmanager
def _make_options(config: ScoringConfig, **more: Any) -> Iterator[CollectionOptions]:
    """Make the options of a run that shows its progress and warnings, and stops on signals."""
    console = get_error_console()
    with show_progress(console) as progress, _print_warnings(console):
        yield CollectionOptions(
            call_policy=config.run,
            budget=config.create_budget(),
            settings=config.record_settings(),
            keep_payloads=config.run.keep_payloads,
            on_progress=progress,
            on_batch=lambda line: print_notes(console, [line]),
            on_start=lambda run: _stop_on_signals(run, console),
            **more,
        )


def run_rescoring(
    config: ScoringConfig, source: str, target: str, *, retry_failed: bool, as_json: bool
) -> bool:
    """Rescore a store into another, and print the outcome; return whether every prompt is finished."""
    with _exit_on_interrupt(), _make_options(config, retry_failed=retry_failed) as options:
        made, weights = config.create_verifier(), config.weights
        ended = rescore(source, made, target, options, weights=weights, verifier_id=config.verifier_id)
    return _report(ended, target, as_json=as_json, is_rescored=True)


@contextmanager
def _print_warnings(console: Console) -> Iterator[None]:
    """Print warnings at once, while there is still time to act on them."""

    def show(message: Warning | str, *details: Any, **more: Any) -> None:
        del details, more
        print_notes(console, [str(message)])

    with warnings.catch_warnings():
        warnings.simplefilter("always", CFCWarning)
        warnings.showwarning = show
        yield


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Exit with one line and an exit code on Ctrl-C or SIGTERM.

    While prompts are processed, `_stop_on_signals` replaces these handlers in the event loop, which resets
    them to Python's defaults when it closes.
    """
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # only the main thread may handle signals
        before = None
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        get_error_console().print("cancelled; finished work is kept, and the same command resumes from there")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _stop_on_signals(run: Run, console: Console) -> None:
    """On Ctrl-C or SIGTERM, let prompts in progress finish; on a second signal, cancel them."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if run.is_stopping and task is not None:
            task.cancel()
            return
        run.stop()
        console.print(
            "stopping once live calls are finished; batches go on at their provider, and the same command "
            "fetches them"
            if run.has_batches
            else "stopping once prompts in progress are finished; press Ctrl-C (or send SIGTERM) again to "
            "cancel them"
        )

    for number in (signal.SIGINT, signal.SIGTERM):
        # Without such handlers, as on Windows, Ctrl-C cancels everything at once.
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, stop)


def _list_next_steps(written: Mapping[str, Any], ended: CollectionResult, draws: str | None) -> Iterator[str]:
    if not ended.complete:
        yield (
            "not every prompt was started: run the same command again to continue, and calibrate when all "
            "are finished: so far they are the first of the dataset, not a random sample"
        )
    elif ended.status.failed:
        yield "to retry the failed prompts, run it again with --retry-failed"
    yield f"store         {written['store']}"
    if "records" in written:
        yield f"records       {written['records']}"
    coverage = ended.status.coverage
    if coverage is None or not ended.complete:
        return
    calibrate = f"langchain-cfc calibrate {written.get('records', written['store'])}"
    if draws is not None:
        calibrate += f" --draws {shlex.quote(draws)}"
    if coverage < _LEAST_COVERAGE:
        yield f"next          {_explain_low_coverage(ended.status)}"
    elif ended.status.labelled < _LEAST_PROMPTS:
        yield f"next          collect more: {ended.status.labelled} prompts are too few to calibrate on"
    elif ended.status.unit == "claims":
        yield f"next          {calibrate} --unit claims --at-most 1 --alpha 0.1 --test-fraction 0.3"
    else:
        yield f"next          {calibrate} --max-wrong-rate 0.1"


def _explain_low_coverage(status: CollectionStatus) -> str:
    if 2 * status.no_answers.total() > status.drawn:
        return "follow the notes on candidates above, and collect into another store"
    right = "supported claim" if status.unit == "claims" else "correct candidate"
    return (
        f"hardly any prompt has a {right}. If the answers above are right, choose another labeler, such as "
        "NormalisedMatch(anywhere=True) for sentences (docs/labelers.md), and run this again with --relabel, "
        "which draws nothing again"
    )


def show_estimate(config: CollectionConfig, *, as_json: bool) -> None:
    """Print the requests, tokens and cost that a collection will take, without calling any model."""
    components = config.create_components()
    executor = Executor(components)
    is_batch = config.run.batch
    examples = config.source.read_examples()
    wanted = list(check_references(examples, components.labeler))
    print_notes(get_error_console(), describe_lists(config.source.rows, config.source))
    status = None  # without a store
    with suppress(StoreNotFoundError), Store(config.store) as store:
        endpoint = {"endpoint": "batch"} if is_batch else {}
        # Raises if a run would refuse to go on.
        store.check_configuration({**executor.configuration, **config.record_settings(), **endpoint})
        status = CollectionStatus.from_store(store)
    found = estimate_remaining(wanted, status, executor.configuration, config.create_budget())
    doubt = explain_unverified_parts(executor.configuration)
    if doubt is not None and found["prompts"]:
        print_notes(get_error_console(), [doubt])
    if as_json:
        bad_rows = [str(row) for row in examples.bad_rows]
        first = wanted[0].model_dump(mode="json")
        emit_json({**found, "bad_rows": bad_rows, "first": first, "parts": executor.configuration})
        return
    print_lines(get_console(), _list_estimate(found, wanted[0], executor.configuration, is_batch=is_batch))
    if examples.bad_rows:
        print_notes(get_console(), [config.source.rows.describe_bad(examples.bad_rows)])


def _list_estimate(
    found: Mapping[str, Any], first: Example, parts: Mapping[str, Any], *, is_batch: bool
) -> Iterable[str]:
    for part in ("generator", "splitter", "verifier", "labeler", "answer"):
        if parts.get(part) is not None:
            yield f"{part:<13} {name_part(parts[part])}"
    yield f"first prompt  {first.input!r:.200}"
    yield f"reference     {first.reference!r:.200}"
    yield f"to do         {found['prompts']} prompts, {found['draws']} requests for their candidates"
    yield f"tokens        about {found['input_tokens']:,} in, {found['output_tokens']:,} out"
    if found["cost"] is not None:
        live, batch = format_cost(found["cost"]), format_cost(found["batch_cost"])
        yield "cost          about " + (f"{batch} as batches, {live} live" if is_batch else live)
    if found["measured_on"]:
        yield f"based on      {found['measured_on']} finished prompts, verifier and labeler included"
    else:
        output = assume_output(parts["generator"])
        yield f"based on      prompt lengths and {output} tokens an answer: a rough guess without"
        yield "              verifier and labeler. Better: collect a few (--limit 20) first"

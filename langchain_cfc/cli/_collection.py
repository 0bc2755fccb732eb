"""What `collect` does once its options are read: estimate, run, export, and what people see of it."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.cli._format import EXIT_INTERRUPTED, emit_json, err, out
from langchain_cfc.cli.status import say_standing, standing_data
from langchain_cfc.collect.collecting import (
    CollectionOptions,
    CollectionResult,
    collect,
    format_cost,
    progress_bar,
)
from langchain_cfc.collect.config import CollectionConfig
from langchain_cfc.collect.executor import LocalExecutor
from langchain_cfc.collect.review import write_review
from langchain_cfc.collect.run import Run
from langchain_cfc.collect.sources import Examples
from langchain_cfc.collect.status import ASSUMED_OUTPUT, CollectionStatus, Estimate, estimate_remaining
from langchain_cfc.collect.store import Store
from langchain_cfc.errors import CFCWarning, InputError, StoreError
from langchain_cfc.records import Example, PromptRecord, write_records

# Bad rows that a note names.
_MOST_LISTED = 5


@dataclass(frozen=True)
class Sheet:
    """A sheet for people.

    Attributes:
        rows: How many candidates are on it.
        path: Where it goes.
    """

    rows: int
    path: Path

    def __post_init__(self) -> None:
        """Refuse now what would be refused once everything is paid for."""
        if self.rows < 1 or self.path.exists() or self.path.suffix != ".csv":
            msg = (
                f"a sheet of {self.rows} candidates cannot be written to {self.path}: it takes at least one, "
                "and a .csv file that does not exist yet, for people's work is never overwritten"
            )
            raise InputError(msg)


def run(
    config: CollectionConfig, records: Path | None, sheet: Sheet | None, *, retry_failed: bool, as_json: bool
) -> bool:
    """Collect, and say how it ended.

    Args:
        config: The settings.
        records: Where finished records are written at the end; None for nowhere.
        sheet: What people shall label; None for nothing.
        retry_failed: Whether prompts that failed before are tried again.
        as_json: Whether the end is told as JSON.

    Returns:
        Whether every prompt is finished.
    """
    with _interrupts_explained():
        ended = _collected(config, retry_failed=retry_failed)
    written: dict[str, Any] = {"store": config.store}
    sample = None
    if ended.status.labelled:
        with _interrupts_explained(), Store(config.store) as store:
            if records is not None:
                write_records(records, store.records(), store.provenance())
                written["records"] = str(records)
            if sheet is not None:
                write_review(store.records(), sheet.rows, sheet.path)
                written["review"] = str(sheet.path)
            if not ended.status.covered:
                with closing(store.records()) as records_of:
                    sample = next(records_of)
    if as_json:
        emit_json({**standing_data(ended.status), "complete": ended.complete, **written})
    else:
        say_standing(out(), ended.status, config.n)
        for line in _next_steps(written, ended, sample):
            out().print(escape(line), soft_wrap=True)
    return ended.complete and not ended.status.failed


def _collected(config: CollectionConfig, *, retry_failed: bool) -> CollectionResult:
    examples = config.source.read_examples()
    console = err()
    with progress_bar(console) as progress, _noted_at_once(console):
        options = CollectionOptions(
            call_policy=config.create_call_policy(),
            budget=config.create_budget(),
            settings=config.record_settings(),
            retry_failed=retry_failed,
            on_progress=progress,
            on_start=lambda run: _stop_on_signals(run, console),
        )
        ended = collect(
            islice(examples, config.source.limit), config.create_components(), config.store, options
        )
    if examples.bad_rows:
        _note(console, _bad_rows(examples))
    return ended


def _note(console: Console, text: str) -> None:
    console.print(f"[yellow]note:[/] {escape(text)}", soft_wrap=True)


@contextmanager
def _noted_at_once(console: Console) -> Iterator[None]:
    """Print warnings while there is still time to do something about them."""

    def show(message: Warning | str, *details: Any, **more: Any) -> None:
        del details, more
        _note(console, str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", CFCWarning)
        warnings.showwarning = show
        yield


@contextmanager
def _interrupts_explained() -> Iterator[None]:
    """End with one line and an exit code on Ctrl-C, and on SIGTERM as on Ctrl-C.

    While prompts are worked on, `_stop_on_signals` takes over; when that event loop closes, it resets the
    handlers.
    """

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread may handle signals
        before = None
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        err().print("given up; what was finished is kept, and the same command goes on from there")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _stop_on_signals(run: Run, console: Console) -> None:
    """On Ctrl-C or SIGTERM let prompts under way end in good order; on a second one give them up."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if run.is_stopping and task is not None:
            task.cancel()
            return
        run.stop()
        console.print(
            "stopping once what is under way is finished; press Ctrl-C (or send SIGTERM) again to give it up"
        )

    for number in (signal.SIGINT, signal.SIGTERM):
        # Where there are no such handlers, as on Windows, Ctrl-C gives everything up at once.
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, stop)


def _bad_rows(examples: Examples) -> str:
    rows = examples.bad_rows
    listed = "; ".join(str(row) for row in rows[:_MOST_LISTED])
    more = f"; and {len(rows) - _MOST_LISTED} more" if len(rows) > _MOST_LISTED else ""
    return f"{len(rows)} rows of {examples.source} were set aside: {listed}{more}"


def _next_steps(
    written: Mapping[str, Any], ended: CollectionResult, sample: PromptRecord | None
) -> Iterator[str]:
    if not ended.complete:
        yield "not every prompt was begun: run the same command again to go on"
    elif ended.status.failed:
        yield "run it again with --retry-failed for those that failed"
    yield f"store         {written['store']}"
    if "records" in written:
        yield f"records       {written['records']}"
    if "review" in written:
        yield f"review        {written['review']}: fill in `correct`, then see langchain-cfc agreement --help"
    if sample is not None:
        yield from _nothing_correct(sample)
    elif ended.status.labelled:
        yield f"next          langchain-cfc calibrate {written.get('records', written['store'])}"


def _nothing_correct(sample: PromptRecord) -> Iterator[str]:
    """What to look at where no candidate is correct, so that nothing could be certified."""
    yield "next          nothing can be certified, for no prompt has a correct candidate; compare:"
    yield f"  question    {sample.input!r:.200}"
    yield f"  answer      {sample.candidates[0].answer_key!r:.200}"
    yield f"  reference   {sample.reference!r:.200}"
    yield (
        "If the answer is right, the labeler does not read such answers. NormalisedMatch compares whole "
        "answers; of answers in sentences, PatternMatch reads what a pattern finds, NumericMatch the final "
        "number, and JudgeLabels asks a model (docs/labelers.md). Take one of these, or an answer extractor, "
        "with another store"
    )


def show_estimate(config: CollectionConfig, *, as_json: bool) -> None:
    """Say what a collection will take, without calling anything.

    Args:
        config: The settings; all parts are made of them.
        as_json: Whether it is told as JSON.
    """
    executor = LocalExecutor(config.create_components())
    examples = config.source.read_examples()
    wanted = list(islice(examples, config.source.limit))
    found = estimate_remaining(
        wanted,
        _standing(config, executor),
        n=config.n,
        sampling=config.generator.sampling,
        budget=config.create_budget(),
    )
    if as_json:
        bad_rows = [str(row) for row in examples.bad_rows]
        first = wanted[0].model_dump(mode="json")
        emit_json({**asdict(found), "bad_rows": bad_rows, "first": first, "parts": executor.configuration})
        return
    for line in _estimate_lines(found, wanted[0], executor.configuration):
        out().print(escape(line), soft_wrap=True)
    if examples.bad_rows:
        _note(out(), _bad_rows(examples))


def _standing(config: CollectionConfig, executor: LocalExecutor) -> CollectionStatus | None:
    """What the store holds, if there is one; refused as a run would refuse it."""
    try:
        store = Store(config.store)
    except StoreError:
        return None
    with store:
        store.check_configuration({**executor.configuration, **config.record_settings()})
        return CollectionStatus.from_store(store)


def _estimate_lines(found: Estimate, first: Example, parts: Mapping[str, Any]) -> Iterable[str]:
    for part in ("generator", "verifier", "labeler", "answer"):
        known = parts[part]
        if known is not None:
            name = known.get("id") or known.get("model") or "does not say what it is: give it an id"
            yield f"{part:<13} {name}"
    yield f"first prompt  {first.input!r:.200}"
    yield f"reference     {first.reference!r:.200}"
    yield f"to do         {found.prompts} prompts, {found.draws} requests for their candidates"
    yield f"tokens        about {found.input_tokens:,} in, {found.output_tokens:,} out"
    if found.cost is not None:
        yield f"cost          about {format_cost(found.cost)}"
    if found.measured_on:
        yield f"taken from    {found.measured_on} finished prompts, verifier and labeler included"
    else:
        yield (
            f"taken from    the prompts' lengths and {ASSUMED_OUTPUT} tokens an answer, without verifier and "
            "labeler: a guess. Collect a few (--limit 20), then ask again"
        )

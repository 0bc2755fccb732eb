"""`collect`: draw, score and label candidates for examples into a store that survives failures."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from langchain_cfc.errors import CollectionError, InputError, LabelerError
from langchain_cfc.labelers import Labeler, LabelerInput
from langchain_cfc.labelers.base import check_reference
from langchain_cfc.records import Example
from langchain_cfc.sampling import resolve_generator
from langchain_cfc.sampling.comparison import compare_fingerprints, simplify_model_name
from langchain_cfc.sampling.fingerprints import CLASS
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.text import format_percent, pluralize
from langchain_cfc.support.units import UNITS
from langchain_cfc_collect.batches.batcher import Batcher
from langchain_cfc_collect.costs import Budget, Stage
from langchain_cfc_collect.executor import Components, Executor
from langchain_cfc_collect.relabeling import relabel
from langchain_cfc_collect.run import CollectionOptions, CollectionResult, Run
from langchain_cfc_collect.sources.columns import Examples
from langchain_cfc_collect.sources.files import is_frame
from langchain_cfc_collect.status import CollectionStatus, mask_numbers
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.batches import read_open_batches

T = TypeVar("T")

# Number of unusable references that an error lists.
_MOST_LISTED = 5
# Number of causes of failures to list at the end.
_MOST_CAUSES = 3
# Candidates of a trial: some verifiers compare them.
_TRIAL_SIZE = 2


def collect(
    examples: Iterable[Example],
    components: Components,
    store: str | os.PathLike[str],
    options: CollectionOptions | None = None,
) -> CollectionResult:
    """Draw, score and label n candidates for each example, or the claims of one answer.

    Every candidate and finished stage of a prompt (its draws, their scores, their labels) is stored before
    another call is made. To resume an interrupted run, call this again.

    Args:
        examples: The prompts; those that are already in the store are not added again.
        components: The generator, verifier and labeler.
        store: Path of an SQLite file, created if it does not exist, or the URL of a PostgreSQL database. Only
            one process may write to it at a time.
        options: Limits, callbacks and further options; None for the defaults.

    Returns:
        The result of the run. Read its records with `Store(store).read_records()`, or `read_claims()` for
        claims.

    Raises:
        StoreError: If the store cannot be written, is in use, or was made with other components.
        CollectionError: If many consecutive prompts fail.
        RecordError: If an example cannot be used.
        InputError: If a setting cannot be used.

    Warns:
        CollectionWarning: If verifier and labeler ask the same model, or serving could not verify that a
            component is the same; as soon as there are signs that the records will not calibrate well, and at
            the end if prompts failed.
    """
    return run_in_kept_loop("acollect(...)", acollect(examples, components, store, options))


def run_in_kept_loop(instead: str, run: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; where a loop is running already, the error says what to await instead.

    A chat model keeps the connections of its client, which belong to a loop, and models of one address share
    a client. If the loop were closed, their next run would fail. So a thread keeps its loop until it ends.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        run.close()
        msg = f"an event loop is already running, as in a notebook: await {instead} with the same arguments"
        raise InputError(msg)
    if sys.version_info < (3, 11):
        return asyncio.run(run)
    runner = _find_runner()
    try:
        # In the caller's context: by itself, a runner stays in the one in which it was made.
        return cast("T", runner.run(run, context=copy_context()))
    finally:
        loop = runner.get_loop()
        rest = asyncio.all_tasks(loop)
        for task in rest:  # at once, before any of them goes on
            task.cancel()
        if rest:
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))


_KEPT = threading.local()


def _find_runner() -> Any:
    """Return the runner of this thread; a forked process has one of its own."""
    process = os.getpid()
    if getattr(_KEPT, "process", None) != process:
        _KEPT.process, _KEPT.runner = process, asyncio.Runner()
        weakref.finalize(threading.current_thread(), _close, process, _KEPT.runner)
    return _KEPT.runner


def _close(process: int, runner: Any) -> None:
    if os.getpid() != process:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        runner.close()
    else:  # the garbage of the thread is collected by a thread whose own loop is running
        threading.Thread(target=runner.close).start()


async def acollect(
    examples: Iterable[Example],
    components: Components,
    store: str | os.PathLike[str],
    options: CollectionOptions | None = None,
) -> CollectionResult:
    """Run `collect` on an event loop that is already running, as in a notebook; see there."""
    options = options or CollectionOptions()
    policy = options.call_policy
    examples = check_references(examples, components.labeler)
    if not policy.batch:
        return await run_executor(examples, Executor(components, policy, options.config), store, options)
    components = replace(components, generator=resolve_generator(components.generator))
    batcher = Batcher(_group_components(components), policy, options.on_batch or print_line)
    try:
        if batcher.models.live:
            options.on_notice(
                f"{', '.join(batcher.models.live)}: called live, at full price, because only ChatOpenAI and "
                "ChatAnthropic support batches"
            )
        executor = Executor(components, policy, options.config, batcher.make_calls)
        few = replace(components, n=min(components.n or _TRIAL_SIZE, _TRIAL_SIZE), draws=None)
        trial = Executor(few, policy, options.config)
        return await run_executor(examples, executor, store, options, batcher=batcher, trial=trial)
    finally:
        await batcher.models.close()


def check_references(examples: Iterable[Example], labeler: Labeler) -> Iterable[Example]:
    """Return the same examples, which are refused once all are read if the labeler cannot use a reference.

    So nothing is paid for candidates that could not be labelled. The rows of a dataset are then bad rows,
    which its policy for them may leave out.
    """

    def check(example: Example) -> None:
        given = LabelerInput(id=example.id, prompt=example.input, reference=example.reference, candidates=[])
        check_reference(labeler, given)

    if isinstance(examples, Examples):
        examples.check = check
        return examples
    return _check_each(examples, check)


def _check_each(examples: Iterable[Example], check: Callable[[Example], None]) -> Iterator[Example]:
    problems: list[str] = []
    for example in examples:
        if not isinstance(example, Example):
            found = examples if isinstance(examples, str) or is_frame(examples) else example
            what = short_repr(found) if isinstance(found, str) else type(found).__name__
            msg = (
                f"expected examples, found {what}: "
                'use read_examples(path_or_rows, Columns(input="question", reference="answer")), or '
                "build_bot for pairs"
            )
            raise InputError(msg)
        try:
            check(example)
        except LabelerError as error:
            problems.append(f"{example.id}: {error}")
        yield example
    if problems:
        listed = "; ".join(problems[:_MOST_LISTED])
        msg = f"the labeler cannot use the reference of {pluralize(len(problems), 'prompt')}: {listed}"
        raise CollectionError(msg)


def _group_components(components: Components) -> dict[Stage, Any]:
    """Return the components that call models in each stage."""
    scoring = (components.verifier, components.splitter)
    return {
        # A draw rule may look at scores, so the verifier is called while drawing.
        Stage.DRAWN: (components.generator, *(scoring if components.draws else ())),
        Stage.SCORED: scoring,
        Stage.LABELLED: (components.labeler, components.answer, components.metadata),
    }


def print_line(text: str) -> None:
    """Print a line on standard error, as it is."""
    Console(stderr=True, emoji=False).print(text, markup=False, highlight=False, soft_wrap=True)


async def run_executor(
    examples: Iterable[Example],
    executor: Executor,
    store: str | os.PathLike[str],
    options: CollectionOptions,
    *,
    batcher: Batcher | None = None,
    trial: Executor | None = None,
) -> CollectionResult:
    """Take all prompts of a store and of the examples through the stages that they have not finished.

    With batches, the first prompt of a new store is tried live by `trial` before, see `try_first`.
    """
    configuration = executor.configuration
    suspicion = find_shared_judge(configuration["verifier"], configuration["labeler"] or {})
    if suspicion is not None:
        options.on_notice(suspicion)
    shown = show_progress() if options.on_progress is None else nullcontext(options.on_progress)
    with Store(store, create=True) as opened, opened.lock(), shown as on_progress:
        stated = {**configuration, **options.settings, **({} if batcher is None else {"endpoint": "batch"})}
        if options.relabel:
            examples = list(examples)
            await relabel(opened, stated, examples, executor, options, try_first=batcher is None)
        opened.set_configuration(stated)
        await asyncio.to_thread(opened.add, examples)
        if options.retry_failed:
            opened.retry_failed()
        if trial is not None:
            await try_first(opened, trial, options)
        run = Run(opened, executor, options, on_progress, batcher)
        doubt = explain_unverified_parts(configuration)
        if doubt is not None and run.status.remaining:
            options.on_notice(doubt)
        if options.on_start is not None:
            options.on_start(run)
        complete = await run.run()
        if not complete:  # calls that were cancelled may have been charged
            run.status.unanswered = opened.track_budget(Budget()).unanswered
        if run.status.failed:
            options.on_notice(_explain_failures(run.status, [one.error for one in opened.read_failures()]))
    return CollectionResult(run.status, complete)


async def try_first(store: Store, trial: Executor, options: CollectionOptions) -> None:
    """Draw, score and label a prompt live, before batches are paid for that may take a day.

    What a setting gets wrong (a model that returns no log-probabilities, a parser that drops them, a judge
    that cannot be read, a limit that cuts every answer off) is wrong for every prompt. Live runs find it at
    their first prompt; batches would find it once all draws are paid for.

    Args:
        store: The store, which holds the prompts; if it holds candidates or batches, nothing is tried.
        trial: Makes live calls, for few candidates.
        options: Of the collection.

    Raises:
        CollectionError: If a stage fails, or no candidate of the first three prompts is an answer.
    """
    with store.begin_read() as connection:
        is_begun = bool(read_open_batches(connection))
    if not is_begun and not sum(count for stage, count in store.count_stages().items() if stage):
        await Run(store, trial, options, lambda _: None, is_trial=True).run()


def _explain_failures(status: CollectionStatus, errors: Sequence[str]) -> str:
    """Explain why prompts failed, and what that means for a calibration without them."""
    kinds = Counter(map(mask_numbers, errors)).most_common(_MOST_CAUSES)
    causes = "".join(
        f"\n  {count} x {next(one for one in errors if mask_numbers(one) == kind)}" for kind, count in kinds
    )
    tried = status.failed + status.labelled
    share = status.failed / tried
    return (
        f"{status.failed} of {tried} prompts failed ({100 * share:.1f} %), and the promise will be about the "
        f"other ones alone. Try them again: CollectionOptions(retry_failed=True). Why they failed:{causes}"
    )


def find_shared_judge(verifier: Mapping[str, Any], labeler: Mapping[str, Any]) -> str | None:
    """Return a warning if verifier and labeler ask the same model; None if no shared model is known.

    A shared model makes the same mistakes twice: it gives a wrong candidate the best score and labels it
    correct. The records then make the verifier look better than it is, and the guarantee is about what the
    judge believes. Only fingerprints that name a model are compared.
    """
    shared = sorted(_list_model_names(verifier) & _list_model_names(labeler))
    if not shared:
        return None
    return (
        f"{', '.join(shared)} both scores and labels: the guarantee is then about what this model believes, "
        "and only measures its agreement with itself. Label with another model, by matching, or by people"
    )


def explain_unverified_parts(configuration: Mapping[str, Any]) -> str | None:
    """Return a warning about parts that serving could not compare with these; None if there are none.

    Labels are not made while serving, so the labeler is not among them.
    """
    stated = {name: configuration.get(name) for name in ("generator", "verifier", "answer", "splitter")}
    doubts = {
        name: doubt
        for name, one in stated.items()
        if one is not None and (doubt := compare_fingerprints(name, one, one)) is not None
    }
    if not doubts:
        return None
    reasons = "; ".join(f"{name}: {doubt}" for name, doubt in doubts.items())
    several = str(configuration["verifier"].get(CLASS)).endswith("VerifierEnsemble")
    tables = ("verifiers.EACH" if one == "verifier" and several else one for one in doubts)
    ids = ", ".join(
        f"{name}_id= (on the command line --set {table}.id=NAME)"
        for name, table in zip(doubts, tables, strict=True)
    )
    return (
        f"serving cannot verify that it uses the same {' and '.join(doubts)}, so every result will say "
        f"'unverified' ({reasons}). To vouch for it, name it here and in serving: {ids}"
    )


def _list_model_names(fingerprint: Mapping[str, Any]) -> set[str]:
    names = (str(value) for key, value in fingerprint.items() if key.rpartition(".")[2] == "model")
    return set(map(simplify_model_name, names))


# Seconds between two progress lines if there is no terminal; shorter runs print none.
_LINE_INTERVAL = 10.0


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[Callable[[CollectionStatus], None]]:
    """Show the progress of a collection: prompts, rate, time left, coverage, scores and cost.

    Args:
        console: Where to show it; None for standard error. If that is not a terminal, a plain line is printed
            every 10 seconds.

    Yields:
        The function to call with each new status.
    """
    console = console or Console(stderr=True, emoji=False)
    has_bar, printed_at = console.is_terminal, time.monotonic()
    columns = SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}", markup=False)
    progress = Progress(*columns, console=console)
    task = progress.add_task("", total=None)
    with progress if has_bar else nullcontext():

        def show(status: CollectionStatus) -> None:
            nonlocal printed_at
            done, text = status.labelled + status.failed, _describe_progress(status)
            progress.update(task, total=status.total, completed=done, description=text)
            if not has_bar and time.monotonic() - printed_at >= _LINE_INTERVAL:
                printed_at = time.monotonic()
                console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield show


def _describe_progress(status: CollectionStatus) -> str:
    rate, left = status.prompts_per_second, status.remaining
    done = f"{status.labelled + status.failed} of {status.total} prompts"
    minutes = [f"about {left / rate / 60:.0f} min left"] if rate > 0 and left else []
    return ", ".join([done, f"{60 * rate:.0f}/min", *minutes, *_format_details(status)])


def _format_details(status: CollectionStatus) -> Iterator[str]:
    if status.unit == "claims" and status.supported is not None:
        yield f"{sum(status.candidates)} claims, {status.supported:.2f} of them supported"
    elif status.coverage is not None:
        yield f"a right answer for {format_percent(status.coverage)}"
    if any(status.candidates):
        yield f"scores {format_mean_scores(status)}"
    if status.failed:
        yield f"{status.failed} failed"
    if status.cost is not None:
        yield f"cost {format_cost(status.cost)}"
    if status.waiting is not None:
        yield status.waiting


def format_mean_scores(status: CollectionStatus) -> str:
    """Format the mean score of each label that occurs."""
    labels = UNITS[status.unit].wrong, UNITS[status.unit].correct
    means = reversed([*zip(labels, status.mean_scores, strict=True)])
    return ", ".join(f"{label} {mean:.2f}" for label, mean in means if mean is not None)


def format_cost(cost: float) -> str:
    """Format a cost, with more digits if it is less than one."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.4f}"

"""`collect`: from examples to labelled candidates in a store, whatever fails on the way."""

from __future__ import annotations

import asyncio
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import RunnableConfig
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from langchain_cfc._internal.optional import check_installed
from langchain_cfc.collect.costs import Budget
from langchain_cfc.collect.executor import Components, LocalExecutor, RetryPolicy, TokenTurns, request_turns
from langchain_cfc.collect.run import Run, RunObserver
from langchain_cfc.collect.stages import Executor
from langchain_cfc.collect.status import CollectionStatus
from langchain_cfc.collect.store import Store
from langchain_cfc.errors import CollectionWarning, InputError
from langchain_cfc.execution import ConcurrencyLimiter
from langchain_cfc.records import Example
from langchain_cfc.sampling.models import packages_of


def shared_judge(verifier: Mapping[str, Any], labeler: Mapping[str, Any]) -> str | None:
    """What is wrong with labels by the model that the verifier asks as well.

    Whatever fools the one fools the other: a wrong candidate with the best score is labelled correct, the
    records show a verifier that is better than it is, and the promise is about what the judge believes. In
    the words of `langchain_cfc.labelers.true_coverage`, its mistakes are not independent, so that only
    `true_coverage_at_worst` holds.

    Args:
        verifier: Fingerprint of the verifier, or of several together.
        labeler: Fingerprint of the labeler.

    Returns:
        A sentence for people; None unless both say that they ask a model of the same name. Of a judge that
        does not say which model it asks, nothing can be told.
    """
    shared = sorted(_models(verifier) & _models(labeler))
    if not shared:
        return None
    return (
        f"{', '.join(shared)} both scores and labels: what is promised then is what this model believes, and "
        "its agreement with itself. Label with another model, by matching, or by people"
    )


def _models(said: Mapping[str, Any]) -> set[str]:
    """The models that a fingerprint names, for itself or for its parts."""
    return {str(value) for key, value in said.items() if key.rpartition(".")[2] == "model"}


def check_packages(model: str | None = None) -> None:
    """Check that what a collection needs is installed, so that one error names all that is missing.

    Args:
        model: Name of the model that draws, such as `openai:gpt-4o-mini`; None if it is not given by name.

    Raises:
        MissingExtraError: If a package is missing; the message names the command that installs all of them.
    """
    needed = {"filelock": "collect", "sqlalchemy": "collect"}
    check_installed({**needed, **(packages_of(model) if model is not None else {})}, "a collection")


# Seconds between two lines where there is no terminal; shorter runs print none.
_LINE_EVERY = 30.0


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[CollectionStatus], None]]:
    """Show how far a collection has come: prompts, pace, time left, coverage, scores and cost.

    Args:
        console: Where to; by default standard error. Where that is no terminal, a plain line is printed every
            30 seconds.

    Yields:
        What is to be called with the standing.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None, pace="", seen="")

        def show(standing: CollectionStatus) -> None:
            progress.update(
                task,
                total=standing.total,
                completed=standing.labelled + standing.failed,
                pace=f"{60 * standing.per_second:.0f}/min",
                seen=", ".join(_seen(standing)),
            )

        yield show


class _Lines:
    """Prints the standing as a line of plain text, at most every so often."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed_at = time.monotonic()

    def __call__(self, standing: CollectionStatus) -> None:
        now = time.monotonic()
        if now - self._printed_at < _LINE_EVERY:
            return
        self._printed_at = now
        done = standing.labelled + standing.failed
        pace = standing.per_second
        minutes = f", about {standing.left / pace / 60:.0f} min left" if pace > 0 and standing.left else ""
        line = ", ".join([f"{done} of {standing.total} prompts", f"{60 * pace:.0f}/min", *_seen(standing)])
        self._console.print(line + minutes, markup=False, highlight=False, soft_wrap=True)


def _seen(standing: CollectionStatus) -> Iterator[str]:
    if standing.coverage is not None:
        yield f"pass@n {standing.coverage:.2f}"
        yield f"scores {score_words(standing)}"
    if standing.failed:
        yield f"{standing.failed} failed"
    if standing.cost is not None:
        yield f"cost {money(standing.cost)}"


def score_words(standing: CollectionStatus) -> str:
    """Mean scores of correct and wrong candidates, as far as there are any."""
    wrong, correct = standing.mean_scores
    said = [("correct", correct), ("wrong", wrong)]
    return ", ".join(f"{word} {mean:.2f}" for word, mean in said if mean is not None)


def money(cost: float) -> str:
    """A cost, with more digits where it is less than one."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.4f}"


_LEAST_SPARE = 8


@dataclass(frozen=True)
class CallPolicy:
    """How calls are made.

    Attributes:
        concurrency: Most calls of generator, verifier and labeler at once, at least 1.
        requests_per_second: Most calls per second, above 0; a call that asks several models counts once. None
            for no limit.
        tokens_per_second: Most tokens per second, requests and answers together, above 0; models must say
            what they take. None for no limit.
        attempts: How often a call is made at most, where its failure may pass by itself; at least 1.
        timeout: Seconds that one call may take, above 0; None for no limit.
    """

    concurrency: int = 8
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    attempts: int = 5
    timeout: float | None = 120.0

    def __post_init__(self) -> None:
        """Refuse what would stand still."""
        for name in ("concurrency", "attempts"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)!r}; expected a whole number of at least 1"
                raise InputError(msg)
        for name in ("requests_per_second", "tokens_per_second", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                msg = f"{name} is {value!r}; expected a number above 0, or None for no limit"
                raise InputError(msg)

    @property
    def at_once(self) -> int:
        """How many prompts are under way at a time.

        More than there are places for calls: some wait for the disk while others call.
        """
        return self.concurrency + max(_LEAST_SPARE, self.concurrency // 2)

    @property
    def repeated(self) -> RetryPolicy:
        """How each call is made."""
        turns: list[BaseRateLimiter] = []
        if self.requests_per_second is not None:
            turns.append(request_turns(self.requests_per_second))
        if self.tokens_per_second is not None:
            turns.append(TokenTurns(self.tokens_per_second))
        return RetryPolicy(self.attempts, self.timeout, tuple(turns))


@dataclass(frozen=True)
class Collected:
    """How a run ended.

    Attributes:
        standing: What the store holds now.
        complete: Whether every prompt is finished or has failed; False where the budget ended the run, or
            somebody stopped it.
    """

    standing: CollectionStatus
    complete: bool


def _warned(notice: str) -> None:
    warnings.warn(notice, CollectionWarning, stacklevel=2)


@dataclass(frozen=True)
class Options:
    """What else there is to say about a run.

    Attributes:
        pace: How calls are made.
        budget: What they may take together.
        settings: What else makes other records, as plain data: a store that was made with other ones is
            refused.
        retry_failed: Whether prompts that failed in an earlier run are tried again.
        progress: Called with the standing whenever a prompt is finished or has failed; by default a bar on
            standard error, where that is a terminal.
        notice: Called with what people should know while there is still time; warns by default.
        begun: Called with the run before it begins, for whoever may want to stop it.
        config: LangChain config that all runs inherit, such as callbacks that trace them.
    """

    pace: CallPolicy = field(default_factory=CallPolicy)
    budget: Budget = field(default_factory=Budget)
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False
    progress: Callable[[CollectionStatus], None] | None = None
    notice: Callable[[str], None] = _warned
    begun: Callable[[Run], None] | None = None
    config: RunnableConfig | None = None


def collect(
    examples: Iterable[Example],
    parts: Components,
    store: str | os.PathLike[str],
    options: Options | None = None,
) -> Collected:
    """Draw, score and label n candidates for each example.

    Every finished stage of a prompt (its draws, their scores, their labels) is on disk before the next one
    begins. A run that was interrupted goes on where it stopped: call this again.

    Args:
        examples: What to draw for; those that the store holds already are not added again.
        parts: What draws, scores and labels.
        store: Path of an SQLite file, made if it is not there, or the URL of a PostgreSQL database.
        options: How calls are made, what they may cost, and who is told.

    Returns:
        How the run ended. `Store(store).records()` are its records.

    Raises:
        StoreError: If the store cannot be written, is in use, or was made with other parts.
        CollectionError: If prompt after prompt fails.
        RecordError: If an example cannot be used.
        InputError: If a setting cannot be used.

    Warns:
        CollectionWarning: If verifier and labeler ask the same model, as soon as it shows that the records
            will not calibrate well, and at the end if prompts failed.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(acollect(examples, parts, store, options))
    msg = "an event loop runs here already, as in a notebook: await acollect(...) with the same arguments"
    raise InputError(msg)


async def acollect(
    examples: Iterable[Example],
    parts: Components,
    store: str | os.PathLike[str],
    options: Options | None = None,
) -> Collected:
    """The same as `collect`, on an event loop that runs already."""
    options = options or Options()
    bench = LocalExecutor(
        parts, ConcurrencyLimiter(options.pace.concurrency), options.pace.repeated, options.config
    )
    return await acollect_on(bench, examples, store, options)


async def acollect_on(
    bench: Executor, examples: Iterable[Example], store: str | os.PathLike[str], options: Options
) -> Collected:
    """The same wherever the prompts are worked on; how calls are made is the bench's business.

    Args:
        bench: What draws, scores and labels.
        examples: As in `collect`.
        store: As in `collect`. This process is the only one that writes it.
        options: As in `collect`; of the `pace`, how many prompts are under way at a time.

    Returns:
        How the run ended.
    """
    configuration = bench.configuration
    suspicion = shared_judge(configuration["verifier"], configuration["labeler"])
    if suspicion is not None:
        options.notice(suspicion)
    shown = progress_bar() if options.progress is None else nullcontext(options.progress)
    with Store(store, create=True) as opened, opened.locked(), shown as progress:
        opened.settle({**configuration, **options.settings})
        await asyncio.to_thread(opened.add, examples)
        if options.retry_failed:
            opened.retry_failed()
        run = Run(
            opened,
            bench,
            n=configuration["n"],
            per_prompt=1 if configuration.get("sampling") == "single_request" else configuration["n"],
            at_once=options.pace.at_once,
            budget=options.budget,
            watch=RunObserver(progress, options.notice),
        )
        if options.begun is not None:
            options.begun(run)
        complete = await run.work()
    if run.standing.failed:
        options.notice(bias_of_failures(run.standing))
    return Collected(run.standing, complete)


def bias_of_failures(standing: CollectionStatus) -> str:
    """What failed prompts mean for a calibration without them.

    Args:
        standing: With at least one failure.

    Returns:
        A sentence or two for people.
    """
    tried = standing.failed + standing.labelled
    share = standing.failed / tried
    return (
        f"{standing.failed} of {tried} prompts failed ({100 * share:.1f} %), and what is calibrated without "
        "them speaks of the others only. Where prompts like these fail when serving as well, the promise "
        "holds for those that are answered. Where they are answered, at worst all of them are misses: of a "
        f"promised coverage c only {1 - share:.3f} c is sure over all prompts. Retry them (--retry-failed), "
        "and look for what they have in common (langchain-cfc status)"
    )

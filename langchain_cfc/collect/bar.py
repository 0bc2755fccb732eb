"""A progress bar that shows what a collection shows, for terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from langchain_cfc.collect.standing import Standing


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[Standing], None]]:
    """Show how far a collection has come: prompts, pace, time left, coverage, scores and cost.

    Args:
        console: Where to; by default standard error. Where that is no terminal, nothing is shown.

    Yields:
        What is to be called with the standing.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _nothing
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

        def show(standing: Standing) -> None:
            progress.update(
                task,
                total=standing.total,
                completed=standing.labelled + standing.failed,
                pace=f"{60 * standing.per_second:.0f}/min",
                seen=", ".join(_seen(standing)),
            )

        yield show


def _nothing(standing: Standing) -> None:
    """Nobody looks."""


def _seen(standing: Standing) -> Iterator[str]:
    if standing.coverage is not None:
        yield f"pass@n {standing.coverage:.2f}"
        yield f"scores {score_words(standing)}"
    if standing.failed:
        yield f"{standing.failed} failed"
    if standing.cost is not None:
        yield f"cost {money(standing.cost)}"


def score_words(standing: Standing) -> str:
    """Mean scores of correct and wrong candidates, as far as there are any."""
    wrong, correct = standing.mean_scores
    said = [("correct", correct), ("wrong", wrong)]
    return ", ".join(f"{word} {mean:.2f}" for word, mean in said if mean is not None)


def money(cost: float) -> str:
    """A cost, with more digits where it is less than one."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.4f}"

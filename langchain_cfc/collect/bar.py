"""Progress of a collection: a bar on terminals, now and then a plain line anywhere else."""

from __future__ import annotations

import time
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

# Seconds between two lines where there is no terminal; shorter runs print none.
_LINE_EVERY = 30.0


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Callable[[Standing], None]]:
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

        def show(standing: Standing) -> None:
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

    def __call__(self, standing: Standing) -> None:
        now = time.monotonic()
        if now - self._printed_at < _LINE_EVERY:
            return
        self._printed_at = now
        done = standing.labelled + standing.failed
        pace = standing.per_second
        minutes = f", about {standing.left / pace / 60:.0f} min left" if pace > 0 and standing.left else ""
        line = ", ".join([f"{done} of {standing.total} prompts", f"{60 * pace:.0f}/min", *_seen(standing)])
        self._console.print(line + minutes, markup=False, highlight=False, soft_wrap=True)


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

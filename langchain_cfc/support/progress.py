"""`announce_step`: name the step of long work that begins, for a display of its progress.

Calibrating and evaluating take seconds to minutes after the last record is read. A caller that shows progress
watches the steps; without one, announcing them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_on_step: ContextVar[Callable[[str], None] | None] = ContextVar("langchain_cfc_on_step", default=None)


def announce_step(name: str) -> None:
    """Say that a step begins; it ends when the next one begins.

    Args:
        name: What is done, for people, such as "fitting features".
    """
    on_step = _on_step.get()
    if on_step is not None:
        on_step(name)


@contextmanager
def watch_steps(on_step: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of each step that begins within a `with` block.

    Args:
        on_step: The function, called in the thread that does the work.

    Yields:
        Nothing.
    """
    token = _on_step.set(on_step)
    try:
        yield
    finally:
        _on_step.reset(token)

"""Waiting for other threads and tasks, and counting how many run at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.lengths import LONG

T = TypeVar("T")


# Seconds after which something counts as stuck. Long tests start many processes, which takes minutes on a
# busy machine.
PATIENCE = 300 if LONG else 60


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.001)


async def wait_until_async(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, on an event loop."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        await asyncio.sleep(0.001)


def fail_if_stuck(call: Callable[[], T]) -> T:
    """Return or raise what a call does, and fail if it hangs."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            raised.append(error)

    # A daemon, so that a dead-lock fails this test instead of hanging the run.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the call hangs"
    if raised:
        raise raised[0]
    return found[0]


class ConcurrencyCounter:
    """Counts how many threads or tasks are inside at once."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.passed = 0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self.inside += 1
            self.passed += 1
            self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            with self._lock:
                self.inside -= 1

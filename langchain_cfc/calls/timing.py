"""Flows that must be over by a certain time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from typing import TypeVar

from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_cfc.errors import ServingTimeoutError

T = TypeVar("T")


def in_time(run: Callable[[], T], seconds: float) -> T:
    """Call in another thread, and stop waiting for it after some time.

    A thread cannot be stopped: what it is at then goes on to its end, but the bounds let no further call
    of it start.

    Args:
        run: What to call.
        seconds: How long to wait, above 0.

    Returns:
        What it returned.

    Raises:
        ServingTimeoutError: If it took longer.
    """
    executor = ContextThreadPoolExecutor(1)
    try:
        future = executor.submit(run)
        # Waited for first, for a TimeoutError of its own says nothing of this one's time.
        if not wait([future], min(seconds, threading.TIMEOUT_MAX)).done:
            raise _timed_out(seconds)
        return future.result()
    finally:
        executor.shutdown(wait=False)


async def ain_time(awaited: Awaitable[T], seconds: float | None) -> T:
    """Await, and cancel it after some time; None waits for ever."""
    if seconds is None:
        return await awaited
    task = asyncio.ensure_future(awaited)
    try:
        return await asyncio.wait_for(task, seconds)
    except asyncio.TimeoutError:
        if not task.cancelled():  # its own
            raise
        raise _timed_out(seconds) from None


def _timed_out(seconds: float) -> ServingTimeoutError:
    return ServingTimeoutError(f"the prompt was not decided within {seconds:g} seconds; nothing was answered")

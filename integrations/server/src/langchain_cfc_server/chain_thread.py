"""`ChainThread`: an event loop in its own thread, on which chains run.

A chain around a chat model spends milliseconds of CPU time on every candidate. If chains ran on the loop that
serves connections, a burst of requests would delay accepting, refusing and health checks until most of the
work is done. With separate threads, the interpreter switches between the two loops every
`sys.getswitchinterval()` seconds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from langchain_cfc_server.call_threads import OWNER, CallThreads

Result = TypeVar("Result")
# Seconds to wait for the thread to stop; it is a daemon, so the process ends even if it takes longer.
_STOP_SECONDS = 5.0


class ChainThread:
    """An event loop in its own thread, which starts when the first chain runs.

    All methods except `run` may be called without a running event loop.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._pinged_at: float | None = None

    async def run(self, begin: Callable[[], Coroutine[Any, Any, Result]], owner: Hashable = None) -> Result:
        """Run a coroutine in the thread and return its result.

        If the caller is cancelled, so is the coroutine, and the caller still waits until it has ended: a
        request must be counted as long as it uses resources.

        Args:
            begin: Creates the coroutine; called in the thread.
            owner: Whose threads its sync calls occupy, such as a model and a client.

        Returns:
            The coroutine's result.
        """
        chains = self._get_loop()
        caller = asyncio.get_running_loop()
        ended: asyncio.Future[None] = caller.create_future()
        tasks: list[asyncio.Task[Result]] = []

        def report_end(_: asyncio.Task[Result]) -> None:
            # The caller's loop may have been closed by now.
            with suppress(RuntimeError):
                caller.call_soon_threadsafe(ended.set_result, None)

        async def work() -> Result:
            OWNER.set(owner)
            return await begin()

        def start() -> None:
            tasks.append(chains.create_task(work()))
            tasks[0].add_done_callback(report_end)

        def cancel() -> None:
            tasks[0].cancel()

        chains.call_soon_threadsafe(start)
        is_cancelled = False
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:  # noqa: PERF203 - it may come more than once
                is_cancelled = True
                chains.call_soon_threadsafe(cancel)
        if is_cancelled:
            # Retrieve the unused outcome, so that asyncio does not log an exception that was never retrieved.
            with suppress(Exception, asyncio.CancelledError):
                tasks[0].result()
            raise asyncio.CancelledError
        return tasks[0].result()

    def measure_stall(self) -> float:
        """Return for how many seconds a call that this method scheduled earlier has been pending; else 0."""
        if self._running is None:
            return 0.0
        pinged = self._pinged_at
        if pinged is None:
            pinged = self._pinged_at = time.monotonic()
            self._running[0].call_soon_threadsafe(self._clear_ping)
        return time.monotonic() - pinged

    def stop(self) -> None:
        """Cancel all running coroutines and end the thread."""
        if self._thread is None or self._running is None:
            return
        chains, stopping = self._running
        with suppress(RuntimeError):  # the loop has ended by itself
            chains.call_soon_threadsafe(stopping.set)
        self._thread.join(_STOP_SECONDS)
        self._thread = self._running = self._pinged_at = None

    def _clear_ping(self) -> None:
        self._pinged_at = None

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._running is None:
            started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

            async def wait() -> None:
                stopping, loop = asyncio.Event(), asyncio.get_running_loop()
                loop.set_default_executor(CallThreads())
                started.set_result((loop, stopping))
                await stopping.wait()

            self._thread = threading.Thread(target=lambda: asyncio.run(wait()), name="chains", daemon=True)
            self._thread.start()
            self._running = started.result()
        return self._running[0]

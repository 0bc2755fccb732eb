"""`Traffic`: count requests, limit how many are processed at once, and track the server's state."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

from langchain_cfc_server.connections import OpenConnections


class Traffic:
    """The requests that are being served, shared by all parts of the server.

    Attributes:
        draining: Whether it is about to stop: balancers send requests elsewhere, and connections end with
            their next response.
        admitted: Number of requests that wait or are processed.
        working: Number of requests that are processed.
        over: Whether the time to shut down is over, so that no new work may begin.
        connections: The open connections.

    Args:
        concurrency: Maximum number of requests processed at once.
        connections: Maximum number of open connections.
    """

    def __init__(self, concurrency: int, connections: int) -> None:
        self.draining = False
        self.admitted = 0
        self.working = 0
        self.over = False
        self.connections = OpenConnections(connections)
        self._admitted_by_client: Counter[str | None] = Counter()
        self._permits = asyncio.Semaphore(concurrency)
        make_share = partial(asyncio.Semaphore, math.ceil(concurrency / 2))
        self._shares: defaultdict[str | None, asyncio.Semaphore] = defaultdict(make_share)
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: set[asyncio.Task[Any]] = set()

    @property
    def status(self) -> Literal["ready", "draining"]:
        """The server's state; it accepts requests if this is `ready`."""
        return "draining" if self.draining else "ready"

    @property
    def waiting(self) -> int:
        """Number of requests that are admitted but not processed yet."""
        return self.admitted - self.working

    def admit(self, client: str | None) -> None:
        """Count an admitted request; `leave`, or the end of its work, undoes this."""
        self.admitted += 1
        self._admitted_by_client[client] += 1

    def leave(self, client: str | None) -> None:
        """Stop counting a request."""
        self.admitted -= 1
        self._admitted_by_client[client] -= 1

    def count_admitted(self, client: str | None) -> int:
        """Return the number of admitted requests of a client, given by its name."""
        return self._admitted_by_client[client]

    def work(
        self, begin: Callable[[], Awaitable[None]], client: str | None, *, is_shared: bool = False
    ) -> asyncio.Task[None]:
        """Start a task that processes an admitted request as soon as concurrency allows.

        The request is counted until the work has really ended, which may be after the client got a timeout;
        otherwise more work than allowed could run at once.

        Args:
            begin: Begins the work.
            client: Name of the client that made the request.
            is_shared: Whether half of the places are for other clients.

        Returns:
            The task.
        """
        share = self._shares[client] if is_shared else nullcontext()
        task = asyncio.ensure_future(self._run_in_turn(begin, share))
        self._tasks.add(task)

        def end(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.leave(client)

        task.add_done_callback(end)
        return task

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Mark the current task as receiving a body, so that `cancel_all` can cancel it."""
        task = asyncio.current_task()
        if task is not None:
            self._receiving.add(task)
        try:
            yield
        finally:
            self._receiving.discard(task)

    def cancel_all(self) -> None:
        """Cancel all work and receiving, because the time to shut down is over."""
        self.over = True
        for task in (*self._tasks, *self._receiving):
            task.cancel()

    async def _run_in_turn(
        self, begin: Callable[[], Awaitable[None]], share: AbstractAsyncContextManager[None]
    ) -> None:
        async with share, self._permits:
            self.working += 1
            try:
                await begin()
            finally:
                self.working -= 1

"""`Traffic`: how many requests there are, and whether more are welcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from langchain_cfc_server.connections import OpenConnections


class Traffic:
    """The requests that are being served, as all parts of the server see them.

    Attributes:
        started: Whether the server is up.
        draining: Whether it is about to stop: balancers send requests elsewhere, and connections end with
            their next response.
        admitted: Requests that wait or are worked on.
        working: Requests that are worked on.
        over: Whether the server's own time is over, so that nothing begins any more.
        connections: The connections that are open.

    Args:
        concurrency: Most requests that are worked on at once.
        connections: Most connections that are open at once.
    """

    def __init__(self, concurrency: int, connections: int) -> None:
        self.started = False
        self.draining = False
        self.admitted = 0
        self.working = 0
        self.over = False
        self.connections = OpenConnections(connections)
        self._admitted_of: Counter[str | None] = Counter()
        self._permits = asyncio.Semaphore(concurrency)
        self._works: set[asyncio.Task[None]] = set()
        self._receiving: set[asyncio.Task[Any]] = set()

    @property
    def status(self) -> Literal["ready", "starting", "draining"]:
        """Whether requests are welcome."""
        if self.draining:
            return "draining"
        return "ready" if self.started else "starting"

    @property
    def waiting(self) -> int:
        """Requests that are admitted and not worked on yet."""
        return self.admitted - self.working

    def admit(self, client: str | None) -> None:
        """Count a request that is let in; `leave` or the end of its work undoes it."""
        self.admitted += 1
        self._admitted_of[client] += 1

    def leave(self, client: str | None) -> None:
        """Count a request no longer."""
        self.admitted -= 1
        self._admitted_of[client] -= 1

    def count_admitted(self, client: str | None) -> int:
        """Count the admitted requests of a client, given by its name."""
        return self._admitted_of[client]

    def work(self, begin: Callable[[], Awaitable[None]], client: str | None) -> asyncio.Task[None]:
        """Work on an admitted request, as soon as there is a place.

        It counts until the work has really ended, which may be after its client got a time-out:
        else there would be more work than places.

        Args:
            begin: Begins the work.
            client: Name of the client that asked.

        Returns:
            Its task.
        """
        task = asyncio.ensure_future(self._run_in_turn(begin))
        self._works.add(task)

        def end(_: asyncio.Task[None]) -> None:
            self._works.discard(task)
            self.leave(client)

        task.add_done_callback(end)
        return task

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Let the receiving of a body be cancelled when the server's time is over."""
        task = asyncio.current_task()
        if task is not None:
            self._receiving.add(task)
        try:
            yield
        finally:
            self._receiving.discard(task)

    def cancel_all(self) -> None:
        """Cancel everything under way, since the server's own time is over."""
        self.over = True
        for task in (*self._works, *self._receiving):
            task.cancel()

    async def _run_in_turn(self, begin: Callable[[], Awaitable[None]]) -> None:
        async with self._permits:
            self.working += 1
            try:
                await begin()
            finally:
                self.working -= 1

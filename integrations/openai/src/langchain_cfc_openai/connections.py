"""HTTP clients whose connections are closed with their owner: a model, or the event loop that opened them.

LangChain's models share one pool of async connections, which become unusable when their event loop is closed.
A script that first collects, on its own loop, and then serves on another loop would fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, TypeAlias

import openai

# The client of an event loop, and the generator that closes it.
_Connections: TypeAlias = tuple[openai.DefaultAsyncHttpxClient, AsyncGenerator[None, None]]


class SelfClosingClient(openai.DefaultHttpxClient):
    """An HTTP client that closes its connections when no model, or copy of one, refers to it any more."""

    def __del__(self) -> None:
        # If the constructor failed there is nothing to close, and errors in `__del__` reach no caller.
        with suppress(Exception):
            self.close()


class PerLoopClient(openai.DefaultAsyncHttpxClient):
    """An async HTTP client with separate connections for each event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._connections: dict[asyncio.AbstractEventLoop, _Connections] = {}

    async def send(self, *request: Any, **options: Any) -> Any:
        """Send a request over a connection of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            # Drop clients of loops that were closed without closing their async generators.
            for ended in [one for one in list(self._connections) if one.is_closed()]:
                self._connections.pop(ended, None)
            closing = self._close_at_loop_end(loop)
            self._connections[loop] = openai.DefaultAsyncHttpxClient(), closing
            # The only hook at the end of a loop: it closes the async generators that were started on it.
            await closing.__anext__()
        return await self._connections[loop][0].send(*request, **options)

    async def _close_at_loop_end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            client, _ = self._connections.pop(loop)
            await client.aclose()

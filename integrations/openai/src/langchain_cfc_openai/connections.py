"""Connections that end with their owner: a model, or the event loop that opened them.

LangChain's models share one pool of async connections, which are of no use once their loop is closed. A
script that collects, which takes a loop of its own, and then serves on another would fail with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, TypeAlias

import openai

# The client of a loop, and what closes it.
_Connections: TypeAlias = tuple[openai.DefaultAsyncHttpxClient, AsyncGenerator[None, None]]


class ModelwiseClient(openai.DefaultHttpxClient):
    """An HTTP client that closes its connections once no model, and no copy of one, has it any more."""

    def __del__(self) -> None:
        # A client whose constructor failed has nothing to close, and errors here reach no caller.
        with suppress(Exception):
            self.close()


class LoopwiseClient(openai.DefaultAsyncHttpxClient):
    """An async HTTP client with connections of its own for each event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[asyncio.AbstractEventLoop, _Connections] = {}

    async def send(self, *request: Any, **options: Any) -> Any:
        """Send a request over a connection of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._of:
            # Those of loops that were closed without their generators are of no use.
            for ended in [one for one in list(self._of) if one.is_closed()]:
                self._of.pop(ended, None)
            closing = self._closing(loop)
            self._of[loop] = openai.DefaultAsyncHttpxClient(), closing
            # Before a loop ends it closes the async generators that were begun on it, and nothing else.
            await closing.__anext__()
        return await self._of[loop][0].send(*request, **options)

    async def _closing(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            client, _ = self._of.pop(loop)
            await client.aclose()

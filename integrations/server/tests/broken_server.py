"""The command with a broken part, named by `BROKEN`, for tests that must find it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

import langchain_cfc_server.app
import langchain_cfc_server.server
import uvicorn
from langchain_cfc_server import create_app
from langchain_cfc_server.chain_thread import ChainThread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from langchain_cfc.cli import main

KEPT: list[bytes] = []


class _Keeping:
    """Keeps every body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def keeping() -> Message:
            message = await receive()
            # A copy, for short ones would be shared.
            KEPT.append(bytes(bytearray(message.get("body", b""))))
            return message

        await self._app(scope, keeping, send)


def _keeping_app(*arguments: Any) -> Any:
    app = create_app(*arguments)
    app.add_middleware(_Keeping)
    return app


async def _run_on_the_caller_loop(
    _: Any, begin: Callable[[], Coroutine[Any, Any, Any]], owner: Hashable = None
) -> Any:
    """Runs a chain on the loop that serves connections."""
    del owner
    return await begin()


def _run_by_uvicorn(app: Any, *, port: int, **_: Any) -> None:
    """Serves as uvicorn does when it is told to wait for nothing."""
    listening = socket.create_server(("127.0.0.1", port))
    fields = {"host": "127.0.0.1", "port": listening.getsockname()[1]}
    logging.getLogger("langchain_cfc_server").info("serving", extra={"fields": fields})
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=0)
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    if os.environ["BROKEN"] == "keeps bodies":
        langchain_cfc_server.app.create_app = _keeping_app  # type: ignore[assignment]
    elif os.environ["BROKEN"] == "has one loop":
        ChainThread.run = _run_on_the_caller_loop  # type: ignore[method-assign,assignment]
    else:
        langchain_cfc_server.server.run = _run_by_uvicorn  # type: ignore[assignment]
    main()

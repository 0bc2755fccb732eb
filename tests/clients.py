"""A plugin for tests that make clients: CA certificates are read once, and no client in use is thrown away.

The servers of tests speak plain HTTP, yet each client reads some hundred certificates before it asks one.
langchain-openai keeps the clients of the last 128 addresses, and each server of a test has an address of its
own: a client that is dropped from that cache leaves open sockets, which fail whatever test runs then.
"""

from __future__ import annotations

import functools
import ssl
import sys
from unittest import mock

_CACHES = ("_cached_sync_httpx_client", "_cached_async_httpx_client")


def pytest_configure() -> None:
    """Let clients share what they make of a file of certificates."""
    shared = functools.cache(ssl.create_default_context)
    mock.patch.object(ssl, "create_default_context", shared).start()


def pytest_collection_finish() -> None:
    """Keep every client of langchain-openai, where a test module has imported it."""
    module = sys.modules.get("langchain_openai.chat_models._client_utils")
    for name in _CACHES:
        cached = getattr(module, name, None)
        if cached is not None:
            setattr(module, name, functools.cache(cached.__wrapped__))

"""A plugin for all tests of the repository: it saves time, and no test fails since a machine is busy.

CA certificates are read once: the servers of tests speak plain HTTP, yet each client reads some hundred
certificates before it asks one. langchain-openai keeps the clients of the last 128 addresses, and each server
of a test has an address of its own: a client that is dropped from that cache leaves open sockets, which fail
whatever test runs then. So all clients are kept, and dropped at the end.
"""

from __future__ import annotations

import functools
import gc
import os

# As many processes as cores run tests; threads of linear algebra beside them would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import ssl
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import pytest

from tests.lengths import repetitions

with suppress(ImportError):  # some integrations' tests need no examples drawn
    from hypothesis import settings

    # A machine that is busy fails no test, and the quick tier draws fewer examples.
    settings.register_profile("untimed", deadline=None, max_examples=repetitions(100, share=0.2))
    settings.load_profile("untimed")

_CACHES = ("_cached_sync_httpx_client", "_cached_async_httpx_client")


def pytest_configure() -> None:
    """Let clients share what they make of a file of certificates."""
    shared = functools.cache(ssl.create_default_context)
    mock.patch.object(ssl, "create_default_context", shared).start()


@pytest.hookimpl(optionalhook=True)  # an integration's environment may have no xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: tests wait for processes, servers and disks, too."""
    return (os.cpu_count() or 1) + 1


def pytest_sessionstart() -> None:
    """Do not look for garbage while tests are collected: it takes half of the time and finds none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect the garbage that tests make from here on, and keep every client of langchain-openai."""
    gc.freeze()
    gc.enable()
    module = sys.modules.get("langchain_openai.chat_models._client_utils")
    for name in _CACHES:
        cached = getattr(module, name, None)
        if cached is not None:
            setattr(module, name, functools.cache(cached.__wrapped__))


def pytest_unconfigure() -> None:
    """Drop all clients of langchain-openai; the event loops that could close their sockets have ended."""
    module = sys.modules.get("langchain_openai.chat_models._client_utils")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for name in _CACHES:
            if cached := getattr(module, name, None):
                cached.cache_clear()
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def no_proxy_before_local_servers() -> Iterator[None]:
    """Servers of tests are reached directly, even on a machine with a proxy."""
    with mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1"}):
        yield

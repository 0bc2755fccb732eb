"""Fixtures that tests of several folders share."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from unittest import mock

import pytest

from tests.calls import Invoke, invoke_async, invoke_sync


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in docstrings here: pytest would import every helper for it."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]


@pytest.fixture(params=[invoke_sync, invoke_async], ids=["sync", "async"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """A function that calls a Runnable: tests that take it run once by sync and once by async calls."""
    way: Invoke = request.param
    return way


@pytest.fixture(scope="session", autouse=True)
def no_proxy_before_local_servers() -> Iterator[None]:
    """Servers of tests are reached directly, even on a machine with a proxy."""
    with mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1"}):
        yield

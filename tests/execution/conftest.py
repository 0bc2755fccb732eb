"""The two ways to run a flow."""

from __future__ import annotations

import pytest

from .flows import Run, run_async, run_sync


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """A function that runs a flow: tests that take it run once by sync and once by async calls."""
    way: Run = request.param
    return way

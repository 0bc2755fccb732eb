"""Fixtures that tests of several folders share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.calls import invoke

__all__ = ["invoke"]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in docstrings here: pytest would import every helper for it."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]

"""What the tests of the folder and its page share: an endpoint in LangSmith's place."""

from __future__ import annotations

import os
from contextlib import ExitStack
from unittest import mock

import pytest

from integrations.langsmith.tests.endpoint import LangSmith, serving

_STACK = ExitStack()


def pytest_configure() -> None:
    """Make the page's account one on this machine, and see that nothing here can reach the service."""
    held = LangSmith()
    held.dataset("facts", [{"inputs": {"question": "Which?"}, "outputs": {"answers": ["This"]}}])
    url = _STACK.enter_context(serving(held))
    account = {"LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": "none", "LANGSMITH_TRACING": "false"}
    _STACK.enter_context(mock.patch.dict(os.environ, {**account, "NO_PROXY": "127.0.0.1"}))


def pytest_unconfigure(config: pytest.Config) -> None:
    del config
    _STACK.close()

"""A plugin for tests that make clients: CA certificates are read once, not for each client.

The servers of tests speak plain HTTP, yet each client reads some hundred certificates before it asks one.
"""

from __future__ import annotations

import functools
import ssl
from unittest import mock


def pytest_configure() -> None:
    """Let clients share what they make of a file of certificates."""
    shared = functools.cache(ssl.create_default_context)
    mock.patch.object(ssl, "create_default_context", shared).start()

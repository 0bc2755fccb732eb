"""Plugins of this folder's tests and pages."""

from __future__ import annotations

pytest_plugins = [
    "tests.session",
    "tests.serving.conftest",
    "tests.pages",
    "integrations.langsmith.tests.endpoint",
]

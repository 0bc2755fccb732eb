"""Plugins of this folder's tests and pages."""

from __future__ import annotations

pytest_plugins = ["tests.session", "tests.calls", "integrations.openai.tests.parts"]

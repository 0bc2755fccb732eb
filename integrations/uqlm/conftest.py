"""Plugins of this folder's tests and pages."""

from __future__ import annotations

pytest_plugins = ["tests.session", "tests.pages", "tests.calls", "integrations.uqlm.tests.fixtures"]

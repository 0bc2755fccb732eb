"""The recorded facts, and the README's blocks as tests."""

from __future__ import annotations

pytest_plugins = ["tests.session", "tests.serving.conftest", "tests.pages", "integrations.agents.tests.parts"]

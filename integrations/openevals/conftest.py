"""The recorded facts, and a server of this machine for judges."""

from __future__ import annotations

pytest_plugins = ["tests.session", "tests.calls", "tests.serving.conftest"]

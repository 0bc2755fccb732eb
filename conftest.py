"""What all tests of the repository share: pages are run as tests, too."""

from __future__ import annotations

pytest_plugins = ["tests.pages"]

"""What tests of this folder share with those of the repository."""

from __future__ import annotations

pytest_plugins = ["tests.session", "tests.pages", "integrations.lab.tests.report.cases"]

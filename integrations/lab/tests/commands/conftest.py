"""Fixtures of the core's tests of commands."""

from __future__ import annotations

from tests.cli.test_cli import artifact, demo, records

__all__ = ["artifact", "demo", "records"]

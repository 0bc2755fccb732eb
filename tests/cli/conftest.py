"""Tests of commands write to folders in memory, as the tests of collections do."""

from __future__ import annotations

from tests.memory import memory, tmp_path

__all__ = ["memory", "tmp_path"]

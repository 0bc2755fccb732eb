"""Tests of the commands of all companions together write to folders in memory."""

from __future__ import annotations

from tests.memory import memory, tmp_path

__all__ = ["memory", "tmp_path"]

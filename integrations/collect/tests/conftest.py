"""Stores of these tests are in memory, since waiting for the disk would be most of their time.

What they ask of the disk is the same, and tested: `test_store_uses_wal_and_full_synchronous_commits`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calls import invoke
from tests.memory import memory, tmp_path

__all__ = ["invoke", "memory", "path", "tmp_path"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"

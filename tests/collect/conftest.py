"""Stores of these tests are in memory, since waiting for the disk would be most of their time.

What they ask of the disk is the same, and tested: `test_store_uses_wal_and_full_synchronous_commits`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Linux has it.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - in folders of our own


@pytest.fixture(scope="session")
def memory() -> Path:
    """Where to make folders: in memory, or on disk where the system has no such place."""
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir()).resolve()


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    """A folder for the test."""
    with tempfile.TemporaryDirectory(dir=memory, prefix="cfc-") as folder:
        yield Path(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a new store."""
    return tmp_path / "store.db"

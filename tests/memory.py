"""Folders in memory, as waiting for the disk would be most of the time of these tests; and mounts."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def mount(target: Path, *arguments: str | Path) -> Iterator[None]:
    """Mount something at a path for a while; skip the test where that is not allowed."""
    command = ["mount", *arguments, target]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system, where that is allowed at all")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", target], check=True)

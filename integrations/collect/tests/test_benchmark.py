"""The benchmark of collections runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_collection_benchmark_compares_with_abatch() -> None:
    command = [sys.executable, "benchmarks/collection.py", "--rounds", "6", "--only", "threads"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for what in ("wall time", "processor time"):
        assert f"a collection over abatch, model in threads, {what}, n = 20" in ran.stdout

"""The benchmark of collections runs and prints its verdicts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_collection_benchmark_prints_every_row_and_its_verdicts() -> None:
    command = [sys.executable, "benchmarks/collection.py", "--rounds", "6", "--only", "store", "threads"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for said in (
        "rate of the store over plain inserts",
        "model in threads, processor time",
        "at least 0.800x",
    ):
        assert said in ran.stdout
    verdicts = [line for line in ran.stdout.splitlines() if "at least" in line]
    assert len(verdicts) == 2
    assert all(line.rstrip().endswith("met") for line in verdicts)
    assert str(ROOT) not in ran.stdout

"""Calibration at scale, where it can be asserted without a clock; `benchmarks/scale.py` takes the time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys
from pathlib import Path
from benchmarks import scale
print(json.dumps(scale.calibrate_file(Path(sys.argv[1]))))
"""
MAKE = """
import sys
from pathlib import Path
from benchmarks import scale
getattr(scale, sys.argv[1])(Path(sys.argv[2]), int(sys.argv[3]))
"""
ROOT = Path(__file__).parents[1]


def run_program(program: str, *arguments: object) -> str:
    """Return what a program prints in a process of its own, so that its memory can be measured."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is what Linux tells")
def test_calibrate_from_a_file_keeps_no_records_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "records"
    run_program(MAKE, "make_lines", path, 100_000)
    found = json.loads(run_program(CHILD, path))
    assert (found["prompts"], found["n"]) == (100_000, 10)
    assert found["peak"] < 1.5e9

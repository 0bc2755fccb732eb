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
from langchain_cfc import records
import langchain_cfc.records.columns
import langchain_cfc.records.jsonl
import langchain_cfc.records.parquet

def made(*_, **__):
    raise AssertionError("a record or a candidate was made")

for model in (records.Candidate, records.PromptRecord, records.Claim, records.ClaimsRecord):
    model.__init__ = model.model_validate = model.model_construct = made
records.jsonl.parse_record = records.parquet.parse_rows = records.columns.parse_rows = made
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
@pytest.mark.parametrize(
    ("kind", "prompts", "n", "most"),
    [("lines", 100_000, 10, 1.5e9), ("parquet", 100_000, 20, 1.0e9)],
)
def test_calibrate_from_a_file_makes_no_record_objects(
    tmp_path: Path, kind: str, prompts: int, n: int, most: float
) -> None:
    path = tmp_path / "records"
    run_program(MAKE, f"make_{kind}", path, prompts)
    found = json.loads(run_program(CHILD, path))
    assert (found["prompts"], found["n"]) == (prompts, n)
    assert found["peak"] < most


@pytest.mark.long
def test_calibrate_from_a_file_makes_no_claim_objects(tmp_path: Path) -> None:
    path = tmp_path / "claims.parquet"
    run_program(MAKE, "make_claims", path, 300)
    for file in (path, path.with_suffix(".jsonl")):
        assert json.loads(run_program(CHILD, file))["prompts"] == 300


@pytest.mark.long
def test_scale_check_notices_a_record_object(tmp_path: Path) -> None:
    # Negative control: one line that only the strict reader can judge.
    path = tmp_path / "records"
    run_program(MAKE, "make_lines", path, 300)
    deep = path.read_text("utf-8").replace('"reference": [', '"reference": [' + "[" * 30 + "]" * 30 + ", ", 1)
    path.write_text(deep, "utf-8")
    with pytest.raises(AssertionError, match="a record or a candidate was made"):
        run_program(CHILD, path)

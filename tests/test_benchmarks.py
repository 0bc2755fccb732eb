"""The benchmark runs, measures ours, and its figures follow from what it measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_small_run_of_ours_alone_measures_and_agrees_with_itself(tmp_path: Path) -> None:
    found = tmp_path / "results.json"
    command = [sys.executable, "benchmarks/thresholds.py", "--json", str(found), "--only", "sizes"]
    command += ["--kinds", "groups", "--dimensions", "3", "--sizes", "1000", "--runs", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Calibration, groups" in ran.stdout
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.figures import figures
        from benchmarks.results import Results
    finally:
        sys.path.remove(str(ROOT))
    results = Results.model_validate_json(found.read_text(encoding="utf-8"))
    [cell] = results.cells
    assert cell.ours.differ_restored == 0
    assert cell.ours.batch_agreement is not None
    assert cell.ours.batch_agreement.largest == 0.0
    verdicts = {figure.name: figure.verdict for figure in figures(results)}
    assert verdicts["artifact of one level, d = 3"] == "met"
    assert verdicts["largest difference from HiGHS"] == "not measured"

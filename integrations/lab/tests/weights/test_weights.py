"""Weights of prompts in comparisons, plans and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_cfc_lab import compare, plan_calibration, suggest
from langchain_cfc_lab.report import write_report

from langchain_cfc import calibrate, evaluate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import make_split_plan
from tests.calibration.test_weights import ALPHA, OPTIONS
from tests.cli.running import run


def test_functions_without_weights_refuse_weighted_tables(weighted: LabelledBatch) -> None:
    refused = pytest.raises(InputError, match="only calibrate, certify and evaluate support")
    with refused:
        plan_calibration(weighted, alpha=ALPHA)
    with refused:
        compare(weighted, alpha=ALPHA)
    with refused:
        suggest(weighted, alpha=ALPHA)
    with refused:
        tabulate(weighted)
    # A fair sample of them is accepted.
    assert tabulate(make_split_plan(0, fit=0.0, test=0.0).draw_fair_sample(weighted)).weights is None


def test_report_and_inspect_command_state_labelling_weights(weighted: LabelledBatch, tmp_path: Path) -> None:
    artifact = calibrate(weighted, test_fraction=0.3, **OPTIONS)
    facts = artifact.calibration
    page = tmp_path / "page.html"
    write_report(page, artifact=artifact, evaluation=evaluate(artifact, weighted))
    said = page.read_text(encoding="utf-8")
    assert f"{facts.size:,} (weighing {facts.weight:.4g}) calibrated" in said
    assert f"like those from which the {facts.size:,} calibrated on were chosen for labelling" in said
    assert "of the calibration questions by weight" in said
    artifact.save(tmp_path / "artifact.json")
    shown = run("inspect", tmp_path / "artifact.json").out
    assert f"{facts.size} calibration questions (weighing {facts.weight:.4g})" in " ".join(shown.split())
    assert "calibrated on were chosen for labelling" in " ".join(shown.split())

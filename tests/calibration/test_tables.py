"""Calibration and evaluation on a table that was read before, or comes from elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, calibrate, evaluate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import Records, tabulate
from tests.lengths import mostly_long

ALPHA = 0.4
pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def dump_without_date(artifact: CalibrationArtifact) -> dict[str, Any]:
    return artifact.model_dump(mode="json", exclude={"created_at"})


@pytest.fixture(scope="module")
def records() -> Records:
    return load_recording()


@mostly_long(
    "options",
    [
        {},
        {"features": "hat(mean_score, 3) + entropy", "draws": "fixed(5)", "set_rule": "unique(all)"},
    ],
    quick=1,
)
def test_table_gives_the_artifact_and_report_of_its_records(
    records: Records, options: dict[str, Any]
) -> None:
    options = {"alpha": ALPHA, "test_fraction": 0.3, "allow_unattainable": True} | options
    expected = calibrate(records, **options)
    table = tabulate(records)
    artifact = calibrate(table, provenance=records.provenance, **options)
    assert dump_without_date(artifact) == dump_without_date(expected)
    report = evaluate(artifact, table, provenance=records.provenance)
    # The artifacts differ in their time alone, but so do their digests.
    without = {"artifact_digest"}
    assert report.model_dump(exclude=without) == evaluate(expected, records).model_dump(exclude=without)
    assert dump_without_date(calibrate(records, **options | {"seed": 1})) != dump_without_date(expected)


def test_calibrate_does_not_depend_on_the_order_of_table_rows(records: Records) -> None:
    table = tabulate(records)
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    assert isinstance(shuffled, LabelledBatch)
    assert shuffled.ids != table.ids
    with pytest.warns(AttainabilityWarning):
        one, other = calibrate(table, alpha=0.35), calibrate(shuffled, alpha=0.35)
    assert dump_without_date(one) == dump_without_date(other)

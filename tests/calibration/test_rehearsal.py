"""`rehearse_calibration`: which calibrations are refused before any candidate is drawn."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.calibration.rehearsal import rehearse_calibration
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.experiments import plan_bot
from langchain_cfc.records import Example, Provenance


def rehearse(prompts: int, **promise: Any) -> str:
    """What is refused; empty if nothing is."""
    config = CalibrationConfig(**promise, features="1", fit_fraction=0.0, test_fraction=0.3)
    examples = [Example(id=str(row), input=f"question {row}") for row in range(prompts)]
    try:
        rehearse_calibration(config, examples, Provenance(n=2))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("alpha", "smallest"), [("0.1", 9), ("0.05", 19)])
def test_rehearse_calibration_refuses_exactly_the_unattainable_sizes(alpha: str, smallest: int) -> None:
    # (N + 1) (1 - alpha) <= N: at alpha = 0.1 from N = 9 on, at 0.05 from 19 on.
    said = [rehearse(prompts, alpha=alpha) for prompts in range(6, 50)]
    refused = [re.search(r"out of reach of (\d+) .*: at least (\d+) are needed", one) for one in said if one]
    assert {int(one[2]) for one in refused if one is not None} == {smallest}
    assert max(int(one[1]) for one in refused if one is not None) == smallest - 1
    assert None not in refused
    assert said[-1] == ""


@pytest.mark.parametrize("rates", [["0.1"], ["0.05", "0.1"]])
def test_rehearse_calibration_refuses_exactly_the_sizes_that_certify_nothing(rates: list[str]) -> None:
    scores = np.arange(30.0)[:, np.newaxis] / 30
    ids = tuple(map(str, range(30)))
    right = LabelledBatch(CandidateBatch.from_arrays(scores), scores >= 0.0, ids, (None,) * 30)
    least = plan_bot(right, max_wrong_rate=rates).rates[-1].fewest_answered
    said = [rehearse(prompts, max_wrong_rate=rates) for prompts in range(20, 80)]
    refused = [re.search(r"needs (\d+) prompts, and there are (\d+) besides", one) for one in said if one]
    assert {int(one[1]) for one in refused if one is not None} == {least}
    assert max(int(one[2]) for one in refused if one is not None) == (least or 0) - 1
    assert said[-1] == ""

"""`rehearse_calibration`: which calibrations are refused before any candidate is drawn."""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain_cfc_collect.calibrating import rehearse_calibration

from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.errors import InputError
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
    refused = [re.search(r"for (\d+) of .*\nAdd questions \(at least (\d+)\)", one) for one in said if one]
    assert {int(one[2]) for one in refused if one is not None} == {smallest}
    assert max(int(one[1]) for one in refused if one is not None) == smallest - 1
    assert None not in refused
    assert said[-1] == ""

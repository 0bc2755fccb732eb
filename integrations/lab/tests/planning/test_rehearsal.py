"""The rehearsal before a collection agrees with the plan."""

from __future__ import annotations

import re

import numpy as np
import pytest
from langchain_cfc_lab import plan_bot

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from tests.calibration.test_rehearsal import rehearse


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

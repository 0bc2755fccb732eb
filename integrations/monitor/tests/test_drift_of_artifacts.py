"""Drift tests of whole artifacts on a real recording."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_cfc_monitor.sequential_tests import DriftTest
from scipy import stats

from integrations.monitor.tests.drifting import calibrate_split, make_observations, swap_model
from langchain_cfc.demo import load_recording
from langchain_cfc.records import tabulate


@pytest.mark.long
def test_drift_test_of_whole_artifacts_keeps_its_false_alarm_rate() -> None:
    """All tests of an artifact together, thresholds and soft weightings included, on real scores.

    Prompts of one pool in random order are exchangeable, whatever they are. Of streams with calibration
    prompts of their own at most a share `level` ever alarms; the bound is exceeded by chance with 1e-6.
    """
    source, level, streams = tabulate(load_recording()), 0.2, 40
    alarms = {"same": 0, "other": 0}
    for seed in range(streams):
        artifact = calibrate_split(source, 1000 + seed)
        luck = np.random.default_rng(seed)
        rows = luck.permutation(artifact.calibration.split.list_rows(source)["test"])[:150]
        for name, served in (("same", source.take(rows)), ("other", swap_model(source.take(rows)))):
            drift = DriftTest.start(artifact, 0.0)
            for one, _ in make_observations(artifact, served, 0):
                drift = drift.update(one)
            alarms[name] += bool((drift.wealth.peak >= np.log(len(drift.tests) / level)).any())
    assert alarms["same"] <= stats.binom.isf(1e-6, streams, level)
    # The negative control: answers of another model.
    assert alarms["other"] == streams

"""Prompts of an unknown category count among all prompts, and in no group of their term.

The feature map is `group(topic)`, whose columns add up to the constant for every prompt but these.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from langchain_cfc_monitor import Label
from langchain_cfc_monitor.sequential_tests import CoverageTest, DriftTest
from scipy import stats

from integrations.monitor.tests.drifting import make_observations
from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.support.arrays import BoolArray, FloatArray
from tests.factories import leave_sets_empty

LEVEL, DELTA = 0.01, 0.01
STREAMS = 12
N = 2


def draw_prompts(
    rng: np.random.Generator, size: int, new: float = 0.0, name: str = "served"
) -> LabelledBatch:
    """Draw labelled prompts of topic `a` or, with probability `new`, each of a topic of its own."""
    topics = [f"{name} {row}" if chosen else "a" for row, chosen in enumerate(rng.random(size) < new)]
    correct = rng.random((size, N)) < 0.7
    scores = np.where(correct, rng.beta(1, 3, correct.shape), rng.beta(3, 1, correct.shape))
    return make_batch(scores, correct, topics, name)


def make_batch(
    scores: FloatArray, correct: BoolArray, topics: list[str], name: str = "served"
) -> LabelledBatch:
    return LabelledBatch.from_arrays(
        [f"{name}-{row}" for row in range(len(topics))],
        scores,
        correct,
        [["x", "y"]] * len(topics),
        metadata=[{"topic": topic} for topic in topics],
    )


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """Calibrated on topic `a` alone."""
    prompts = draw_prompts(np.random.default_rng(1), 300, name="calibration")
    return calibrate(prompts, alpha="0.4", features="group(topic)", test_fraction=0.3)


def test_drift_of_scores_is_found_whatever_the_topic(
    artifact: CalibrationArtifact,
) -> None:
    """Ranks of scores over all prompts do not depend on the topic, so the evidence is equal to the bit."""
    scores = np.random.default_rng(2).uniform(0.98, 0.99, (100, N))
    found = {}
    for topic in ("a", "new"):
        batch = make_batch(scores, np.ones(scores.shape, np.bool_), [topic] * 100)
        drift = DriftTest.start(artifact, 0.0)
        for place, (one, _) in enumerate(make_observations(artifact, batch, 0)):
            if place == 50:  # another process goes on from what is stored
                drift = DriftTest.from_data(artifact, json.loads(json.dumps(drift.to_data())))
            drift = drift.update(one)
        over_all = [
            place
            for place, (watched, group) in enumerate(drift.layout.tests)
            if group == "1" and watched.name in {"mean_score", "min_score"}
        ]
        found[topic] = drift.wealth.log[over_all].tolist()
        assert len(over_all) == 2
        assert drift.wealth.outcomes[over_all].tolist() == [100.0, 100.0]
        assert drift.is_alarming(LEVEL)
        in_group = [group != "1" for _, group in drift.layout.tests]
        assert set(drift.wealth.outcomes[in_group]) == {100.0 if topic == "a" else 0.0}
    assert found["a"] == found["new"]


def test_coverage_test_counts_prompts_flagged_for_an_unknown_topic(
    artifact: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A true certificate is falsely alarmed on with probability at most level + delta (Ville, Bonferroni).

    Seven of ten prompts are of new topics, flagged, and so keep the promise. Each stream has a certificate
    of its own; the number that alarm is at most binomial, and the bound is exceeded by chance with 1e-6. The
    negative control: without new topics the promise is kept more rarely than certified, and all alarm.
    """
    leave_sets_empty(monkeypatch)  # best candidates alone would keep most promises of the control
    rng = np.random.default_rng(3)
    alarms = {0.7: 0, 0.0: 0}
    for stream in range(STREAMS):
        certified = certify(artifact, draw_prompts(rng, 800, 0.7, "held out"), delta=str(DELTA))
        for new in alarms:
            prompts = draw_prompts(rng, 200, new)
            test = CoverageTest.start(certified, 0.0)
            for one, correct in make_observations(certified, prompts, 1000 * stream):
                test = test.update(one, Label(one.id, correct), one.at, 1.0)
                if test.is_alarming(LEVEL):
                    break
            alarms[new] += test.is_alarming(LEVEL)
    assert alarms[0.7] <= stats.binom.isf(1e-6, STREAMS, LEVEL + DELTA)
    assert alarms[0.0] == STREAMS

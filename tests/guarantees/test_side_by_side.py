"""A bot beside sets: the promise about sets holds over all calibration sets, whether or not a rate passes.

One candidate, correct with probability 0.7 whatever its score. Whether a rate is certified depends on the
labels that calibrate the sets: with few wrong answers among the low scores the rate passes, and the threshold
is low, so that the sets cover too little. The promise is one over all calibration sets, so an artifact must
be made whether or not a rate passes. The control counts only those with which it passes. The coverage of a
threshold is a formula, and the evidence is that of `compute_log_wealth`, with a false alarm of at most 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.decision import decide
from tests.factories import find_delta, reload_artifact
from tests.guarantees.promises import compute_log_wealth
from tests.lengths import repetitions

from .laws import ALARM, draw_ids

pytestmark = [
    pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning"),
    pytest.mark.filterwarnings("ignore::langchain_cfc.errors.OrientationWarning"),
]

CORRECT = 0.7
ALPHA, TAU, RATE, DELTA = "0.5", 0.5, "0.35", "0.5"
ONE = CandidateBatch.from_arrays([[0.5]], [["a"]])


def draw_prompts(rng: np.random.Generator, size: int) -> LabelledBatch:
    correct = rng.random((size, 1)) < CORRECT
    return LabelledBatch.from_arrays(draw_ids(rng, size), rng.random((size, 1)), correct, [["a"]] * size)


def compute_kept_share(artifact: CalibrationArtifact) -> float:
    """The probability that a new prompt is covered or flagged."""
    threshold = float(decide(artifact, ONE, ALPHA).thresholds[0])
    return 1.0 if threshold == np.inf else CORRECT * min(threshold, 1.0)


@pytest.mark.long
def test_promise_about_sets_holds_beside_a_rate_that_may_be_refused() -> None:
    rng = np.random.default_rng(3)
    everywhere, where_certified = [], []
    for _ in range(repetitions(5000)):
        made = calibrate(
            draw_prompts(rng, 49),
            alpha=ALPHA,
            features="1",
            max_wrong_rate=RATE,
            delta=find_delta(DELTA),
            allow_unattainable=True,
        )
        artifact = reload_artifact(made)
        gap = compute_kept_share(artifact) - TAU
        everywhere.append(gap)
        where_certified.append(gap if artifact.certified_bot.certificates else 0.0)
    assert compute_log_wealth(everywhere, 1.0 - TAU) < ALARM
    assert compute_log_wealth(where_certified, 1.0 - TAU) > ALARM

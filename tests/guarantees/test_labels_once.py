"""Labels that are used twice: laws of what the package does about them, each with the control that it avoids.

In every world the wrong-answer rate is just above the rate that is asked for at every cut, so that each
certificate is false. At most a share delta of the repetitions may have one; `is_too_often` has the tolerance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import SamplingWarning
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import BoolArray
from tests.guarantees.laws import draw_ids, is_too_often
from tests.guarantees.test_cuts import DELTA, JUST_ABOVE, certify_cuts
from tests.lengths import repetitions


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """An artifact for one candidate per prompt; a bot ignores its sets."""
    rng = np.random.default_rng(0)
    return calibrate(label(rng, rng.random(60) < 0.5), alpha="0.5", features="1")


def label(rng: np.random.Generator, wrong: BoolArray) -> LabelledBatch:
    """Prompts with one candidate each, whose scores say nothing about their labels."""
    size = len(wrong)
    scores = rng.random((size, 1))
    return LabelledBatch.from_arrays(draw_ids(rng, size), scores, ~wrong[:, np.newaxis], [["a"]] * size)


def is_certified(artifact: CalibrationArtifact, labelled: LabelledBatch) -> bool:
    return bool(certify_cuts(artifact, labelled))


def test_repeated_questions_rarely_certify_a_false_rate(artifact: CalibrationArtifact) -> None:
    # 22 questions, each about 18 times and labelled alike. Control: every id taken for a prompt of its own.
    rng, plan = np.random.default_rng(1), make_split_plan(0, fit=0.0, test=0.0)
    tried = repetitions(200, share=0.6)
    false = control = 0
    for _ in range(tried):
        questions = rng.integers(0, 22, 400)
        wrong = rng.random(22) < JUST_ABOVE
        labelled = replace(label(rng, wrong[questions]), inputs=questions)
        with pytest.warns(SamplingWarning, match="distinct prompts"):
            clustered = tabulate(labelled)
        false += is_certified(artifact, clustered.take(plan.select_one_per_cluster(clustered)))
        control += is_certified(artifact, labelled)
    assert not is_too_often(false, tried, float(DELTA))
    assert is_too_often(control, tried, float(DELTA))


def test_labels_that_chose_a_draw_rule_do_not_certify_it(artifact: CalibrationArtifact) -> None:
    # Forty rules whose answers are wrong independently of each other; the one with the fewest wrong answers
    # in the fit split is calibrated. Control: the labels of the fit split certify it as well.
    rng = np.random.default_rng(2)
    tried = repetitions(200, share=0.5)
    false = control = 0
    for _ in range(tried):
        wrong = rng.random((40, 160)) < JUST_ABOVE
        fit = np.arange(160) < 120
        chosen = label(rng, wrong[wrong[:, fit].sum(axis=1).argmin()])
        false += is_certified(artifact, chosen.take(np.flatnonzero(~fit)))
        control += is_certified(artifact, chosen)
    assert not is_too_often(false, tried, float(DELTA))
    assert is_too_often(control, tried, float(DELTA))


def test_labels_corrected_in_one_direction_certify_a_false_rate(artifact: CalibrationArtifact) -> None:
    # A labeler errs in half of its labels of either kind. People label a random half of the prompts, and
    # these alone certify. Control: they correct only what is labelled wrong, which leaves the other mistakes.
    rng = np.random.default_rng(3)
    tried = repetitions(200, share=0.5)
    false = control = 0
    for _ in range(tried):
        wrong = rng.random(400) < JUST_ABOVE
        labelled_wrong = wrong ^ (rng.random(400) < 0.5)
        false += is_certified(artifact, label(rng, wrong[:200]))
        control += is_certified(artifact, label(rng, labelled_wrong & wrong))
    assert not is_too_often(false, tried, float(DELTA))
    assert is_too_often(control, tried, float(DELTA))

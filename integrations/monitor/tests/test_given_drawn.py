"""The monitor of a promise given a correct candidate."""

from __future__ import annotations

from langchain_cfc_monitor.observed import Label, ObservedResult
from langchain_cfc_monitor.sequential_tests import CoverageTest

from langchain_cfc import calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.decision import decide
from tests.calibration.test_adaptive import draw_world


def test_coverage_test_counts_only_results_with_a_correct_candidate() -> None:
    artifact = calibrate(draw_world(1, 600), alpha="0.1", given_drawn=True)
    certified = certify(artifact, draw_world(5, 500))
    test = CoverageTest.start(certified, now=0.0)
    assert test.rates
    draws = draw_world(6, 1).draws
    decisions = decide(certified, draws)
    one = ObservedResult(
        id="a",
        at=0.0,
        artifact=certified.digest,
        alpha="0.1",
        outcome=2,
        withheld=False,
        max_wrong_rate=None,
        threshold=float(decisions.thresholds[0]),
        scores=tuple(draws.scores[0].tolist()),
        accepted=tuple(decisions.accepted[0].tolist()),
        features=tuple(decisions.features[0].tolist()),
        codes=(0, 1, 2),
        lengths=(1, 1, 1),
        metadata={},
    )
    seen = test.update(one, Label("a", [True, False, False]), 1.0, 1.0).wealth.outcomes
    unseen = test.update(one, Label("a", [False, False, False]), 1.0, 1.0).wealth.outcomes
    unsure = test.update(one, Label("a", [True, None, False]), 1.0, 1.0).wealth.outcomes
    assert seen.sum() > 0
    assert unseen.sum() == unsure.sum() == 0

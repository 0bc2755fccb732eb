"""Tested levels: the level at which the conditional rule keeps its promise for one artifact."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from scipy import stats

import langchain_cfc
from langchain_cfc import CalibrationArtifact, PromptRecord
from langchain_cfc.artifact import LevelState, PackedArray
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import select_tested_levels as levels_tested
from langchain_cfc.certificates.coverage import compute_records_digest
from langchain_cfc.decision import decide
from langchain_cfc.errors import CalibrationError, UnattainableTargetError
from langchain_cfc.records import tabulate
from tests.factories import plan_first_test, reload_artifact
from tests.lengths import mostly_long

from .prompts import prompts, take_part

KNOWN = prompts(0, 500)
DRAWS = tabulate(prompts(1, 200)).draws
FEATURES = "hat(mean_score, 3)"

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def calibrate(records: Sequence[PromptRecord], **options: Any) -> CalibrationArtifact:
    """With sets that may be empty: else so many are kept that no test of these levels fails."""
    return langchain_cfc.calibrate(records, **{"never_empty": False, **options})


def list_steps(alpha: str) -> list[str]:
    """Twenty equal steps up to a level, as decimal text."""
    return [f"{Decimal(alpha) * step / 20:f}".rstrip("0") for step in range(1, 21)]


@functools.cache
def calibrate_at(alpha: str) -> CalibrationArtifact:
    """Calibrate on the same prompts at a level that is not tested."""
    return calibrate(
        KNOWN, alpha=alpha, features=FEATURES, certification_fraction=0.3, allow_unattainable=True
    )


def count_missed(artifact: CalibrationArtifact, alpha: str, prompts_of_test: LabelledBatch) -> int:
    found = decide(artifact, prompts_of_test.draws, alpha)
    covered = (found.accepted & prompts_of_test.correct).any(axis=1)
    return int((~covered & ~found.not_certifiable).sum())


@mostly_long(("alpha", "delta"), [("0.2", "0.05"), ("0.3", "0.2"), ("0.25", "0.01")], quick=1)
def test_confident_level_is_the_last_step_before_the_first_failure(alpha: str, delta: str) -> None:
    artifact = calibrate(KNOWN, alpha=alpha, features=FEATURES, confident=True, delta=delta)
    tests = take_part(artifact, KNOWN, "certification")
    passed = []
    for step in list_steps(alpha):
        count = count_missed(calibrate_at(step), step, tests)
        if stats.binom.cdf(count, len(tests), float(alpha)) > 0.8 * float(delta):
            break
        passed.append(step)
    assert 0 < len(passed) < 20  # so that a later test failed
    (level,) = artifact.levels
    assert (level.alpha, level.effective_alpha) == (alpha, passed[-1])
    # What is served is what passed, to the bit.
    assert (
        decide(artifact, DRAWS).thresholds.tobytes()
        == decide(calibrate_at(passed[-1]), DRAWS).thresholds.tobytes()
    )
    assert (
        decide(artifact, DRAWS).thresholds.tobytes()
        != decide(calibrate_at(alpha), DRAWS).thresholds.tobytes()
    )


def test_confidence_states_delta_and_its_test_prompts() -> None:
    artifact = calibrate(KNOWN, alpha="0.2", features=FEATURES, confident=True, delta="0.10")
    tests = take_part(artifact, KNOWN, "certification")
    confidence = artifact.confidence
    assert confidence is not None
    assert (confidence.delta, confidence.names, confidence.prompts) == ("0.1", ["1"], len(tests))
    assert confidence.records_digest == compute_records_digest(tests)
    assert artifact.calibration.certification_size == len(tests)
    promise = artifact.make_guarantee()
    assert (promise.failure_probability, promise.confident) == (0.1, ("1",))
    assert promise.alpha == "0.2"
    assert promise.target_coverage == 0.8
    assert "With confidence 90 % it holds for this very artifact" in promise.sentence
    assert calibrate_at("0.2").confidence is None


@pytest.mark.long
def test_confident_levels_are_served_at_least_as_tested() -> None:
    alphas = ["0.1", "0.2", "0.3"]
    artifact = calibrate(KNOWN, alpha=alphas, features=FEATURES, confident=True)
    tests = take_part(artifact, KNOWN, "certification")
    loaded = reload_artifact(artifact)
    assert artifact.alphas == tuple(alphas)
    for level in loaded.levels:
        alone = calibrate(KNOWN, alpha=level.alpha, features=FEATURES, confident=True, delta=str(0.05 / 3))
        # Three levels divide delta, and otherwise another level beside it changes no test.
        assert alone.levels[0] == level
        served, tested = (
            decide(loaded, DRAWS, level.alpha),
            decide(calibrate_at(level.effective_alpha or level.alpha), DRAWS),
        )
        assert (served.thresholds >= tested.thresholds).all()
        count = count_missed(loaded, level.alpha, tests)
        assert stats.binom.cdf(count, len(tests), float(level.alpha)) <= 0.05
    # Sets grow as alpha falls.
    found = [decide(loaded, DRAWS, alpha).thresholds for alpha in alphas]
    assert (found[0] >= found[1]).all()
    assert (found[1] >= found[2]).all()


def test_effective_alpha_is_saved_and_served() -> None:
    artifact = calibrate(KNOWN, alpha="0.3", features=FEATURES, confident=True)
    loaded = reload_artifact(artifact)
    assert (loaded, loaded.digest) == (artifact, artifact.digest)
    (level,) = loaded.levels
    assert level.effective_alpha is not None
    assert loaded.get_rule().alpha == level.effective_alpha
    same = decide(loaded, DRAWS)
    direct = decide(calibrate_at(level.effective_alpha), DRAWS)
    assert same.thresholds.tobytes() == direct.thresholds.tobytes()
    # The marginal rule beside it, to be compared with, stays that of the level asked for.
    plain = decide(calibrate_at("0.3"), DRAWS, marginal=True)
    assert decide(loaded, DRAWS, marginal=True).thresholds.tobytes() == plain.thresholds.tobytes()
    # Without the effective level, the same numbers would be another rule's, and other thresholds.
    forgotten = loaded.model_copy(update={"levels": [level.model_copy(update={"effective_alpha": None})]})
    assert decide(forgotten, DRAWS).thresholds.tobytes() != same.thresholds.tobytes()


def make_artifact_by_hand(quantiles: Mapping[str, float]) -> CalibrationArtifact:
    """An artifact with one threshold for all prompts, by level."""
    artifact = calibrate(KNOWN, alpha="0.5", features="1", threshold_rule="marginal")
    dimension = PackedArray.pack(np.ones(1))
    arrays = {alpha: PackedArray.pack(np.array([value])) for alpha, value in quantiles.items()}
    states = {alpha: {"quantile": one.name, "dimension": dimension.name} for alpha, one in arrays.items()}
    return artifact.model_copy(
        update={
            "levels": [
                LevelState(alpha=alpha, rule=state, marginal=state) for alpha, state in states.items()
            ],
            "arrays": {one.name: one for one in (dimension, *arrays.values())},
        }
    )


def make_prompts_by_threshold(kept: int, lost: int) -> LabelledBatch:
    """Prompts whose first candidate is right: at a threshold of 0.5 so many are kept and so many lost."""
    size = kept + lost
    scores = [[0.25, 1.0, 1.0, 1.0]] * kept + [[0.75, 1.0, 1.0, 1.0]] * lost
    correct = [[True, False, False, False]] * size
    return LabelledBatch.from_arrays(
        [f"x{row}" for row in range(size)], scores, correct, [["a", "b", "c", "d"]] * size
    )


def test_level_test_ignores_later_steps_that_would_pass() -> None:
    # Of 100 prompts 40 are lost below 0.75, and at alpha = 0.3 that is too many.
    tests = make_prompts_by_threshold(60, 40)
    artifact = make_artifact_by_hand({"0.1": 0.8, "0.2": 0.5, "0.3": 0.9})
    served = levels_tested(artifact, plan_first_test(tests), {"0.3": ["0.1", "0.2", "0.3"]}, "0.05")
    assert [(one.alpha, one.effective_alpha) for one in served.levels] == [("0.3", "0.1")]
    assert decide(served, tests.draws).thresholds.tolist() == [0.8] * 100
    # By itself the last step passes.
    alone = levels_tested(artifact, plan_first_test(tests), {"0.3": ["0.3"]}, "0.05")
    assert [(one.alpha, one.effective_alpha) for one in alone.levels] == [("0.3", None)]
    # The artifact holds only the steps that are served.
    assert len(served.arrays) < len(artifact.arrays)


def test_tested_levels_are_held_in_ascending_order() -> None:
    artifact = make_artifact_by_hand({"0.2": 0.9, "0.3": 0.8})
    served = levels_tested(
        artifact, plan_first_test(make_prompts_by_threshold(95, 5)), {"0.3": ["0.3"], "0.2": ["0.2"]}, "0.05"
    )
    assert [one.alpha for one in served.levels] == ["0.2", "0.3"]


def test_level_steps_are_tested_at_the_requested_level() -> None:
    # 12 of 100 lost show at level 0.05 that at most 0.2 are, and not that at most 0.1 are, the step's own.
    tests = make_prompts_by_threshold(88, 12)
    assert stats.binom.cdf(12, 100, 0.2) <= 0.05 < stats.binom.cdf(12, 100, 0.1)
    # At the larger level all are kept; were it to serve the smaller one in tests, that would pass as well.
    artifact = make_artifact_by_hand({"0.1": 0.5, "0.2": 0.9})
    served = levels_tested(artifact, plan_first_test(tests), {"0.2": ["0.1"]}, "0.05")
    assert served.levels[0].effective_alpha == "0.1"
    with pytest.raises(UnattainableTargetError, match=r"alpha = 0.1 is not promised"):
        levels_tested(artifact, plan_first_test(tests), {"0.1": ["0.1"], "0.2": ["0.2"]}, "0.05")


def test_level_test_refusal_prints_nothing_from_labels() -> None:
    artifact = make_artifact_by_hand({"0.1": 0.5})
    said = set()
    for kept, lost in ((19, 1), (10, 10)):
        with pytest.raises(UnattainableTargetError, match="not promised with confidence") as caught:
            levels_tested(
                artifact, plan_first_test(make_prompts_by_threshold(kept, lost)), {"0.1": ["0.1"]}, "0.05"
            )
        said.add(str(caught.value))
    (message,) = said
    found = re.search(r"certification prompts: (\d+) if none", message)
    assert found is not None
    needed = int(found[1])
    enough = plan_first_test(make_prompts_by_threshold(needed, 0))
    assert levels_tested(artifact, enough, {"0.1": ["0.1"]}, "0.05").levels
    with pytest.raises(UnattainableTargetError):
        levels_tested(
            artifact, plan_first_test(make_prompts_by_threshold(needed - 1, 0)), {"0.1": ["0.1"]}, "0.05"
        )


def test_calibrate_confident_with_too_few_prompts_names_a_remedy() -> None:
    options: dict[str, Any] = {"features": "1", "confident": True, "delta": "0.01"}
    with pytest.raises(UnattainableTargetError, match=r"certification prompts: \d+ if none"):
        calibrate(KNOWN, alpha="0.3", certification_fraction=0.02, **options)
    with pytest.raises(CalibrationError, match="is empty: raise certification_fraction"):
        calibrate(KNOWN, alpha="0.3", certification_fraction=0.0, **options)
    assert calibrate(KNOWN, alpha="0.3", **options).confidence


def test_level_test_counts_one_prompt_of_each_cluster() -> None:
    clusters = [f"c{row // 2}" for row in range(500)]
    artifact = calibrate(prompts(0, 500, clusters=clusters), alpha="0.3", features="1", confident=True)
    assert artifact.confidence is not None
    names = {
        cluster
        for cluster in clusters
        if artifact.calibration.split.find_part("", cluster) == "certification"
    }
    assert artifact.confidence.prompts == len(names)
    assert artifact.calibration.certification_size == 2 * len(names)


def test_calibrate_confident_accepts_levels_of_twelve_decimals() -> None:
    # A twentieth of it has 13 decimals; steps are cut to 12, and the last is the level itself.
    artifact = calibrate(KNOWN, alpha="0.300000000001", features="1", confident=True)
    assert artifact.alphas == ("0.300000000001",)
    assert artifact.levels[0].effective_alpha is not None
    assert Decimal(artifact.levels[0].effective_alpha) < Decimal("0.300000000001")

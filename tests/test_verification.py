"""Verification: other solvers confirm what an artifact says, and contradict one that was tampered with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate
from langchain_cfc.artifact import PackedArray
from langchain_cfc.certificates.verification import verify
from langchain_cfc.errors import (
    AttainabilityWarning,
    InputError,
    OutsideCertifiedRegionError,
    ThresholdError,
)
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from tests.factories import set_window


def make_recorded(size: int, decimals: int = 8) -> list[PromptRecord]:
    """Prompts with three candidates; hard ones have higher scores and fewer correct candidates."""
    rng = np.random.default_rng(size)
    records = []
    for row in range(size):
        hard = rng.random()
        scores = np.round(np.clip(rng.normal(0.2 + 0.5 * hard, 0.15, 3), 0.0, 1.0), decimals)
        right = rng.random(3) < 0.95 - 0.5 * hard
        candidates = tuple(
            Candidate(text=f"{slot}", score=float(score), correct=bool(ok))
            for slot, (score, ok) in enumerate(zip(scores, right, strict=True))
        )
        records.append(PromptRecord(id=f"p{row}", input=f"p{row}", candidates=candidates))
    return records


@pytest.mark.parametrize(("features", "decimals"), [("hat(mean_score, 4)", 8), ("bins(max_score, 4)", 1)])
def test_verify_confirms_an_artifact_with_all_calibration_prompts(features: str, decimals: int) -> None:
    artifact = calibrate(
        make_recorded(500, decimals), alpha=["0.2", "0.3"], features=features, allow_unattainable=True
    )
    levels = verify(artifact, prompts=6)
    assert [level.alpha for level in levels] == ["0.2", "0.3"]
    for level in levels:
        assert level.agrees
        assert level.complete
        assert level.prompts == 7
        assert level.outside == 0
        assert level.largest_difference <= 1e-9


def test_verify_confirms_an_artifact_that_keeps_some_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    set_window(monkeypatch, 100)
    artifact = calibrate(make_recorded(900), alpha="0.3", features="mean_score")
    [level] = verify(artifact, prompts=6)
    assert level.agrees
    assert not level.complete
    assert level.kept == 100
    assert level.outside < 2


def test_verify_counts_prompts_outside_the_certified_region(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = calibrate(make_recorded(300), alpha="0.3", features="mean_score")

    def leave_out(*_: Any, **__: Any) -> float:
        raise OutsideCertifiedRegionError([0])

    monkeypatch.setattr(ConditionalThreshold, "threshold", leave_out)
    [level] = verify(artifact, prompts=6)
    assert level.outside == level.prompts == 7


def test_verify_confirms_a_ridge_and_contradicts_another_one() -> None:
    pac = PaperPAC(ridge=0.1)
    artifact = calibrate(make_recorded(300), alpha="0.3", features="hat(mean_score, 3)", pac=pac)
    [level] = verify(artifact, prompts=4)
    assert level.agrees
    _ = artifact.get_rule()  # made with the true penalty
    name = artifact.levels[0].rule["penalty"]
    artifact.arrays[name] = PackedArray.pack(2.0 * artifact.arrays[name].unpack())
    [other] = verify(artifact, prompts=4)
    assert not other.agrees


def test_verify_confirms_infinite_thresholds() -> None:
    with pytest.warns(AttainabilityWarning):
        artifact = calibrate(
            make_recorded(60), alpha="0.1", features="bins(mean_score, 6)", allow_unattainable=True
        )
    [level] = verify(artifact)
    assert level.agrees
    assert 0 < level.infinite < level.prompts


def test_verify_contradicts_thresholds_of_other_data() -> None:
    """The negative control: the artifact's rule was fitted on other scores than those it shows."""
    artifact = calibrate(make_recorded(300), alpha="0.3", features="mean_score")
    _ = artifact.get_rule()  # made from the true scores
    name = artifact.levels[0].rule["success_scores"]
    scores = artifact.arrays[name].unpack()
    artifact.arrays[name] = PackedArray.pack(np.where(scores < 1.0, 0.9 * scores, scores))
    [level] = verify(artifact, prompts=6)
    assert not level.agrees
    assert level.largest_difference > 1e-3


def test_verify_refuses_rules_that_need_no_solver() -> None:
    artifact = calibrate(make_recorded(100), alpha="0.4", features="1", delta="0.05")
    with pytest.raises(InputError, match="order statistics"):
        verify(artifact)


def test_verify_reports_progress_for_every_prompt() -> None:
    seen: list[int] = []

    def counting(sample: Iterator[FloatArray]) -> Iterator[FloatArray]:
        for phi in sample:
            seen.append(len(phi))
            yield phi

    tracked: Callable[..., Iterator[FloatArray]] = counting
    verify(calibrate(make_recorded(100), alpha="0.4", features="mean_score"), prompts=5, progress=tracked)
    assert seen == [2] * 6


def test_artifact_rule_requires_one_of_several_levels() -> None:
    artifact: CalibrationArtifact = calibrate(make_recorded(100), alpha=["0.4", "0.5"], features="1")
    assert artifact.get_rule("0.5").alpha == "0.5"
    with pytest.raises(InputError, match="several promises"):
        artifact.get_rule()


def test_verify_raises_threshold_error_if_the_solver_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import cvxpy

    def gives_up(*_: object, **__: object) -> None:
        msg = "numerical trouble"
        raise cvxpy.error.SolverError(msg)

    monkeypatch.setattr(cvxpy.Problem, "solve", gives_up)
    with pytest.raises(ThresholdError, match="could not compute a threshold"):
        verify(calibrate(make_recorded(100), alpha="0.4", features="mean_score"))

"""Adaptive levels: the coverage that is stated for each prompt, from calibration to the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cfc import CalibrationArtifact, FeatureMap, calibrate, evaluate
from langchain_cfc.artifact import files
from langchain_cfc.calibration.adaptive import fit_adaptive_alpha
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.certificates.verification import verify
from langchain_cfc.decision import decide
from langchain_cfc.errors import (
    ArtifactFormatError,
    AttainabilityWarning,
    CalibrationError,
    InputError,
    OrientationWarning,
    UnattainableTargetError,
)
from langchain_cfc.features import AdaptiveAlpha
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import Part
from langchain_cfc.set_rules import AcceptAll
from langchain_cfc.support.arrays import FloatArray
from tests.calls import Invoke
from tests.factories import make_chain, make_hopeless_records, make_records, reload_artifact

ADAPTIVE_LEVELS = AdaptiveAlpha(
    cuts=(0.4, 0.6), alphas=("0.1", "0.3", "0.5"), knots=("0.1", "0.5"), margin=0.05
)


def draw_world(seed: int, size: int) -> LabelledBatch:
    """Draw prompts with three candidates; the larger the scores, the rarer a correct one."""
    rng = np.random.default_rng(seed)
    difficulty = rng.random(size)
    scores = np.clip(difficulty[:, np.newaxis] + 0.1 * rng.standard_normal((size, 3)), 0.0, 1.0)
    correct = rng.random((size, 3)) < 1.0 - 0.8 * difficulty[:, np.newaxis]
    ids = tuple(f"{seed}-{row}" for row in range(size))
    return LabelledBatch(CandidateBatch.from_arrays(scores), correct, ids, (None,) * size)


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """An artifact with adaptive levels."""
    return calibrate(draw_world(1, 600), alpha="0.1", adaptive_alpha=True)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    st.sampled_from(["0.05", "0.1", "0.3", "0.4", "0.9"]),
)
def test_adaptive_alpha_reads_levels_back_from_its_columns(means: list[float], alpha: str) -> None:
    draws = CandidateBatch.from_arrays([[mean] for mean in means])
    expected = [max(float(alpha), 0.1 if one < 0.4 else 0.3 if one < 0.6 else 0.5) for one in means]
    assert ADAPTIVE_LEVELS.read_alphas(ADAPTIVE_LEVELS.transform(draws), alpha).tolist() == expected
    assert set(expected) <= {float(level) for level in ADAPTIVE_LEVELS.list_levels(alpha)}


def test_adaptive_alpha_states_less_coverage_for_hard_prompts(artifact: CalibrationArtifact) -> None:
    adaptive = artifact.feature_map.adaptive_alpha
    assert adaptive is not None
    levels = [float(one) for one in adaptive.alphas]
    assert levels == sorted(levels)
    assert levels[0] == 0.1
    assert levels[-1] > 0.4
    decisions = decide(artifact, CandidateBatch.from_arrays([[0.0] * 3, [1.0] * 3]))
    assert decisions.stated_alphas.tolist() == [levels[0], levels[-1]]


def test_adaptive_alpha_flags_fewer_prompts_and_covers_more(artifact: CalibrationArtifact) -> None:
    test = draw_world(2, 2000)
    with pytest.warns(AttainabilityWarning, match="often be flagged"):
        fixed = calibrate(draw_world(1, 600), alpha="0.1", allow_unattainable=True)
    own = evaluate(artifact, test).methods["conditional"]
    other = evaluate(fixed, test).methods["conditional"]
    assert own.not_certifiable_rate < 0.05
    assert other.not_certifiable_rate > 0.2
    assert own.coverage > other.coverage + 0.03
    assert own.kept_promise >= own.stated_coverage
    assert other.stated_coverage == pytest.approx(0.9)
    assert other.stated_levels == []
    assert sum(one.n for one in own.stated_levels) == 2000
    mean = sum(one.n * one.stated_coverage for one in own.stated_levels) / 2000
    assert mean == pytest.approx(own.stated_coverage)
    kept = sum(one.n * one.kept_promise for one in own.stated_levels) / 2000
    assert kept == pytest.approx(own.kept_promise)


def test_margin_of_adaptive_levels_shrinks_with_the_prompts_of_both_splits() -> None:
    """sqrt(q (1 - q) (d / N + 2 / M)) for coins of q = 0.7.

    With M coins in the fit split the mean of q (1 - q) has a standard deviation of 0.4 sqrt(0.21 / M), so the
    margin differs by less than 12 % (2,500 coins) with probability above 1 - 1e-6, and by 0.0005 through
    rounding.
    """
    rng = np.random.default_rng(7)
    for seen, size in ((2_500, 1_000), (10_000, 250), (10_000, 1_000)):
        draws = CandidateBatch.from_arrays(rng.random((seen, 1)))
        coins = LabelledBatch(
            draws, rng.random((seen, 1)) < 0.7, tuple(map(str, range(seen))), (None,) * seen
        )
        fitted = fit_adaptive_alpha(FeatureMap.parse("1"), coins, AcceptAll(), ["0.1"], share=None, size=size)
        assert fitted.adaptive_alpha is not None
        # The constant, and two columns more for three hat functions that sum to one.
        expected = (0.7 * 0.3 * (3 / size + 2 / seen)) ** 0.5
        assert fitted.adaptive_alpha.margin == pytest.approx(expected, rel=0.12, abs=5e-4)


def test_adaptive_levels_follow_mean_scores_that_crowd_at_one_end() -> None:
    """Half of the prompts have a mean score above 0.99, and are reachable the more rarely the larger it is.

    A standard error of the estimate is at most 0.5 sqrt(2 / 4000) = 0.011 on average; levels are multiples of
    0.05, and the margin is 0.02, so 0.12 is five standard errors off.
    """
    rng = np.random.default_rng(8)
    rank = rng.random(4_000)
    mean = np.where(rank < 0.5, 1.98 * rank, 0.99 + 0.01 * (2.0 * rank - 1.0))[:, np.newaxis]
    reached = rng.random(4_000) < 1.0 / (1.0 + np.exp(6.0 * rank - 4.0))
    draws = CandidateBatch.from_arrays(mean)
    world = LabelledBatch(draws, reached[:, np.newaxis], tuple(map(str, range(4_000))), (None,) * 4_000)
    fitted = fit_adaptive_alpha(FeatureMap.parse("1"), world, AcceptAll(), ["0.1"], share=None, size=4_000)
    levels = fitted.adaptive_alpha
    assert levels is not None
    for place in (0.6, 0.75, 0.9):
        asked = CandidateBatch.from_arrays([[0.99 + 0.01 * (2.0 * place - 1.0)]])
        (level,) = levels.read_alphas(levels.transform(asked), "0.1")
        assert level == pytest.approx(1.0 - 1.0 / (1.0 + np.exp(6.0 * place - 4.0)), abs=0.12)


def test_evaluate_contradicts_stated_coverages_that_are_not_kept(artifact: CalibrationArtifact) -> None:
    test = draw_world(3, 2000)
    assert evaluate(artifact, test).contradicted == []
    # Every third correct candidate of hard prompts is called wrong: less is kept there than is stated.
    hard = test.draws.scores.mean(axis=1) > 0.7
    worse = test.correct & ~(hard & (np.arange(2000) % 3 == 0))[:, np.newaxis]
    contradicted = evaluate(artifact, replace(test, correct=worse)).contradicted
    assert any(name.startswith("stated") for name in contradicted)


def test_adaptive_alpha_with_equal_levels_equals_the_fixed_level() -> None:
    records = make_records("easy", 60)
    adaptive = calibrate(records, alpha="0.25", adaptive_alpha=True, features="mean_score")
    levels = adaptive.feature_map.adaptive_alpha
    assert levels is not None
    assert levels == AdaptiveAlpha((), ("0.25",), ("0.25",), levels.margin)
    fixed = calibrate(records, alpha="0.25", features="mean_score")
    draws = tabulate(make_records("easy", 39)).draws
    ours, theirs = decide(adaptive, draws), decide(fixed, draws)
    assert ours.thresholds.tolist() == theirs.thresholds.tolist()
    assert ours.accepted.tolist() == theirs.accepted.tolist()


def test_adaptive_alpha_is_fitted_on_the_fit_split_alone(artifact: CalibrationArtifact) -> None:
    world = draw_world(1, 600)
    rows = artifact.calibration.split.list_rows(world)

    def fit_with_flipped_labels(part: Part) -> AdaptiveAlpha | None:
        correct = world.correct.copy()
        correct[rows[part]] ^= True
        flipped = calibrate(replace(world, correct=correct), alpha="0.1", adaptive_alpha=True)
        return flipped.feature_map.adaptive_alpha

    with pytest.warns(OrientationWarning):
        assert fit_with_flipped_labels("calibration") == artifact.feature_map.adaptive_alpha
    assert fit_with_flipped_labels("fit") != artifact.feature_map.adaptive_alpha


def test_adaptive_alpha_survives_saving_and_loading(artifact: CalibrationArtifact) -> None:
    again = reload_artifact(artifact)
    assert again.digest == artifact.digest
    draws = draw_world(4, 50).draws
    assert decide(again, draws).thresholds.tolist() == decide(artifact, draws).thresholds.tolist()
    assert again.list_stated_levels("0.1") == artifact.list_stated_levels("0.1")


def test_config_from_artifact_reproduces_adaptive_alpha(
    artifact: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CalibrationConfig.from_artifact(artifact)
    assert config.adaptive_alpha
    assert "--adaptive-alpha true" in config.format_command(["r.jsonl"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    world = draw_world(1, 300)
    first = calibrate(world, alpha="0.1", adaptive_alpha=True)
    assert calibrate(world, **config.to_arguments()).digest == first.digest
    # A map that was fitted before keeps its levels.
    given = calibrate(world, alpha="0.1", adaptive_alpha=True, features=artifact.feature_map)
    assert given.calibration.fit_size == 0
    options = CalibrationConfig.from_artifact(given).to_arguments()
    assert calibrate(world, **options).digest == given.digest


def change_levels(content: dict[str, Any], **changes: Any) -> None:
    """Change the adaptive levels of an artifact's content."""
    content["features"]["adaptive_alpha"] |= changes


@pytest.mark.parametrize(
    "changes",
    [
        {"cuts": ["0.1"]},
        {"cuts": []},
        {"alphas": ["0.1"]},
        {"alphas": [0.1]},
        {"knots": []},
        {"margin": "0"},
        {"more": 1},
    ],
)
def test_load_refuses_forged_adaptive_levels(
    artifact: CalibrationArtifact, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "artifact.json"
    content = artifact.model_dump(mode="json")
    change_levels(content, **changes)
    path.write_bytes(files.encode(content))
    with pytest.raises(ArtifactFormatError):
        CalibrationArtifact.load(path)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"alpha": "0.1", "pac": PaperPAC()}, "no theorem"),
        ({"alpha": "0.1", "delta": "0.05", "features": "1"}, "delta with alpha"),
        ({"max_wrong_rate": "0.1"}, "are about sets"),
    ],
)
def test_calibrate_refuses_adaptive_alpha_with_other_rules_and_options(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        calibrate(draw_world(1, 100), adaptive_alpha=True, **options)


def test_calibrate_refuses_an_adaptive_map_without_adaptive_alpha(artifact: CalibrationArtifact) -> None:
    with pytest.raises(InputError, match="adaptive_alpha must be true"):
        calibrate(draw_world(1, 100), alpha="0.1", features=artifact.feature_map)


def test_adaptive_alpha_is_unattainable_if_no_candidate_is_correct() -> None:
    with pytest.raises(UnattainableTargetError, match=r"alpha = 0\.95 is out of reach"):
        calibrate(make_hopeless_records(size=60), alpha="0.1", adaptive_alpha=True, features="1")


def test_guarantee_states_the_coverage_of_a_prompt_under_adaptive_alpha(
    artifact: CalibrationArtifact,
) -> None:
    stated = artifact.list_stated_levels("0.1")
    assert len(stated) > 2
    for alpha in stated:
        guarantee = artifact.make_guarantee("0.1", stated_alpha=alpha)
        assert guarantee.stated_coverage == pytest.approx(1.0 - float(alpha))
        percent = f"{100 * (1 - float(alpha)):g} %"
        assert f"At least as often as is stated ({percent} for this question" in guarantee.claim
        assert "ith probability at least" not in guarantee.sentence
        assert guarantee.sentence.endswith("not promised for the questions of one stated level alone.")
        assert any("one stated coverage alone" in one for one in guarantee.not_promised)
    assert "as is stated (from " in artifact.make_guarantee().claim
    fixed = calibrate(draw_world(1, 100), alpha="0.9", features="1").make_guarantee()
    assert not any("stated" in one for one in fixed.not_promised)
    assert "stated" not in fixed.sentence
    assert artifact.make_guarantee().stated_coverage is None
    with pytest.raises(InputError, match="states the levels"):
        artifact.make_guarantee(stated_alpha="0.99")


def test_chain_results_and_messages_state_the_coverage_of_the_prompt(invoke: Invoke) -> None:
    served = calibrate(
        make_records("easy", 39), alpha="0.25", adaptive_alpha=True, features=make_map_of_steps()
    )
    chain = make_chain(served)
    result = invoke(chain, "x")
    assert result.stated_coverage == pytest.approx(1.0 - decide(served, read_draws(result)).stated_alphas[0])
    message = invoke(chain.as_answer(), "x")
    assert message.response_metadata["cfc"]["guarantee"]["stated_coverage"] == result.stated_coverage
    assert chain.guarantee.stated_coverage is None
    words = " ".join(result.explain().split())
    stated = f"{100 * (result.stated_coverage or 0):g} % for this question"
    assert f"At least as often as is stated ({stated}" in words
    assert "not promised for the questions of one stated level alone" in words


def make_map_of_steps() -> FeatureMap:
    """A fitted map with levels that differ between the prompts of `make_records`."""
    return replace(FeatureMap.parse("1"), adaptive_alpha=replace(ADAPTIVE_LEVELS, cuts=(0.8, 0.9)))


def read_draws(result: Any) -> CandidateBatch:
    """The candidates of a result, with their scores alone."""
    return CandidateBatch.from_arrays([[one.score for one in result.candidates]])


def test_certify_reports_stated_coverage_of_adaptive_levels(artifact: CalibrationArtifact) -> None:
    certified = certify(artifact, draw_world(5, 400))
    share = certified.certificates[0].shares[0]
    assert share.stated is not None
    assert 0.5 < share.stated < 0.9
    assert "is stated on average" in certified.certificates[0].sentence
    assert share.kept / share.prompts > share.stated - 0.1
    assert {one.name for one in certified.certificates[0].shares} >= {"stated_coverage[0.9]"}
    assert reload_artifact(certified).digest == certified.digest


def test_verify_confirms_adaptive_thresholds_with_other_solvers(artifact: CalibrationArtifact) -> None:
    pytest.importorskip("cvxpy")
    (found,) = verify(artifact, prompts=3)
    assert found.agrees
    assert found.prompts == 4


def test_verify_contradicts_adaptive_thresholds_of_other_levels(
    artifact: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cvxpy")
    unpack = CalibrationArtifact.unpack_state

    def unpack_other_levels(self: CalibrationArtifact, names: Mapping[str, str]) -> dict[str, FloatArray]:
        state = unpack(self, names)
        return state | {"targets": np.full_like(state["targets"], state["targets"].max())}

    assert artifact.get_rule() is not None  # built before the change
    monkeypatch.setattr(CalibrationArtifact, "unpack_state", unpack_other_levels)
    (found,) = verify(artifact, prompts=3)
    assert found.contradicted > 0 or found.largest_difference > 1e-3


def test_calibrate_refuses_adaptive_alpha_with_an_empty_fit_split() -> None:
    with pytest.raises(CalibrationError, match=r"adaptive levels are fitted on .* fit split is empty"):
        calibrate(draw_world(1, 60), alpha="0.1", adaptive_alpha=True, features="1", fit_fraction=0.001)

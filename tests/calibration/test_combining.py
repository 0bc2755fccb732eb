"""The combination of verifiers: its fit, and what `calibrate` and `evaluate` make of it."""

from __future__ import annotations

import importlib
import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import Candidate, FeatureMap, PromptRecord, calibrate, evaluate
from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.calibration.fit import SLOPE_PENALTY, fit_combination
from langchain_cfc.calibration.logistic import fit_logistic
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import (
    AttainabilityWarning,
    CalibrationError,
    InputError,
    MissingExtraError,
    RecordError,
)
from langchain_cfc.records import tabulate
from langchain_cfc.scoring import Combination, Discrimination, compute_auroc
from tests.calibration.prompts import remove_date
from tests.factories import change_candidates
from tests.lengths import repetitions
from tests.recordings import list_facts

FALSE_ALARM = 1e-6
NAMES = ("judge", "p_true", "length")
# In the units of the raw outputs, the intercept first; the third verifier tells nothing.
TRUTH = np.array([-1.0, 0.5, 2.0, 0.0])

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def make_prompts(correct: BoolArray, clusters: Sequence[str | None] | None = None) -> LabelledBatch:
    size = len(correct)
    draws = CandidateBatch.from_arrays(np.full(correct.shape, 0.5))
    return LabelledBatch(draws, correct, tuple(map(str, range(size))), tuple(clusters or [None] * size))


def draw_outputs(seed: int, size: int, n: int = 5) -> tuple[FloatArray, BoolArray]:
    """Raw outputs of three verifiers, and labels that follow the logistic law with `TRUTH`."""
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(size, n, 3)) * [2.0, 0.5, 100.0] + [1.0, 0.5, 300.0]
    log_odds = TRUTH[0] + raw @ TRUTH[1:]
    return raw, rng.random((size, n)) < 1 / (1 + np.exp(-log_odds))


def convert_to_raw_units(found: Combination) -> FloatArray:
    """(k + 1,) intercept and coefficients over raw outputs."""
    slopes = np.array(found.coefficients) / np.array(found.scales)
    return np.array([found.intercept - slopes @ np.array(found.centres), *slopes])


# The fit --------------------------------------------------------------------------------------------------


# Most of it is untyped.
cvxpy: Any = importlib.import_module("cvxpy")


def compute_wald_statistic(found: Combination, raw: FloatArray) -> float:
    """(theta - truth)' I (theta - truth), I the Fisher information of the labels at the truth."""
    x = np.column_stack([np.ones(raw[..., 0].size), raw.reshape(-1, 3)])
    p = 1 / (1 + np.exp(-x @ TRUTH))
    off = convert_to_raw_units(found) - TRUTH
    return float(off @ (x.T * (p * (1 - p))) @ x @ off)


def test_fit_combination_recovers_known_coefficients() -> None:
    # Maximum likelihood: the form above is chi-squared with four degrees of freedom, up to terms that vanish
    # with the 20,000 candidates; ten such fits add up to forty. A false alarm has probability 1e-6.
    tried = repetitions(10, share=0.4)
    bound = stats.chi2.ppf(1 - FALSE_ALARM, 4 * tried)
    distances, shuffled = 0.0, 0.0
    for seed in range(tried):
        raw, correct = draw_outputs(seed, 4000)
        distances += compute_wald_statistic(fit_combination(NAMES, raw, make_prompts(correct)), raw)
        others = np.random.default_rng(seed).permutation(correct)
        shuffled += compute_wald_statistic(fit_combination(NAMES, raw, make_prompts(others)), raw)
    assert distances < bound
    assert shuffled > 100 * bound


@pytest.mark.parametrize("clusters", [1, 3])
def test_fit_combination_reaches_the_optimum_of_clarabel(clusters: int) -> None:
    """The objective of the module's first lines, written again for Clarabel's interior points."""
    raw, correct = draw_outputs(0, 90)
    raw[:, :, 2] = raw[:, :, 0] + 0.01 * raw[:, :, 2]
    named = None if clusters == 1 else [f"c{row // clusters}" for row in range(90)]
    found = fit_combination(NAMES, raw, make_prompts(correct, named))
    x = (raw.reshape(-1, 3) - found.centres) / found.scales
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(x.std(axis=0), 1.0)
    slopes, intercept = cvxpy.Variable(3), cvxpy.Variable()
    z = x @ slopes + intercept
    losses = cvxpy.logistic(z) - cvxpy.multiply(correct.ravel().astype(float), z)
    objective = cvxpy.sum(losses) / 5 / clusters + SLOPE_PENALTY / 2 * cvxpy.sum_squares(slopes)
    problem = cvxpy.Problem(cvxpy.Minimize(objective))
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    theirs = float(problem.value)
    slopes.value, intercept.value = np.array(found.coefficients), np.array(found.intercept)
    ours = float(objective.value)
    assert ours <= theirs + 1e-9
    assert ours == pytest.approx(theirs, rel=1e-8)
    # The measure is fine enough: a coefficient off by a hundredth shows.
    slopes.value = np.add(found.coefficients, [0.01, 0.0, 0.0])
    assert float(objective.value) > theirs + 1e-5


def test_fit_combination_stays_finite_if_outputs_separate_the_labels() -> None:
    raw, correct = draw_outputs(1, 50)
    correct = raw[..., 0] > 1.0
    found = fit_combination(NAMES, raw, make_prompts(correct))
    assert 3.0 < found.coefficients[0] < 100.0
    scores = found.score_all(raw)
    assert scores[correct].max() < scores[~correct].min()


def test_fit_combination_shares_weight_between_identical_verifiers() -> None:
    raw, correct = draw_outputs(2, 200)
    raw[..., 1] = 10.0 * raw[..., 0]
    found = fit_combination(NAMES, raw, make_prompts(correct))
    assert found.coefficients[0] == pytest.approx(found.coefficients[1], abs=1e-6)
    alone = fit_combination(NAMES[:1], raw[..., :1], make_prompts(correct))
    assert 2 * found.coefficients[0] == pytest.approx(alone.coefficients[0], rel=0.02)


def test_fit_combination_ignores_a_constant_verifier() -> None:
    raw, correct = draw_outputs(3, 200)
    raw[..., 2] = 0.1  # whose mean over 1,000 candidates is not 0.1 in floats
    found = fit_combination(NAMES, raw, make_prompts(correct))
    assert (found.centres[2], found.scales[2], found.coefficients[2]) == (0.1, 1.0, 0.0)
    raw_later = np.add(raw, [0.0, 0.0, 1e6])
    assert found.score_all(raw_later).tolist() == found.score_all(raw).tolist()
    alone = fit_combination(NAMES[:2], raw[..., :2], make_prompts(correct))
    np.testing.assert_allclose(alone.coefficients, found.coefficients[:2], rtol=1e-9)


def test_fit_combination_does_not_depend_on_units() -> None:
    raw, correct = draw_outputs(4, 200)
    found = fit_combination(NAMES, raw, make_prompts(correct))
    units = np.array([1e-9, -1e9, 1.0])
    other = fit_combination(NAMES, raw * units + [0.0, 1e9, 0.0], make_prompts(correct))
    np.testing.assert_allclose(other.coefficients, np.array(found.coefficients) * [1, -1, 1], rtol=1e-6)


def test_fit_combination_weighs_a_cluster_like_one_prompt() -> None:
    raw, correct = draw_outputs(5, 100)
    once = fit_combination(NAMES, raw, make_prompts(correct))
    # The first 20 prompts come ten times each.
    rows = np.concatenate([np.arange(100), np.tile(np.arange(20), 9)])
    clusters = [f"c{row}" if row < 20 else None for row in rows]
    again = fit_combination(NAMES, raw[rows], make_prompts(correct[rows], clusters))
    np.testing.assert_allclose(again.coefficients, once.coefficients, rtol=1e-9)
    alone = fit_combination(NAMES, raw[rows], make_prompts(correct[rows]))
    assert np.abs(np.subtract(alone.coefficients, once.coefficients)).max() > 0.05


def test_fit_combination_refuses_outputs_of_too_wide_a_range() -> None:
    raw, correct = draw_outputs(6, 20)
    raw[0, 0, 1], raw[0, 1, 1] = 1.7e308, -1.7e308
    with pytest.raises(InputError, match=r"'p_true' range from .* to .*, which is too wide"):
        fit_combination(NAMES, raw, make_prompts(correct))


# Calibration ----------------------------------------------------------------------------------------------


def make_records(seed: int, size: int, *, prefix: str = "p", n: int = 4) -> list[PromptRecord]:
    """Prompts whose `score` tells nothing and whose verifiers do."""
    raw, correct = draw_outputs(seed, size, n)
    scores = np.random.default_rng(seed + 1000).random((size, n))
    return [
        PromptRecord(
            id=f"{prefix}{row}",
            input=f"{prefix}{row}",
            metadata={"topic": "ab"[row % 2]},
            candidates=tuple(
                Candidate(
                    text=str(slot),
                    score=float(scores[row, slot]),
                    correct=bool(correct[row, slot]),
                    scores=dict(zip(NAMES, raw[row, slot].tolist(), strict=True)),
                )
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]


def rescore(records: Sequence[PromptRecord], combination: Combination) -> list[PromptRecord]:
    """The records with the score of the combination for every candidate."""

    def score(candidate: Candidate) -> dict[str, Any]:
        assert candidate.scores is not None
        outputs = [candidate.scores[name] for name in combination.names]
        return {"score": float(combination.score([outputs])[0])}

    return [change_candidates(record, score) for record in records]


def calibrate_combined(records: Sequence[PromptRecord], **options: Any) -> CalibrationArtifact:
    settings: dict[str, Any] = {"alpha": "0.2", "features": "hat(mean_score, 3)", "combine": NAMES}
    return calibrate(records, **{**settings, **options})


def get_combination(artifact: CalibrationArtifact) -> Combination:
    assert artifact.combination is not None
    return artifact.combination


def test_calibrate_combine_equals_calibration_on_combined_scores() -> None:
    records = make_records(0, 300)
    artifact = calibrate_combined(records, test_fraction=0.2)
    assert get_combination(artifact).names == NAMES
    # Features, cut-offs, thresholds: as if the records had held these scores.
    plain = calibrate(
        rescore(records, get_combination(artifact)),
        alpha="0.2",
        features="hat(mean_score, 3)",
        test_fraction=0.2,
    )
    assert remove_date(plain) == remove_date(artifact).model_copy(update={"combination": None})
    recorded_scores = calibrate(records, alpha="0.2", features="hat(mean_score, 3)", test_fraction=0.2)
    assert recorded_scores.features != artifact.features


def test_combination_is_fitted_on_the_fit_split_alone() -> None:
    records = make_records(1, 200)
    artifact = calibrate_combined(records)
    part = artifact.calibration.split.find_part

    def spoiled(which: str) -> Combination:
        """Every candidate of one part called correct, whatever the verifiers say."""
        return get_combination(
            calibrate_combined(
                [change_candidates(r, correct=True) if part(r.id, None) == which else r for r in records]
            )
        )

    assert spoiled("calibration") == get_combination(artifact)
    with pytest.raises(CalibrationError, match="the fit split holds no wrong candidate"):
        spoiled("fit")
    # One candidate is enough to be seen.
    one = next(index for index, r in enumerate(records) if part(r.id, None) == "fit")
    turned = [change_candidates(r, correct=False) if index == one else r for index, r in enumerate(records)]
    assert get_combination(calibrate_combined(turned)) != get_combination(artifact)


def test_combination_does_not_depend_on_the_order_of_records() -> None:
    records = make_records(2, 200)
    shuffled = random.Random(0).sample(records, len(records))  # noqa: S311 - an order, not a secret
    first, again = calibrate_combined(records), calibrate_combined(shuffled)
    assert remove_date(again).digest == remove_date(first).digest


def test_calibrate_combine_sets_a_fit_split_aside_for_a_constant_map() -> None:
    records = make_records(3, 300)
    artifact = calibrate_combined(records, features="1")
    # Five standard deviations about a fifth.
    assert abs(artifact.calibration.fit_size - 60) < 5 * (300 * 0.2 * 0.8) ** 0.5
    assert calibrate(records, alpha="0.2", features="1").calibration.fit_size == 0


def test_calibrate_combine_accepts_a_fitted_map() -> None:
    records = make_records(4, 300)
    fitted = FeatureMap.parse("group(topic)").fit(tabulate(records[:50]).draws)
    artifact = calibrate_combined(records, features=fitted, fit_fraction=0.3)
    assert artifact.calibration.map_came_fitted
    assert artifact.calibration.fit_size > 50
    with pytest.raises(InputError, match="the feature map is already fitted"):
        calibrate_combined(records, features=fitted, fit_fraction=0.3, combine=None)


def test_calibrate_combine_with_n_uses_the_first_slots() -> None:
    records = make_records(5, 200)
    cut = [r.model_copy(update={"candidates": r.candidates[:2]}) for r in records]
    assert get_combination(calibrate_combined(records, n=2)) == get_combination(calibrate_combined(cut))


def test_guarantee_states_that_the_score_is_a_combination() -> None:
    records = make_records(6, 200)
    rests_on = calibrate_combined(records).make_guarantee().assumptions
    assert any(
        "combines judge, p_true, length. The combination was fitted on a split" in sentence
        for sentence in rests_on
    )
    plain = calibrate(records, alpha="0.2", features="1").make_guarantee().assumptions
    assert not any("combines" in sentence for sentence in plain)
    assert rests_on[-1] == plain[-1]


@pytest.mark.parametrize("label", [True, False])
def test_calibrate_combine_refuses_a_fit_split_with_one_label(label: bool) -> None:
    records = [change_candidates(record, correct=label) for record in make_records(7, 60)]
    missing = "no wrong candidate" if label else "no correct candidate"
    with pytest.raises(CalibrationError, match=f"the fit split holds {missing}: raise fit_fraction"):
        calibrate_combined(records, allow_unattainable=True)


def test_calibrate_combine_refuses_an_empty_fit_split() -> None:
    with pytest.raises(CalibrationError, match="the fit split holds no prompt"):
        calibrate_combined(make_records(7, 60), fit_fraction=0.0, features="1")


def test_calibrate_combine_names_record_and_candidate_of_a_missing_output() -> None:
    records = make_records(9, 300)
    third = records[280].candidates[2].model_copy(update={"scores": {"judge": 1.0, "length": 3.0}})
    candidates = (*records[280].candidates[:2], third, records[280].candidates[3])
    records[280] = records[280].model_copy(update={"candidates": candidates})
    with pytest.raises(RecordError) as caught:
        calibrate_combined(records)
    error = caught.value
    assert (error.line, error.field) == (281, "candidates[2].scores")
    assert "candidate 2 of record 'p280' has no raw output of 'p_true'; it has 'judge', 'length'" in str(
        error
    )
    # A slot that is not used need not have it.
    calibrate_combined(records, n=2)
    bare = [change_candidates(record, scores=None) for record in records]
    with pytest.raises(RecordError, match=r"line 1: .* no raw output of 'judge'; it has none"):
        calibrate_combined(bare)


# Evaluation -----------------------------------------------------------------------------------------------


def test_evaluate_scores_test_records_with_the_combination() -> None:
    artifact, tests = calibrate_combined(make_records(12, 400)), make_records(13, 300, prefix="new")
    report = evaluate(artifact, tests)
    plain = artifact.model_copy(update={"combination": None})
    by_hand = evaluate(plain, rescore(tests, get_combination(artifact)))
    assert report.methods == by_hand.methods
    # With the recorded scores, which tell nothing, the same thresholds do something else.
    assert report.methods != evaluate(plain, tests).methods
    with pytest.raises(RecordError, match="no raw output of 'judge'"):
        evaluate(artifact, [change_candidates(record, scores=None) for record in tests])


def test_evaluate_scores_the_held_out_part_with_the_combination() -> None:
    records = make_records(14, 400)
    artifact = calibrate_combined(records, test_fraction=0.3)
    part = artifact.calibration.split.find_part
    held = [record for record in records if part(record.id, None) == "test"]
    assert evaluate(artifact, records).methods == evaluate(artifact, held).methods


# A real recording -----------------------------------------------------------------------------------------
# 1,224 prompts with the log-probability of each answer, beside which verifiers are made up: `noise` tells
# nothing, `hint` is the label plus normal noise of 0.7 times its size.


@pytest.fixture(scope="module")
def facts() -> list[PromptRecord]:
    rng = np.random.default_rng(0)

    def add_outputs(one: Candidate) -> dict[str, Any]:
        noise, hint = float(rng.normal()), float(one.correct + 0.7 * rng.normal())
        return {"scores": {**(one.scores or {}), "noise": noise, "hint": hint}}

    return [change_candidates(record, add_outputs) for record in list_facts()]


def compute_held_out_auroc(facts: list[PromptRecord], combine: Sequence[str] | None) -> Discrimination:
    """On the prompts that neither fitted nor calibrated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)
        artifact = calibrate(
            facts, alpha="0.2", features="1", combine=combine, test_fraction=0.5, allow_unattainable=True
        )
    split = artifact.calibration.split
    tests = [record for record in facts if split.find_part(record.id, record.cluster) == "test"]
    labelled = tabulate(tests, combination=artifact.combination)
    found = compute_auroc(labelled.draws.scores, labelled.correct)
    assert found is not None
    return found


def test_combination_discriminates_better_than_either_verifier(facts: list[PromptRecord]) -> None:
    both, logprob, hint, noise = (
        compute_held_out_auroc(facts, names)
        for names in (["sequence_logprob", "hint"], ["sequence_logprob"], ["hint"], ["noise"])
    )
    assert both.low > max(logprob.high, hint.high)
    assert noise.low <= 0.5 <= noise.high
    # Noise beside it hardly harms; one verifier by itself keeps its order, and that of `score`.
    assert compute_held_out_auroc(facts, ["sequence_logprob", "noise"]).low > 0.5
    assert logprob.auroc == pytest.approx(compute_held_out_auroc(facts, None).auroc, abs=1e-6)


def test_combination_reverses_a_verifier_that_points_the_other_way(facts: list[PromptRecord]) -> None:
    some = facts[: repetitions(len(facts), share=0.3)]
    as_it_is = compute_held_out_auroc(some, ["hint"])
    turned = [
        change_candidates(record, lambda one: {"scores": {"hint": -(one.scores or {})["hint"]}})
        for record in some
    ]
    assert replace(compute_held_out_auroc(turned, ["hint"]), low=0.0, high=0.0) == replace(
        as_it_is, low=0.0, high=0.0
    )


def test_fit_logistic_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(
        MissingExtraError, match=r"logistic regression needs scipy, .* 'langchain-cfc\[calibrate\]'"
    ):
        fit_logistic(np.ones((4, 2)), np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4), 1.0)

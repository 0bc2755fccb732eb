"""Bounds on true coverage under wrong labels, against simulated mistakes.

Statistical tests draw independent prompts; a false alarm, a failing assertion although the law holds, has
probability at most 1e-6 per test, and seeds are fixed. Shares of N prompts deviate from their means by at
most h = sqrt(log(2 / FALSE_ALARM) / (2 N)), by Hoeffding's inequality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from langchain_cfc_collect import bound_true_coverage, bound_true_coverage_at_worst

from langchain_cfc.errors import InputError
from langchain_cfc.thresholds import GroupedThreshold

FALSE_ALARM = 1e-6
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def compute_slack(size: int) -> float:
    # Four shares are compared in a test, at most.
    return math.sqrt(math.log(8 / FALSE_ALARM) / (2 * size))


@dataclass(frozen=True)
class Drawn:
    """N prompts of n candidates: scores, and which candidates are correct."""

    scores: Floats
    correct: Bools


def draw_prompts(rng: np.random.Generator, size: int, n: int) -> Drawn:
    """Easy and hard prompts; correct candidates score better, more so on easy ones."""
    easy = rng.random((size, 1))
    correct = rng.random((size, n)) < 0.1 + 0.6 * easy
    return Drawn(np.clip(rng.normal(0.5 - 0.15 * correct - 0.1 * easy, 0.15, (size, n)), 0, 1), correct)


def add_independent_mistakes(rng: np.random.Generator, correct: Bools, e0: float, e1: float) -> Bools:
    mistaken = rng.random(correct.shape) < np.where(correct, e1, e0)
    return correct ^ mistaken


def compute_coverage(sets: Bools, labels: Bools) -> float:
    return float(np.any(sets & labels, axis=1).mean())


@pytest.mark.parametrize(("e0", "e1"), [(0.05, 0.0), (0.05, 0.1), (0.2, 0.05)])
def test_bound_true_coverage_holds_for_independent_mistakes(e0: float, e1: float) -> None:
    rng, size = np.random.default_rng(1), 100_000
    given = draw_prompts(rng, size, 5)
    labels = add_independent_mistakes(rng, given.correct, e0, e1)
    for threshold in (0.3, 0.5, 0.7):
        sets = given.scores <= threshold
        labelled, truth = compute_coverage(sets, labels), compute_coverage(sets, given.correct)
        low = bound_true_coverage(labelled, error_on_wrong=e0, largest_set=5)
        slack = compute_slack(size)
        assert low - slack / (1 - e0) ** 5 - slack <= truth


def test_bound_true_coverage_is_attained() -> None:
    """Full sets of five that hold one correct candidate, or none."""
    rng, size, e0 = np.random.default_rng(2), 100_000, 0.05
    correct = np.zeros((size, 5), dtype=np.bool_)
    correct[:, 0] = rng.random(size) < 0.7
    everything = np.ones_like(correct)
    labelled = compute_coverage(everything, add_independent_mistakes(rng, correct, e0, 0.0))
    truth, slack = compute_coverage(everything, correct), compute_slack(size) * (1 + 1 / (1 - e0) ** 5)
    attained = bound_true_coverage(labelled, error_on_wrong=e0, largest_set=5)
    assert attained == pytest.approx(truth, abs=slack)
    # The negative control: to take labelled coverage for the true one is off by far more.
    assert abs(labelled - truth) > 2 * slack


def add_worst_mistakes(given: Drawn, e0: float) -> Bools:
    """Add the worst mistakes of a share: on the best-scored candidates of hopeless prompts."""
    labels = given.correct.copy()
    hopeless = np.flatnonzero(~given.correct.any(axis=1))
    mistakes = min(len(hopeless), round(e0 * int((~given.correct).sum())))
    rows = hopeless[:mistakes]
    labels[rows, given.scores[rows].argmin(axis=1)] = True
    return labels


def test_score_dependent_mistakes_attain_only_the_worst_case_bound() -> None:
    rng, size, e0 = np.random.default_rng(4), 100_000, 0.03
    given = draw_prompts(rng, size, 5)
    labels = add_worst_mistakes(given, e0)
    share = float((labels & ~given.correct).sum() / (~given.correct).sum())
    sets = given.scores <= 1.0
    labelled, truth = compute_coverage(sets, labels), compute_coverage(sets, given.correct)
    wrong = float((~given.correct).sum(axis=1).mean())
    worst = bound_true_coverage_at_worst(labelled, error_on_wrong=share, wrong_per_prompt=wrong)
    # These are shares of the very prompts that were drawn, so that the bound holds without any slack.
    assert worst == pytest.approx(truth, abs=1e-9)
    assert truth < bound_true_coverage(labelled, error_on_wrong=share, largest_set=5) - 0.03


@pytest.mark.parametrize("threshold", [0.2, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_bound_true_coverage_at_worst_holds_for_any_mistakes(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    given = draw_prompts(rng, 2000, 5)
    kinds = [
        add_independent_mistakes(rng, given.correct, 0.3, 0.3),
        add_worst_mistakes(given, 0.05),
        given.scores < 0.35,
        ~given.correct,
        np.zeros_like(given.correct),
    ]
    sets = given.scores <= threshold
    for labels in kinds:
        low = bound_true_coverage_at_worst(
            compute_coverage(sets, labels),
            error_on_wrong=float((labels & ~given.correct).sum() / (~given.correct).sum()),
            wrong_per_prompt=float((~given.correct).sum(1).mean()),
        )
        assert low - 1e-12 <= compute_coverage(sets, given.correct)


def test_calibration_on_noisy_labels_keeps_the_derived_coverage() -> None:
    """The whole way: thresholds from labels with mistakes, coverage counted with and without them.

    Law: what is kept of the labels has mean at least 0.6, of what is correct at least 1 - 0.4 / (1 - e0)^5.
    Each repetition is one calibration and one prompt, all independent.
    """
    rng, repetitions, size, e0 = np.random.default_rng(5), 4000, 100, 0.1
    given = draw_prompts(rng, repetitions * (size + 1), 5)
    # Nearly half of the prompts are made hopeless, for only there mistakes flatter.
    correct = given.correct & (rng.random((len(given.correct), 1)) < 0.55)
    labels = add_independent_mistakes(rng, correct, e0, 0.0)
    cap = 2.0
    success = np.where(labels, given.scores, cap).min(axis=1).reshape(repetitions, size + 1)
    scores, truth = given.scores.reshape(repetitions, size + 1, 5), correct.reshape(repetitions, size + 1, 5)
    kept_labelled = kept = 0
    one = np.ones((size, 1))
    for repetition in range(repetitions):
        rule = GroupedThreshold(alpha=0.4, cap=cap).fit(one, success[repetition, :-1])
        threshold = rule.threshold(one[0])
        inside = scores[repetition, -1] <= threshold
        flagged = threshold >= cap
        kept_labelled += bool(flagged or success[repetition, -1] <= threshold)
        kept += bool(flagged or (inside & truth[repetition, -1]).any())
    slack = compute_slack(repetitions)
    promised = bound_true_coverage(0.6, error_on_wrong=e0, largest_set=5)
    assert kept_labelled / repetitions >= 0.6 - slack
    assert kept / repetitions >= promised - slack
    # The negative control: that labels promise 0.6 does not mean that correctness keeps it.
    assert kept / repetitions < 0.6 - slack


def test_coverage_bounds_equal_numbers_worked_out_by_hand() -> None:
    assert bound_true_coverage(0.9, error_on_wrong=0.1, largest_set=1) == pytest.approx(8 / 9)
    assert bound_true_coverage(1.0, error_on_wrong=0.9, largest_set=10**6) == 0.0
    assert bound_true_coverage(0.5, error_on_wrong=1.0, largest_set=1) == 0.0
    worst = bound_true_coverage_at_worst(0.9, error_on_wrong=0.02, wrong_per_prompt=4.0)
    assert worst == pytest.approx(0.82)


INVALID_NUMBERS: list[tuple[str, Any]] = [
    *((name, share) for name in ("labelled", "error_on_wrong") for share in (-0.1, 1.1, math.nan)),
    *(("largest_set", size) for size in (0, -1, 1.5)),
    *(("wrong_per_prompt", mean) for mean in (-1.0, math.nan, math.inf)),
]


@pytest.mark.parametrize(("name", "number"), INVALID_NUMBERS)
def test_coverage_bounds_refuse_invalid_numbers(name: str, number: Any) -> None:
    shares = {"labelled": 0.9, "error_on_wrong": 0.1}
    for bound, more in (
        (bound_true_coverage, {"largest_set": 5}),
        (bound_true_coverage_at_worst, {"wrong_per_prompt": 1.0}),
    ):
        if name in {**shares, **more}:
            with pytest.raises(InputError, match=f"{name} is"):
                bound(**{**shares, **more, name: number})

"""Plans: hand-computed and brute-force checks, and a simulation of what a plan promises."""

from __future__ import annotations

import math
from fractions import Fraction
from importlib.resources import as_file, files
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab import plan_calibration
from langchain_cfc_lab.plan import (
    compute_chance_below,
    estimate_pass_at,
    find_fewest_candidates,
    find_settled_size,
)
from scipy.stats import beta, binom

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.records import read_records, tabulate
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds import GroupedThreshold, compute_conformal_rank, compute_tau
from tests.lengths import mostly_long, repetitions


def make_pilot(
    correct: BoolArray, topics: list[str] | None = None, clusters: list[str | None] | None = None
) -> LabelledBatch:
    size = len(correct)
    draws = CandidateBatch.from_arrays(
        np.full(correct.shape, 0.5), metadata=None if topics is None else [{"topic": t} for t in topics]
    )
    return LabelledBatch(
        draws, correct, tuple(map(str, range(size))), tuple(clusters) if clusters else (None,) * size
    )


def make_pilot_of_one(hits: int, size: int) -> LabelledBatch:
    """A pilot with one candidate per prompt, `hits` of them correct."""
    return make_pilot((np.arange(size) < hits)[:, np.newaxis])


@pytest.fixture(scope="module")
def demo() -> LabelledBatch:
    with as_file(files("langchain_cfc") / "demo" / "facts.jsonl.gz") as path:
        return tabulate(read_records(path))


# pass@k


@pytest.mark.parametrize("seed", range(4))
def test_estimate_pass_at_is_the_mean_over_all_subsets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    correct = rng.random((7, 6)) < rng.random((7, 1)) ** 2
    for k in range(1, 7):
        hits = [correct[:, list(subset)].any(axis=1).sum() for subset in combinations(range(6), k)]
        assert estimate_pass_at(correct, k) == Fraction(int(sum(hits)), 7 * math.comb(6, k))


def test_find_fewest_candidates_must_exceed_the_target() -> None:
    correct = np.array([[True, False], [True, True]])  # pass@1 = 3/4, pass@2 = 1
    assert find_fewest_candidates(correct, Fraction(74, 100)) == 1
    assert find_fewest_candidates(correct, Fraction(3, 4)) == 2
    assert find_fewest_candidates(~correct, Fraction(1, 2)) is None  # 1/4, then 1/2
    assert find_fewest_candidates(~correct, Fraction(49, 100)) == 2


# the Beta law


@pytest.mark.parametrize("alpha", ["0.1", "0.25", "0.05"])
def test_compute_chance_below_is_the_beta_law_and_the_binomial_tail(alpha: str) -> None:
    tau = compute_tau(alpha)
    for size in (1, 2, 9, 10, 57, 400):
        rank = compute_conformal_rank(size, tau)
        for coverage in (0.3, 0.72, 0.9, 0.97, 1.0):
            chance = compute_chance_below(size, tau, coverage)
            assert chance == pytest.approx(binom.sf(rank - 1, size, coverage), abs=1e-12)
            if rank <= size:
                assert chance == pytest.approx(beta.cdf(coverage, rank, size + 1 - rank), abs=1e-12)
    assert compute_chance_below(50, tau, -0.2) == 0.0


@mostly_long(
    ("alpha", "coverage", "delta"),
    [
        ("0.1", "0.87", 0.1),
        ("0.2", "0.77", 0.1),
        ("0.2", "0.75", 0.02),
        ("0.01", "0.98", 0.1),
        ("0.37", "0.6", 0.2),
        ("0.1", "0.93", 0.1),
        ("0.2", "0.855", 0.05),
        ("0.05", "1", 0.1),
        ("0.5", "0.1", 0.4),
    ],
    quick=3,
)
def test_find_settled_size_is_one_above_the_last_size_that_fails(
    alpha: str, coverage: str, delta: float
) -> None:
    tau, share = compute_tau(alpha), float(coverage)
    sizes = np.arange(1, 30_000)
    ranks = np.array([compute_conformal_rank(int(size), tau) for size in sizes])
    below = binom.sf(ranks - 1, sizes, share)
    fails: BoolArray = np.asarray((below if share < tau else 1.0 - below) > delta)
    settled = find_settled_size(tau, Fraction(coverage), delta)
    assert settled == (int(sizes[fails][-1]) if fails.any() else 0) + 1
    assert settled < 15_000  # far from where this scan ends


# what a plan promises


def simulate_thresholds(size: int, alpha: str, attainable: float, repeats: int, seed: int) -> FloatArray:
    """Thresholds of the package's own rule; success scores are uniform up to `attainable`, else the cap.

    The coverage of a threshold below the cap is then the threshold itself.
    """
    rng = np.random.default_rng(seed)
    scores = rng.random((repeats, size))
    scores[scores >= attainable] = 2.0
    constant = np.ones((size, 1))
    rules = (GroupedThreshold(alpha, 2.0).fit(constant, row) for row in scores)
    return np.array([rule.threshold(constant[0]) for rule in rules])


def test_recommended_calibration_misses_the_slack_at_most_with_delta() -> None:
    """At the recommended size (295) as promised, at half of it not: the negative control.

    A share of so many calibration sets deviates from its expectation by 4.75 standard errors (0.0226 of
    4,000, 0.0319 of half as many) with probability 1e-6. At half the size the Beta law says 0.851, below what
    the control asks for in either tier.
    """
    (overall,) = plan_calibration(alpha="0.2", n=5, attainable=1.0).groups
    assert overall.recommended_calibration == 295
    repeats = repetitions(4000, share=0.5)
    error = 4.75 * math.sqrt(0.1 * 0.9 / repeats)
    full = simulate_thresholds(295, "0.2", 1.0, repeats, seed=1) >= 0.77
    half = simulate_thresholds(147, "0.2", 1.0, repeats, seed=2) >= 0.77
    assert full.mean() >= 0.9 - error
    assert half.mean() < 0.9 - error


def test_plan_states_how_often_the_target_is_certifiable() -> None:
    """Attainable coverage 0.95 at tau 0.9; 4.75 standard errors again, so a false alarm has probability 1e-6.

    The negative control is the minimum (19), where calibration is refused about every fourth time.
    """
    (overall,) = plan_calibration(alpha="0.1", n=5, attainable=0.95, slack=0.05).groups
    size, chance = overall.recommended_calibration, overall.certifiable_chance
    assert overall.minimum_calibration == 19
    assert size is not None
    assert chance is not None
    assert chance >= 0.9
    repeats = repetitions(4000, share=0.25)
    reached = simulate_thresholds(size, "0.1", 0.95, repeats, seed=3) < 2.0
    assert abs(reached.mean() - chance) <= 4.75 * math.sqrt(chance * (1.0 - chance) / repeats)
    least = simulate_thresholds(19, "0.1", 0.95, repeats, seed=4) < 2.0
    assert least.mean() < 0.9 - 4.75 * math.sqrt(0.1 * 0.9 / repeats)


# verdicts


@pytest.mark.parametrize(
    ("hits", "alpha", "verdict"),
    [
        # One-sided 95 % bounds of 20 in 20 and 0 in 20 are 0.05^(1/20) = 0.8609 and 1 - 0.8609 = 0.1391.
        (20, 0.14, "attainable"),
        (20, 0.139, "uncertain"),
        (0, 0.861, "uncertain"),
        (0, 0.86, "out of reach"),
        (14, 0.3, "uncertain"),
    ],
)
def test_plan_verdicts_follow_the_one_sided_bounds(hits: int, alpha: float, verdict: str) -> None:
    (overall,) = plan_calibration(make_pilot_of_one(hits, 20), alpha=alpha).groups
    assert overall.verdict == verdict
    assert overall.smallest_alpha_certain is not None
    assert (alpha > overall.smallest_alpha_certain) == (verdict == "attainable")


@pytest.mark.parametrize(
    ("attainable", "verdict", "minimum"),
    [(0.9, "out of reach", None), (0.95, "attainable", 19), (1.0, "attainable", 9)],
)
def test_plan_from_assumptions_at_the_boundary_of_the_target(
    attainable: float, verdict: str, minimum: int | None
) -> None:
    plan = plan_calibration(alpha=0.1, n=4, attainable=attainable)
    (overall,) = plan.groups
    assert (overall.verdict, overall.minimum_calibration) == (verdict, minimum)
    assert (plan.labelled_prompts is None) == (plan.expected_cost is None) == (minimum is None)
    assert (overall.pilot_size, overall.attainable_ci, overall.smallest_alpha_certain) == (None, None, None)
    assert plan.by_n == []


def test_plan_needs_more_prompts_for_a_narrow_but_certain_margin() -> None:
    """A margin of 0.02 over tau = 0.8 is settled by 2,000 pilot prompts and not by 50."""
    (sure,) = plan_calibration(make_pilot_of_one(1640, 2000), alpha=0.2).groups
    (unsure,) = plan_calibration(make_pilot_of_one(41, 50), alpha=0.2).groups
    assert (sure.verdict, unsure.verdict) == ("attainable", "uncertain")
    assert sure.recommended_calibration == find_settled_size(compute_tau(0.2), Fraction("0.82"), 0.1) > 295
    assert unsure.recommended_calibration == 295
    assert sure.certifiable_chance is not None
    assert unsure.certifiable_chance is not None
    assert sure.certifiable_chance >= 0.9 > unsure.certifiable_chance


# groups, numbers of candidates, costs


def test_plan_from_pilot_groups_equal_a_calculation_by_hand() -> None:
    """Topic a: 30 of 40 prompts by one of two candidates; topic b: 20 of 20 by both."""
    first = np.array([True] * 30 + [False] * 10 + [True] * 20)
    second = np.array([False] * 40 + [True] * 20)
    labelled = make_pilot(np.stack([first, second], axis=1), ["a"] * 40 + ["b"] * 20)
    plan = plan_calibration(labelled, alpha=0.25, group="topic", fit_fraction=0.0, test_fraction=0.5)
    assert [group.name for group in plan.groups] == ["all prompts", "group(topic)=a", "group(topic)=b"]
    assert [group.pilot_size for group in plan.groups] == [60, 40, 20]
    assert [group.attainable for group in plan.groups] == [pytest.approx(50 / 60), 0.75, 1.0]
    assert [group.share for group in plan.groups] == pytest.approx([1.0, 2 / 3, 1 / 3])
    # pass@1 of all prompts: (30 / 2 + 20) / 60 = 7/12, below the target; pass@2 = 5/6, above it
    assert [group.smallest_n for group in plan.groups] == [2, None, 1]
    assert [(at.n, at.groups) for at in plan.by_n] == [
        (1, {"group(topic)=a": 0.375, "group(topic)=b": 1.0}),
        (2, {"group(topic)=a": 0.75, "group(topic)=b": 1.0}),
    ]
    overall, a, b = plan.groups
    assert a.prompts_needed is None
    assert b.recommended_calibration is not None
    # a third of the prompts, half of them for calibration: six labelled prompts for one
    assert b.prompts_needed == 6 * b.recommended_calibration == plan.labelled_prompts
    assert overall.recommended_calibration is not None
    assert overall.prompts_needed == 2 * overall.recommended_calibration


def test_plan_from_pilot_counts_one_prompt_of_each_cluster() -> None:
    """Ten paraphrases of a question are one piece of evidence, not ten."""
    correct = np.ones((30, 1), dtype=np.bool_)
    clusters: list[str | None] = [f"c{i // 10}" for i in range(30)]
    assert plan_calibration(make_pilot(correct), alpha=0.1).groups[0].pilot_size == 30
    assert plan_calibration(make_pilot(correct, clusters=clusters), alpha=0.1).groups[0].pilot_size == 3


def test_plan_from_pilot_for_fewer_candidates_than_recorded(demo: LabelledBatch) -> None:
    """Planning with n < m uses pass@n of all m; the cost counts n."""
    costs: dict[str, Any] = {"cost_per_candidate": 0.01, "cost_per_prompt": 1.0}
    few = plan_calibration(demo, alpha=0.2, n=5, **costs)
    many = plan_calibration(demo, alpha=0.2, **costs)
    assert (few.n, many.n) == (5, 10)
    assert few.groups[0].attainable == float(estimate_pass_at(demo.correct, 5))
    assert few.groups[0].attainable < many.groups[0].attainable
    assert few.groups[0].smallest_n == many.groups[0].smallest_n == 4
    assert few.labelled_prompts is not None
    assert few.expected_cost == pytest.approx(few.labelled_prompts * 1.05)
    assert many.labelled_prompts is not None
    assert many.expected_cost == pytest.approx(many.labelled_prompts * 1.10)


# advice


def test_plan_advice_names_a_target_out_of_reach_and_alternatives() -> None:
    correct = np.tile(np.array([[True, False, False, False]]), (200, 1))  # pass@1 = 1/4, pass@4 = 1
    (sentence,) = plan_calibration(make_pilot(correct), alpha=0.2, n=1).advice
    assert "all prompts: alpha = 0.2 is out of reach, however many prompts are labelled" in sentence
    assert "n = 1 candidates attain 25 % coverage" in sentence
    assert "n = 4 is estimated to exceed the target" in sentence
    assert "choose alpha above 0.8." in sentence  # 1 - beta.ppf(0.05, 50, 151) = 0.7998, rounded up


def test_plan_advice_names_a_pilot_too_small_to_tell() -> None:
    (sentence,) = plan_calibration(make_pilot_of_one(17, 20), alpha=0.2).advice
    assert "The pilot of 20 prompts is too small to tell whether alpha = 0.2 is within reach" in sentence


def test_plan_advice_names_rare_and_hard_groups() -> None:
    """880 of 1,000 prompts have a correct candidate; 19 of 20 rare ones and 60 of 100 hard ones."""
    correct = np.repeat([True, False, True, False, True, False], [19, 1, 60, 40, 801, 79])[:, np.newaxis]
    topics = ["rare"] * 20 + ["hard"] * 100 + ["usual"] * 880
    plan = plan_calibration(make_pilot(correct, topics), alpha=0.2, group="topic")
    hard, rare, uncertain = plan.advice
    assert hard.startswith("group(topic)=hard: alpha = 0.2 is out of reach")
    assert "flagged as not certifiable" in hard
    assert rare.startswith("group(topic)=rare decides how many prompts to label: it is 2 % of them")
    assert "without groups 461 would be enough" in rare
    assert uncertain.endswith("is within reach for group(topic)=rare: label more.")
    (assumed,) = plan_calibration(alpha=0.2, n=5, attainable=0.9).advice
    assert assumed.startswith("The attainable coverage is an assumption")


# errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 0.0}, "alpha must be a decimal number strictly between 0 and 1"),
        ({"n": 0}, "n is 0; expected a whole number, at least 1"),
        ({"n": 2.5}, "n is 2.5"),
        ({"n": True}, "n is True"),
        ({"attainable": 1.01}, r"attainable is 1.01; expected in \[0, 1\]"),
        ({"attainable": math.nan}, "attainable is nan"),
        ({"slack": 0.0}, r"slack is 0.0; expected in \[0.001, 1\)"),
        ({"slack": 1.0}, "slack is 1.0"),
        ({"delta": 0.0}, "delta is 0.0; expected strictly between 0 and 1"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"fit_fraction": 1.0}, "must be shares"),
        ({"test_fraction": -0.1}, "must be shares"),
        ({"cost_per_candidate": -1.0}, "cost_per_candidate is -1.0; expected a finite number"),
        ({"cost_per_prompt": math.inf}, "cost_per_prompt is inf"),
    ],
)
def test_plan_from_assumptions_refuses_values_out_of_range(wrong: dict[str, Any], message: str) -> None:
    plan_calibration(alpha=0.2, n=5, attainable=0.9)
    settings: dict[str, Any] = {"alpha": 0.2, "n": 5, "attainable": 0.9, **wrong}
    with pytest.raises(InputError, match=message):
        plan_calibration(**settings)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"n": 3}, "n is 3; expected a whole number in 1 ... 2, as recorded"), ({"alpha": 1}, "alpha must be")],
)
def test_plan_from_pilot_refuses_invalid_arguments(wrong: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"alpha": 0.2, **wrong}
    with pytest.raises(InputError, match=message):
        plan_calibration(make_pilot(np.ones((4, 2), dtype=np.bool_)), **settings)

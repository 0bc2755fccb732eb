from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from langchain_cfc_lab.compare import Summary, compare, compute_spread
from langchain_cfc_lab.comparison_report import Spread
from langchain_cfc_lab.methods import get_methods
from langchain_cfc_lab.metrics import FIGURES, Groups
from langchain_cfc_lab.splits import SplitResult
from scipy import stats

from langchain_cfc.candidates import LabelledBatch

NAN = math.nan
FALSE_ALARM = 1e-6


# The interval ----------------------------------------------------------------------------------------------


def test_compute_spread_interval_equals_a_calculation_by_hand() -> None:
    # s^2 = 4/3 of 0, 2, 2, 0; Student's 0.975-quantile with 3 degrees of freedom is 3.182446305284263.
    found = compute_spread(np.array([0.0, 2.0, 2.0, 0.0]), 0.25)
    assert found is not None
    assert (found.mean, found.sd, found.splits) == (1.0, 1.0, 4)
    half = 3.182446305284263 * math.sqrt((1 / 4 + 0.25) * 4 / 3)
    assert found.interval == pytest.approx((1.0 - half, 1.0 + half), abs=1e-12)


def test_compute_spread_omits_undefined_splits() -> None:
    with_gaps = compute_spread(np.array([NAN, 0.0, 2.0, NAN, 2.0, 0.0]), 0.25)
    assert with_gaps == compute_spread(np.array([0.0, 2.0, 2.0, 0.0]), 0.25)
    assert compute_spread(np.array([NAN, NAN]), 1.0) is None
    assert compute_spread(np.array([]), 1.0) is None


# What it covers --------------------------------------------------------------------------------------------
# Independent pools of 100 prompts, two candidates each; with probability 0.8 a prompt has a correct one. Of R
# pools, the number whose interval holds the truth is binomial; "at least 90 %" is refuted where a number as
# small as the one seen has probability below 1e-6 for 90 %. It resolves 80 % for sure.
POOLS, SPLITS, ATTAINABLE = 300, 10, 0.8


def draw_pool(rng: np.random.Generator, size: int = 100) -> LabelledBatch:
    correct = np.zeros((size, 2), np.bool_)
    correct[np.arange(size), rng.integers(0, 2, size)] = rng.random(size) < ATTAINABLE
    scores = rng.random((size, 2))
    topics = [{"topic": "ab"[one]} for one in rng.integers(0, 2, size).tolist()]
    ids = [f"{one:x}" for one in rng.integers(2**63, size=size).tolist()]
    return LabelledBatch.from_arrays(
        ids, scores, correct, np.where(correct, "right", "wrong").tolist(), metadata=topics
    )


def is_contradiction(hits: int) -> bool:
    """Whether so few hits contradict 90 %."""
    return bool(stats.binom.cdf(hits, POOLS, 0.9) < FALSE_ALARM)


def hits(found: Sequence[Spread], truth: float, interval: Callable[[Spread], tuple[float, float]]) -> int:
    return sum(low <= truth <= high for low, high in map(interval, found))


def compute_naive_interval(one: Spread) -> tuple[float, float]:
    half = 1.96 * one.sd / math.sqrt(one.splits - 1)
    return one.mean - half, one.mean + half


@pytest.mark.long
@pytest.mark.parametrize("test_fraction", [0.5, 0.3])
def test_intervals_contain_the_truth_as_often_as_stated(test_fraction: float) -> None:
    rng = np.random.default_rng(7)
    found: dict[str, list[Spread]] = {}
    for number in range(POOLS):
        report = compare(
            draw_pool(rng),
            alpha="0.4",
            methods=["marginal"],
            features="1",
            groups="group(topic)",
            splits=SPLITS,
            seed=number,
            test_fraction=test_fraction,
        )
        marginal = report.methods["marginal"].figures
        for name in ("mean_set_size", "selective_accuracy", "kept_promise"):
            found.setdefault(name, []).append(marginal[name])
    # The truths are means over all pools, whose own error is a seventeenth of what intervals have to allow
    # for.
    truth = {name: float(np.mean([one.mean for one in several])) for name, several in found.items()}
    counts = {
        name: hits(several, truth[name], lambda one: one.interval or (0.0, 1.0))
        for name, several in found.items()
    }
    assert not {name: count for name, count in counts.items() if is_contradiction(count)}
    # The control. What a method is calibrated for is left out: in one pool, shares kept on test prompts make
    # up for those kept in calibration, so that splits differ more than pools do.
    for name in ("mean_set_size", "selective_accuracy"):
        assert is_contradiction(hits(found[name], truth[name], compute_naive_interval)), name
        assert hits(found[name], truth[name], compute_naive_interval) < 0.7 * POOLS


# From splits to a report -----------------------------------------------------------------------------------

MEMBER = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
GROUPS = Groups("group(g)", ("g=a", "g=b", "g=c"), ("a", "b", "c"), MEMBER)
LEVELS = Groups(
    "bins(mean_score, 2)", ("low", "high"), ("mean score: 1 of 2", "mean score: 2 of 2"), MEMBER[:, :2]
)
METHODS = get_methods(["marginal", "TopK"])


def measure_split(seed: int) -> SplitResult:
    """Two methods at two levels; the third group has no prompt in any split, the second in some only."""
    rng = np.random.default_rng(seed)
    groups = rng.random((4, 3))
    groups[:, 2] = NAN
    groups[:, 1] = NAN if seed == 1 else groups[:, 1]
    threshold = groups.copy()
    threshold[2:] = NAN  # TopK has none
    figures = {name: rng.random(4) for name in FIGURES}
    figures["selective_accuracy"][0] = NAN if seed else 0.5
    figures["selective_accuracy"][2:] = NAN
    properties = np.concatenate([groups, rng.random((4, 2))], axis=1)
    return SplitResult(
        figures=figures,
        groups={
            **{
                name: groups / (1 + place)
                for place, name in enumerate(
                    ["coverage", "kept_promise", "not_certifiable_rate", "mean_set_size"]
                )
            },
            "threshold": threshold,
        },
        group_sizes=np.array([3.0, seed, 0.0]),
        properties=properties,
        attainable=0.1 * seed,
        calibrated=10 + seed,
        tested=20,
    )


SPLITS_MEASURED = [measure_split(seed) for seed in range(4)]


def make_summary() -> Summary:
    return Summary(SPLITS_MEASURED, METHODS, ("0.1", "0.2"), GROUPS, (GROUPS, LEVELS), 7, 1.0)


def test_summary_levels_are_means_over_splits() -> None:
    levels = make_summary().build_levels()
    assert [(one.alpha, one.target_coverage, one.n_candidates) for one in levels] == [
        (0.1, 0.9, 7),
        (0.2, 0.8, 7),
    ]
    for place, level in enumerate(levels):
        assert (level.n_calibration, level.n_test) == (12, 20)  # 11.5 to the even number
        assert level.attainable_coverage == pytest.approx(0.15)
        assert list(level.methods) == ["marginal", "TopK"]
        for number, method in enumerate(level.methods.values()):
            run = 2 * number + place
            worst = min((group.figures["kept_promise"] for group in method.groups), key=lambda one: one.mean)
            assert method.figures["worst_group_kept_promise"] == worst
            for name in set(FIGURES) - {"worst_group_kept_promise"}:
                values = np.array([one.figures[name][run] for one in SPLITS_MEASURED])
                share = not name.startswith("mean_")
                assert method.figures.get(name) == compute_spread(values, 1.0, share=share)
            assert ("selective_accuracy" in method.figures) == (number == 0)
            for name in (
                "coverage",
                "kept_promise",
                "not_certifiable_rate",
                "abstention_rate",
                "mean_set_size",
                "mean_distinct_answers",
            ):
                assert getattr(method, name) == method.figures[name].mean
            for name in ("coverage", "kept_promise"):
                assert getattr(method, f"{name}_ci") == method.figures[name].interval
            assert [group.name for group in method.groups] == ["g=a", "g=b"]  # none of the third
            for column, group in enumerate(method.groups):
                assert group.n == [3.0, 1.5][column]
                assert ("threshold" in group.figures) == (number == 0)
                for name, one in group.figures.items():
                    values = np.array([seen.groups[name][run, column] for seen in SPLITS_MEASURED])
                    assert one == compute_spread(values, 1.0, share=not name.startswith("mean_"))
                assert group.coverage == group.figures["coverage"].mean
                assert group.figures["coverage"].splits == 4 - column
    first = levels[0].methods["marginal"]
    assert first.figures["selective_accuracy"].splits == 1
    assert {0.0, 1.0} & set(first.coverage_ci)  # cut


def test_summary_gaps_are_of_the_group_worst_on_average() -> None:
    for place, (level, tau) in enumerate(zip(make_summary().build_levels(), (0.9, 0.8), strict=True)):
        for number, method in enumerate(level.methods.values()):
            kept = np.array([one.properties[2 * number + place] for one in SPLITS_MEASURED])
            assert set(method.gaps) == {"group(g)", "mean_score"}
            for name, columns, groups in (("group(g)", [0, 1], GROUPS), ("mean_score", [3, 4], LEVELS)):
                means = [np.nanmean(kept[:, column]) for column in columns]
                worst = int(np.argmin(means))
                gap = method.gaps[name]
                assert gap.group == groups.words[worst]
                expected = compute_spread(tau - kept[:, columns[worst]], 1.0)
                assert gap.shortfall == expected
                assert gap.shortfall.mean == pytest.approx(tau - min(means), abs=1e-12)

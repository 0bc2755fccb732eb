from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from langchain_cfc_lab.compare import compare, compute_spread
from langchain_cfc_lab.comparison_report import Spread
from langchain_cfc_lab.metrics import FIGURES
from scipy import stats

from integrations.lab.tests.comparison.worlds import compute_mean, draw_world, make_comparison
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


def test_report_holds_means_over_the_splits_that_define_them() -> None:
    """Of so few prompts, one or both splits test none of a group, or answer none."""
    methods, alphas, groups = ["marginal", "TopK"], ("0.1", "0.2"), "bins(mean_score, 5)"
    labelled = draw_world(1, 12)
    comparison = make_comparison(labelled, methods, alphas=alphas, features="1", group_text=groups)
    seen = [comparison.measure_split(number) for number in range(2)]
    report = compare(labelled, alpha=alphas, methods=methods, features="1", groups=groups, splits=2)

    def spread(values: Sequence[float], *, share: bool = False) -> Spread | None:
        return compute_spread(np.array(values), 1.0, share=share)

    sizes = np.array([one.group_sizes for one in seen])
    tested = np.flatnonzero(sizes.any(axis=0)).tolist()
    assert len(tested) < sizes.shape[1]
    assert (sizes[:, tested] == 0).any()
    undefined = set()
    for place, level in enumerate(report.sweep):
        assert (level.alpha, level.n_candidates) == (float(alphas[place]), 4)
        assert level.n_calibration == round(np.mean([one.calibrated for one in seen]))
        assert level.attainable_coverage == pytest.approx(np.mean([one.attainable for one in seen]))
        for number, (name, method) in enumerate(level.methods.items()):
            run = 2 * number + place
            for figure in set(FIGURES) - {"worst_group_kept_promise"}:
                values = [one.figures[figure][run] for one in seen]
                undefined.add(sum(map(math.isnan, values)))
                share = not figure.startswith("mean_")
                assert method.figures.get(figure) == spread(values, share=share), figure
                if figure in type(method).model_fields:
                    assert getattr(method, figure) == method.figures[figure].mean
            assert method.coverage_ci == method.figures["coverage"].interval
            assert [group.n for group in method.groups] == sizes.mean(axis=0)[tested].tolist()
            for column, group in zip(tested, method.groups, strict=True):
                assert ("threshold" in group.figures) == (name == "marginal")
                assert group.coverage == group.figures["coverage"].mean
                for figure, one in group.figures.items():
                    values = [it.groups[figure][run, column] for it in seen]
                    assert one == spread(values, share=not figure.startswith("mean_"))
            worst = min(method.groups, key=lambda group: group.kept_promise)
            assert method.figures["worst_group_kept_promise"] == worst.figures["kept_promise"]
            # Of every property, the group that is worst on average, and not in any one split.
            kept, first = np.array([one.properties[run] for one in seen]), 0
            for groups_of in comparison.properties:
                columns = kept[:, first : first + len(groups_of.names)]
                first += len(groups_of.names)
                means = np.array([compute_mean(column[~np.isnan(column)]) for column in columns.T])
                name_of = (
                    groups_of.text if "bins" not in groups_of.text else groups_of.text[5:].partition(",")[0]
                )
                gap = method.gaps[name_of]
                assert gap.group == groups_of.words[int(np.nanargmin(means))]
                assert gap.shortfall == spread(
                    (level.target_coverage - columns[:, np.nanargmin(means)]).tolist()
                )
    assert undefined == {0, 1, 2}

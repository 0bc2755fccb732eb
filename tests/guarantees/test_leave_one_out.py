"""The promise given the bag of prompts: an exact sum, with no chance in it.

Given which N + 1 prompts there are, exchangeability makes each of them the test prompt with probability 1 /
(N + 1). So the promise E f(X) (kept - tau) >= 0 says of any N + 1 prompts whatsoever, when each in turn is
decided upon by the others: sum_i f(X_i) (kept_i - tau) >= 0. That follows from the optimality of the fit:
where prompt i is missed, the quantile regression of all N + 1 passes below it, its dual variable is tau, all
of them are at least tau - 1 and orthogonal to the features, hence sum f (kept - tau) >= - sum f eta = 0.
Where no more than d prompts lie on the fit, as for continuous success scores, the same argument bounds the
sum by d max f.

So there is no tolerance here but for round-off, no false alarm, and ties, hopeless prompts, repeated answers
and real data are all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from langchain_cfc import FeatureMap, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.records import tabulate
from tests.guarantees.promises import make_prompts, measure_promise_gaps
from tests.lengths import mostly_long, repetitions

# A Bernstein polynomial may fall below zero by 1e-9; sums of 40 to 150 such terms stay below this.
ROUND_OFF = 1e-6
# Prompts in a bag; the sums are exact, however few there are.
SIZE = repetitions(40, share=0.3)

FEATURES = [
    "1",
    "group(tier)",
    "hat(mean_score, 4)",
    "mean_score^2",
    "bins(min_score, 4) + group(tier)",
    "mean_score + hard(max_score, entropy, 0.8) + group(tier)",
]
EACH_MAP = mostly_long("features", FEATURES, quick=3)

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def leave_each_out(
    records: Sequence[PromptRecord], features: FeatureMap, *, alpha: Any = "0.2", **options: Any
) -> list[CalibrationArtifact]:
    """For each prompt, the artifact of the others."""
    return [
        calibrate(
            [*records[:place], *records[place + 1 :]],
            alpha=alpha,
            features=features,
            allow_unattainable=True,
            **options,
        )
        for place in range(len(records))
    ]


def sum_gaps(
    artifacts: Sequence[CalibrationArtifact],
    records: Sequence[PromptRecord],
    *,
    level: str | None = None,
    marginal: bool = False,
    stated: float | None = None,
) -> dict[str, float]:
    """sum_i f(X_i) (kept_i - tau) for every guaranteed weighting, each prompt decided upon by its own."""
    totals: dict[str, float] = {}
    for artifact, record in zip(artifacts, records, strict=True):
        gaps = measure_promise_gaps(artifact, [record], alpha=level, marginal=marginal, stated=stated)
        for name, gap in gaps.items():
            totals[name] = totals.get(name, 0.0) + gap
    return totals


def sum_leave_one_out_gaps(
    records: Sequence[PromptRecord],
    features: FeatureMap,
    *,
    level: str | None = None,
    marginal: bool = False,
    **options: Any,
) -> dict[str, float]:
    """The same, each prompt decided upon by the others."""
    return sum_gaps(leave_each_out(records, features, **options), records, level=level, marginal=marginal)


@mostly_long("set_rule", ["all", "best_prefix", "rank", "unique(best_prefix)"], quick=1)
@EACH_MAP
def test_promise_holds_for_any_bag_of_prompts(features: str, set_rule: str) -> None:
    rng = np.random.default_rng(FEATURES.index(features))
    for decimals in (None, 1):
        fitted = FeatureMap.parse(features).fit(tabulate(make_prompts(rng, 40, decimals=decimals)).draws)
        bag = make_prompts(rng, SIZE, decimals=decimals)
        found = sum_leave_one_out_gaps(bag, fitted, set_rule=set_rule)
        assert min(found.values()) >= -ROUND_OFF


@EACH_MAP
def test_promise_exceeds_tau_by_at_most_the_number_of_features(features: str) -> None:
    # Continuous success scores below the cap, which the features do not determine: at most d lie on the fit.
    rng = np.random.default_rng(10)
    fitted = FeatureMap.parse(features).fit(tabulate(make_prompts(rng, 40)).draws)
    found = sum_leave_one_out_gaps(make_prompts(rng, SIZE, hopeless=False), fitted)
    assert -ROUND_OFF <= found["1"] <= fitted.dimension + ROUND_OFF


@pytest.mark.parametrize(
    "features", ["hat(mean_score, 4)", pytest.param(FEATURES[4], marks=pytest.mark.long)]
)
def test_adaptive_stated_coverages_are_kept_in_any_bag_of_prompts(features: str) -> None:
    rng = np.random.default_rng(12)
    fitted = calibrate(
        make_prompts(rng, 300, n=2), alpha="0.1", adaptive_alpha=True, features=features, fit_fraction=0.6
    ).feature_map
    bag = make_prompts(rng, 40, n=2)
    stated = fitted.adaptive_alpha
    assert stated is not None
    assert len(set(stated.alphas)) > 3
    artifacts = leave_each_out(bag, fitted, alpha="0.1", adaptive_alpha=True)
    found = sum_gaps(artifacts, bag)
    assert sum(name.startswith("stated_coverage[") for name in found) == 3
    assert min(found.values()) >= -ROUND_OFF
    # The control: if 90 % were stated for all of them, this would not be kept.
    assert min(sum_gaps(artifacts, bag, stated=0.9).values()) < -1.0


@pytest.mark.parametrize(
    "level", [pytest.param("0.1", marks=pytest.mark.long), "0.2", pytest.param("0.4", marks=pytest.mark.long)]
)
def test_each_of_several_levels_keeps_its_promise_in_any_bag(level: str) -> None:
    rng = np.random.default_rng(11)
    fitted = FeatureMap.parse("mean_score^2").fit(tabulate(make_prompts(rng, 40)).draws)
    found = sum_leave_one_out_gaps(make_prompts(rng, SIZE), fitted, alpha=("0.1", "0.2", "0.4"), level=level)
    assert min(found.values()) >= -ROUND_OFF


def test_one_threshold_for_all_breaks_the_conditional_promise() -> None:
    # What is asserted above is not true of just any rule: one threshold for all misses hard prompts.
    rng = np.random.default_rng(12)
    tiers = FeatureMap.parse("group(tier)").fit(tabulate(make_prompts(rng, 80)).draws)
    bag = make_prompts(rng, repetitions(60, share=0.5))
    most = -len(bag) / 30
    assert sum_leave_one_out_gaps(bag, tiers, marginal=True)["group(tier)=hard"] < most

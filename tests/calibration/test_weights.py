"""Prompts that were labelled with unequal probabilities: weighted where weights are supported.

That the promise holds so is in `tests/guarantees/test_exactness.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from langchain_cfc import calibrate, evaluate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import tabulate
from tests.lengths import mostly_long

ALPHA = "0.4"
OPTIONS: dict[str, Any] = {"alpha": ALPHA, "features": "mean_score", "allow_unattainable": True}
pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module")
def table() -> LabelledBatch:
    return tabulate(load_recording())


@pytest.fixture(scope="module")
def weighted(table: LabelledBatch) -> LabelledBatch:
    """Every other prompt was labelled four times as likely as the others."""
    return replace(table, weights=np.where(np.arange(len(table)) % 2, 1.0, 0.25))


def test_weights_of_one_change_nothing_in_the_artifact(table: LabelledBatch) -> None:
    ones = replace(table, weights=np.ones(len(table)))
    expected, artifact = calibrate(table, **OPTIONS), calibrate(ones, **OPTIONS)
    assert artifact.arrays == expected.arrays
    assert artifact.levels == expected.levels
    assert artifact.reference == expected.reference
    assert artifact.calibration.weight == artifact.calibration.size == expected.calibration.size
    assert artifact.calibration.groups == expected.calibration.groups


def test_artifact_and_guarantee_state_the_labelling_weights(weighted: LabelledBatch) -> None:
    artifact = calibrate(weighted, **OPTIONS)
    facts, promise = artifact.calibration, artifact.make_guarantee(ALPHA)
    plan = facts.split
    ids = {weighted.ids[row] for row in plan.list_rows(weighted)["calibration"].tolist()}
    assert weighted.weights is not None
    known = dict(zip(weighted.ids, weighted.weights.tolist(), strict=True))
    assert facts.size == len(ids)
    assert facts.weight == sum(known[name] for name in ids)
    assert facts.groups[0].size == pytest.approx(facts.weight)
    assert f"those from which the {facts.size} calibrated on were chosen" in promise.sentence
    assert "The probability with which each was chosen is as stated" in promise.assumptions[0]
    alike = calibrate(replace(weighted, weights=None), **OPTIONS).make_guarantee(ALPHA)
    assert "chosen" not in alike.sentence + alike.assumptions[0]


def test_weight_counts_in_the_threshold_like_repeated_prompts(table: LabelledBatch) -> None:
    """Four prompts of weight 1/4, equal but for their names, are one prompt."""
    part = table.take(np.arange(200))
    four = LabelledBatch.concatenate(
        [
            replace(part, ids=tuple(f"{name}, time {time}" for name in part.ids), weights=np.full(200, 0.25))
            for time in range(4)
        ]
    )
    once, repeated = (
        calibrate(one, alpha=ALPHA, features="1", allow_unattainable=True) for one in (part, four)
    )
    assert repeated.calibration.size == 4 * once.calibration.size
    assert repeated.calibration.weight == once.calibration.size
    probe = part.draws.take(np.array([0]))
    phi = once.feature_map.transform(probe)
    assert repeated.solve(phi).values == once.solve(phi).values


@mostly_long(
    "options",
    [
        {"pac": PaperPAC()},
        {"features": "group(topic)", "delta": "0.05"},
    ],
    quick=1,
)
def test_options_without_weights_calibrate_on_a_fair_sample(
    weighted: LabelledBatch, options: dict[str, Any]
) -> None:
    artifact = calibrate(weighted, **OPTIONS | options)
    facts = artifact.calibration
    assert facts.weight is None
    # Half of the prompts stay, and a quarter of the others: 0.625 of them, five deviations give or take.
    everyone = calibrate(replace(weighted, weights=None), **OPTIONS | options).calibration
    for mine, all_of_them in ((facts.size, everyone.size), (facts.fit_size, everyone.fit_size)):
        assert abs(mine - 0.625 * all_of_them) <= 5 * np.sqrt(all_of_them) / 2
    assert "chosen" not in artifact.make_guarantee(ALPHA).sentence


def test_splits_and_certificates_use_a_fair_sample_of_weighted_prompts(weighted: LabelledBatch) -> None:
    artifact = calibrate(weighted, test_fraction=0.3, **OPTIONS)
    facts = artifact.calibration
    assert weighted.weights is not None
    stays = facts.split.draw_uniforms("label", weighted.ids) < weighted.weights
    rows = facts.split.list_rows(weighted)
    stayed = {name: int(stays[members].sum()) for name, members in rows.items()}
    sizes = {"fit": facts.fit_size, "test": facts.held_out_size}
    assert sizes == {name: stayed[name] for name in ("fit", "test")}
    assert all(0 < stayed[name] < len(rows[name]) for name in ("fit", "calibration", "test"))
    certificate = certify(artifact, weighted).certificates[0]
    assert evaluate(artifact, weighted).n_test == certificate.prompts == sizes["test"]
    # The reference counts for drift are over prompts like the later ones.
    counted = next(one for one in artifact.reference if one.alpha is None)
    assert sum(counted.counts["1"]) == stayed["calibration"] < facts.size


def test_attainable_coverage_is_counted_by_weights(table: LabelledBatch) -> None:
    few = table.take(np.arange(100))
    options: dict[str, Any] = {"alpha": "0.3", "features": "1", "fit_fraction": 0.0}
    reached = few.correct.any(axis=1)
    assert calibrate(few, **options).calibration.attainable_coverage == reached.mean()
    # Prompts without a correct candidate count four times as much as the others.
    hard = replace(few, weights=np.where(reached, 0.25, 1.0))
    with pytest.raises(UnattainableTargetError, match="out of reach"):
        calibrate(hard, **options)


def test_evaluate_and_certify_refuse_records_without_their_weights(weighted: LabelledBatch) -> None:
    alike = replace(weighted, weights=None)
    for options in ({}, {"pac": PaperPAC()}):
        artifact = calibrate(weighted, test_fraction=0.3, **OPTIONS | options)
        for use in (evaluate, certify):
            with pytest.raises(InputError, match="their weights are missing here"):
                use(artifact, alike)
    # Prompts outside the calibration records need no weights.
    first, second = np.array_split(np.arange(len(weighted)), 2)
    artifact = calibrate(weighted.take(first), **OPTIONS)
    assert evaluate(artifact, alike.take(second)).n_test == len(second)


@pytest.mark.parametrize(("weight", "size"), [(0.5, 39), (0.1, 190), (0.1, 20)])
def test_attainability_follows_the_total_weight(table: LabelledBatch, weight: float, size: int) -> None:
    reached = np.flatnonzero(table.correct.any(axis=1))[:size]
    given = replace(table.take(reached), weights=np.full(size, weight))
    # Sums of weights of 0.1 are no whole numbers but for rounding.
    lowest = 1.0 / (weight * size + 1.0)
    options: dict[str, Any] = {"features": "1", "fit_fraction": 0.0}
    artifact = calibrate(given, alpha=f"{lowest + 1e-4:.4f}", **options)
    assert np.isfinite(artifact.solve(np.ones((1, 1))).values).all()
    with pytest.raises(UnattainableTargetError, match=f"{weight * size:g} of {weight * size:g} questions"):
        calibrate(given, alpha=f"{lowest - 1e-3:.4f}", **options)


def test_empty_fair_sample_leaves_thresholds_but_no_marginal_comparison(table: LabelledBatch) -> None:
    tiny = replace(table, weights=np.full(len(table), 1e-6))
    artifact = calibrate(tiny, alpha="0.3", features="1", fit_fraction=0.0, allow_unattainable=True)
    assert artifact.calibration.size == len(table)
    assert np.isinf(artifact.solve(np.ones((1, 1)), marginal=True).values).all()
    assert all(sum(one.counts["1"]) == 0 for one in artifact.reference)

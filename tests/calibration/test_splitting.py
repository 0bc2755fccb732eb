"""The split into fit, calibration and held-out prompts: by id and seed, never by position."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from langchain_cfc import FeatureMap, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.decision import decide
from langchain_cfc.errors import CalibrationError, FeatureError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import digest_ids
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from tests.calibration.prompts import make_prompts, remove_date
from tests.factories import change_candidates
from tests.lengths import LONG, mostly_long, repetitions

MAP = "hat(mean_score, 4) + group(topic) + mean_score"

# A few prompts near a knot may not be enough for it.
pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def remove_date_and_levels(artifact: CalibrationArtifact) -> CalibrationArtifact:
    of_no_level = [one for one in artifact.reference if one.alpha is None]
    return remove_date(artifact).model_copy(update={"reference": of_no_level})


def list_parts(artifact: CalibrationArtifact, records: list[PromptRecord]) -> dict[str, list[PromptRecord]]:
    """The records of each part, as anyone can find out from the plan in the artifact."""
    parts: dict[str, list[PromptRecord]] = {"fit": [], "calibration": [], "test": []}
    for record in records:
        parts.setdefault(artifact.calibration.split.find_part(record.id, record.cluster), []).append(record)
    return parts


def read_success_scores(artifact: CalibrationArtifact) -> FloatArray:
    return artifact.arrays[artifact.levels[0].rule["success_scores"]].unpack()


def compute_success_score(record: PromptRecord, cap: float = 2.0) -> float:
    return min((one.score for one in record.candidates if one.correct), default=cap)


def test_split_parts_are_disjoint_and_complete() -> None:
    records = make_prompts(0, 300)
    artifact = calibrate(records, alpha="0.2", features=MAP, fit_fraction=0.3, test_fraction=0.25)
    facts, parts = artifact.calibration, list_parts(artifact, records)
    assert (facts.fit_size, facts.size, facts.held_out_size) == tuple(len(part) for part in parts.values())
    assert facts.fit_size + facts.size + facts.held_out_size == 300
    assert facts.digests == {name: digest_ids(one.id for one in part) for name, part in parts.items()}
    # Five standard deviations about the shares asked for: 0.25, 0.75 x 0.3 and the rest.
    for size, share in ((facts.held_out_size, 0.25), (facts.fit_size, 0.225), (facts.size, 0.525)):
        assert abs(size - 300 * share) < 5 * (300 * share * (1 - share)) ** 0.5
    np.testing.assert_array_equal(
        np.sort(read_success_scores(artifact)),
        np.sort([compute_success_score(one) for one in parts["calibration"]]),
    )


def test_split_part_of_a_prompt_does_not_depend_on_other_records() -> None:
    records = make_prompts(0, 120)
    options: dict[str, Any] = {"fit_fraction": 0.3, "test_fraction": 0.3}
    one = calibrate(records, alpha="0.2", features="mean_score", **options)
    few = calibrate(records[::-2], alpha="0.2", features="mean_score", **options)
    together, alone = list_parts(one, records), list_parts(few, records[::-2])
    for part, found in alone.items():
        assert {record.id for record in found} <= {record.id for record in together[part]}
    other = calibrate(records, alpha="0.2", features="mean_score", seed=1, **options)
    assert other.calibration.digests["test"] != one.calibration.digests["test"]


@mostly_long("features", [MAP, "mean_score^3", "bins(mean_score, 4)"], quick=1)
@pytest.mark.parametrize("clustered", [False, True])
def test_calibrate_does_not_depend_on_the_order_of_records(features: str, clustered: bool) -> None:
    clusters = [f"c{row % 90}" if row % 3 else None for row in range(200)] if clustered else None
    records = make_prompts(1, 200, clusters=clusters)
    draws = tabulate(make_prompts(2, 100)).draws
    first = calibrate(records, alpha=["0.2", "0.4"], features=features, test_fraction=0.1)
    shuffled = random.Random(0).sample(records, len(records))  # noqa: S311 - an order, not a secret
    by_score = sorted(records, key=lambda record: record.candidates[0].score)
    for again in (shuffled, records[::-1], by_score)[: 3 if LONG else 1]:
        artifact = calibrate(again, alpha=["0.4", "0.2"], features=features, test_fraction=0.1)
        assert remove_date(artifact) == remove_date(first)
        assert remove_date(artifact).digest == remove_date(first).digest
        for level in first.alphas:
            one, other = decide(first, draws, level), decide(artifact, draws, level)
            assert other.thresholds.tobytes() == one.thresholds.tobytes()


def test_split_never_divides_a_cluster() -> None:
    records = make_prompts(0, 300, clusters=[f"c{row // 3}" for row in range(300)])
    artifact = calibrate(records, alpha="0.2", features="mean_score", fit_fraction=0.3, test_fraction=0.3)
    parts = list_parts(artifact, records)
    clusters = {name: {record.cluster for record in part} for name, part in parts.items()}
    assert all(len(found) > 10 for found in clusters.values())
    assert sum(len(found) for found in clusters.values()) == 100
    # Control: a split by ids alone divides clusters.
    alone = list_parts(artifact, [record.model_copy(update={"cluster": None}) for record in records])
    torn = {name: {int(record.id[1:]) // 3 for record in part} for name, part in alone.items()}
    assert torn["fit"] & torn["test"]


def test_calibrate_uses_one_prompt_of_each_cluster_chosen_by_hash() -> None:
    clusters = [f"c{row // 4}" if row < 200 else None for row in range(240)]
    records = make_prompts(0, 240, clusters=clusters)
    artifact = calibrate(records, alpha="0.2", features="1")
    assert artifact.calibration.size == 50 + 40
    assert artifact.make_guarantee().kind == "conditional"
    used = set(read_success_scores(artifact).tolist())
    chosen = {record.id for record in records if compute_success_score(record) in used}
    by_cluster = [[row for row in range(4 * c, 4 * c + 4) if f"p{row}" in chosen] for c in range(50)]
    # Hopeless prompts share the success score `cap`; the others tell which prompt it was.
    assert all(
        len(rows) <= 1
        for rows in by_cluster
        if not any(compute_success_score(records[r]) == 2.0 for r in rows)
    )
    places = {rows[0] % 4 for rows in by_cluster if rows}
    assert places == {0, 1, 2, 3}


def test_feature_map_is_fitted_on_the_fit_split_alone() -> None:
    records = make_prompts(3, 200)
    features = "bins(mean_score, 4) + hat(max_score, 3) + min_score^2 + hard(std_score, 0.7)"
    options: dict[str, Any] = {
        "alpha": "0.2",
        "features": features,
        "test_fraction": 0.2,
        "allow_unattainable": True,
    }
    first = calibrate(records, **options)
    part = first.calibration.split.find_part

    def changing(which: str) -> CalibrationArtifact:
        changed = [change_candidates(r, score=0.999) if part(r.id, None) == which else r for r in records]
        return calibrate(changed, **options)

    calibrated, held_out = changing("calibration"), changing("test")
    assert calibrated.features == first.features
    assert calibrated.arrays != first.arrays
    # Held-out prompts are used for reference counts alone, which later decisions are compared with.
    assert remove_date(held_out) != remove_date(first)
    assert remove_date_and_levels(held_out) == remove_date_and_levels(first)
    # Control: prompts of the fit split do move the cut-offs.
    one_fit = next(r for r in records if part(r.id, None) == "fit")
    moved = [change_candidates(r, score=0.999) if r is one_fit else r for r in records]
    assert calibrate(moved, **options).features != first.features


def test_calibrate_uses_a_fitted_map_and_every_prompt() -> None:
    fitted = FeatureMap.parse(MAP).fit(tabulate(make_prompts(4, 50)).draws)
    artifact = calibrate(make_prompts(0, 80), alpha="0.2", features=fitted)
    assert artifact.features == fitted.to_data()
    assert (artifact.calibration.fit_size, artifact.calibration.size) == (0, 80)
    unfitted = calibrate(make_prompts(0, 80), alpha="0.2", features=FeatureMap.parse(MAP))
    assert unfitted.calibration.fit_size > 0
    assert unfitted.features == calibrate(make_prompts(0, 80), alpha="0.2", features=MAP).features


def test_calibrate_makes_no_fit_split_for_a_constant_map() -> None:
    artifact = calibrate(make_prompts(0, 50), alpha="0.2", features="1")
    assert (artifact.calibration.fit_size, artifact.calibration.size) == (0, 50)


def change_topic(records: list[PromptRecord], chosen: Sequence[PromptRecord]) -> list[PromptRecord]:
    """The same records, some of them about moons."""
    return [r.model_copy(update={"metadata": {"topic": "moons"}}) if r in chosen else r for r in records]


CONDITIONAL_RULES: list[dict[str, Any]] = [
    {},
    {"pac": PaperPAC(ridge=0.01)},
    {"features": "mean_score + group(topic)"},
    {"delta": "0.05"},
]


@pytest.mark.parametrize("options", CONDITIONAL_RULES, ids=str)
def test_category_seen_only_in_calibration_is_known(options: dict[str, Any]) -> None:
    records = make_prompts(0, 100)
    asked = {"alpha": "0.2", "features": "group(topic)", "allow_unattainable": True, **options}
    artifact = calibrate(records, **asked)
    lone = list_parts(artifact, records)["calibration"][:1]
    changed = calibrate(change_topic(records, lone), **asked)
    assert changed.feature_map.names[-2:] == ("group(topic)=moons", "group(topic)=river")
    # One prompt certifies nothing about its category.
    moons = tabulate(change_topic(records[:2], records[:1])).draws
    flagged = decide(changed, moons).not_certifiable
    assert flagged[0] or "pac" in options


def test_category_seen_only_in_held_out_prompts_is_unknown_and_flagged() -> None:
    """What is measured on held-out prompts must not depend on them, not even on their metadata."""
    records = make_prompts(0, 100)
    asked: dict[str, Any] = {
        "alpha": "0.3",
        "features": "group(topic)",
        "test_fraction": 0.3,
    }
    artifact = calibrate(records, **asked)
    some = list_parts(artifact, records)["test"][:2]
    changed = calibrate(change_topic(records, some), **asked)
    assert remove_date_and_levels(changed) == remove_date_and_levels(artifact)
    draws = tabulate(change_topic(some, some)).draws
    together = decide(changed, draws)
    assert together.not_certifiable.all()
    assert not together.accepted.any()
    # Alone, or among prompts of known categories, as in any batch.
    for row in range(2):
        alone = decide(changed, draws.take(np.array([row])))
        assert alone.find_reason(0) == "not_certifiable"
        assert alone.thresholds.tolist() == [np.inf]
    mixed = tabulate(change_topic(records, some)).draws
    strangers = np.array([one in some for one in records])
    assert (changed.feature_map.has_unknown_category(decide(changed, mixed).features) == strangers).all()
    known = tabulate([one for one in records if one not in some]).draws
    among_strangers = decide(changed, mixed).thresholds[~strangers]
    assert among_strangers.tolist() == decide(changed, known).thresholds.tolist()


def test_fitted_map_refuses_unknown_categories_by_name() -> None:
    fitted = FeatureMap.parse("group(topic)").fit(tabulate(make_prompts(1, 20)).draws)
    records = make_prompts(0, 100)
    with pytest.raises(FeatureError, match="'moons'"):
        calibrate(change_topic(records, records[:1]), alpha="0.2", features=fitted)


def test_calibrate_accepts_rare_categories_missing_from_the_fit_split() -> None:
    """Nine topics of very different sizes: with many seeds the fit split lacks one."""
    sizes = (60, 50, 40, 30, 20, 10, 4, 2, 1)
    topics = [f"topic {place}" for place, size in enumerate(sizes) for _ in range(size)]
    records = [
        one.model_copy(update={"metadata": {"topic": topic}})
        for one, topic in zip(make_prompts(0, len(topics)), topics, strict=True)
    ]
    lacking = 0
    tried = repetitions(20, share=0.3)
    for seed in range(tried):
        made = calibrate(records, alpha="0.3", features="group(topic)", seed=seed)
        fitted = {one.metadata["topic"] for one in list_parts(made, records)["fit"]}
        calibrated = {one.metadata["topic"] for one in list_parts(made, records)["calibration"]}
        lacking += not calibrated <= fitted
        assert len(made.feature_map.names) == len(fitted | calibrated)
    assert lacking > tried / 2


def test_unknown_category_decides_like_a_map_with_a_column_for_it() -> None:
    """The argument in `Group`: with a column for the new prompt's category as well, nothing would change."""
    records, strangers = make_prompts(0, 60), change_topic(make_prompts(1, 20), make_prompts(1, 20)[:10])
    artifact = calibrate(records, alpha="0.2", features="mean_score + group(topic)")
    ours = decide(artifact, tabulate(strangers).draws).thresholds
    calibration = tabulate(list_parts(artifact, records)["calibration"])
    alike = artifact.feature_map.with_categories_of(tabulate(strangers).draws)
    assert alike.dimension == artifact.feature_map.dimension + 1
    scores = np.where(calibration.correct, calibration.draws.scores, 2.0).min(axis=1)
    rule = ConditionalThreshold("0.2").fit(alike.transform(calibration.draws), scores)
    theirs = rule.solve(alike.transform(tabulate(strangers).draws)).values
    assert np.isinf(theirs[:10]).all()
    assert np.isfinite(theirs[10:]).any()
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_calibrate_refuses_an_empty_calibration_split() -> None:
    with pytest.raises(CalibrationError, match="calibration split is empty: lower"):
        calibrate(make_prompts(0, 3), alpha="0.2", features="1", test_fraction=0.999)


def test_calibrate_refuses_an_empty_fit_split() -> None:
    with pytest.raises(CalibrationError, match="fit split is empty: raise fit_fraction"):
        calibrate(make_prompts(0, 30), alpha="0.2", features="mean_score", fit_fraction=0.0)

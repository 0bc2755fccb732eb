"""The reference counts of an artifact, with which monitoring compares later prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.artifact import ReferenceHistogram
from langchain_cfc.decision import decide
from langchain_cfc.features import Statistic
from langchain_cfc.records import Provenance, tabulate
from tests.calibration.prompts import make_prompts
from tests.factories import change_candidates, reload_artifact

FEATURES = "bins(mean_score, 3) + hat(max_score, 3)"
OPTIONS: dict[str, Any] = {"alpha": ["0.2", "0.4"], "features": FEATURES, "test_fraction": 0.3}


def get_reference_by_name(artifact: CalibrationArtifact) -> dict[tuple[str, str | None], ReferenceHistogram]:
    return {(one.name, one.alpha): one for one in artifact.reference}


# With one score for all prompts, some groups are empty.
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
def test_reference_counts_calibration_prompts_in_bins_of_the_fit_split() -> None:
    records = make_prompts(1, 300)
    artifact = calibrate(records, **OPTIONS)
    part = artifact.calibration.split.find_part
    watched = get_reference_by_name(artifact)["mean_score", None]
    labelled = tabulate([one for one in records if part(one.id, None) == "calibration"])
    mean_score = Statistic("mean_score").compute_values
    means = mean_score(labelled.draws)
    expected = np.histogram(means, bins=[-np.inf, *watched.edges, np.inf])[0]
    assert watched.counts["1"] == expected.tolist()
    assert sum(watched.counts["1"]) == artifact.calibration.size
    fitted = tabulate([one for one in records if part(one.id, None) == "fit"])
    assert set(watched.edges) <= set(mean_score(fitted.draws).tolist())

    def changing(which: str) -> ReferenceHistogram:
        changed = [
            change_candidates(one, score=0.5) if part(one.id, None) == which else one for one in records
        ]
        return get_reference_by_name(calibrate(changed, allow_unattainable=True, **OPTIONS))[
            "mean_score", None
        ]

    assert changing("calibration").edges == watched.edges
    assert changing("calibration").counts != watched.counts
    # The negative control: prompts of the fit split do move the bins.
    one_fit = next(one for one in records if part(one.id, None) == "fit")
    moved = [change_candidates(one, score=0.0) if one is one_fit else one for one in records]
    assert get_reference_by_name(calibrate(moved, **OPTIONS))["mean_score", None].edges != watched.edges


def test_reference_counts_groups_in_full_and_soft_weightings_by_share() -> None:
    artifact = calibrate(make_prompts(1, 400), **OPTIONS)
    watched = get_reference_by_name(artifact)["min_score", None]
    sizes = {one.name: one.size for one in artifact.calibration.groups}
    assert set(watched.counts) == {one.name for one in artifact.feature_map.list_guaranteed_weights()}
    for name, counts in watched.counts.items():
        if name.startswith("bins") or name == "1":
            assert sum(counts) == round(sizes[name])
        else:
            # A sum of independent draws of mean `size` and variance at most that: within five deviations.
            assert abs(sum(counts) - sizes[name]) <= 5 * sizes[name] ** 0.5
    # Within a group, a statistic that is the same for all members is not counted.
    inside = get_reference_by_name(artifact)["bins(mean_score, 3)[0]", None]
    assert not any(name.startswith("bins") for name in inside.counts)
    assert "1" in inside.counts


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
def test_reference_counts_decisions_on_held_out_prompts() -> None:
    records = make_prompts(1, 300, right=0.4)
    artifact = calibrate(records, allow_unattainable=True, **OPTIONS)
    part = artifact.calibration.split.find_part
    tested = tabulate([one for one in records if part(one.id, None) == "test"])
    for alpha in ("0.2", "0.4"):
        decided = get_reference_by_name(artifact)["decision", alpha]
        decisions = decide(artifact, tested.draws, alpha)
        reasons: list[str] = [decisions.find_reason(row) for row in range(len(tested))]
        names = ("not_certifiable", "only_blank_answers", "answered")
        assert decided.counts["1"] == [reasons.count(name) for name in names]
        assert sum(decided.counts["1"]) == artifact.calibration.held_out_size > 50
        assert decided.edges == [0.5, 1.5]
        assert (
            sum(get_reference_by_name(artifact)["threshold", alpha].counts["1"])
            == artifact.calibration.held_out_size
        )
    fitting = tabulate([one for one in records if part(one.id, None) == "fit"])
    found = decide(artifact, fitting.draws, "0.2").thresholds
    counted = get_reference_by_name(artifact)["threshold", "0.2"]
    assert set(counted.edges) <= set(found[np.isfinite(found)].tolist())
    without = calibrate(records, allow_unattainable=True, **{**OPTIONS, "test_fraction": 0.0})
    assert {one.alpha for one in without.reference} == {None}


def test_reference_counts_one_prompt_of_each_cluster() -> None:
    records = make_prompts(1, 200, clusters=[f"c{row // 4}" for row in range(200)])
    artifact = calibrate(records, alpha="0.3", features="1")
    assert artifact.calibration.size == 50
    assert sum(get_reference_by_name(artifact)["mean_score", None].counts["1"]) == 50


def test_reference_bins_have_equal_widths_without_a_fit_split() -> None:
    artifact = calibrate(make_prompts(1, 60), alpha="0.3", features="1")
    watched = get_reference_by_name(artifact)["mean_score", None]
    assert watched.edges == [bin_ / 16 for bin_ in range(1, 16)]
    assert sum(watched.counts["1"]) == 60


def test_reference_is_saved_and_part_of_the_digest_but_not_of_the_frozen_one() -> None:
    artifact = calibrate(make_prompts(1, 300), **OPTIONS)
    loaded = reload_artifact(artifact)
    assert loaded.reference == artifact.reference
    bare = artifact.model_copy(update={"reference": []})
    assert bare.digest != artifact.digest
    # Decisions of a bot are counted after its certificate, which is about the frozen digest.
    assert bare.frozen_digest == artifact.frozen_digest


@pytest.mark.parametrize(
    ("edges", "counts", "problem"),
    [([0.5, 0.5], [1, 2, 3], "ascending"), ([], [1], "ascending"), ([0.5], [1, 2, 3], "2 bins")],
)
def test_reference_histogram_refuses_counts_that_do_not_fit_its_bins(
    edges: list[float], counts: list[int], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ReferenceHistogram(name="mean_score", edges=edges, counts={"1": counts})


def test_reference_counts_draws_under_a_draw_rule() -> None:
    records = make_prompts(1, 300)
    options = {**OPTIONS, "provenance": Provenance(n=4, separate_scores=True)}
    assert ("draws", None) not in get_reference_by_name(calibrate(records, **options))
    stopped = calibrate(records, draws="below(0.3, at_most=4)", **options)
    drawn = get_reference_by_name(stopped)["draws", None]
    assert sum(drawn.counts["1"]) == stopped.calibration.size

"""The warning about scores that point the wrong way."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from langchain_cfc import Candidate, PromptRecord, calibrate
from langchain_cfc.calibration.checks import ORIENTATION_CONFIDENCE
from langchain_cfc.errors import OrientationWarning
from langchain_cfc.records import tabulate
from langchain_cfc.scoring import compute_auroc
from tests.calibration.prompts import make_prompts, remove_date
from tests.factories import change_candidates
from tests.recordings import list_facts

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def flip_scores(records: list[PromptRecord]) -> list[PromptRecord]:
    return [change_candidates(record, lambda one: {"score": 1.0 - one.score}) for record in records]


def catch_orientation_warnings(records: list[PromptRecord], **options: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OrientationWarning)
        calibrate(records, **{"alpha": "0.2", "features": "1", "allow_unattainable": True, **options})
    return [one for one in caught if issubclass(one.category, OrientationWarning)]


def test_orientation_warning_appears_only_for_reversed_scores() -> None:
    records = list_facts()
    assert catch_orientation_warnings(records) == []
    [warned] = catch_orientation_warnings(flip_scores(records))
    assert warned.filename == __file__  # the caller of `calibrate` is shown
    # All prompts calibrate here, so that the figures are those of the whole file.
    labelled = tabulate(flip_scores(records))
    found = compute_auroc(labelled.draws.scores, labelled.correct, ORIENTATION_CONFIDENCE)
    assert found is not None
    assert found.high < 0.5
    message = str(warned.message)
    assert f"AUROC {found.auroc:.3f}, 99.9 % interval {found.low:.3f} to {found.high:.3f}," in message
    assert "smaller scores must be better; if the verifier returns a confidence p, use 1 - p" in message


def test_orientation_warning_changes_nothing_in_the_artifact() -> None:
    records = flip_scores(list_facts()[:300])
    with pytest.warns(OrientationWarning):
        loud = calibrate(records, alpha="0.2", features="mean_score", allow_unattainable=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrientationWarning)
        quiet = calibrate(records, alpha="0.2", features="mean_score", allow_unattainable=True)
    assert remove_date(loud) == remove_date(quiet)


@pytest.mark.long
def test_orientation_warning_does_not_appear_for_uninformative_scores() -> None:
    # Each of 200 calibrations warns with probability near (1 - 0.999) / 2; more than five would have a
    # probability below 1e-8 even at twice that.
    assert sum(len(catch_orientation_warnings(make_prompts(seed, 60))) for seed in range(200)) <= 5


def test_orientation_warning_does_not_appear_if_all_labels_are_equal() -> None:
    assert catch_orientation_warnings(make_prompts(0, 60, right=1.0)) == []
    assert catch_orientation_warnings(make_prompts(0, 60, right=0.0)) == []


def test_orientation_warning_counts_a_cluster_once() -> None:
    # One conversation of 200 prompts points the wrong way, 30 prompts that stand alone point the right way.
    def record(name: str, right: float, wrong: float, cluster: str | None) -> PromptRecord:
        candidates = (
            Candidate(text="a", score=right, correct=True),
            Candidate(text="b", score=wrong, correct=False),
        )
        return PromptRecord(id=name, input=name, cluster=cluster, candidates=candidates)

    rng = np.random.default_rng(0)
    alone = [
        record(f"a{row}", float(rng.uniform(0, 0.6)), float(rng.uniform(0.4, 1)), None) for row in range(30)
    ]
    talk = [record(f"t{row}", 0.9, 0.1, "talk") for row in range(200)]
    assert catch_orientation_warnings([*alone, *talk]) == []
    strangers = [one.model_copy(update={"cluster": None}) for one in talk]
    assert len(catch_orientation_warnings([*alone, *strangers])) == 1

"""The assumptions on records: estimates by hand, intervals of known worlds, and the shipped recording."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab import RecordedEfficiency, analyse_recording
from langchain_cfc_lab.efficiency import compare_rules
from langchain_cfc_lab.efficiency_recordings import GroupCurves
from langchain_cfc_lab.efficiency_world import RARER_WORLD, WORLDS, EfficiencyWorld

from langchain_cfc import read_records
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds import CAP
from tests.lengths import mostly_long

RECORDING = Path(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"))
DIFFICULTY = "bins(meta(difficulty), 5)"


@pytest.fixture(scope="module")
def recorded() -> RecordedEfficiency:
    return analyse_recording(read_records(RECORDING))


def draw_records(world: EfficiencyWorld, prompts: int, n: int, seed: int = 0) -> LabelledBatch:
    rng = np.random.default_rng(seed)
    t = rng.random(prompts)
    scores, correct = world.draw_scores(t, n, rng)
    metadata = tuple({"difficulty": one} for one in t.tolist())
    draws = CandidateBatch(scores, None, None, metadata, {"meta(difficulty)": t})
    return LabelledBatch(draws, correct, tuple(map(str, range(prompts))), (None,) * prompts, n)


def test_group_curves_equal_a_calculation_by_hand() -> None:
    """Four prompts with two answers each; the last has no correct one."""
    levels = np.array([[0.2, 0.5], [0.3, 0.4], [0.6, np.inf], [0.1, 0.9]])
    curves = GroupCurves(np.array([0.2, 0.4, 0.6, CAP]), levels)
    assert (curves.compute_coverage(0.4), curves.compute_coverage(CAP)) == (0.5, 0.75)
    # At 0.4: 0.2, then 0.3 and 0.4, and 0.1 of the last.
    assert curves.compute_size(0.4) == 1.0
    assert (curves.find_quantile(0.5), curves.find_quantile(0.8)) == (0.4, CAP)
    # Out of reach: everything is returned, seven answers of four prompts.
    assert curves.compute_size(CAP) == 7 / 4


def test_saved_size_is_the_price_of_the_coverage_difference(recorded: RecordedEfficiency) -> None:
    total = 0.0
    for group in recorded.groups:
        apart = group.marginal_coverage - group.oracle_coverage
        assert group.price is not None
        total += group.n / recorded.prompts * group.price * apart
    assert recorded.saved == pytest.approx(total)


def test_conditional_sets_are_larger_on_the_shipped_recording(recorded: RecordedEfficiency) -> None:
    """Because coverage gets dearer with difficulty, which the fourth assumption excludes."""
    assert recorded.saved_interval[1] < 0.0
    prices = [group.price for group in recorded.groups]
    assert prices == sorted(prices, key=lambda price: price or 0.0)
    assert (prices[-1] or 0.0) > 10.0 * (prices[0] or 0.0)
    assert recorded.hopeless > 0.1
    assert recorded.counted == "distinct answers"
    assert "distinct answers more (0.75 to" in recorded.account[1]


@pytest.mark.long
@mostly_long(
    ("world", "larger"), [(RARER_WORLD, True), (WORLDS[2], False)], ids=["rarer", "all correct"], quick=1
)
def test_analyse_recording_recognises_worlds_by_their_records(world: EfficiencyWorld, larger: bool) -> None:
    """What is saved has the sign of the integral, in the world that breaks (4) and in one that does not.

    Groups of a fifth of all difficulties are coarser than the oracle, so the size of the difference is not
    compared. The interval's level is 95 %; the seed is fixed, and each world is the other's control.
    """
    found = analyse_recording(draw_records(world, 4000, 20), groups=DIFFICULTY)
    assert (compare_rules(world, "0.2", 20).holds is False) is larger
    assert (found.saved_interval[1] < 0.0) is larger
    assert (found.saved_interval[0] > 0.0) is not larger


def test_analyse_recording_refuses_groups_of_few_prompts() -> None:
    with pytest.raises(InputError, match="prompts; use fewer groups, each of at least 20"):
        analyse_recording(draw_records(WORLDS[0], 75, 5), groups=DIFFICULTY)

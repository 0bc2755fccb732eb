"""The assumptions on records: estimates by hand, intervals of known worlds, and the shipped recording."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab import RecordedEfficiency, analyse_recording
from langchain_cfc_lab.efficiency import compare_rules
from langchain_cfc_lab.efficiency_recordings import _GroupCurves, count_inequalities
from langchain_cfc_lab.efficiency_world import RARER_WORLD, WORLDS, EfficiencyWorld
from scipy import stats

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


def test_curves_estimate_equals_a_calculation_by_hand() -> None:
    """Four prompts with two answers each; the second row weighs the first prompt twice and drops the last."""
    success = np.array([0.2, 0.4, 0.6, CAP])
    levels = np.array([[0.2, 0.5], [0.3, 0.4], [0.6, np.inf], [0.1, 0.9]])
    weights = np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 0.0]])
    curves = _GroupCurves.estimate(success, levels, weights)
    at = np.array([0.4, 0.4])
    assert curves.compute_coverage(at).tolist() == [0.5, 0.75]
    # At 0.4: 0.2, then 0.3 and 0.4, and 0.1 of the last.
    assert curves.compute_size(at).tolist() == [1.0, 1.0]
    assert curves.attainable.tolist() == [0.75, 1.0]
    assert curves.find_quantile(0.5).tolist() == [0.4, 0.2]
    assert curves.find_quantile(0.8).tolist() == [CAP, 0.6]
    # Out of reach: everything is returned, seven answers of four prompts.
    assert curves.compute_cost(0.8)[0] == 7 / 4


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
    verdicts = {check.assumption: check.verdict for check in recorded.checks}
    assert verdicts == {"2": "not refuted", "3": "not refuted", "4": "violated"}
    assert recorded.hopeless > 0.1
    assert recorded.counted == "distinct answers"
    assert any("(4) coverage costs no more on harder prompts: violated" in one for one in recorded.account)


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
    violated = {check.assumption for check in found.checks if check.violated}
    assert violated == ({"4"} if larger else set())


def test_count_inequalities_judges_all_of_them_together() -> None:
    """Of 300 families of 20 true equalities, about 5 % may have any that is shown or violated.

    The number is binomial with a chance of at most 0.07, which allows for the quantile of 400 resamples: more
    than the 1e-6 quantile fails. The control judges each inequality by itself, at 1.96 standard errors.
    """
    rng = np.random.default_rng(8)
    errors = [rng.standard_normal((20, 1)) for _ in range(300)]
    families = [np.concatenate([e, e + rng.standard_normal((20, 400))], axis=1) for e in errors]
    most = stats.binom.isf(1e-6, 300, 0.07)
    counts = [count_inequalities(theta) for theta in families]
    assert sum(one["shown"] + one["violated"] > 0 for one in counts) <= most
    assert sum((np.abs(e) > 1.96).any() for e in errors) > most
    assert all(count_inequalities(theta - 8.0)["violated"] >= 10 for theta in families)
    assert all(count_inequalities(theta + 8.0)["shown"] >= 10 for theta in families)


def test_count_inequalities_decides_nothing_without_variation() -> None:
    assert count_inequalities(np.full((3, 50), -1.0)) == {"inequalities": 3, "shown": 0, "violated": 0}


def test_analyse_recording_refuses_groups_of_few_prompts() -> None:
    with pytest.raises(InputError, match="prompts; use fewer groups, each of at least 20"):
        analyse_recording(draw_records(WORLDS[0], 75, 5), groups=DIFFICULTY)

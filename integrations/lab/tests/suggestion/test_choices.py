"""Whether the rule chooses what is known to be right, and what choosing does to the promise.

Seeds are fixed. The laws, and how often a check fails for sound code, stand beside each; a negative control
is put to the same check, and has to fail it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from langchain_cfc_lab import Option, Suggestion, suggest
from langchain_cfc_lab.methods import Pool
from langchain_cfc_lab.suggest import compute_tolerance, rank_options
from langchain_cfc_lab.trials import Trials, make_judged_groups
from scipy import stats

from integrations.lab.tests.suggestion.test_suggest import KEPT_ON_ODD, draw_prompts
from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import FloatArray, IntArray
from tests.factories import leave_sets_empty
from tests.guarantees import laws
from tests.guarantees.promises import compute_log_wealth
from tests.lengths import repetitions

TAU = 0.8
ALPHA = "0.2"
FALSE_ALARM = 1e-4

pytestmark = pytest.mark.long


# What is chosen -------------------------------------------------------------------------------------------
# That the right map loses with probability at most a fifth is what is claimed. Of 16 independent worlds it
# may then lose in 10: more has probability 1e-4 at most, by the binomial law.
WORLDS = 16
MOST_WRONG = int(stats.binom.isf(FALSE_ALARM, WORLDS, 0.2))


def list_suggestions(depends_on: str) -> Iterator[Suggestion]:
    for seed in range(WORLDS):
        table = draw_prompts(np.random.default_rng([seed, 7]), 400, depends_on=depends_on)  # type: ignore[arg-type]
        yield suggest(table, alpha=ALPHA, set_rules=["all"], fit_fraction=0.5, splits=20)


def test_suggest_chooses_the_map_of_the_key_that_matters() -> None:
    made = list(list_suggestions("kind"))
    wrong = sum(one.features != "group(kind)" for one in made)
    assert wrong <= MOST_WRONG
    # The controls: by size alone, and by gap alone.
    leanest = [min(one.options, key=lambda option: option.size).features for one in made]
    assert sum(text != "group(kind)" for text in leanest) > MOST_WRONG
    evenest = [min(one.options, key=lambda option: option.gap).features for one in made]
    assert sum(text != "group(kind)" for text in evenest) > MOST_WRONG
    for one in made:
        marginal = next(option for option in one.options if option.features == "1")
        assert marginal.group == "prompts whose kind is 'odd'"
        assert marginal.gap == pytest.approx(TAU - KEPT_ON_ODD, abs=5 * marginal.gap_error)


def test_suggest_chooses_one_threshold_if_no_key_matters() -> None:
    made = list(list_suggestions("nothing"))
    assert sum(one.features != "1" for one in made) <= MOST_WRONG
    evenest = [min(one.options, key=lambda option: option.gap).features for one in made]
    assert sum(text != "1" for text in evenest) > MOST_WRONG


# What choosing does to the promise ------------------------------------------------------------------------


def compute_kept(artifact: CalibrationArtifact) -> FloatArray:
    """(9,) the probability that a prompt of each difficulty is covered or flagged."""
    thresholds = decide(artifact, laws.PROBES).thresholds
    return laws.compute_coverage_at(np.where(np.isposinf(thresholds), 1.0, thresholds))


def test_suggested_options_keep_the_promise() -> None:
    """Given the fit split, the map is fixed, so that theorem 1 holds for it as for any other.

    Success scores are continuous and every prompt has a correct candidate, so that kept promise has an
    expectation in [tau, tau + d / (N + 1)] over all prompts, and under every weighting that the features span
    at least tau times the weight. Independent worlds bet against each: see `compute_log_wealth`.
    """
    rng = np.random.default_rng(11)
    maps = ["1", "group(tier)", "hat(meta(difficulty), 3)"]
    low, high, hard = [], [], []
    chosen = set()
    for _ in range(repetitions(150)):
        table = laws.draw_prompts(rng, 160)
        found = suggest(
            table,
            alpha=ALPHA,
            features=maps,
            set_rules=["all"],
            judge=["group(tier)"],
            fit_fraction=0.5,
            splits=4,
        )
        artifact = calibrate(table, **found.settings)
        kept = compute_kept(artifact)
        slack = artifact.feature_map.dimension / (artifact.calibration.size + 1)
        low.append(float(kept.mean()) - TAU)
        high.append(TAU + slack - float(kept.mean()))
        chosen.add(found.features)
        if "tier" in found.features:
            hard.append(float(kept[laws.TIERS == "hard"].mean()) - TAU)
    assert len(chosen) > 1
    alarm = math.log(3 / FALSE_ALARM)
    assert compute_log_wealth(low, 1.0 - TAU) < alarm
    assert compute_log_wealth(high, TAU + 1.0) < alarm
    assert len(hard) > 10
    assert compute_log_wealth(hard, 1.0 - TAU) < alarm


# Sixteen verifiers, each as good as the others: which of them is chosen is luck, and luck at the expense of
# the promise if it is the luck of the calibration prompts.
JUDGES = 16
SIZE = 60
TESTED = 400


def draw_judged_prompts(rng: np.random.Generator, size: int) -> list[LabelledBatch]:
    """The same prompts as scored by each verifier: four candidates, one of them correct."""
    ids, correct = laws.draw_ids(rng, size), np.arange(4) == rng.integers(0, 4, size)[:, np.newaxis]
    noise = rng.normal(size=(JUDGES, size, 4))
    scores = stats.norm.cdf(noise - 1.5 * correct)
    return [LabelledBatch.from_arrays(ids, one, correct, [list("abcd")] * size) for one in scores]


def choose_verifier(tables: list[LabelledBatch], rows: IntArray) -> int:
    """The verifier with which the rule likes an option most, on some prompts."""
    judged = []
    for table in tables:
        pool = Pool(table.take(rows))
        groups, _ = make_judged_groups(pool, [])
        judged += Trials(pool, groups, ALPHA, "0").try_options([Option(features="1", set_rule="all")], 4)
    return judged.index(rank_options(judged, compute_tolerance(judged))[0])


def measure_kept(table: LabelledBatch, fresh: LabelledBatch) -> float:
    # Sets that are never empty would make up for the coverage that the greedy choice loses.
    artifact = calibrate(table, alpha=ALPHA, features="1", fit_fraction=0.5)
    with pytest.MonkeyPatch.context() as patched:
        leave_sets_empty(patched)
        return float(laws.find_kept(decide(artifact, fresh.draws), fresh).mean())


def test_selecting_options_on_calibration_prompts_breaks_the_promise() -> None:
    rng = np.random.default_rng(12)
    honest: list[float] = []
    greedy: list[float] = []
    for _ in range(repetitions(70)):
        tables, fresh = draw_judged_prompts(rng, 2 * SIZE), draw_judged_prompts(rng, TESTED)
        rows = make_split_plan(0, fit=0.5, test=0.0).list_rows(tables[0])
        for part, kept in ((rows["fit"], honest), (rows["calibration"], greedy)):
            chosen = choose_verifier(tables, part)
            kept.append(measure_kept(tables[chosen], fresh[chosen]) - TAU)
    alarm = math.log(1 / FALSE_ALARM)
    assert compute_log_wealth(honest, 1.0 - TAU) < alarm
    assert compute_log_wealth(greedy, 1.0 - TAU) > alarm

"""The synthetic experiment: one seed against a re-implementation, and its tables against the paper's.

Seeds are fixed, so each test gives the same answer every time. The targets are for 200 seeds; with a dozen,
z is a ratio of two noises, so the short form counts cells in the published band only, which is what the
deviation of twelve seeds allows: sd / sqrt(12) is a third of the band. The long tier runs all 200.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from langchain_cfc_lab import SyntheticReport, SyntheticWorld, reproduce_synthetic
from langchain_cfc_lab.paper import ALPHAS, MAIN_SETTING, list_methods, measure_seed
from langchain_cfc_lab.splits import SplitResult
from scipy.optimize import linprog

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from tests.cli.running import run

SEEDS, JOBS = 12, 2
NAMES = [one.name for one in list_methods()]
EPS = np.sqrt(np.log(1 / 0.9) / 10_000)


@pytest.fixture(scope="module")
def report() -> SyntheticReport:
    return reproduce_synthetic(SEEDS, jobs=JOBS)


@pytest.fixture(scope="module")
def one_seed() -> dict[tuple[int, int], SplitResult]:
    return measure_seed(SyntheticWorld(), 0, 0)


@cache
def draw_prompts(seed: int = 0) -> LabelledBatch:
    """The prompts of a seed, drawn as the experiment says."""
    return SyntheticWorld().draw(20_000, 150, np.random.default_rng([0, seed]))


class ByHand:
    """One seed with plain NumPy: no rule, no set rule, no feature map."""

    def __init__(self, calibrated: int, candidates: int) -> None:
        world = draw_prompts()
        self.t = np.array([entries["difficulty"] for entries in world.draws.metadata], dtype=np.float64)
        self.v = world.draws.scores[:, :candidates]
        self.right = world.correct[:, :candidates]
        self.success = np.where(self.right, self.v, 1.0).min(axis=1)
        self.calibration, self.test = np.arange(calibrated), np.arange(10_000, 20_000)

    def figures(self, thresholds: np.ndarray) -> tuple[float, float, float]:
        """ECR, GSC and APSS of (10,000,) thresholds."""
        inside = self.v[self.test] <= thresholds[:, None]
        covered = np.asarray((inside & self.right[self.test]).any(axis=1))
        order = np.argsort(self.t[self.test], kind="stable")
        worst = min(covered[part].mean() for part in np.array_split(order, 10))
        return covered.mean(), worst, inside.sum(axis=1).mean()

    def deciles(self, tau: float) -> np.ndarray:
        """Each test prompt's order statistic of its calibration decile, 1 if beyond."""
        t, s = self.t[self.calibration], self.success[self.calibration]
        ordered = np.sort(t)
        cuts = ordered[[place * len(ordered) // 10 for place in range(1, 10)]]
        groups = np.searchsorted(cuts, t, side="right")
        values = []
        for group in range(10):
            members = np.sort(s[groups == group])
            rank = int(np.ceil(round((len(members) + 1) * tau, 9)))
            values.append(members[rank - 1] if rank <= len(members) else 1.0)
        return np.array(values)[np.searchsorted(cuts, self.t[self.test], side="right")]


def get_figures(
    measured: SplitResult, method: str, alpha: str, levels: tuple[str, ...] = ALPHAS
) -> tuple[float, ...]:
    names = NAMES if levels == ALPHAS else NAMES[-2:]
    run_number = names.index(method) * len(levels) + levels.index(alpha)
    figures = ("coverage", "worst_group_coverage", "mean_set_size")
    return tuple(float(measured.figures[figure][run_number]) for figure in figures)


@pytest.mark.parametrize("alpha", ["0.1", "0.3"])
def test_measure_seed_equals_plain_arithmetic(
    alpha: str, one_seed: dict[tuple[int, int], SplitResult]
) -> None:
    hand, tau, found = ByHand(*MAIN_SETTING), 1 - float(alpha), one_seed[MAIN_SETTING]
    assert get_figures(found, "CFC", alpha) == pytest.approx(hand.figures(hand.deciles(tau)), abs=1e-12)
    assert get_figures(found, "CFC-PAC", alpha) == pytest.approx(
        hand.figures(hand.deciles(tau + EPS)), abs=1e-12
    )
    rank = int(np.ceil(round(10_001 * tau, 9)))
    one = np.sort(hand.success[hand.calibration])[rank - 1]
    assert get_figures(found, "ICP", alpha) == pytest.approx(hand.figures(np.full(10_000, one)), abs=1e-12)


def test_synthetic_learnt_cp_equals_a_linear_programme(one_seed: dict[tuple[int, int], SplitResult]) -> None:
    hand, tau = ByHand(*MAIN_SETTING), 0.8
    t = hand.t[hand.calibration]
    x = np.column_stack([np.ones_like(t), t, t * t])
    # max s'eta with x'eta = 0 and tau - 1 <= eta <= tau is the dual; its multipliers are the coefficients.
    solved = linprog(
        -hand.success[hand.calibration],
        A_eq=x.T,
        b_eq=np.zeros(3),
        bounds=(tau - 1, tau),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    beta = -solved.eqlin.marginals
    of_test = np.clip(hand.t[hand.test], t.min(), t.max())  # a map clips to the range that it was fitted on
    thresholds = np.clip(np.column_stack([np.ones_like(of_test), of_test, of_test**2]) @ beta, 0.0, 1.0)
    found = get_figures(one_seed[MAIN_SETTING], "Learnt CP", "0.2")
    # A candidate on the very edge may fall to either side of a solver's tolerance.
    assert found == pytest.approx(hand.figures(thresholds), abs=2e-3)


def test_synthetic_ablation_uses_the_first_prompts_and_candidates(
    one_seed: dict[tuple[int, int], SplitResult],
) -> None:
    for size, budget in ((2000, 150), (5000, 100)):
        hand = ByHand(size, budget)
        eps = np.sqrt(np.log(1 / 0.9) / size)
        found = one_seed[size, budget]
        expected = hand.figures(hand.deciles(0.8))
        assert get_figures(found, "CFC", "0.2", ("0.2",)) == pytest.approx(expected, abs=1e-12)
        expected = hand.figures(hand.deciles(0.8 + eps))
        assert get_figures(found, "CFC-PAC", "0.2", ("0.2",)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.long
def test_reproduce_synthetic_matches_the_paper_only_for_the_fitted_world(report: SyntheticReport) -> None:
    counts = {one.table: one.in_band for one in report.agreement}
    assert counts["main"] >= 105
    assert counts["ablation"] >= 33
    assert sum(cell.in_band for cell in report.cells) == report.fitted[1] + report.predicted[1]
    # Correctness that hardly depends on difficulty, with the same share of correct candidates.
    flat = replace(SyntheticWorld(), rate=0.122, slope=0.1)
    other = reproduce_synthetic(4, world=flat, jobs=JOBS)
    assert not any(one.passes for one in other.agreement)
    assert {one.table: one.in_band for one in other.agreement}["main"] < 60


@pytest.mark.long
def test_two_hundred_seeds_reach_every_target() -> None:
    full = reproduce_synthetic(200, jobs=JOBS)
    assert all(one.passes for one in full.agreement), [one.words for one in full.agreement]


def test_reproduce_synthetic_refuses_a_single_seed() -> None:
    with pytest.raises(InputError, match="at least two seeds"):
        reproduce_synthetic(1)


def test_paper_synthetic_command_states_fitted_and_predicted_cells() -> None:
    ran = run("paper", "synthetic", "--seeds", "2", "--jobs", "1", "--alpha", "0.45")
    said = " ".join(ran.out.split())
    assert "Fitted: four numbers of the generator" in said
    assert "Predicted: the other 108 cells" in said
    assert "alpha = 0.45" in said
    assert max(map(len, ran.out.splitlines())) <= 80

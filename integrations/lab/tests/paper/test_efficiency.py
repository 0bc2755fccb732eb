"""The efficiency analysis: closed forms against draws, broken assumptions, and convergence.

Laws and tolerances. Distribution functions of N independent draws are within sqrt(log(2 / FALSE_ALARM) /
(2 N)) of the truth with probability 1 - FALSE_ALARM (Dvoretzky, Kiefer and Wolfowitz, Massart's constant).
z of a simulated mean is approximately standard normal: all of k cells lie within the normal quantile of
FALSE_ALARM / (2 k) but for a chance of FALSE_ALARM (Bonferroni). Seeds are fixed. Each law has a world beside
it with one number changed, which must fail it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from langchain_cfc_lab import EfficiencyReport, analyse_efficiency
from langchain_cfc_lab.efficiency import N, _learn_thresholds, compare_rules
from langchain_cfc_lab.efficiency_world import (
    BROKEN_WORLDS,
    WORLDS,
    EfficiencyWorld,
    check_assumptions,
    find_marginal_threshold,
    make_nodes,
)
from langchain_cfc_lab.paper import ALPHAS
from scipy import stats

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray
from tests.cli.running import run
from tests.lengths import repetitions

FALSE_ALARM = 1e-6
ALL = [*WORLDS, *(world for world, _ in BROKEN_WORLDS)]
T = np.array([0.1, 0.5, 0.9])[:, None]
U = np.linspace(0.05, 0.8, 16)


def get_name(world: EfficiencyWorld) -> str:
    return world.name


@pytest.mark.parametrize("world", ALL, ids=get_name)
def test_efficiency_world_closed_forms_are_consistent(world: EfficiencyWorld) -> None:
    """F inverts its inverse, C is G at it, and the slope is the difference quotient of C."""
    quantile = world.compute_quantile(U, T, 20)
    reach = world.compute_coverage(np.ones_like(T), T, 20)
    assert world.compute_coverage(quantile, T, 20) == pytest.approx(np.minimum(U, reach), abs=1e-9)
    assert world.compute_share(quantile, T, 20) == pytest.approx(world.compute_cost(U, T, 20), abs=1e-12)
    assert (np.diff(quantile, axis=1) >= 0.0).all()
    step = 1e-6
    for u in (0.2, 0.4):  # within reach everywhere, and at no gap
        ends = [world.compute_cost(u + sign * step, T, 20) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert world.compute_slope(u, T, 20) == pytest.approx(slope, rel=1e-5)


def is_far_from(values: FloatArray, law: Callable[[FloatArray], FloatArray]) -> bool:
    """Whether the distribution function of values leaves the band around a law, atoms allowed."""
    at = np.unique(np.clip(values, 0.0, 1.0))
    below = np.searchsorted(np.sort(values), at, side="right") / len(values)
    return bool(np.abs(below - law(at)).max() > math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(values))))


@pytest.mark.parametrize("world", ALL, ids=get_name)
@pytest.mark.parametrize("difficulty", [0.0, 0.7])
def test_efficiency_world_draws_follow_the_closed_forms(world: EfficiencyWorld, difficulty: float) -> None:
    n, t = 8, np.full(30_000, difficulty)
    scores, correct = world.draw_scores(t, n, np.random.default_rng(3))
    at = np.array(difficulty)
    drawn = np.where(correct, scores, np.inf).min(axis=1)
    direct = world.draw_success_scores(t, n, np.random.default_rng(4))
    for success in (drawn, direct):
        assert not is_far_from(success, lambda v: world.compute_coverage(v, at, n))
        # Neither with half the candidates nor, where all else is equal, with another scale.
        assert is_far_from(success, lambda v: world.compute_coverage(v, at, n // 2)) is not world.one_correct
    # One candidate of each prompt, so that the draws are independent.
    assert not is_far_from(scores[:, 0], lambda v: world.compute_share(v, at, n))
    other = replace(world, skill=(world.skill[0] + 1.0, world.skill[1] + 1.0))
    if world.chance != (1.0, 1.0):
        assert is_far_from(scores[:, 0], lambda v: other.compute_share(v, at, n))


@pytest.mark.parametrize(("world", "breaks"), [*((one, "") for one in WORLDS), *BROKEN_WORLDS], ids=str)
def test_broken_worlds_break_exactly_the_stated_assumptions(world: EfficiencyWorld, breaks: str) -> None:
    assert "".join(number for number, holds in check_assumptions(world, 50).items() if not holds) == breaks


def test_quantiles_rise_with_difficulty_where_coverage_falls() -> None:
    t = make_nodes(200)[:, None]
    falling = {world.name: check_assumptions(world, 50)["2"] for world in ALL}
    for world in ALL:
        rises = bool(np.diff(world.compute_quantile(U, t, 50), axis=0).min() >= -1e-9)
        assert rises is falling[world.name], world.name
    assert not all(falling.values())


def test_costs_cannot_fall_with_difficulty_at_every_coverage() -> None:
    """dC/du integrates to one over (0, 1) whatever the skill, so its order in t turns over somewhere."""
    worlds = [EfficiencyWorld("a", "", skill=(k, k), one_correct=True) for k in (1.5, 3.0, 6.0)]
    u, at = make_nodes(4096), np.array(0.5)
    slopes = [np.array([float(world.compute_slope(one, at, 10)) for one in u]) for world in worlds]
    assert [slope.mean() for slope in slopes] == pytest.approx([1.0] * 3, abs=1e-3)
    varying = EfficiencyWorld("b", "", skill=(1.5, 6.0), one_correct=True)
    falling, rising = (
        check_assumptions(varying, 10),
        check_assumptions(replace(varying, skill=(6.0, 1.5)), 10),
    )
    assert (falling["4"], rising["4"]) == (False, False)


def test_oracle_efficiency_is_strict_under_all_assumptions() -> None:
    for world in WORLDS:
        for alpha in ALPHAS[: repetitions(len(ALPHAS), share=1 / 3)]:
            found = compare_rules(world, alpha)
            assert found.holds is True
            assert found.covariance == pytest.approx(0.0, abs=1e-9)
            assert found.curvature == pytest.approx(found.marginal - found.oracle)


def test_oracle_efficiency_fails_in_worlds_with_a_broken_assumption() -> None:
    found = {world.name: compare_rules(world) for world, _ in BROKEN_WORLDS}
    # (1) is needed for strictness only: the thresholds differ almost everywhere, and the sizes do not.
    assert found["gap"].holds is None
    assert found["gap"].differs > 0.99
    assert found["gap"].oracle == pytest.approx(found["gap"].marginal, abs=1e-9)
    for name in ("mirrored", "misleading", "rarer"):
        assert found[name].holds is False, name
    for name in ("mirrored", "rarer"):
        one = found[name]
        assert one.covariance is not None
        assert one.curvature is not None
        assert one.covariance < 0.0 < one.curvature < -one.covariance
    # (2) and (4) change places under the label 1 - t.
    assert found["mirrored"].oracle == pytest.approx(found["rarer"].oracle)
    assert found["mirrored"].marginal == pytest.approx(found["rarer"].marginal)


@pytest.fixture(scope="module")
def small() -> EfficiencyReport:
    return analyse_efficiency(1000, seed=5)


def test_oracle_knowing_more_than_difficulty_breaks_the_proposition(small: EfficiencyReport) -> None:
    hidden = small.checks[-1]
    assert hidden.world == "hidden"
    assert all(hidden.assumptions.values())
    assert hidden.holds is False


def compute_limit(cells: int) -> float:
    return float(stats.norm.isf(FALSE_ALARM / (2 * cells)))


def test_simulated_sizes_agree_with_the_integral(small: EfficiencyReport) -> None:
    limit = compute_limit(len(small.cells))
    assert len(small.cells) == 3 * 8 * 3
    assert max(abs(cell.z) for cell in small.cells) < limit
    for cell in small.cells:
        if cell.rule != "learned":
            # Three quarters of 1,000 prompts: 0.1 is seven standard errors.
            assert cell.coverage == pytest.approx(1.0 - float(cell.alpha), abs=0.1)
    # The control: the integrals of the world with another scale at one end.
    other = replace(WORLDS[1], scale=(0.8, 1.0))
    one = find_marginal_threshold(WORLDS[1], 0.8, N)
    wrong = N * other.compute_share(np.array(one), make_nodes(), N).mean()
    [cell] = [
        cell
        for cell in small.cells
        if (cell.world, cell.rule, cell.alpha) == ("independent", "marginal", "0.2")
    ]
    assert abs(cell.simulated - wrong) / cell.standard_error > limit


@pytest.mark.long
def test_learned_rule_approaches_the_oracle_at_the_root_rate() -> None:
    """With a hundred times the prompts, the error of E|C| is a tenth, within a factor of 1.7.

    A root mean square of 40 nearly normal errors has a relative standard deviation of 1 / sqrt(80), the ratio
    of two 0.16 in logarithms: 1.7 is more than three of them. The control, one threshold for all, stays
    where it is in a world in which it costs 12 % more.
    """
    world, nodes = WORLDS[1], make_nodes(2048)
    oracle = world.compute_cost(0.8, nodes, N).mean()

    def measure_error(size: int, columns: int) -> float:
        errors = []
        for number in range(40):
            rng = np.random.default_rng([5, number])
            t = rng.random(size)
            line, asked = (np.column_stack([np.ones_like(one), one])[:, :columns] for one in (t, nodes))
            (learned,) = _learn_thresholds("0.2", line, world.draw_success_scores(t, N, rng), asked)
            errors.append(world.compute_share(learned, nodes, N).mean() / oracle - 1.0)
        return float(np.sqrt(np.mean(np.square(errors))))

    assert 10 / 1.7 < measure_error(100, 2) / measure_error(10_000, 2) < 10 * 1.7
    assert measure_error(10_000, 1) > 0.05


@pytest.mark.long
def test_analyse_efficiency_passes_in_full() -> None:
    report = analyse_efficiency()
    assert report.within == len(report.cells) == 72


def test_analyse_efficiency_refuses_too_small_numbers() -> None:
    with pytest.raises(InputError, match="prompts must be at least 2, got 1"):
        analyse_efficiency(1)
    with pytest.raises(InputError, match="seed must be a whole number"):
        analyse_efficiency(100, seed=-1)


def test_paper_efficiency_command_prints_every_table() -> None:
    ran = run("paper", "efficiency", "--prompts", "500")
    assert ran.code in {0, 1}, ran.err
    said = " ".join(ran.out.split())
    for needed in ("one threshold", "mirrored", "oracle", "within 3 standard errors"):
        assert needed in said, needed
    assert max(map(len, ran.out.splitlines())) <= 80

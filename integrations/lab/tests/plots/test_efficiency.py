"""Plots of the efficiency analysis show the report."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_lab.efficiency import Convergence, ConvergencePoint, SizeCell, SizeRule
from langchain_cfc_lab.efficiency_recordings import (
    CostPoint,
    Estimate,
    RecordedEfficiency,
    RecordedGroup,
)
from langchain_cfc_lab.report.efficiency_plots import plot_convergence, plot_costs, plot_sizes

from integrations.lab.tests.plots.inputs import make_level_of
from integrations.lab.tests.plots.reading import data, read_legend
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import LevelReport


def make_cell(rule: SizeRule, alpha: str, predicted: float, world: str = "independent") -> SizeCell:
    return SizeCell(
        world=world,
        alpha=alpha,
        n_candidates=50,
        rule=rule,
        predicted=predicted,
        error_bound=None,
        simulated=predicted + 0.1,
        standard_error=0.1,
        z=1.0,
        coverage=0.8,
    )


CELLS = [
    make_cell(rule, alpha, size)
    for rule in ("oracle", "marginal")
    for alpha, size in (("0.1", 3.0), ("0.2", 2.0))
]


def test_plot_sizes_draws_predicted_and_simulated_sizes() -> None:
    ax = plot_sizes(CELLS)
    assert read_legend(ax) == ["oracle", "marginal"]
    drawn = [tuple(data(line)[1]) for line in ax.lines]
    assert drawn.count((3.0, 2.0)) == 2
    assert drawn.count((3.1, 2.1)) == 2


@pytest.mark.parametrize("cells", [[], [*CELLS, make_cell("oracle", "0.1", 3.0, "other")]])
def test_plot_sizes_refuses_none_or_several_worlds(cells: list[SizeCell]) -> None:
    with pytest.raises(InputError, match="one world and one number of candidates"):
        plot_sizes(cells)


def test_plot_convergence_names_rates_on_logarithmic_axes() -> None:
    points = [
        ConvergencePoint(n_calibration=n, mean_size=1.0, size_error=e, threshold_error=e, marginal_error=0.2)
        for n, e in ((100, 0.1), (10_000, 0.01))
    ]
    one = Convergence(
        world="independent",
        alpha="0.2",
        n_candidates=50,
        oracle=1.0,
        repetitions=2,
        points=points,
        size_rate=-0.5,
        threshold_rate=-0.5,
        marginal_rate=0.0,
        standard_error=0.1,
    )
    ax = plot_convergence([one])
    assert read_legend(ax) == ["independent: N^-0.50", "one threshold"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [0.1, 0.01] in [data(line)[1] for line in ax.lines]
    with pytest.raises(InputError, match="no world"):
        plot_convergence([])


def make_estimate(value: float) -> Estimate:
    # An interval need not hold the estimate.
    return Estimate(value=value, interval=(value + 0.01, value + 0.1))


def test_plot_costs_draws_each_group_and_the_one_threshold() -> None:
    shares: dict[str, Any] = dict.fromkeys(
        ("attainable", "marginal_coverage", "oracle_coverage", "marginal_size", "oracle_size"),
        make_estimate(0.7),
    )
    group = RecordedGroup(
        words="mean score: 1 of 2",
        n=50,
        price=1.0,
        curve=[CostPoint(coverage=u, size=make_estimate(2.0 * u)) for u in (0.2, 0.4)],
        **shares,
    )
    found = RecordedEfficiency(
        alpha="0.2",
        counted="distinct answers",
        prompts=100,
        resamples=10,
        largest_atom=0.0,
        hopeless=0.0,
        groups=[group, group.model_copy(update={"words": "mean score: 2 of 2"})],
        checks=[],
        saved=make_estimate(0.0),
        served=make_level_of(["conditional"]),
        account=[],
    )
    assert isinstance(found.served, LevelReport)
    ax = plot_costs(found)
    assert read_legend(ax) == ["1 of 2", "2 of 2", "one threshold"]
    assert [0.4, 0.8] in [data(line)[1] for line in ax.lines]
    assert ax.get_ylabel() == "distinct answers per set"

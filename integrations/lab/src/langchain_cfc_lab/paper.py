"""The paper's synthetic experiment: its generator and conventions, and the same prompts with ours.

*The generator*, of the published code (github.com/FlynnYe/CFC-LLMs at commit 2fc0be6), with seeds 1, 2, 4, 7
and 10 of numpy's default generator. A prompt draws its difficulty T ~ U(0, 1), and then for each of M
candidates two uniforms: the first below p(T) makes it correct, the second, u, gives its score u^(1 / gamma):

    p(T) = 0.25 (1 - T^2) + 0.05 w,           w = (T - 0.9) / 0.1 from T = 0.9 on, else 0
    gamma = 0.65 + 0.3 T - 0.05 w             of a correct candidate
    gamma = 0.99                              of a wrong one (1.05 + 0.3 T, cut to 0.99)

Scores are rounded to single precision. The calibration prompts are drawn first, then 10,000 test prompts from
the same stream. So no two cells of the ablation share their prompts, and its cell of N = 10,000 and M = 50
repeats the main table. The paper says that correctness becomes rarer with T; from T = 0.9 on it does not.

*What is compared.* Every cell of the main table (5 methods, 8 levels, 3 metrics) and of the ablation (9
settings, 2 methods, 2 metrics), with mean and spread as printed, and the numbers behind the figures of groups
and thresholds. Beside each stands what our exact conventions give for the same prompts, in the same test
bins: exact ranks, thresholds by the conditional programme on bins that 2,000 further prompts of the stream
fit, a success score above 1 without a correct candidate, prompts without a threshold flagged (their sets are
empty, so they count as not covered and of size 0), no other set empty, and TopK's K by the paper's text.

Source: the paper's Section "Synthetic Data" and the appendix of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc_lab.compare import Summary
from langchain_cfc_lab.comparison_report import LevelComparison
from langchain_cfc_lab.conventions import (
    DIFFICULTY,
    SUCCESS,
    PublishedThreshold,
    PublishedTopK,
    assign_groups,
    compute_group_thresholds,
    compute_one_threshold,
    compute_regression_on_quarters,
    make_test_bins,
)
from langchain_cfc_lab.methods import Method, Pool, Split, TopK, make_our_method
from langchain_cfc_lab.published import (
    METRICS,
    Cell,
    FigureSeries,
    PublishedCell,
    compare_cell,
    compare_series,
    list_published_cells,
)
from langchain_cfc_lab.splits import Progress, SplitResult, measure_methods, measure_splits

SEEDS = (1, 2, 4, 7, 10)
ALPHAS = ("0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45")
SIZES, BUDGETS = (2000, 5000, 10_000), (50, 100, 150)
MAIN_SETTING = (SIZES[-1], BUDGETS[0])
TEST_SIZE, FIT_SIZE = 10_000, 2000
ABLATED_ALPHA = "0.2"
SHOWN_ALPHA = "0.1"  # of the paper's figures
GRID = tuple(range(4, 25, 2))
BINS = 10


def draw_prompts(seed: int, calibration: int, n: int) -> LabelledBatch:
    """Draw the prompts of one seed as the published code does; see the module.

    Args:
        seed: Seed of numpy's default generator, at least 0.
        calibration: Number N >= 1 of calibration prompts.
        n: Number of candidates per prompt, n >= 1 (the paper's M).

    Returns:
        The calibration prompts, 10,000 test prompts, and 2,000 more, in this order; without answers.
    """
    rng, size = np.random.default_rng(seed), calibration + TEST_SIZE + FIT_SIZE
    uniforms = rng.random((size, 1 + 2 * n))
    t = uniforms[:, 0]
    w = np.where(t >= 0.9, (t - 0.9) / (1.0 - 0.9), 0.0)  # noqa: PLR2004 - see the module
    correct = uniforms[:, 1::2] < (0.25 * (1.0 - t**2) + 0.05 * w)[:, None]
    gamma = np.where(correct, (0.65 + 0.3 * t - 0.05 * w)[:, None], 0.99)
    scores = (uniforms[:, 2::2] ** (1.0 / gamma)).astype(np.float32).astype(np.float64)
    metadata = tuple({"difficulty": one} for one in t.tolist())
    success = np.where(correct, scores, 1.0).min(axis=1)
    draws = CandidateBatch(scores, None, None, metadata, {DIFFICULTY: t, SUCCESS: success})
    return LabelledBatch(draws, correct, tuple(map(str, range(size))), (None,) * size, n)


def list_methods() -> tuple[Method, ...]:
    """Return the five methods of the main table by the published code, followed by ours in the same order."""
    bins = f"bins({DIFFICULTY}, {BINS})"
    conditional = make_our_method("conditional")
    ours: tuple[Method, ...] = (
        TopK("TopK", "the smallest K that reaches the target", "", "ours", reaching=True, grid=GRID),
        make_our_method("marginal"),
        replace(make_our_method("learned"), features=f"bins({DIFFICULTY}, 4)"),
        replace(conditional, features=bins),
        replace(conditional, features=bins, pac=PaperPAC()),
    )
    threshold = partial(PublishedThreshold, words="", promise="", family="paper")
    theirs: tuple[Method, ...] = (
        PublishedTopK("TopK", "", "", "paper", grid=GRID),
        threshold("ICP", compute=compute_one_threshold),
        threshold("Learnt CP", compute=compute_regression_on_quarters),
        threshold("CFC", compute=compute_group_thresholds),
        threshold("CFC-PAC", compute=compute_group_thresholds, has_slack=True),
    )
    named = (replace(one, name=f"{name.name}, ours") for one, name in zip(ours, theirs, strict=True))
    return (*theirs, *named)


# What the published code computes, and what stands beside it.
_CONVENTIONS = {
    "TopK": ("K nearest to the target, in floats", "smallest K that reaches the target"),
    "ICP": ("float rank, the last score if beyond", "exact rank, flagged if beyond, no empty set"),
    "Learnt CP": ("regression on quarters, the end that HiGHS picks", "smallest solution, no empty set"),
    "CFC": ("float rank in each calibration decile", "conditional programme, no empty set"),
    "CFC-PAC": ("the same at alpha - sqrt(log(1/0.9)/N)", "the same at that level, no empty set"),
    "GSC": ("deciles of the test prompts", "the same bins; thresholds have bins fitted on other prompts"),
}


class ConventionNote(ReportData):
    """What the published code does for a method or metric, and what we do.

    Attributes:
        name: The method or metric.
        published: What the published code does.
        ours: What we do.
        changes: For each metric of the method, the largest difference between the two in the cells of the
            tables, ours minus published with its sign; empty for a metric.
    """

    name: str
    published: str
    ours: str
    changes: dict[str, float]


class SyntheticReport(ReportData):
    """Results of the synthetic experiment beside the paper's.

    Attributes:
        cells: Every cell of the two tables at the chosen levels.
        series: The numbers behind the paper's figures.
        conventions: What the published code does for each method, what we do, and what that changes.
        words: How many cells and figures match, in words.
        sweep: The main experiment by level with groups, for figures; methods of ours end in ", ours".
    """

    cells: list[Cell]
    series: list[FigureSeries]
    conventions: list[ConventionNote]
    words: list[str]
    sweep: list[LevelComparison]

    @property
    def unexplained(self) -> list[str]:
        """The cells and series that differ from the paper without a stated cause."""
        cells = [one for one in self.cells if not (one.matches or one.cause)]
        return [
            *(f"{one.method} {one.metric} at {one.alpha}" for one in cells),
            *(f"{one.figure}, {one.series}" for one in self.series if one.matches is False),
        ]


def reproduce_synthetic(
    alphas: Sequence[str] = ALPHAS, *, jobs: int = 1, progress: Progress | None = None
) -> SyntheticReport:
    """Run the synthetic experiment with the published conventions and with ours.

    Args:
        alphas: Levels of the main table to reproduce. The ablation belongs to 0.2, the figures to 0.1.
        jobs: Number of processes.
        progress: Function of the runs and their number that yields the runs, such as a progress bar.

    Returns:
        The report.

    Raises:
        InputError: If the paper's table has no such level.
    """
    unknown = [one for one in alphas if one not in ALPHAS]
    if unknown or not alphas:
        msg = f"the paper's main table has the levels {', '.join(ALPHAS)}; got {', '.join(alphas) or 'none'}"
        raise InputError(msg)
    settings = [(size, budget) for size, budget in product(SIZES, BUDGETS) if (size, budget) != MAIN_SETTING]
    tasks = [(seed, MAIN_SETTING) for seed in SEEDS]
    if ABLATED_ALPHA in alphas:
        tasks += [(seed, setting) for setting in settings for seed in SEEDS]
    found = measure_splits(partial(_measure_task, tasks, tuple(alphas)), len(tasks), jobs, progress)
    measured: dict[tuple[int, int], list[SplitResult]] = {}
    for (_, setting), one in zip(tasks, found, strict=True):
        measured.setdefault(setting, []).append(one)
    tables = (*list_published_cells("synthetic"), *list_published_cells("synthetic_ablation"))
    cells = [_compare_published(one, measured, alphas) for one in tables if one.alpha in alphas]
    groups = make_test_bins(np.arange(2.0), np.arange(2), BINS)
    summary = Summary(measured[MAIN_SETTING], list_methods(), tuple(alphas), groups, (), BUDGETS[0], 0.0)
    figures: list[FigureSeries] = []
    if SHOWN_ALPHA in alphas:
        figures += _compare_groups(measured[MAIN_SETTING], list(alphas).index(SHOWN_ALPHA), len(alphas))
        figures += _compare_thresholds()
    if ABLATED_ALPHA in alphas:
        figures += _pool_ablation(measured, alphas)
    return SyntheticReport(
        cells=cells,
        series=figures,
        conventions=_list_conventions(cells),
        words=_write_counts(cells, figures),
        sweep=summary.build_levels(),
    )


def measure_seed(seed: int, setting: tuple[int, int], alphas: Sequence[str]) -> SplitResult:
    """Return the figures of one seed at (calibration prompts, candidates per prompt).

    The runs are those of `list_methods` at the main setting, else only CFC's and CFC-PAC's, times levels.
    """
    methods = list_methods()
    split = _make_split(draw_prompts(seed, *setting), setting[0])
    bins = make_test_bins(split.pool.draws.precomputed[DIFFICULTY], split.test, BINS)
    if setting == MAIN_SETTING:
        return measure_methods(split, methods, alphas, bins)
    return measure_methods(split, _select_ablated(methods), (ABLATED_ALPHA,), bins)


def _measure_task(
    tasks: Sequence[tuple[int, tuple[int, int]]], alphas: Sequence[str], number: int
) -> SplitResult:
    return measure_seed(*tasks[number], alphas)


def _make_split(drawn: LabelledBatch, calibration: int) -> Split:
    rows = np.arange(len(drawn))
    parts = np.split(rows, [calibration, calibration + TEST_SIZE])
    return Split(Pool(drawn, measure=False), parts[2], parts[0], parts[1], "1", "all")


def _select_ablated(methods: Sequence[Method]) -> list[Method]:
    return [one for one in methods if one.name.startswith("CFC")]


def _find_run(name: str, setting: tuple[int, int], alpha: str, alphas: Sequence[str]) -> int:
    if setting == MAIN_SETTING:
        return [one.name for one in list_methods()].index(name) * len(alphas) + list(alphas).index(alpha)
    return [one.name for one in _select_ablated(list_methods())].index(name)


def _compare_published(
    cell: PublishedCell, measured: dict[tuple[int, int], list[SplitResult]], alphas: Sequence[str]
) -> Cell:
    setting = (cell.n_calibration or SIZES[-1], cell.n_candidates or BUDGETS[0])
    figure, unit = METRICS[cell.metric]
    runs = (_find_run(name, setting, cell.alpha, alphas) for name in (cell.method, f"{cell.method}, ours"))
    found = [[unit * float(one.figures[figure][run]) for one in measured[setting]] for run in runs]
    return compare_cell(cell, *found)


def _compare_groups(measured: Sequence[SplitResult], level: int, levels: int) -> list[FigureSeries]:
    """Compare the paper's figure of miscoverage by group: means over the seeds, and spreads."""
    missed = 1.0 - np.array([one.groups["coverage"] for one in measured])[:, level::levels]
    means, sds = missed.mean(axis=0), missed.std(axis=0)
    names = [one.name for one in list_methods()]
    half = len(names) // 2
    return [
        compare_series("miscoverage by group", series, values[place], values[place + half])
        for place, name in enumerate(names[:half])
        for series, values in ((name, means), (f"{name}, sd", sds))
    ]


def _compare_thresholds() -> list[FigureSeries]:
    """Compare the paper's figure of thresholds by difficulty: the first seed, in fifths."""
    size, fifths = MAIN_SETTING[0], 5
    split = _make_split(draw_prompts(SEEDS[0], *MAIN_SETTING), size)
    difficulty = split.pool.draws.precomputed[DIFFICULTY]
    level = float(SHOWN_ALPHA)
    group = assign_groups(difficulty[split.calibration], difficulty[split.test], fifths)
    conditional = replace(make_our_method("conditional"), features=f"bins({DIFFICULTY}, {fifths})")
    by_fifth = [
        np.array([np.median(values[group == one]) for one in range(fifths)])
        for values in (
            compute_group_thresholds(split, level, fifths),
            conditional.make_sets(split, SHOWN_ALPHA).thresholds,
        )
        if values is not None
    ]
    one = [
        np.array([values[0]])
        for values in (
            compute_one_threshold(split, level),
            make_our_method("marginal").make_sets(split, SHOWN_ALPHA).thresholds,
        )
        if values is not None
    ]
    edges = np.quantile(difficulty[split.calibration], np.linspace(0.0, 1.0, fifths + 1))
    return [
        compare_series("thresholds", "CFC by fifth", *by_fifth),
        compare_series("thresholds", "ICP", *one),
        compare_series("thresholds", "edges of the fifths", edges),
    ]


def _pool_ablation(
    measured: dict[tuple[int, int], list[SplitResult]], alphas: Sequence[str]
) -> list[FigureSeries]:
    """Pool the ablation's miscoverage by group over its settings and seeds; no file holds these numbers."""
    pooled = {
        name: np.mean(
            [
                1.0 - one.groups["coverage"][_find_run(name, setting, ABLATED_ALPHA, alphas)]
                for setting, found in measured.items()
                for one in found
            ],
            axis=0,
        )
        for method in ("CFC", "CFC-PAC")
        for name in (method, f"{method}, ours")
    }
    return [
        compare_series("ablation: miscoverage by group", name, pooled[name], pooled[f"{name}, ours"])
        for name in ("CFC", "CFC-PAC")
    ]


def _list_conventions(cells: Sequence[Cell]) -> list[ConventionNote]:
    notes = []
    for name, (published, ours) in _CONVENTIONS.items():
        changes: dict[str, float] = {}
        for cell in cells:
            if cell.method == name and cell.ours is not None:
                change = cell.ours - cell.reproduced
                changes[cell.metric] = max(changes.get(cell.metric, 0.0), change, key=abs)
        notes.append(ConventionNote(name=name, published=published, ours=ours, changes=changes))
    return notes


def _write_counts(cells: Sequence[Cell], figures: Sequence[FigureSeries]) -> list[str]:
    words = []
    for table, title in (("synthetic", "Main table"), ("synthetic_ablation", "Ablation")):
        matches = [one.matches for one in cells if one.table == table]
        if matches:
            words.append(f"{title}: {sum(matches)} of {len(matches)} cells equal the paper's printed digits.")
    compared = [one.matches for one in figures if one.matches is not None]
    if compared:
        words.append(f"Figures: {sum(compared)} of {len(compared)} series equal the authors' numbers.")
    words += [
        f"{one.method}, {one.metric} at alpha = {one.alpha}: printed {one.mean} +- {one.sd}, reproduced "
        f"{one.reproduced:.4f} +- {one.reproduced_sd:.4f}; {one.cause or 'the cause is not known'}."
        for one in cells
        if not one.matches
    ]
    return words

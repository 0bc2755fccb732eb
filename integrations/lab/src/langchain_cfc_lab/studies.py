"""The paper's experiments on TriviaQA, GSM8K and Flickr8k: the published protocol, and ours beside it.

The published protocol (github.com/FlynnYe/CFC-LLMs at commit 2fc0be6) on questions with scored draws:

- Five splits, by Python's shuffle with seeds 0 to 4; of TriviaQA the first 10,000. One half calibrates.
- *TriviaQA.* Candidates are the distinct answers with their mean scores, so sizes and TopK's K count distinct
  answers. Two groups: a question is hard if the larger of the ranks of its entropy and largest score reaches
  the 0.925 quantile of the calibration half. **Ranks are taken within each half**, so a question's group
  depends on the others that are tested, and a single new question has none. Ties get ranks in the order in
  which numpy's sort leaves them. CFC and CFC-PAC take the capped rank in each group, Learnt CP the rank
  ceil(n (1 - alpha)). Groups of GSC are the same two. The two other feature maps use the solver.
- *GSM8K and Flickr8k.* [1, T, T^2] with T the mean (or largest) score of the draws used; the solver's exact
  mode (`published_solver`); GSC over fifths of T in the test half. Thresholds are clipped to [0, 1], on
  Flickr8k to the scores and success scores of both halves, so to labels of the test half, too.
- CFC and CFC-PAC cut a set after its best candidate in the order drawn; CFC-FULL and CFC-PAC-FULL do not.

*Ours* on the same questions, splits and groups: every draw a candidate, a fifth of the calibration half fits
the feature map and does not calibrate, exact ranks and thresholds, a success score above 1 without a correct
draw, prompts without a threshold flagged, truncated sets calibrated as truncated, no other set empty, and
TopK's K by the paper's text. *Solved* is the published protocol with exact thresholds in place of the exact
mode's: they differ where scores tie.

Source: the paper's section "Real-World Data" and its appendix of the same name, and the published code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds import ConditionalThreshold
from langchain_cfc_lab.archive import (
    ENTROPY,
    MAX_LOSS,
    MEAN_LOSS,
    Question,
    list_questions,
    make_drawn,
    make_published,
    read_flickr8k,
    read_gsm8k,
    read_triviaqa,
    split_halves,
)
from langchain_cfc_lab.conventions import (
    SUCCESS,
    PublishedThreshold,
    PublishedTopK,
    Quantile,
    compute_one_threshold,
    get_success,
    make_test_bins,
    select_capped_rank,
    select_plain_rank,
)
from langchain_cfc_lab.methods import Method, Pool, Split, TopK, make_our_method
from langchain_cfc_lab.metrics import Groups
from langchain_cfc_lab.published import (
    METRICS,
    Cell,
    FigureSeries,
    PublishedCell,
    compare_cell,
    compare_series,
    list_published_cells,
)
from langchain_cfc_lab.published_solver import PublishedSolver, solve_plain_regression
from langchain_cfc_lab.splits import Progress, SplitResult, measure_methods, measure_splits

StudyName: TypeAlias = Literal["triviaqa", "gsm8k", "flickr8k"]
SPLIT_SEEDS = (0, 1, 2, 3, 4)
FIFTHS = 5
SOLVED = ", solved"
_LEAST = 20
TAIL = 0.925
# The paper's tables and figures that only the authors' archive gives.
NEEDS_ARCHIVE: dict[StudyName, str] = {
    "triviaqa": "Tables 2, 3 and 9, Figure 4 (left)",
    "gsm8k": "Tables 4, 5, 10 and 11, Figure 4 (middle)",
    "flickr8k": "Tables 6, 12 and 13, Figure 4 (right)",
}
_MEAN, _MAX = "[1, T, T^2], T = mean verifier loss", "[1, T, T^2], T = maximum verifier loss"
_TAIL = "two groups, hard where the larger of rank-normalised entropy and maximum loss is in its top 7.5 %"


@dataclass(frozen=True)
class Setting:
    """A feature map of the paper with its budget.

    Attributes:
        features: Its words in the published tables.
        ours: Our feature map for it.
        n: The largest number of draws to use.
        statistic: The statistic T of the published code; None for TriviaQA's two groups.
        degree: Degree of the polynomial in T.
    """

    features: str
    ours: str
    n: int
    statistic: str | None = None
    degree: int = 0


@dataclass(frozen=True)
class Study:
    """One of the paper's experiments on recorded draws.

    Attributes:
        read: Reads its samples from a folder.
        alphas: Levels of the full table.
        main: Setting of the full table.
        others: Further settings of the ablation.
        ablated_alpha: Level of the ablation.
        shown_alpha: Level of the paper's figure of miscoverage by group.
        most: Number of questions of each split; 0 for all.
        merges: Whether equal answers are one candidate.
        failure_above: See `make_published`; thresholds are then clipped to the scores instead of [0, 1].
    """

    read: Callable[[Path], list[Question]]
    alphas: tuple[str, ...]
    main: Setting
    others: tuple[Setting, ...]
    ablated_alpha: str
    shown_alpha: str
    most: int = 0
    merges: bool = False
    failure_above: bool = False


STUDIES: dict[StudyName, Study] = {
    "triviaqa": Study(
        read_triviaqa,
        ("0.2", "0.25", "0.3", "0.35", "0.4", "0.45"),
        Setting(_TAIL, "hard(entropy, max_score, 0.925)", 20),
        (
            Setting("linear in entropy", "entropy", 20, ENTROPY, 1),
            Setting("linear in maximum loss", "max_score", 20, MAX_LOSS, 1),
        ),
        "0.3",
        "0.25",
        most=10_000,
        merges=True,
    ),
    "gsm8k": Study(
        read_gsm8k,
        ("0.05", "0.1", "0.15", "0.2", "0.25", "0.3"),
        Setting(_MEAN, "mean_score^2", 5, MEAN_LOSS, 2),
        (Setting(_MEAN, "mean_score^2", 20, MEAN_LOSS, 2),),
        "0.1",
        "0.1",
    ),
    "flickr8k": Study(
        read_flickr8k,
        ("0.01", "0.02", "0.03"),
        Setting(_MEAN, "mean_score^2", 2, MEAN_LOSS, 2),
        (Setting(_MAX, "max_score^2", 2, MAX_LOSS, 2), Setting(_MEAN, "mean_score^2", 3, MEAN_LOSS, 2)),
        "0.03",
        "0.03",
        failure_above=True,
    ),
}


def rank_normalise(values: FloatArray) -> FloatArray:
    """Return ranks divided by n - 1; ties get different ranks, in the order of numpy's sort.

    Examples:
        >>> rank_normalise(np.array([0.3, 0.1, 0.2])).tolist()
        [1.0, 0.0, 0.5]
    """
    ranks = np.empty(len(values))
    ranks[np.argsort(values)] = np.linspace(0.0, 1.0, len(values))
    return ranks


def find_hard(split: Split) -> tuple[IntArray, IntArray]:
    """Return 1 for each hard question and 0 for the others, of the calibration and of the test half."""
    values = [split.pool.draws.precomputed[name] for name in (ENTROPY, MAX_LOSS)]
    calibration, test = (
        np.maximum(*(rank_normalise(one[rows]) for one in values)) for rows in (split.calibration, split.test)
    )
    cut = np.quantile(calibration, TAIL)
    return (calibration >= cut).astype(np.int64), (test >= cut).astype(np.int64)


def compute_tail_thresholds(split: Split, alpha: float, select: Quantile) -> FloatArray:
    """Return the thresholds of the two groups by their own quantiles; an empty one takes that of all."""
    calibration, test = find_hard(split)
    success = get_success(split)
    groups = (success[calibration == one] for one in (0, 1))
    return np.array([select(one if len(one) else success, alpha) for one in groups])[test]


def compute_smooth_thresholds(
    split: Split,
    alpha: float,
    *,
    rule: Literal["exact mode", "solved", "plain"],
    statistic: str,
    degree: int,
    clips_to_scores: bool,
) -> FloatArray:
    """Return thresholds with 1, T, ... T^degree: by the exact mode, exactly, or by plain regression."""
    draws, success = split.pool.draws, get_success(split)
    values = draws.precomputed[statistic]
    distinct, place = np.unique(values[split.test], return_inverse=True)
    features, asked = (
        np.vander(one, degree + 1, increasing=True) for one in (values[split.calibration], distinct)
    )
    if rule == "plain":
        found = asked @ solve_plain_regression(features, success, alpha)
    elif rule == "solved":
        exact = ConditionalThreshold(alpha, cap=float(success.max()) + 1.0, window=None)
        found = exact.fit(features, success).solve(asked).values
    else:
        solver = PublishedSolver(features, success, 1.0 - alpha)
        found = np.array([solver.compute_threshold(phi) for phi in asked])
    low, high = 0.0, 1.0
    if clips_to_scores:
        both = np.r_[split.calibration, split.test]
        seen = np.r_[draws.scores[both][draws.is_drawn[both]], draws.precomputed[SUCCESS][both]]
        low, high = float(seen.min()), float(seen.max())
    return np.clip(found, low, high)[place]


def list_methods(study: Study, setting: Setting) -> tuple[Method, ...]:
    """Return the published methods of a setting, and those with solved thresholds where it has a solver."""
    threshold = partial(PublishedThreshold, words="", promise="", family="paper")
    if setting.statistic is None:
        exact = partial(compute_tail_thresholds, select=select_capped_rank)
        plain, solved = partial(compute_tail_thresholds, select=select_plain_rank), None
    else:
        exact, solved, plain = (
            partial(
                compute_smooth_thresholds,
                rule=rule,
                statistic=setting.statistic,
                degree=setting.degree,
                clips_to_scores=study.failure_above,
            )
            for rule in ("exact mode", "solved", "plain")
        )
    return (
        PublishedTopK("TopK", "", "", "paper", grid=tuple(range(1, setting.n + 1))),
        threshold("ICP", compute=compute_one_threshold),
        threshold("Learnt CP", compute=plain),
        *(
            threshold(
                f"{name}{words}", compute=compute, truncates="FULL" not in name, has_slack="PAC" in name
            )
            for compute, words in ((exact, ""), (solved, SOLVED))
            if compute is not None
            for name in ("CFC", "CFC-FULL", "CFC-PAC", "CFC-PAC-FULL")
        ),
    )


def list_our_methods(study: Study, setting: Setting) -> tuple[Method, ...]:
    """Return our methods of a setting, by the names of the published ones that they stand beside."""
    conditional = replace(make_our_method("conditional"), features=setting.ours)
    truncated, slack = replace(conditional, set_rule="best_prefix"), PaperPAC()
    return (
        TopK("TopK", "", "", "ours", reaching=True, distinct=study.merges),
        replace(make_our_method("marginal"), name="ICP"),
        replace(make_our_method("learned"), name="Learnt CP", features=setting.ours),
        replace(truncated, name="CFC"),
        replace(conditional, name="CFC-FULL"),
        replace(truncated, name="CFC-PAC", pac=slack),
        replace(conditional, name="CFC-PAC-FULL", pac=slack),
    )


class StudyCell(Cell, strict=True):
    """A cell of the paper beside the published protocol on these samples, and ours.

    Attributes:
        solved: Mean with exact thresholds in the published protocol; None for a method without the solver.
    """

    solved: float | None


class StudyReport(ReportData):
    """One of the paper's experiments on scored samples.

    Attributes:
        study: The study.
        questions: Number of questions read.
        draws: The largest number of draws of one.
        cells: The cells of the full table and of the ablation.
        series: Miscoverage by group behind the paper's figure, at its level, of groups with a question.
        flagged: For each level of the full table the share of questions that our CFC-FULL flags, and which so
            count as not covered.
        words: How many cells match, in words, and what a reader has to know.
    """

    study: StudyName
    questions: int
    draws: int
    cells: list[StudyCell]
    series: list[FigureSeries]
    flagged: dict[str, float]
    words: list[str]


def reproduce_study(
    name: StudyName,
    samples: Path | LabelledBatch,
    *,
    alphas: Sequence[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> StudyReport:
    """Run one of the paper's experiments by its published protocol, with ours beside.

    Args:
        name: The study.
        samples: A folder of scored samples in the published layout, or labelled records' candidates.
        alphas: Levels of the full table; the paper's by default.
        jobs: Number of processes.
        progress: Function of the runs and their number that yields the runs, such as a progress bar.

    Returns:
        The report.

    Raises:
        InputError: If a sample is missing or not in the published layout, or too few questions are there.
        FeatureError: If our feature map does not suit the samples.
    """
    study = STUDIES[name]
    questions = study.read(samples) if isinstance(samples, Path) else list_questions(samples)
    if len(questions) < _LEAST:
        msg = f"the study {name} needs at least {_LEAST} questions, and there are {len(questions)}"
        raise InputError(msg)
    levels = tuple(alphas or study.alphas)
    if unknown := [one for one in levels if one not in study.alphas]:
        msg = (
            f"the paper's table of {name} has the levels {', '.join(study.alphas)}; got {', '.join(unknown)}"
        )
        raise InputError(msg)
    published = [*list_published_cells(name), *list_published_cells(f"{name}_ablation")]
    # The ablation repeats the main setting; it is measured once, at all levels that either table needs.
    runs = {study.main: tuple(dict.fromkeys((*levels, study.ablated_alpha, study.shown_alpha)))}
    runs |= dict.fromkeys(study.others, (study.ablated_alpha,))
    tasks = [(setting, at, seed) for setting, at in runs.items() for seed in SPLIT_SEEDS]
    found = measure_splits(partial(_measure_task, study, questions, tasks), len(tasks), jobs, progress)
    by_setting: dict[Setting, list[tuple[SplitResult, SplitResult]]] = {}
    for (setting, _, _), one in zip(tasks, found, strict=True):
        by_setting.setdefault(setting, []).append(one)
    cells = []
    for cell in published:
        if cell.kind == "main" and cell.alpha not in levels:
            continue
        setting = next(
            one
            for one in runs
            if one.features == cell.features and one.n == (cell.n_candidates or study.main.n)
        )
        cells.append(_compare(study, setting, cell, by_setting[setting], runs[setting]))
    run = [one.name for one in list_our_methods(study, study.main)].index("CFC-FULL") * len(runs[study.main])
    main = [ours.figures["not_certifiable_rate"][run:] for _, ours in by_setting[study.main]]
    flagged = {level: float(np.mean([one[place] for one in main])) for place, level in enumerate(levels)}
    return StudyReport(
        study=name,
        questions=len(questions),
        draws=max(len(one.scores) for one in questions),
        cells=cells,
        series=_list_series(study, by_setting[study.main], runs[study.main]),
        flagged=flagged,
        words=list(_write_words(study, cells, flagged)),
    )


def _measure_task(
    study: Study,
    questions: Sequence[Question],
    tasks: Sequence[tuple[Setting, tuple[str, ...], int]],
    number: int,
) -> tuple[SplitResult, SplitResult]:
    """Return what one split gives: the published methods' figures, and ours."""
    setting, levels, seed = tasks[number]
    kept = [one.keep_first(setting.n) for one in questions]
    halves = (np.array(rows) for rows in split_halves(len(kept), seed, study.most))
    calibration, test = halves
    drawn = make_published(kept, merges=study.merges, failure_above=study.failure_above)
    published = Split(Pool(drawn, measure=False), calibration[:0], calibration, test, "1", "all")
    fit = len(calibration) // 5
    ours = Split(
        Pool(make_drawn(kept, merges=study.merges)), calibration[:fit], calibration[fit:], test, "1", "all"
    )
    groups = _make_groups(published, setting)
    return (
        measure_methods(published, list_methods(study, setting), levels, groups),
        measure_methods(ours, list_our_methods(study, setting), levels, groups),
    )


def _make_groups(split: Split, setting: Setting) -> Groups:
    """Return the groups of GSC: the two of the tail, or fifths of T in the test half."""
    if setting.statistic is not None:
        return make_test_bins(split.pool.draws.precomputed[setting.statistic], split.test, FIFTHS)
    member = np.zeros((len(split.pool.draws), 2))
    member[split.test, find_hard(split)[1]] = 1.0
    return Groups("", ("easy", "hard"), ("easy", "hard"), member)


def _compare(
    study: Study,
    setting: Setting,
    cell: PublishedCell,
    measured: Sequence[tuple[SplitResult, SplitResult]],
    levels: Sequence[str],
) -> StudyCell:
    figure, unit = METRICS[cell.metric]
    our_figure = "mean_distinct_answers" if study.merges and cell.metric == "APSS" else figure
    names = [one.name for one in list_methods(study, setting)]
    our_names = [one.name for one in list_our_methods(study, setting)]

    def collect(name: str, listed: Sequence[str], results: Iterable[SplitResult], key: str) -> list[float]:
        run = list(listed).index(name) * len(levels) + list(levels).index(cell.alpha)
        return [unit * float(one.figures[key][run]) for one in results]

    theirs, ours = zip(*measured, strict=True)
    found = compare_cell(
        cell,
        collect(cell.method, names, theirs, figure),
        collect(cell.method, our_names, ours, our_figure),
    )
    solved = f"{cell.method}{SOLVED}"
    known = solved in names
    return StudyCell(
        **found.model_dump(),
        solved=float(np.mean(collect(solved, names, theirs, figure))) if known else None,
    )


def _list_series(
    study: Study, measured: Sequence[tuple[SplitResult, SplitResult]], levels: Sequence[str]
) -> list[FigureSeries]:
    """Return the mean miscoverage of each group over the splits, at the level of the paper's figure."""
    names = [one.name for one in list_methods(study, study.main)]
    our_names = [one.name for one in list_our_methods(study, study.main)]

    # Where T ties, a bin may hold no question of a split, or of any.
    counts = np.sum([one.group_sizes for one, _ in measured], axis=0)

    def average(part: int, run: int) -> FloatArray:
        covered = np.array([one[part].groups["coverage"][run] for one in measured])[:, counts > 0]
        return np.asarray(1.0 - np.nanmean(covered, axis=0), dtype=np.float64)

    place = list(levels).index(study.shown_alpha)
    return [
        compare_series(
            f"miscoverage by group, alpha = {study.shown_alpha}",
            name,
            average(0, names.index(name) * len(levels) + place),
            average(1, our_names.index(name) * len(levels) + place),
        )
        for name in ("TopK", "ICP", "Learnt CP", "CFC", "CFC-PAC-FULL")
    ]


def _write_words(study: Study, cells: Sequence[StudyCell], flagged: dict[str, float]) -> Iterable[str]:
    matching = sum(one.matches for one in cells)
    yield f"{matching} of {len(cells)} cells equal the paper's printed digits. Other samples give others."
    shares = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in flagged.items())
    yield f"Ours counts flagged questions as not covered; its CFC-FULL flags {shares}."
    of_coverage = [one for one in cells if one.metric == "ECR"]
    gaps = [abs(one.reproduced - one.solved) for one in of_coverage if one.solved is not None]
    if gaps:
        yield (
            f"With exact thresholds (solved) the published coverage changes by up to {max(gaps):.1f} points: "
            "the exact mode passes over scores that tie or lie within 1e-5."
        )
    if study.merges:
        yield (
            "Ranks are taken within each half, so the published groups of the test half depend on all its "
            "questions: no single new question has a group. Ours has, by the cut-offs of the fit part."
        )

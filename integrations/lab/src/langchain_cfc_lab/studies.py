"""The paper's experiments on TriviaQA, GSM8K and Flickr8k, repeated on any recorded candidates.

The protocol is the paper's: feature map, groups, levels, candidate budget, and ablations. Records of other
models and prompts give other figures, so *patterns* are compared: statements about the order of figures that
hold in the paper's tables, and whether they hold here.

Where the paper leaves a choice open: its test shares suggest halves, and here a hash assigns each prompt to a
half; it does not say how many calibration prompts each dataset has. Two conventions are options, because the
paper's tables do not follow from its text:

- *GSC bins* have equal frequency over all prompts, or over the test prompts of each split as in the paper.
- *Set sizes* count candidates (`drawn`) or `distinct` answers. TopK's mean size of 1.75 +- 0.00 on TriviaQA
  is no K and no mixture of several; it is the mean of up to two distinct answers if a quarter of the prompts
  has only one. ICP's 1.43 at a coverage of 80 % is small for sets that may hold one answer twenty times. So
  with `distinct` K counts distinct answers, too. Except for TopK, this changes no coverage or threshold.

Source: the paper's section "Real-World Data" and its appendix of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import open_records
from langchain_cfc.thresholds import Level, compute_tau
from langchain_cfc_lab.compare import compare
from langchain_cfc_lab.comparison_report import ComparisonReport, LevelComparison
from langchain_cfc_lab.methods import get_methods, list_paper_methods
from langchain_cfc_lab.published import METRICS, PublishedCell, list_published_cells
from langchain_cfc_lab.splits import GroupedOn, Progress

StudyName: TypeAlias = Literal["triviaqa", "gsm8k", "flickr8k"]
Count: TypeAlias = Literal["drawn", "distinct"]
# The figure behind APSS for each way of counting, with its factor as in `METRICS`.
SIZE_FIGURES: dict[Count, tuple[str, float]] = {
    "drawn": METRICS["APSS"],
    "distinct": ("mean_distinct_answers", 1.0),
}
_MEAN_LOSS = "[1, T, T^2], T = mean verifier loss"
# Figures that differ by at most this much, in percentage points, count as equal.
MAX_POINTS = 1.0
SMALL_SET_SIZE = 2.0


@dataclass(frozen=True)
class Setting:
    """A feature map with its candidate budget."""

    words: str  # name of the map in `PublishedCell.features`
    features: str
    n: int  # number of candidates to use: the first n, or all if fewer are recorded


@dataclass(frozen=True)
class Study:
    """One of the paper's experiments on recorded candidates; settings are names in `SETTINGS`."""

    setting: str  # setting of the full table
    fewest: int  # smallest number of candidates that records must have
    groups: str  # groups of GSC, as feature text
    alphas: tuple[str, ...]  # levels of the full table
    ablated: tuple[str, ...]  # settings of the ablation
    ablated_alpha: str  # level of the ablation


_HARD_GROUP = "hard(entropy, max_score, 0.925)"
_SCORE_FIFTHS = "bins(mean_score, 5)"
# Every learned feature map of the paper, by name, with its budget. `hard-group` replaces answer entropy and
# largest score by their ranks; a prompt is hard if the larger rank reaches its 92.5th percentile.
SETTINGS = {
    "hard-group": Setting(
        "two groups, hard where the larger of rank-normalised entropy and maximum loss is in its top 7.5 %",
        _HARD_GROUP,
        20,
    ),
    "entropy-linear": Setting("linear in entropy", "entropy", 20),
    "max-loss-linear": Setting("linear in maximum loss", "max_score", 20),
    "mean-loss-quadratic-first-5": Setting(_MEAN_LOSS, "mean_score^2", 5),
    "mean-loss-quadratic-20": Setting(_MEAN_LOSS, "mean_score^2", 20),
    "mean-loss-quadratic-first-2": Setting(_MEAN_LOSS, "mean_score^2", 2),
    "mean-loss-quadratic-first-3": Setting(_MEAN_LOSS, "mean_score^2", 3),
    "max-loss-quadratic-first-2": Setting("[1, T, T^2], T = maximum verifier loss", "max_score^2", 2),
}
STUDIES: dict[StudyName, Study] = {
    "triviaqa": Study(
        "hard-group",
        1,
        _HARD_GROUP,
        ("0.2", "0.25", "0.3", "0.35", "0.4", "0.45"),
        ("entropy-linear", "max-loss-linear"),
        "0.3",
    ),
    "gsm8k": Study(
        "mean-loss-quadratic-first-5",
        5,
        _SCORE_FIFTHS,
        ("0.05", "0.1", "0.15", "0.2", "0.25", "0.3"),
        ("mean-loss-quadratic-20",),
        "0.1",
    ),
    "flickr8k": Study(
        "mean-loss-quadratic-first-2",
        2,
        _SCORE_FIFTHS,
        ("0.01", "0.02", "0.03"),
        ("max-loss-quadratic-first-2", "mean-loss-quadratic-first-3"),
        "0.03",
    ),
}


class Pattern(ReportData):
    """A statement about the order of figures, and at how many levels it holds.

    Attributes:
        statement: The statement, in words.
        published: Number of levels at which it holds in the paper's table, and number of the table's levels.
        here: The same two numbers for these records, at levels whose target is within their reach.
    """

    statement: str
    published: tuple[int, int]
    here: tuple[int, int]


class Ablation(ReportData):
    """Results of the study in one setting, at the level of the ablation; `name` is a key of `SETTINGS`."""

    name: str
    level: LevelComparison


class StudyReport(ReportData):
    """Results of one of the paper's experiments on other records.

    Attributes:
        study: The study.
        setting: The feature map and budget of the full table, a key of `SETTINGS`.
        count: What set sizes count.
        comparison: The paper's methods and ours, in the paper's protocol.
        published: The paper's full table.
        patterns: Statements about the paper's table, and at how many levels they hold here.
        ablations: Results by setting, the chosen one first.
        notes: What a reader has to know.
    """

    study: StudyName
    setting: str
    count: Count
    comparison: ComparisonReport
    published: list[PublishedCell]
    patterns: list[Pattern]
    ablations: list[Ablation]
    notes: list[str]


def reproduce_study(
    name: StudyName,
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    provenance: Provenance | None = None,
    alpha: Sequence[Level] | None = None,
    setting: str | None = None,
    count: Count = "drawn",
    group_on: GroupedOn = "all",
    splits: int = 100,
    seed: str | int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> StudyReport:
    """Run one of the paper's experiments on recorded candidates.

    Args:
        name: The study.
        records: Labelled records with at least the study's number of candidates.
        provenance: Header of the records; by default the one that they carry.
        alpha: Error levels; by default the paper's, which may be out of reach for these records.
        setting: Feature map and budget of the full table, a key of `SETTINGS`; by default the paper's.
        count: Whether set sizes, and TopK's K, count candidates `drawn` or `distinct` answers.
        group_on: Prompts from which the bins of GSC are made: `all`, or the `test` prompts of each split.
        splits: Number of random splits into halves; the paper has 5.
        seed: Seed of the splits.
        jobs: Number of processes.
        progress: Function of the splits and their number that yields the splits, such as a progress bar.

    Returns:
        The report.

    Raises:
        InputError: If a record cannot be used, there are too few candidates, or a setting is unknown.
        FeatureError: If the study's feature map does not suit the records.
    """
    study = STUDIES[name]
    records, provenance = open_records(records, provenance)
    table = tabulate(records, provenance=provenance)
    levels = tuple(map(str, alpha)) if alpha else study.alphas
    chosen_name = setting or study.setting
    if chosen_name not in SETTINGS:
        msg = f"unknown setting {setting!r}; known are {', '.join(SETTINGS)}"
        raise InputError(msg)
    recorded = table.draws.n
    if recorded < study.fewest:
        msg = f"the study {name} needs {study.fewest} candidates a prompt, and {recorded} are recorded"
        raise InputError(msg)
    distinct = count == "distinct"
    if distinct and table.draws.answer_codes is None:
        msg = "distinct answers cannot be counted: the records have no answers"
        raise InputError(msg)

    def run_comparison(setting: Setting, alphas: Sequence[Level]) -> ComparisonReport:
        return compare(
            table.keep_first_candidates(min(setting.n, recorded)),
            alpha=alphas,
            methods=[*list_paper_methods(distinct=distinct), *get_methods("ours")],
            features=setting.features,
            groups=study.groups,
            group_on=group_on,
            splits=splits,
            seed=seed,
            jobs=jobs,
            progress=progress,
            provenance=provenance,
        )

    full = run_comparison(SETTINGS[chosen_name], levels)
    within = {level.alpha for level in full.sweep if level.target_coverage <= level.attainable_coverage}
    papers_own = float(study.ablated_alpha) in within
    ablated_at = (
        study.ablated_alpha if papers_own else next(one for one in levels if float(one) == full.alpha)
    )
    chosen = next(level for level in full.sweep if level.alpha == float(ablated_at))
    ablated = {chosen_name: chosen}
    for other in study.ablated:
        if other not in ablated:
            ablated[other] = run_comparison(SETTINGS[other], [ablated_at]).sweep[0]
    return StudyReport(
        study=name,
        setting=chosen_name,
        count=count,
        comparison=full,
        published=list(list_published_cells(name)),
        patterns=_find_patterns(list_published_cells(name), full.sweep, count),
        ablations=[Ablation(name=name, level=level) for name, level in ablated.items()],
        notes=list(_list_notes(study, recorded, full)),
    )


def _list_notes(study: Study, recorded: int, full: ComparisonReport) -> Iterable[str]:
    yield from full.notes
    yield (
        "Unless these records come from the paper's own models and prompts, compare patterns, not figures."
    )
    if all(level.target_coverage > level.attainable_coverage for level in full.sweep):
        yield "None of these levels is within reach: set alpha to others to see patterns."
    for n in sorted({SETTINGS[one].n for one in study.ablated if SETTINGS[one].n > recorded}):
        yield f"The ablation with {n} candidates uses the {recorded} that are recorded."


# One level of a table: ECR, GSC and APSS by method. A statement also gets the target in percent.
Figures: TypeAlias = dict[str, dict[str, float]]
_STATEMENTS: tuple[tuple[str, Callable[[Figures, float], bool]], ...] = (
    (
        "ICP's coverage is within a point of the target",
        lambda row, t: abs(row["ICP"]["ECR"] - t) <= MAX_POINTS,
    ),
    (
        "ICP leaves its worst group further below the target than CFC-FULL does",
        lambda row, _: row["ICP"]["GSC"] < row["CFC-FULL"]["GSC"],
    ),
    (
        "Learnt CP's coverage is within a point of CFC-FULL's",
        lambda row, _: abs(row["Learnt CP"]["ECR"] - row["CFC-FULL"]["ECR"]) <= MAX_POINTS,
    ),
    (
        "cutting sets after calibration costs coverage (CFC below CFC-FULL; by construction)",
        lambda row, _: row["CFC"]["ECR"] < row["CFC-FULL"]["ECR"],
    ),
    (
        "cutting sets makes them smaller (CFC below CFC-FULL; by construction)",
        lambda row, _: row["CFC"]["APSS"] < row["CFC-FULL"]["APSS"],
    ),
    (
        "the slack adds coverage (CFC-PAC-FULL above CFC-FULL; by construction)",
        lambda row, _: row["CFC-PAC-FULL"]["ECR"] > row["CFC-FULL"]["ECR"],
    ),
    (
        "CFC's sets are the smallest of the threshold methods",
        lambda row, _: row["CFC"]["APSS"] <= min(row[one]["APSS"] for one in row if one != "TopK"),
    ),
    (
        "CFC-FULL's coverage is within a point of the target or above it",
        lambda row, t: row["CFC-FULL"]["ECR"] >= t - MAX_POINTS,
    ),
    ("ICP's sets hold fewer than two on average", lambda row, _: row["ICP"]["APSS"] < SMALL_SET_SIZE),
)


def _find_patterns(
    published: Sequence[PublishedCell], sweep: Sequence[LevelComparison], count: Count = "drawn"
) -> list[Pattern]:
    """Evaluate every statement on the paper's table and on these records."""
    figures = {**METRICS, "APSS": SIZE_FIGURES[count]}
    theirs: dict[str, Figures] = {}
    for cell in published:
        theirs.setdefault(cell.alpha, {}).setdefault(cell.method, {})[cell.metric] = float(cell.mean)
    names = next(iter(theirs.values()))
    ours = [
        (
            {
                name: {
                    metric: unit * level.methods[name].figures[figure].mean
                    for metric, (figure, unit) in figures.items()
                }
                for name in names
            },
            100.0 * level.target_coverage,
        )
        for level in sweep
        if level.target_coverage <= level.attainable_coverage
    ]
    patterns = []
    for statement, holds in _STATEMENTS:
        in_paper = [holds(figures, 100.0 * float(compute_tau(alpha))) for alpha, figures in theirs.items()]
        here = [holds(figures, target) for figures, target in ours]
        patterns.append(
            Pattern(
                statement=statement, published=(sum(in_paper), len(in_paper)), here=(sum(here), len(here))
            )
        )
    return patterns

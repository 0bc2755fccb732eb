"""The paper's experiments on recorded candidates: TriviaQA, GSM8K and Flickr8k, on any records.

The protocol is the paper's: feature map, groups, levels, candidate budget, and its ablations. Records of
other models and prompts give other figures, so that *patterns* are compared: statements of order that its
tables make, and whether they hold here.

What the paper leaves open was chosen as follows. Its test shares suggest halves; here a prompt belongs to
either by hash. GSC bins are of equal frequency over all prompts, the paper's over the test prompts. It does
not say how many calibration prompts each dataset has.

Source: the paper's section "Real-World Data" and its appendix of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.experiments.compare import compare
from langchain_cfc.experiments.comparison_report import ComparisonReport, LevelComparison
from langchain_cfc.experiments.methods import get_methods
from langchain_cfc.experiments.paper import METRICS, PublishedCell, published_cells
from langchain_cfc.experiments.splits import Progress
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate
from langchain_cfc.thresholds import Level, compute_tau

StudyName: TypeAlias = Literal["triviaqa", "gsm8k", "flickr8k"]
_MEAN_LOSS = "[1, T, T^2], T = mean verifier loss"
# Two figures of the paper's tables that differ by less are called equal: one percentage point.
NEAR = 1.0


@dataclass(frozen=True)
class Setting:
    """A feature map and a candidate budget."""

    words: str  # the map as `PublishedCell.features` calls it
    features: str
    n: int | None  # number of candidates; None for all that are recorded


@dataclass(frozen=True)
class Study:
    """One of the paper's experiments on recorded candidates."""

    setting: Setting  # of the full table
    groups: str  # the groups of GSC
    alphas: tuple[str, ...]  # the levels of the full table
    ablated: tuple[Setting, ...]  # the settings of the ablation
    ablated_alpha: str  # the level of the ablation


_HARD = "hard(entropy, max_score, 0.925)"
_FIFTHS = "bins(mean_score, 5)"
STUDIES: dict[StudyName, Study] = {
    "triviaqa": Study(
        Setting("two groups by entropy and maximum loss", _HARD, None),
        _HARD,
        ("0.2", "0.25", "0.3", "0.35", "0.4", "0.45"),
        (
            Setting("linear in entropy", "entropy", None),
            Setting("linear in maximum loss", "max_score", None),
        ),
        "0.3",
    ),
    "gsm8k": Study(
        Setting(_MEAN_LOSS, "mean_score^2", 5),
        _FIFTHS,
        ("0.05", "0.1", "0.15", "0.2", "0.25", "0.3"),
        (Setting(_MEAN_LOSS, "mean_score^2", 20),),
        "0.1",
    ),
    "flickr8k": Study(
        Setting(_MEAN_LOSS, "mean_score^2", 2),
        _FIFTHS,
        ("0.01", "0.02", "0.03"),
        (
            Setting("[1, T, T^2], T = maximum verifier loss", "max_score^2", 2),
            Setting(_MEAN_LOSS, "mean_score^2", 3),
        ),
        "0.03",
    ),
}


class Pattern(ReportData):
    """A statement about the order of figures, and at how many levels it holds.

    Attributes:
        statement: What is stated.
        published: Number of levels at which the paper's table bears it out, and number of its levels.
        here: The same for these records, at levels whose target is within their reach.
    """

    statement: str
    published: tuple[int, int]
    here: tuple[int, int]


class Ablation(ReportData):
    """The same study repeated in another setting."""

    words: str
    features: str
    n_candidates: int
    level: LevelComparison


class StudyReport(ReportData):
    """Results of an experiment of the paper on other records.

    Attributes:
        study: The study.
        comparison: The paper's methods in its protocol, together with ours.
        published: The paper's full table.
        patterns: What its table says, and whether it holds here.
        ablations: The chosen setting first, then the others.
        notes: What a reader has to know.
    """

    study: StudyName
    comparison: ComparisonReport
    published: list[PublishedCell]
    patterns: list[Pattern]
    ablations: list[Ablation]
    notes: list[str]


def reproduce_study(
    name: StudyName,
    records: Iterable[PromptRecord] | LabelledBatch,
    *,
    provenance: Provenance | None = None,
    alpha: Sequence[Level] | None = None,
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
        alpha: Other levels than the paper's, for records on which those are out of reach.
        splits: Number of splits in halves; the paper has 5.
        seed: Another seed gives other splits.
        jobs: Number of processes.
        progress: Function of the splits and their number that yields the splits, such as a progress bar.

    Returns:
        The report.

    Raises:
        InputError: If a record cannot be used, or there are too few candidates.
        FeatureError: If the study's feature map does not suit the records.
        MissingExtraError: If SciPy is not installed.
    """
    study = STUDIES[name]
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    table = tabulate(records, provenance=provenance)
    levels = tuple(map(str, alpha)) if alpha else study.alphas
    recorded = table.draws.n
    least = study.setting.n or 1
    if recorded < least:
        msg = f"the study {name} needs {least} candidates a prompt, and {recorded} are recorded"
        raise InputError(msg)

    def run_comparison(setting: Setting, alphas: Sequence[Level]) -> ComparisonReport:
        return compare(
            table,
            alpha=alphas,
            methods=get_methods(["paper", "ours"]),
            features=setting.features,
            groups=study.groups,
            n=None if setting.n is None else min(setting.n, recorded),
            splits=splits,
            seed=seed,
            jobs=jobs,
            progress=progress,
            provenance=provenance,
        )

    full = run_comparison(study.setting, levels)
    within = {level.alpha for level in full.sweep if level.target_coverage <= level.attainable_coverage}
    papers_own = float(study.ablated_alpha) in within
    ablated_at = (
        study.ablated_alpha if papers_own else next(one for one in levels if float(one) == full.alpha)
    )
    chosen = next(level for level in full.sweep if level.alpha == float(ablated_at))
    ablated = [(study.setting, chosen)]
    ablated += [(one, run_comparison(one, [ablated_at]).sweep[0]) for one in study.ablated]
    return StudyReport(
        study=name,
        comparison=full,
        published=list(published_cells(name)),
        patterns=_find_patterns(published_cells(name), full.sweep),
        ablations=[
            Ablation(words=one.words, features=one.features, n_candidates=level.n_candidates, level=level)
            for one, level in ablated
        ],
        notes=list(_list_notes(study, recorded, full)),
    )


def _list_notes(study: Study, recorded: int, full: ComparisonReport) -> Iterable[str]:
    yield from full.notes
    yield (
        "Unless these are records of the paper's own models and prompts, patterns are compared, not figures."
    )
    if all(level.target_coverage > level.attainable_coverage for level in full.sweep):
        yield "None of these levels is within reach: patterns need others, given by alpha."
    short = {one.n for one in study.ablated if one.n is not None and one.n > recorded}
    for n in sorted(short):
        yield f"The ablation with {n} candidates uses the {recorded} that are recorded."


# What a table holds for one level: ECR, GSC and APSS by method, and the target in percent.
Figures: TypeAlias = dict[str, dict[str, float]]
_STATEMENTS: tuple[tuple[str, Callable[[Figures, float], bool]], ...] = (
    ("ICP's coverage is within a point of the target", lambda of, t: abs(of["ICP"]["ECR"] - t) <= NEAR),
    (
        "ICP leaves its worst group further below the target than CFC-FULL does",
        lambda of, _: of["ICP"]["GSC"] < of["CFC-FULL"]["GSC"],
    ),
    (
        "Learnt CP's coverage is within a point of CFC-FULL's",
        lambda of, _: abs(of["Learnt CP"]["ECR"] - of["CFC-FULL"]["ECR"]) <= NEAR,
    ),
    (
        "cutting sets after calibration costs coverage (CFC below CFC-FULL; by construction)",
        lambda of, _: of["CFC"]["ECR"] < of["CFC-FULL"]["ECR"],
    ),
    (
        "cutting sets makes them smaller (CFC below CFC-FULL; by construction)",
        lambda of, _: of["CFC"]["APSS"] < of["CFC-FULL"]["APSS"],
    ),
    (
        "the slack adds coverage (CFC-PAC-FULL above CFC-FULL; by construction)",
        lambda of, _: of["CFC-PAC-FULL"]["ECR"] > of["CFC-FULL"]["ECR"],
    ),
    (
        "CFC's sets are the smallest of the threshold methods",
        lambda of, _: of["CFC"]["APSS"] <= min(of[one]["APSS"] for one in of if one != "TopK"),
    ),
    (
        "CFC-FULL's coverage is within a point of the target or above it",
        lambda of, t: of["CFC-FULL"]["ECR"] >= t - NEAR,
    ),
)


def _find_patterns(published: Sequence[PublishedCell], sweep: Sequence[LevelComparison]) -> list[Pattern]:
    """Return every statement, in the paper's table and on these records."""
    theirs: dict[str, Figures] = {}
    for cell in published:
        theirs.setdefault(cell.alpha, {}).setdefault(cell.method, {})[cell.metric] = cell.value
    names = next(iter(theirs.values()))
    ours = [
        (
            {
                name: {
                    metric: unit * level.methods[name].figures[figure].mean
                    for metric, (figure, unit) in METRICS.items()
                }
                for name in names
            },
            100.0 * level.target_coverage,
        )
        for level in sweep
        if level.target_coverage <= level.attainable_coverage
    ]
    found = []
    for statement, holds in _STATEMENTS:
        in_paper = [holds(figures, 100.0 * float(compute_tau(alpha))) for alpha, figures in theirs.items()]
        here = [holds(figures, target) for figures, target in ours]
        found.append(
            Pattern(
                statement=statement, published=(sum(in_paper), len(in_paper)), here=(sum(here), len(here))
            )
        )
    return found

"""Reports of comparisons: like `evaluate`'s report, but for many methods, levels and splits."""

from __future__ import annotations

from typing import Literal

from langchain_cfc.evaluation import GroupFigures, LevelReport, MethodFigures, ReportData
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.curves import RiskCurve
from langchain_cfc.support.units import Unit

Family = Literal["ours", "paper", "outside"]
# Methods shown in figures, one of each kind: more than eight lines or bars cannot be distinguished.
LEADING = (
    "conditional",
    "conditional:best_prefix",
    "marginal",
    "learned",
    "ICP",
    "CFC",
    "CFC-FULL",
    "sampling",
)


class Spread(ReportData):
    """Mean, spread and interval of a figure over splits.

    Attributes:
        mean: Mean over the splits.
        sd: Standard deviation over the splits, with divisor J as in the paper's tables.
        interval: 95 % interval for the mean over new prompts; None if only one split defines the figure.
            Splits of one pool share prompts, so the half-width is that of the corrected resampled t-test
            (Nadeau and Bengio 2003, "Inference for the generalization error"), t sqrt(1 / J + r) s, where r
            is the larger of test / development and development / test: the noise of some figures comes from
            test prompts, of others, such as thresholds, from development prompts. It is approximate, and too
            wide for coverage, where errors from test and development prompts offset each other. If splits are
            drawn independently, as in the synthetic experiment, the interval is Student's.
        splits: Number of splits J in which the figure is defined; for example, accuracy among answered
            prompts is undefined if none is answered.
    """

    mean: float
    sd: float
    interval: tuple[float, float] | None
    splits: int


class GroupComparison(GroupFigures):
    """Results of one method in one group of test prompts, as means over splits; `n` is a mean too.

    Attributes:
        figures: Spreads of `coverage`, `kept_promise`, `not_certifiable_rate`, `mean_set_size`
            and, for methods with thresholds, of `threshold`, clipped to [0, 1].
    """

    figures: dict[str, Spread]


class Gap(ReportData):
    """The group, by one property of prompts, in which a method falls short of its target most."""

    group: str  # the group with the smallest kept promise on average, in words
    # target coverage minus that group's kept promise; negative if all groups reach the target
    shortfall: Spread


class MethodComparison(MethodFigures):
    """Results of one method at one level, as means over splits; see `Spread` for the intervals.

    Attributes:
        family: `ours`, `paper` (in the paper's own conventions) or `outside`.
        words: What the method does.
        promise: What it promises, in words.
        groups: The groups; bins are in ascending order of their statistic.
        figures: Spread of every figure by name; `metrics.FIGURES` defines the figures.
        gaps: The worst group by property of prompts, such as `mean_score` or `group(topic)`.
    """

    family: Family
    words: str
    promise: str
    groups: list[GroupComparison]
    figures: dict[str, Spread]
    gaps: dict[str, Gap]


class LevelComparison(LevelReport):
    """Results of all methods at one level, by name of the method."""

    methods: dict[str, MethodComparison]

    def list_leading(self) -> list[str]:
        """Return the names of the methods to show in a figure: all, or if too many, those in `LEADING`."""
        if len(self.methods) <= len(LEADING):
            return list(self.methods)
        return [name for name in self.methods if name in LEADING] or list(self.methods)[: len(LEADING)]


class Histogram(ReportData):
    """Scores of all candidates, counted in equal bins over [0, 1]."""

    edges: list[float]
    correct: list[int]
    wrong: list[int]


class DataFacts(ReportData):
    """Facts about the records on which methods are compared."""

    prompts: int  # number of prompts, one from each cluster
    correct_candidates: float  # share of candidates that are correct
    attainable_coverage: float
    distinct_answers: float | None  # mean number per prompt; None if answers are unknown
    # probability that a correct candidate scores better than a wrong one; None unless both kinds exist
    auroc: float | None
    scores: Histogram
    risk: RiskCurve  # by best score, without any guarantee


class ComparisonReport(LevelComparison):
    """Results of a comparison: the leading level in the form of `evaluate`'s report, then all levels.

    Attributes:
        splits: Number of splits.
        seed: Seed of the splits.
        test_fraction: Share of the prompts held out in each split.
        fit_fraction: Share of the others that fits feature maps.
        features: The feature map of methods that have none of their own.
        set_rule: The set rule of methods that have none of their own.
        groups: The groups in which coverage is measured.
        data: Facts about the records.
        sweep: All levels in the order requested, including the leading one.
        notes: What a reader has to know, for example how many prompts were left out.
        unit: What methods keep or reject.
    """

    splits: int
    seed: str
    test_fraction: float
    fit_fraction: float
    features: str
    set_rule: str
    groups: str
    data: DataFacts
    sweep: list[LevelComparison]
    notes: list[str]
    unit: Unit = "answers"

    @property
    def at_most(self) -> int | None:
        """The number of unsupported claims that may be kept; None for answers."""
        return parse_set_rule(self.set_rule).at_most

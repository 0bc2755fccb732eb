"""Reports of comparisons as data: the shape of `evaluate`'s report, for many methods, levels and splits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from langchain_cfc.candidates import Unit
from langchain_cfc.evaluation import GroupFigures, LevelReport, MethodFigures, ReportData
from langchain_cfc.set_rules import Claims, parse_set_rule

Family = Literal["ours", "paper", "outside"]
# One of each kind: more than eight lines or bars side by side cannot be distinguished.
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
        interval: 95 % interval for the mean over new prompts; None where a single split defines the figure.
            Splits of one pool share prompts, so its half-width is that of the corrected resampled t-test
            (Nadeau and Bengio 2003, "Inference for the generalization error"), t sqrt(1 / J + r) s, where r
            is the larger of test / development and development / test: some figures are made by test prompts
            and some, such as thresholds, by development prompts. Approximate, and too wide for coverage,
            whose errors in test and development prompts offset each other. Where splits are drawn
            independently, as in the synthetic experiment, it is Student's.
        splits: Number of splits J in which the figure is defined: accuracy among answered prompts is not
            where none is answered.
    """

    mean: float
    sd: float
    interval: tuple[float, float] | None
    splits: int


class GroupComparison(GroupFigures):
    """Results of one method in one group of test prompts, as means over splits; `n` is one as well.

    Attributes:
        figures: `coverage`, `kept_promise`, `not_certifiable_rate`, `mean_set_size` and, for methods with
            thresholds, `threshold`, cut to [0, 1], with their spread.
    """

    figures: dict[str, Spread]


class Gap(ReportData):
    """Where a method falls short most along one property of prompts."""

    group: str  # the group that keeps the promise most rarely on average, in words
    # target coverage less that group's kept promise; negative where all groups reach the target
    shortfall: Spread


class MethodComparison(MethodFigures):
    """Results of one method at one level, as means over splits; see `Spread` for the intervals.

    Attributes:
        family: `ours`, `paper` (in the paper's own conventions) or `outside`.
        words: What the method does.
        promise: What it promises, in words.
        aims_at_coverage: Whether kept promises are what it aims at; claim-level back-off of candidates aims
            at sets without a wrong one.
        groups: The groups, from easy to hard where they are bins of difficulty.
        figures: Every figure by name with its spread; `metrics.FIGURES` says what each is.
        gaps: By property of prompts, such as `mean_score` or `group(topic)`.
    """

    family: Family
    words: str
    promise: str
    aims_at_coverage: bool
    groups: list[GroupComparison]
    figures: dict[str, Spread]
    gaps: dict[str, Gap]


class LevelComparison(LevelReport):
    """Results of all methods at one level, by name of the method."""

    methods: dict[str, MethodComparison]

    def list_leading(self) -> list[str]:
        """Return the methods that a figure shows: all, or those of `LEADING` where there are too many."""
        if len(self.methods) <= len(LEADING):
            return list(self.methods)
        return [name for name in self.methods if name in LEADING] or list(self.methods)[: len(LEADING)]


class Histogram(ReportData):
    """Scores of all candidates, counted in equal bins over [0, 1]."""

    edges: list[float]
    correct: list[int]
    wrong: list[int]


class RiskCurve(ReportData):
    """Wrong best answers where only the prompts of lowest best score are answered, without any promise."""

    answered: list[float]  # shares of prompts answered, ascending
    wrong: list[float]  # share of those whose best answer is wrong


class AttainableComparison(ReportData):
    """Attainable coverage of one group: as development prompts predict it, and as seen on test prompts."""

    words: str
    predicted: Spread
    seen: Spread


class DataFacts(ReportData):
    """The records that methods are compared on."""

    prompts: int  # one of each cluster
    correct_candidates: float
    attainable_coverage: float
    distinct_answers: float | None  # mean number per prompt; None where answers are not known
    # probability that a correct candidate scores better than a wrong one; None where there are not both
    auroc: float | None
    scores: Histogram
    risk: RiskCurve
    attainable: list[AttainableComparison]


class ComparisonReport(LevelComparison):
    """Results of a comparison: the leading level in the shape of `evaluate`'s report, then all levels.

    Attributes:
        splits: Number of splits.
        seed: What they were drawn by.
        test_fraction: Share of the prompts held out in each split.
        fit_fraction: Share of the others that fits feature maps.
        features: The feature map.
        set_rule: The set rule of methods that name none of their own.
        groups: The groups that coverage is looked at in.
        data: The records.
        sweep: All levels in the order requested, the leading one included.
        notes: What a reader has to know, such as prompts left out.
        unit: What methods keep or reject; left out of the data for answers.
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
    def at_most(self) -> int:
        """How many unsupported claims may be left; 0 for answers."""
        rule = parse_set_rule(self.set_rule)
        return rule.at_most if isinstance(rule, Claims) else 0

    @model_serializer(mode="wrap")
    def _without_unit(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialised(self)
        if self.unit == "answers":
            data.pop("unit", None)
        return data

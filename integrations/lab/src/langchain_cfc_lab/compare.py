"""`compare`: run many methods on the same records over many random splits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from langchain_cfc.artifact import replay_prefixes
from langchain_cfc.calibration.config import CalibrationConfig, list_levels
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.draw_rules import DrawRule
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import open_records
from langchain_cfc.scoring import compute_auroc
from langchain_cfc.set_rules import BestAnswer, parse_set_rule
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.curves import RiskCurve
from langchain_cfc.support.suggestions import suggest_share
from langchain_cfc.support.text import format_percent, join_names
from langchain_cfc.support.units import UNITS, Unit
from langchain_cfc.thresholds import Level, compute_tau, format_alpha
from langchain_cfc_lab.comparison_report import (
    ComparisonReport,
    DataFacts,
    Gap,
    GroupComparison,
    Histogram,
    LevelComparison,
    MethodComparison,
    Spread,
)
from langchain_cfc_lab.methods import OUR_RULES, Method, Pool, ThresholdMethod, get_methods
from langchain_cfc_lab.metrics import Groups, find_event, is_share, list_figures
from langchain_cfc_lab.splits import (
    Comparison,
    Progress,
    SplitResult,
    check_count,
    make_pool,
    measure_splits,
)

ReportT = TypeVar("ReportT", MethodComparison, GroupComparison)
FEATURES = "hat(mean_score, 5)"
GROUPS = "bins(mean_score, 5)"
_HISTOGRAM_BINS = 20


def compute_spread(values: FloatArray, overlap: float, *, share: bool = False) -> Spread | None:
    """Summarise a figure's (J,) values, one per split, NaN where undefined; None if all are undefined.

    `overlap` is the larger of the ratios test / development and development / test if splits divide one pool
    of prompts, and 0 if each split is drawn independently. The interval of a `share` is cut to [0, 1].
    """
    known = values[~np.isnan(values)]
    count = len(known)
    if count == 0:
        return None
    mean, sd = float(known.mean()), float(known.std())
    if count == 1:
        return Spread(mean=mean, sd=sd, interval=None, splits=1)
    from scipy.special import stdtrit  # late: SciPy takes long to import

    quantile = stdtrit(count - 1, 0.975)
    half = float(quantile) * compute_standard_error(known, overlap)
    low, high = mean - half, mean + half
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    return Spread(mean=mean, sd=sd, interval=(low, high), splits=count)


def compute_standard_error(values: FloatArray, overlap: float) -> float:
    """Return the approximate standard error sqrt(1 / J + overlap) s of a mean over splits; see `Spread`.

    It is 0 if fewer than two splits define the figure.
    """
    known = values[~np.isnan(values)]
    if len(known) < 2:  # noqa: PLR2004 - a deviation takes two
        return 0.0
    return float(known.std(ddof=1)) * math.sqrt(1.0 / len(known) + overlap)


def find_worst_group(kept: FloatArray) -> tuple[int, float]:
    """Return the group whose kept promise is smallest on average over J splits, and that average.

    `kept` is (J, G), NaN where a split tests no prompt of a group. Averaging comes first, because the worst
    group of a single split is mostly noise.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # raised for a group that no split tests
        means = np.nanmean(kept, axis=0)
    worst = int(np.where(np.isnan(means), np.inf, means).argmin())
    return worst, float(means[worst])


def summarise_splits(
    shape: type[ReportT], figures: dict[str, Spread], *, listed: Iterable[str] | None = None, **others: Any
) -> ReportT:
    """Return a report of type `shape`, with means over splits and intervals of all figures it has fields for.

    Its `figures` hold the spreads of the `listed` figures, by default of all. An interval is (0, 1) if only
    one split defines the figure.
    """
    fields = {
        **{name: spread.mean for name, spread in figures.items()},
        **{f"{name}_ci": spread.interval or (0.0, 1.0) for name, spread in figures.items()},
    }
    known = {name: value for name, value in fields.items() if name in shape.model_fields}
    named = figures if listed is None else {name: figures[name] for name in listed if name in figures}
    return shape.model_validate({"figures": named, **known, **others})


@dataclass(frozen=True, eq=False)
class Summary:
    """Summary of J measured splits, from which reports are built."""

    measured: Sequence[SplitResult]
    methods: Sequence[Method]
    alphas: Sequence[str]
    groups: Groups
    properties: Sequence[Groups]  # the groups by every property
    candidates: int  # number of candidates per prompt
    overlap: float  # see `compute_spread`
    set_rule: str = "all"

    def build_levels(self) -> list[LevelComparison]:
        """Return the comparison at every level."""
        return [self._build_level(place) for place in range(len(self.alphas))]

    def _build_level(self, place: int) -> LevelComparison:
        return LevelComparison(
            alpha=float(self.alphas[place]),
            target_coverage=float(compute_tau(self.alphas[place])),
            n_calibration=round(np.mean([one.calibrated for one in self.measured])),
            n_test=round(np.mean([one.tested for one in self.measured])),
            n_candidates=self.candidates,
            attainable_coverage=float(np.mean([one.attainable for one in self.measured])),
            methods={
                method.name: self._build_method(method, number * len(self.alphas) + place, self.alphas[place])
                for number, method in enumerate(self.methods)
            },
        )

    def _build_method(self, method: Method, run: int, alpha: str) -> MethodComparison:
        spreads = self._compute_spreads(
            [{name: values[run] for name, values in one.figures.items()} for one in self.measured]
        )
        groups = self._build_groups(run)
        if groups:
            # The same group in all splits: the smallest share of each split would be small by chance.
            worst = min(groups, key=lambda group: group.kept_promise)
            spreads["worst_group_kept_promise"] = worst.figures["kept_promise"]
        return summarise_splits(
            MethodComparison,
            spreads,
            listed=list_figures(self.set_rule),
            family=method.family,
            words=method.words,
            promise=method.promise,
            groups=groups,
            gaps=self._build_gaps(run, float(compute_tau(alpha))),
        )

    def _build_groups(self, run: int) -> list[GroupComparison]:
        """Return the comparison in every group of which some split tests a prompt."""
        groups = []
        for number, (name, words) in enumerate(zip(self.groups.names, self.groups.words, strict=True)):
            spreads = self._compute_spreads(
                [{key: values[run, number] for key, values in one.groups.items()} for one in self.measured]
            )
            if "coverage" in spreads:
                size = float(np.mean([one.group_sizes[number] for one in self.measured]))
                groups.append(summarise_splits(GroupComparison, spreads, name=name, words=words, n=size))
        return groups

    def _build_gaps(self, run: int, tau: float) -> dict[str, Gap]:
        """Return for each property the group that is worst on average."""
        kept = np.array([one.properties[run] for one in self.measured])
        gaps: dict[str, Gap] = {}
        start = 0
        for groups in self.properties:
            block = kept[:, start : start + len(groups.names)]
            start += len(groups.names)
            worst, _ = find_worst_group(block)
            shortfall = compute_spread(tau - block[:, worst], self.overlap)
            if shortfall is not None:
                gaps[_name_property(groups)] = Gap(group=groups.words[worst], shortfall=shortfall)
        return gaps

    def _compute_spreads(self, figures: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
        """Summarise the figures that some split defines."""
        spreads = {
            name: compute_spread(np.array([one[name] for one in figures]), self.overlap, share=is_share(name))
            for name in figures[0]
        }
        return {name: one for name, one in spreads.items() if one is not None}


def _name_property(groups: Groups) -> str:
    """Return `mean_score` for `bins(mean_score, 5)`, and the full feature text for other groups."""
    kind, _, rest = groups.text.partition("(")
    return rest.rpartition(",")[0] if kind == "bins" else groups.text


def compare(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level | Sequence[Level] | None = None,
    methods: str | Sequence[str | Method] | None = None,
    features: str = FEATURES,
    unit: Unit = "answers",
    at_most: int = 0,
    set_rule: str = "all",
    groups: str = GROUPS,
    draws: str | None = None,
    splits: int = 100,
    seed: str | int = 0,
    test_fraction: float = 0.5,
    fit_fraction: float = 0.2,
    jobs: int = 1,
    progress: Progress | None = None,
    provenance: Provenance | None = None,
) -> ComparisonReport:
    """Compare methods on labelled records over many random splits.

    Each split holds out a part of the prompts for testing. The others calibrate the methods: ours use those
    that do not fit feature maps, the paper's use all of them. One prompt of each cluster takes part.
    Intervals say how precise the means are for new prompts, see `Spread`.

    Args:
        records: Labelled records, or the table that `tabulate` makes of them.
        alpha: Error level or levels. The report leads with the smallest level that is well within reach of
            these records, if any. By default up to eight levels in steps of 0.05 from there, none below 0.1.
        methods: Names of methods or families, see `get_methods`; by default all that suit the unit.
        features: Feature map of methods that have none of their own.
        unit: What is kept or rejected, as in `calibrate`: whole `answers`, or the `claims` of one answer.
        at_most: Number of unsupported claims that may be kept.
        set_rule: Set rule of methods that have none of their own; `best_answer` for bots that promise
            `max_wrong_of_all`, with `alpha` as the rate.
        groups: Groups in which coverage is measured: one of `bins(...)`, `group(...)`, `hard(...)`.
        draws: A draw rule, such as `lead(3, at_most=10)`, applied to all methods; see `parse_draw_rule`.
            Only threshold methods are compared then, and the rest are left out.
        splits: Number of splits, at least 1.
        seed: Seed of the splits.
        test_fraction: Share of the prompts held out in each split, in (0, 1).
        fit_fraction: Share of the others that fits feature maps, in (0, 1).
        jobs: Number of processes; with more than one, a script needs an `if __name__ == "__main__"` guard.
        progress: Function of the splits and their number that yields the splits, such as a progress bar.
        provenance: Header of the records; by default the one that they carry.

    Returns:
        The report; `report.model_dump()` is plain data.

    Raises:
        InputError: If an argument or a record cannot be used.
        FeatureError: If a feature map does not suit a split, for example if its fit part lacks a category.
        CalibrationError: If a split leaves a required part empty.
    """
    records, provenance = open_records(records, provenance)
    splits = check_count(splits, "splits", "splits")
    test, fit = _check_share(test_fraction, "test_fraction"), _check_share(fit_fraction, "fit_fraction")
    # Checks that the options fit together, as in calibration; the level given here is a placeholder.
    is_of_all = set_rule == BestAnswer.text
    given = CalibrationConfig(alpha="0.5", unit=unit, at_most=at_most, set_rule=set_rule, draws=draws)
    if is_of_all:
        given = CalibrationConfig(max_wrong_of_all="0.5", unit=unit, at_most=at_most, draws=draws)
    given.check()
    rule, claims = given.draw_rule, unit == "claims"
    compared = get_methods(OUR_RULES if is_of_all and methods is None else methods, unit)
    _check_events(compared, given.rule_text)
    stops_early = rule is not None and rule.stored_text is not None
    kept = tuple(one for one in compared if not stops_early or isinstance(one, ThresholdMethod))
    table = tabulate(records, provenance=provenance, shortened=rule is not None, claims=claims)
    table = replay_prefixes(rule, table, provenance)
    pool = make_pool(table, str(seed))
    comparison = Comparison(
        pool,
        methods=kept,
        alphas=_choose_levels(
            1.0 if claims or is_of_all else float(table.correct.any(axis=1).mean()),
            (1.0 - test) * (1.0 - fit) * len(table),
        )
        if alpha is None
        else _parse_levels(alpha),
        features=FeatureMap.parse(features).text,
        set_rule=parse_set_rule(given.rule_text).text,
        group_text=groups,
        seed=str(seed),
        test=test,
        fit=fit,
    )
    comparison.check()
    summary = Summary(
        measure_splits(comparison.measure_split, splits, jobs, progress),
        comparison.methods,
        comparison.alphas,
        comparison.groups,
        comparison.properties,
        pool.draws.n,
        max(test / (1.0 - test), (1.0 - test) / test),
        comparison.set_rule,
    )
    sweep = summary.build_levels()
    data = describe_data(pool)
    return ComparisonReport(
        **dict(_choose_first_level(sweep)),
        splits=splits,
        seed=comparison.seed,
        test_fraction=test,
        fit_fraction=fit,
        features=comparison.features,
        set_rule=comparison.set_rule,
        groups=comparison.groups.text,
        data=data,
        sweep=sweep,
        notes=[
            *_list_notes(sweep, data, len(table) - len(pool.labelled)),
            *_list_draw_notes(rule, pool, [one.name for one in compared if one not in kept]),
        ],
        unit=unit,
    )


def _list_draw_notes(rule: DrawRule | None, pool: Pool, left_out: Sequence[str]) -> Iterable[str]:
    if rule is None:
        return
    mean = float(pool.draws.counts.mean())
    yield f"Draw rule {rule.text}: {mean:.2f} candidates a prompt on average, at most {rule.at_most}."
    if left_out:
        yield f"Left out, because draw rules apply to threshold methods only: {', '.join(left_out)}."


def describe_data(pool: Pool) -> DataFacts:
    """Describe the labelled prompts of a pool: counts, score histogram, AUROC and risk curve."""
    draws, correct = pool.draws, pool.correct
    is_drawn = draws.is_drawn
    edges = np.linspace(0.0, 1.0, _HISTOGRAM_BINS + 1)
    # If a draw rule stops early, the AUROC uses the slots that every prompt has.
    common = int(draws.counts.min())
    scores, labels = draws.scores[:, :common], correct[:, :common]
    if pool.labelled.unit == "claims":
        scores, labels = draws.scores[is_drawn][:, np.newaxis], correct[is_drawn][:, np.newaxis]
    discrimination = compute_auroc(scores, labels)
    distinct = draws.precomputed.get("distinct_answers")
    return DataFacts(
        prompts=len(draws),
        correct_candidates=float(correct[is_drawn].mean()),
        attainable_coverage=float(pool.attainable.mean()),
        distinct_answers=None if distinct is None else float(distinct.mean()),
        auroc=None if discrimination is None else discrimination.auroc,
        scores=Histogram(
            edges=edges.tolist(),
            correct=np.histogram(draws.scores[correct], edges)[0].tolist(),
            wrong=np.histogram(draws.scores[is_drawn & ~correct], edges)[0].tolist(),
        ),
        risk=_compute_risk_curve(pool),
    )


def _compute_risk_curve(pool: Pool) -> RiskCurve:
    """Compute the share of wrong best answers when prompts are answered in order of their best score.

    Claims are ordered by their own score. Equal scores enter together.
    """
    scores = pool.draws.scores
    best = scores.argmin(axis=1)
    rows = np.arange(len(scores))
    wrong, lowest = ~pool.correct[rows, best], scores[rows, best]
    if pool.labelled.unit == "claims":
        is_drawn = pool.draws.is_drawn
        wrong, lowest = ~pool.correct[is_drawn], scores[is_drawn]
    return RiskCurve.from_scores(lowest, wrong, labels=UNITS[pool.labelled.unit].axes)


def _compute_safe_target(attainable: float, calibration: float) -> float:
    """Return a target in reach of nearly every calibration part: attainable minus two standard deviations."""
    return attainable - 2.0 * math.sqrt(attainable * (1.0 - attainable) / max(calibration, 1.0))


def _check_events(methods: Sequence[Method], set_rule: str) -> None:
    """Refuse methods whose promise is about something else than that of the comparison's set rule."""
    event = find_event(set_rule)
    others = [one.name for one in methods if find_event(one.get_inputs(FEATURES, set_rule)[1]) != event]
    if others:
        msg = (
            f"under the set rule {set_rule!r}, {join_names(others)} would be judged by another promise than "
            "their own. Sets and best_answer are two comparisons; best_answer goes with "
            f"{join_names(OUR_RULES)}"
        )
        raise InputError(msg)


def _choose_levels(attainable: float, calibration: float) -> tuple[str, ...]:
    """Return up to eight levels in steps of 0.05, from the first that is well within reach."""
    target = _compute_safe_target(attainable, calibration)
    first = max(2, math.ceil(round((1.0 - target) / 0.05, 9)))
    steps = range(min(first, 19), min(first + 8, 20))
    return tuple(format_alpha(f"{step * 5 / 100:g}") for step in steps)


def _choose_first_level(sweep: Sequence[LevelComparison]) -> LevelComparison:
    """Return the strictest level that is well within reach, or else the least strict level."""
    within = [
        level
        for level in sweep
        if level.target_coverage <= _compute_safe_target(level.attainable_coverage, level.n_calibration)
    ]
    return min(within, key=lambda level: level.alpha) if within else max(sweep, key=lambda level: level.alpha)


def _list_notes(sweep: Sequence[LevelComparison], data: DataFacts, left_out: int) -> Iterable[str]:
    out = [f"{level.alpha:.12g}" for level in sweep if level.target_coverage > level.attainable_coverage]
    if out:
        yield (
            f"At alpha = {', '.join(out)} the target is out of reach: "
            f"{format_percent(data.attainable_coverage, '.1f')} of prompts have a correct candidate. Methods "
            "with a cap flag prompts there; others miss the target."
        )
    yield (
        f"If you pick the best row, expect it to do worse on new data, and certify it on new records: all "
        f"{data.prompts} prompts are behind these figures. `suggest` chooses by the fit split alone."
    )
    if left_out:
        yield f"{left_out} prompts were left out: only one prompt per cluster is used."


def _parse_levels(alpha: Level | Sequence[Level]) -> tuple[str, ...]:
    texts = tuple(dict.fromkeys(format_alpha(one) for one in list_levels(alpha)))
    if not texts:
        msg = "alpha: at least one error level is needed"
        raise InputError(msg)
    return texts


def _check_share(number: object, name: str) -> float:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 < number < 1.0:
        msg = f"{name} must be a share above 0 and below 1, got {number!r}{suggest_share(number)}"
        raise InputError(msg)
    return float(number)

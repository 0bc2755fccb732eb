"""`compare`: many methods on the same records, split again and again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc._internal.optional import require
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.experiments.catalogue import methods_named
from langchain_cfc.experiments.comparison_report import (
    AttainableComparison,
    ComparisonReport,
    DataFacts,
    Gap,
    GroupComparison,
    Histogram,
    LevelComparison,
    MethodComparison,
    RiskCurve,
    Spread,
)
from langchain_cfc.experiments.methods import Method, Pool
from langchain_cfc.experiments.metrics import FIGURES, Groups
from langchain_cfc.experiments.splits import Comparison, Measured, Progress, Protocol, each_split, no_progress
from langchain_cfc.features import FeatureMap
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate, tabulate_raw
from langchain_cfc.scoring import compute_auroc
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.thresholds import Level, compute_tau, format_alpha


def spread(values: FloatArray, overlap: float, *, share: bool = False) -> Spread | None:
    """A figure over splits.

    Args:
        values: (J,) one number per split, NaN where the split does not define it.
        overlap: The larger of test / development and development / test prompts, where splits divide one pool
            of prompts; 0 where each split was drawn anew.
        share: Whether the figure lies in [0, 1].

    Returns:
        Its spread; None where no split defines it.

    Raises:
        MissingExtraError: If SciPy is not installed.
    """
    known = values[~np.isnan(values)]
    count = len(known)
    if count == 0:
        return None
    mean, sd = float(known.mean()), float(known.std())
    if count == 1:
        return Spread(mean=mean, sd=sd, interval=None, splits=1)
    quantile = require("scipy.special", "calibrate", "intervals over splits").stdtrit(count - 1, 0.975)
    half = float(quantile) * standard_error(known, overlap)
    low, high = mean - half, mean + half
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    return Spread(mean=mean, sd=sd, interval=(low, high), splits=count)


def standard_error(values: FloatArray, overlap: float) -> float:
    """Approximate standard error of a mean over splits; see `Spread` for where it comes from.

    Args:
        values: (J,) one number per split, NaN where the split does not define it.
        overlap: As in `spread`.

    Returns:
        sqrt(1 / J + overlap) s; 0 where a single split defines it.
    """
    known = values[~np.isnan(values)]
    if len(known) < 2:  # noqa: PLR2004 - a deviation takes two
        return 0.0
    return float(known.std(ddof=1)) * math.sqrt(1.0 / len(known) + overlap)


@dataclass(frozen=True, eq=False)
class Summary:
    """All splits together.

    Attributes:
        measured: J splits.
        methods: The methods.
        alphas: The levels.
        groups: The groups.
        properties: The groups along every property.
        candidates: Number of candidates per prompt.
        overlap: See `spread`.
    """

    measured: Sequence[Measured]
    methods: Sequence[Method]
    alphas: Sequence[str]
    groups: Groups
    properties: Sequence[Groups]
    candidates: int
    overlap: float

    def levels(self) -> list[LevelComparison]:
        """The comparison at every level."""
        return [self._level(place) for place in range(len(self.alphas))]

    def attainable(self) -> list[AttainableComparison]:
        """Attainable coverage of all prompts, and of every group that there always is."""
        foretold = np.array([one.foretold for one in self.measured])
        seen = np.array([one.attainable for one in self.measured])
        found = []
        for place, words in enumerate(("all prompts", *self.groups.words)):
            before, after = self._share(foretold[:, place]), self._share(seen[:, place])
            if before is not None and after is not None:
                found.append(AttainableComparison(words=words, foretold=before, seen=after))
        return found

    def _level(self, place: int) -> LevelComparison:
        return LevelComparison(
            alpha=float(self.alphas[place]),
            target_coverage=float(compute_tau(self.alphas[place])),
            n_calibration=round(np.mean([one.calibrated for one in self.measured])),
            n_test=round(np.mean([one.tested for one in self.measured])),
            n_candidates=self.candidates,
            attainable_coverage=float(np.mean([one.attainable[0] for one in self.measured])),
            methods={
                method.name: self._method(method, number * len(self.alphas) + place, self.alphas[place])
                for number, method in enumerate(self.methods)
            },
        )

    def _method(self, method: Method, run: int, alpha: str) -> MethodComparison:
        names = self.measured[0].figures
        found = {
            name: self._figure(name, np.array([one.figures[name][run] for one in self.measured]))
            for name in names
        }
        groups = self._groups(run)
        if groups:
            # One group, not each split's: the smallest of several shares is below all of them by chance.
            worst = min(groups, key=lambda group: group.kept_promise)
            found["worst_group_kept_promise"] = worst.figures["kept_promise"]
        known = {name: one for name in FIGURES if (one := found.get(name)) is not None}
        return MethodComparison(
            family=method.family,
            words=method.words,
            promise=method.promise,
            aims_at_coverage=method.aims_at_coverage,
            coverage=known["coverage"].mean,
            coverage_ci=_interval(known["coverage"]),
            kept_promise=known["kept_promise"].mean,
            kept_promise_ci=_interval(known["kept_promise"]),
            not_certifiable_rate=known["not_certifiable_rate"].mean,
            abstention_rate=known["abstention_rate"].mean,
            mean_set_size=known["mean_set_size"].mean,
            mean_distinct_answers=known["mean_distinct_answers"].mean,
            groups=groups,
            figures=known,
            gaps=self._gaps(run, float(compute_tau(alpha))),
        )

    def _groups(self, run: int) -> list[GroupComparison]:
        """Every group that some split tests a prompt of."""
        found = (self._group(run, number) for number in range(len(self.groups.names)))
        return [one for one in found if one is not None]

    def _group(self, run: int, number: int) -> GroupComparison | None:
        """One group; None where no split tests a prompt of it."""
        names = self.measured[0].groups
        found = {
            name: self._figure(name, np.array([one.groups[name][run, number] for one in self.measured]))
            for name in names
        }
        known = {name: one for name, one in found.items() if one is not None}
        if "coverage" not in known:
            return None
        return GroupComparison(
            name=self.groups.names[number],
            words=self.groups.words[number],
            n=float(np.mean([one.group_sizes[number] for one in self.measured])),
            coverage=known["coverage"].mean,
            kept_promise=known["kept_promise"].mean,
            kept_promise_ci=_interval(known["kept_promise"]),
            not_certifiable_rate=known["not_certifiable_rate"].mean,
            mean_set_size=known["mean_set_size"].mean,
            figures=known,
        )

    def _gaps(self, run: int, tau: float) -> dict[str, Gap]:
        """By property, the group that is worst on average over splits: the worst of each split is noise."""
        kept = np.array([one.properties[run] for one in self.measured])
        gaps: dict[str, Gap] = {}
        start = 0
        for groups in self.properties:
            block = kept[:, start : start + len(groups.names)]
            start += len(groups.names)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a group that no split tests
                means = np.nanmean(block, axis=0)
            if np.isnan(means).all():
                continue
            worst = int(np.nanargmin(means))
            shortfall = spread(tau - block[:, worst], self.overlap)
            if shortfall is not None:
                gaps[_property(groups)] = Gap(group=groups.words[worst], shortfall=shortfall)
        return gaps

    def _figure(self, name: str, values: FloatArray) -> Spread | None:
        """A figure of `FIGURES` or of groups; all but means of counts are shares."""
        return spread(values, self.overlap) if name.startswith("mean_") else self._share(values)

    def _share(self, values: FloatArray) -> Spread | None:
        return spread(values, self.overlap, share=True)


def _interval(found: Spread) -> tuple[float, float]:
    """Its interval; all shares where a single split says nothing of how others differ."""
    return found.interval or (0.0, 1.0)


def _property(groups: Groups) -> str:
    """`mean_score` for `bins(mean_score, 5)`, and the text of anything else."""
    kind, _, rest = groups.text.partition("(")
    return rest.rpartition(",")[0] if kind == "bins" else groups.text


METHODS = ("ours", "paper", "outside")
FEATURES = "hat(mean_score, 5)"
GROUPS = "bins(mean_score, 5)"
_BINS = 20
_CURVE = 100


def compare(
    records: Iterable[PromptRecord] | LabelledBatch,
    *,
    alpha: Level | Sequence[Level] | None = None,
    methods: str | Sequence[str | Method] = METHODS,
    features: str = FEATURES,
    set_rule: str = "all",
    groups: str = GROUPS,
    combine: Sequence[str] | None = None,
    n: int | None = None,
    splits: int = 100,
    seed: str | int = 0,
    test_fraction: float = 0.5,
    fit_fraction: float = 0.2,
    jobs: int = 1,
    progress: Progress = no_progress,
    provenance: Provenance | None = None,
) -> ComparisonReport:
    """Compare methods on labelled records.

    In each split a part of the prompts is held out and the others calibrate every method, ours on what is
    left after feature maps are fitted, the paper's on all of them. Of each cluster one prompt takes part.
    What differs between splits is the split alone; intervals say how sure the means are for new prompts, see
    `Spread`.

    Args:
        records: Labelled records, or the table that `tabulate` makes of them (`tabulate_raw` where verifiers
            are to be combined).
        alpha: Error level or levels. The report leads with the smallest that is well within reach of
            these records, if there is one. By default eight levels in steps of 0.05 from that one on, at
            least from 0.1.
        methods: Names of methods or of families (`ours`, `paper`, `outside`); see `methods_named`.
        features: Feature map of methods that name none of their own.
        set_rule: Set rule of such methods.
        groups: The groups that coverage is looked at in: one of `bins(...)`, `group(...)`, `hard(...)`.
        combine: Names of verifiers in the candidates' `scores`, whose combination is fitted anew in each
            split.
        n: Number of candidates to use, the first n slots; by default all.
        splits: Number of splits, at least 1.
        seed: Another seed gives other splits.
        test_fraction: Share of the prompts held out in each split, in (0, 1).
        fit_fraction: Share of the others that fits feature maps, in (0, 1).
        jobs: Number of processes. With more than one, a script needs the guard that `multiprocessing` asks
            for.
        progress: Wraps the splits while they are measured; is told how many there are.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The report; `report.model_dump()` is plain data.

    Raises:
        InputError: If an argument or a record cannot be used.
        FeatureError: If a feature map does not suit a split, such as a category that its fit split lacks.
        CalibrationError: If a split leaves a part empty that is needed.
        MissingExtraError: If SciPy is not installed.
    """
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    splits = _whole(splits, "splits", "splits")
    jobs = _whole(jobs, "jobs", "processes")
    test, fit = _share(test_fraction, "test_fraction"), _share(fit_fraction, "fit_fraction")
    table = _tabulated(records, combine, None if n is None else _whole(n, "n", "candidates"), provenance)
    protocol = Protocol(
        methods=methods_named(methods),
        alphas=_within_reach(table, (1.0 - test) * (1.0 - fit)) if alpha is None else _levels(alpha),
        features=FeatureMap.parse(features).text,
        set_rule=parse_set_rule(set_rule).text,
        groups=groups,
        combine=None if combine is None else tuple(combine),
        splits=splits,
        seed=str(seed),
        test=test,
        fit=fit,
    )
    comparison = Comparison.on(table, protocol)
    comparison.check(provenance)
    return reported(comparison, jobs, progress, left_out=len(table) - len(comparison.pool.labelled))


def reported(
    comparison: Comparison, jobs: int = 1, progress: Progress = no_progress, *, left_out: int = 0
) -> ComparisonReport:
    """Carry out a comparison.

    Args:
        comparison: The comparison.
        jobs: Number of processes.
        progress: Wraps the splits while they are measured.
        left_out: Number of prompts that do not take part, for there are others of their cluster.

    Returns:
        The report.
    """
    protocol, pool = comparison.protocol, comparison.pool
    measured = each_split(comparison.measured, protocol.splits, jobs, progress)
    summary = Summary(
        measured,
        protocol.methods,
        protocol.alphas,
        comparison.groups,
        comparison.properties,
        pool.draws.n,
        max(protocol.test / (1.0 - protocol.test), (1.0 - protocol.test) / protocol.test),
    )
    sweep = summary.levels()
    data = data_facts(pool, summary.attainable())
    first = _first_within_reach(sweep)
    return ComparisonReport(
        **dict(first),
        splits=protocol.splits,
        seed=protocol.seed,
        test_fraction=protocol.test,
        fit_fraction=protocol.fit,
        features=protocol.features,
        set_rule=protocol.set_rule,
        groups=comparison.groups.text,
        data=data,
        sweep=sweep,
        notes=list(_notes(sweep, data, left_out)),
    )


def data_facts(pool: Pool, attainable: list[AttainableComparison]) -> DataFacts:
    """What the prompts are like.

    Args:
        pool: N prompts.
        attainable: Attainable coverage by group.

    Returns:
        The facts.
    """
    draws, correct = pool.draws, pool.correct
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    found = compute_auroc(draws.scores, correct)
    distinct = draws.measured.get("distinct_answers")
    return DataFacts(
        prompts=len(draws),
        correct_candidates=float(correct.mean()),
        attainable_coverage=float(pool.attainable.mean()),
        distinct_answers=None if distinct is None else float(distinct.mean()),
        auroc=None if found is None else found.auroc,
        scores=Histogram(
            edges=edges.tolist(),
            correct=np.histogram(draws.scores[correct], edges)[0].tolist(),
            wrong=np.histogram(draws.scores[~correct], edges)[0].tolist(),
        ),
        risk=_risk_curve(pool),
        attainable=attainable,
    )


def _risk_curve(pool: Pool) -> RiskCurve:
    """Answering the prompts of lowest best score first; equal scores come in or stay out together."""
    scores = pool.draws.scores
    best = scores.argmin(axis=1)
    rows = np.arange(len(scores))
    wrong, lowest = ~pool.correct[rows, best], scores[rows, best]
    order = np.argsort(lowest, kind="stable")
    last = np.append(lowest[order][1:] > lowest[order][:-1], True)
    places = np.flatnonzero(last)
    if len(places) > _CURVE:
        places = places[np.unique(np.linspace(0, len(places) - 1, _CURVE).round().astype(np.int64))]
    share = np.cumsum(wrong[order])[places] / (places + 1)
    return RiskCurve(answered=((places + 1) / len(scores)).tolist(), wrong=share.tolist())


def _room(attainable: float, calibration: float) -> float:
    """The target that nearly every calibration part allows: two deviations below what is attainable."""
    return attainable - 2.0 * math.sqrt(attainable * (1.0 - attainable) / max(calibration, 1.0))


def _within_reach(table: LabelledBatch, calibrating: float) -> tuple[str, ...]:
    """Levels in steps of 0.05, the first of which is well within reach."""
    attainable = float(table.correct.any(axis=1).mean())
    room = _room(attainable, calibrating * len(table))
    first = max(2, math.ceil(round((1.0 - room) / 0.05, 9)))
    steps = range(min(first, 19), min(first + 8, 20))
    return tuple(format_alpha(f"{step * 5 / 100:g}") for step in steps)


def _first_within_reach(sweep: Sequence[LevelComparison]) -> LevelComparison:
    """The strictest level well within reach, or else the least strict of all."""
    within = [
        level
        for level in sweep
        if level.target_coverage <= _room(level.attainable_coverage, level.n_calibration)
    ]
    return min(within, key=lambda level: level.alpha) if within else max(sweep, key=lambda level: level.alpha)


def _notes(sweep: Sequence[LevelComparison], data: DataFacts, left_out: int) -> Iterable[str]:
    out = [f"{level.alpha:.12g}" for level in sweep if level.target_coverage > level.attainable_coverage]
    if out:
        yield (
            f"At alpha = {', '.join(out)} the target is out of reach: {100 * data.attainable_coverage:.1f} % "
            "of prompts have a correct candidate. Methods with a cap flag prompts there; others miss the "
            "target."
        )
    if left_out:
        yield f"{left_out} prompts were left out: of each cluster one takes part."


def _tabulated(
    records: Iterable[PromptRecord] | LabelledBatch,
    combine: Sequence[str] | None,
    n: int | None,
    provenance: Provenance | None,
) -> LabelledBatch:
    if combine is None:
        return tabulate(records, n=n, provenance=provenance)
    return tabulate_raw(records, combine, n=n, provenance=provenance)[0]


def _levels(alpha: Level | Sequence[Level]) -> tuple[str, ...]:
    several = [alpha] if isinstance(alpha, str) or not isinstance(alpha, Sequence) else alpha
    texts = tuple(dict.fromkeys(format_alpha(one) for one in several))
    if not texts:
        msg = "alpha: at least one error level is needed"
        raise InputError(msg)
    return texts


def _whole(number: object, name: str, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        msg = f"{name} must be a whole number of {what}, at least 1; got {number!r}"
        raise InputError(msg)
    return int(number)


def _share(number: object, name: str) -> float:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 < number < 1.0:
        msg = f"{name} must be a share above 0 and below 1, got {number!r}"
        raise InputError(msg)
    return float(number)

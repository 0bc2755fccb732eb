"""`compare`: many methods on the same records, split again and again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from langchain_cfc.comparison.catalogue import methods_named
from langchain_cfc.comparison.jobs import Progress, each_split, nobody_watches
from langchain_cfc.comparison.methods import Method
from langchain_cfc.comparison.pool import Pool
from langchain_cfc.comparison.protocol import Comparison, Protocol
from langchain_cfc.comparison.report import (
    AttainableComparison,
    ComparisonReport,
    DataFacts,
    Histogram,
    LevelComparison,
    RiskCurve,
)
from langchain_cfc.comparison.summary import Summary
from langchain_cfc.discrimination import discrimination
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate, tabulate_raw
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.thresholds import Level, alpha_text

METHODS = ("ours", "paper", "outside")
FEATURES = "hat(mean_score, 5)"
GROUPS = "bins(mean_score, 5)"
_BINS = 20
_CURVE = 100


def compare(
    records: Iterable[PromptRecord] | LabelledDraws,
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
    progress: Progress = nobody_watches,
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
    comparison: Comparison, jobs: int = 1, progress: Progress = nobody_watches, *, left_out: int = 0
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
    found = discrimination(draws.scores, correct)
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


def _within_reach(table: LabelledDraws, calibrating: float) -> tuple[str, ...]:
    """Levels in steps of 0.05, the first of which is well within reach."""
    attainable = float(table.correct.any(axis=1).mean())
    room = _room(attainable, calibrating * len(table))
    first = max(2, math.ceil(round((1.0 - room) / 0.05, 9)))
    steps = range(min(first, 19), min(first + 8, 20))
    return tuple(alpha_text(f"{step * 5 / 100:g}") for step in steps)


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
    records: Iterable[PromptRecord] | LabelledDraws,
    combine: Sequence[str] | None,
    n: int | None,
    provenance: Provenance | None,
) -> LabelledDraws:
    if combine is None:
        return tabulate(records, n=n, provenance=provenance)
    return tabulate_raw(records, combine, n=n, provenance=provenance)[0]


def _levels(alpha: Level | Sequence[Level]) -> tuple[str, ...]:
    several = [alpha] if isinstance(alpha, str) or not isinstance(alpha, Sequence) else alpha
    texts = tuple(dict.fromkeys(alpha_text(one) for one in several))
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

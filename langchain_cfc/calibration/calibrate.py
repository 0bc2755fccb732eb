"""`calibrate`: from labelled records to an artifact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Literal

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._version import __version__
from langchain_cfc.artifact import (
    AttainableGroup,
    CalibrationArtifact,
    CalibrationFacts,
    Confidence,
    LevelState,
    PackedArray,
    ThresholdRuleName,
    likelihood_ratios,
)
from langchain_cfc.calibration.attainability import attainable_groups, target_is_attainable
from langchain_cfc.calibration.checks import check_answers, check_attainable, check_orientation
from langchain_cfc.calibration.combining import fit_combination
from langchain_cfc.calibration.request import Request
from langchain_cfc.certificates import certified_policy, tested_levels
from langchain_cfc.combination import Combination
from langchain_cfc.draws import LabelledDraws, names_of
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.features import FeatureMap, GuaranteedWeight, naming, parse_statistic
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate, tabulate_raw, with_scores
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.splits import Part, SplitPlan, ids_digest
from langchain_cfc.stability import PaperStability
from langchain_cfc.thresholds import (
    WINDOW,
    ConditionalThreshold,
    Level,
    MarginalThreshold,
    ThresholdRule,
)


@dataclass(frozen=True)
class _Calibration:
    """The calibration split in numbers.

    Attributes:
        labelled: N labelled prompts.
        feature_map: The fitted map.
        features: (N, d) their features.
        success_scores: (N,) their success scores, `cap` where none can be covered.
        weights: (N,) how much likelier each is where it is served; None where there is no shift.
        units_of: (M, d) features of the fit split, from which a ridge takes its units; None without one.
        cap: Number above 1.
    """

    labelled: LabelledDraws
    feature_map: FeatureMap
    features: FloatArray
    success_scores: FloatArray
    weights: FloatArray | None
    units_of: FloatArray | None
    cap: float

    @property
    def reachable(self) -> BoolArray:
        """(N,) whether a threshold below the cap can cover the prompt."""
        return np.asarray(self.success_scores < self.cap, dtype=np.bool_)

    @property
    def weightings(self) -> tuple[GuaranteedWeight, ...]:
        """The weightings that the feature map spans and that have a name, the constant first."""
        return self.feature_map.guaranteed_weights()

    @cached_property
    def groups(self) -> list[AttainableGroup]:
        """Attainable coverage of all prompts first, then of every guaranteed weighting."""
        return attainable_groups(self.weightings, self.features, self.reachable, self.weights)


def calibrate(
    records: Iterable[PromptRecord] | LabelledDraws,
    *,
    alpha: Level | Sequence[Level] | None = None,
    features: str | FeatureMap = "hat(mean_score, 5)",
    set_rule: str = "all",
    threshold_rule: ThresholdRuleName = "conditional",
    combine: Sequence[str] | None = None,
    n: int | None = None,
    cap: float = 2.0,
    window: int | None = WINDOW,
    ridge: float = 0.0,
    penalised: Literal["slopes", "all"] = "slopes",
    stability: PaperStability | None = None,
    shift: str | None = None,
    randomised: bool = False,
    confident: bool = False,
    max_wrong_rate: Level | None = None,
    wrong_rate_groups: bool = False,
    delta: Level | None = None,
    seed: str | int = 0,
    fit_fraction: float | None = None,
    test_fraction: float = 0.0,
    certification_fraction: float | None = None,
    within_clusters: Literal["one", "all"] = "one",
    allow_unattainable: bool = False,
    provenance: Provenance | None = None,
) -> CalibrationArtifact:
    """Build a calibration artifact.

    The records are split by hash: one part fits the feature map and the combination of verifiers, one is held
    out for evaluation and one for certificates if asked, and the rest calibrates the threshold. The success
    score of a prompt is taken under the set rule that will be served, which is what the promise needs (paper,
    theorem 1, with the cap in place of S = 1).

    Args:
        records: Labelled records, such as `read_records(path)`, or the table that `tabulate` makes of them
            (`tabulate_raw` where verifiers are to be combined).
        alpha: Error level or levels, each 0 < alpha < 1; one of them is chosen per call when serving. May be
            left out with `max_wrong_rate`, which then chooses one among levels from 0.05 to 0.9.
        features: Feature map or its text, such as `hat(mean_score, 5)` or `bins(max_score, 5) +
            group(topic)`.
        set_rule: `all`, `best_prefix`, `rank` or `unique(...)` around one of them.
        threshold_rule: `conditional` (the promise holds under every weighting that the features span),
            `marginal`, `grouped` (disjoint groups, with `confident`) or `learned`.
        combine: Names of verifiers in the candidates' `scores`, whose raw outputs become one score, in place
            of `score`: logistic regression of `correct` on them, see `Combination`.
        n: Number of candidates to use, the first n slots; by default all that are recorded. Fewer suit only
            a verifier that scores each candidate by itself: scores made by comparing all of them would
            differ.
        cap: Success score of a prompt without a correct candidate, above 1; choose it before seeing the data.
        window: How many calibration prompts the artifact keeps for each level of the conditional rule; None
            keeps all. Thresholds that the kept ones do not decide are flagged as not certifiable.
        ridge: lambda >= 0, the strength of a penalty that smooths thresholds; see `ConditionalThreshold`. The
            promise over all prompts stays exact, under other weightings it becomes an estimate.
        penalised: `slopes`, or `all`: the paper's form, which promises nothing.
        stability: The slack of the paper's CFC-PAC, by which each level is made stricter.
        shift: For a known covariate shift, the statistic that says how much likelier a prompt is where it is
            served than where it was calibrated, in any unit, such as `meta(ratio)`. The promise then holds
            where it is served (weighted exchangeability: Tibshirani, Barber, Candes and Ramdas 2019).
        randomised: Whether to randomise thresholds, so that for continuous success scores coverage is exactly
            1 - alpha under every weighting that the features span (Gibbs, Cherian and Candes 2023).
        confident: Whether the promise is to hold with confidence 1 - delta for this very artifact, not only
            on average over calibration sets: by the law of an order statistic (`marginal` over all prompts,
            `grouped` in all groups), or by levels tested on a third split (`conditional`, over all prompts).
        max_wrong_rate: Certify a policy for bot mode: of the prompts that it answers, at most this share gets
            a wrong best answer, with confidence 1 - delta.
        wrong_rate_groups: Whether to certify that in the groups of the feature map as well, which takes half
            of delta.
        delta: Failure probability of what holds with confidence, 0 < delta < 1; by default 0.05.
        seed: Another seed gives another split.
        fit_fraction: Share of the prompts not held out that fits the feature map, the combination and the
            units of a ridge; by default 0.2, or 0 where nothing is to be fitted.
        test_fraction: Share of all prompts held out, for `evaluate` on the same file.
        certification_fraction: Share of the others held out for certificates; by default 0.3 where
            `max_wrong_rate` or `confident` needs them, else 0.
        within_clusters: Calibrate on `one` hash-chosen prompt of each cluster, or on `all`, which no theorem
            covers.
        allow_unattainable: Whether to go on where the target is out of reach overall, so that prompts will
            be flagged.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The artifact.

    Raises:
        InputError: If an argument or a record cannot be used, or two arguments do not go together.
        FeatureError: If the feature text is wrong, or calibration meets a category that the fit split did
            not hold.
        CalibrationError: If a split is empty, or a combination is to be fitted to candidates of one kind.
        UnattainableTargetError: If the target coverage is out of reach for these records, or a wrong-answer
            rate or confidence cannot be certified with them.
        MissingExtraError: If verifiers are to be combined or something is certified, and SciPy is not
            installed.

    Warns:
        AttainabilityWarning: If the target is out of reach for a guaranteed group.
        OrientationWarning: If correct candidates score worse than wrong ones.
    """
    request = Request.of(
        alpha=alpha,
        rule=threshold_rule,
        cap=cap,
        window=window,
        ridge=ridge,
        penalised=penalised,
        stability=stability,
        confident=confident,
        max_wrong_rate=max_wrong_rate,
        by_group=wrong_rate_groups,
        delta=delta,
        shift=shift,
        randomised=randomised,
    )
    rule = parse_set_rule(set_rule)
    given = FeatureMap.parse(features) if isinstance(features, str) else features
    plan = request.plan(
        given,
        combine,
        seed,
        fit_fraction=fit_fraction,
        test_fraction=test_fraction,
        certification_fraction=certification_fraction,
    )
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    labelled, combination = _scored(records, combine, plan, n=n, provenance=provenance)
    ratio = None if request.shift is None else parse_statistic(request.shift)
    asks = given.needs_answers or rule.text.startswith("unique") or max_wrong_rate is not None
    asks = asks or (ratio is not None and ratio.needs_answers)
    check_answers(labelled, provenance, needed=asks)
    parts = _parts(plan, labelled)
    fit_split = labelled.take(parts["fit"])
    feature_map = _fitted(given, fit_split)
    prompts = _calibration_prompts(plan, labelled.take(parts["calibration"]), within_clusters)
    with naming(prompts.ids):
        x = feature_map.transform(prompts.draws)
        weights = None if ratio is None else likelihood_ratios(ratio, prompts.draws)
    s = rule.success_scores(prompts, cap)
    units_of = None if request.ridge is None else _units(feature_map, fit_split)
    data = _Calibration(prompts, feature_map, x, s, weights, units_of, request.cap)
    check_orientation(_one_per_cluster(plan, prompts), combination)
    alphas = _attainable_levels(request, data)
    check_attainable(
        len(prompts),
        int(data.reachable.sum()),
        data.groups,
        alphas[0],
        promised=threshold_rule in {"conditional", "grouped"},
        allow_unattainable=allow_unattainable,
    )
    served = sorted(
        {step for one in alphas for step in request.steps(one)} if request.tested else alphas, key=float
    )
    levels, arrays = _fit_levels(data, request, served)
    artifact = CalibrationArtifact(
        library_version=__version__,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        n=labelled.draws.n,
        cap=data.cap,
        set_rule=rule.text,
        threshold_rule=threshold_rule,
        features=feature_map.to_data(),
        levels=levels,
        arrays=arrays,
        provenance=provenance,
        calibration=_facts(
            plan,
            labelled,
            parts,
            data,
            within_clusters,
            came_fitted=_came_fitted(given),
            recognised=request.certifies or request.shift is not None,
        ),
        combination=combination,
        ridge=request.ridge,
        stability=stability,
        confidence=_confidence(request, data),
        shift=request.shift,
        randomised=randomised,
    )
    if not request.certifies:
        return artifact
    certification = labelled.take(parts["certification"])
    if len(certification) == 0:
        msg = "the split for certificates is empty: raise certification_fraction, or bring more records"
        raise CalibrationError(msg)
    certification = _one_per_cluster(plan, certification)
    if request.tested:
        return tested_levels(
            artifact, certification, {one: request.steps(one) for one in alphas}, request.delta
        )
    return certified_policy(
        artifact,
        prompts,
        certification,
        max_wrong_rate=str(request.max_wrong_rate),
        delta=request.delta,
        by_group=request.by_group,
        keep_levels=request.levels_named,
    )


def _came_fitted(feature_map: FeatureMap) -> bool:
    return feature_map.needs_fit and feature_map.fitted


def _attainable_levels(request: Request, data: _Calibration) -> tuple[str, ...]:
    """The levels to calibrate; of those that nobody named, the ones within reach."""
    if request.levels_named:
        return request.alphas
    size, reached = len(data.labelled), int(data.reachable.sum())
    within = tuple(one for one in request.alphas if target_is_attainable(one, size, reached))
    return within or request.alphas[-1:]


def _confidence(request: Request, data: _Calibration) -> Confidence | None:
    """What the law of an order statistic gives by itself."""
    if not request.confident or request.tested:
        return None
    names = [one.name for one in data.weightings]
    return Confidence(delta=request.delta, names=names if request.rule == "grouped" else names[:1])


def _scored(
    records: Iterable[PromptRecord] | LabelledDraws,
    combine: Sequence[str] | None,
    plan: SplitPlan,
    *,
    n: int | None,
    provenance: Provenance | None,
) -> tuple[LabelledDraws, Combination | None]:
    """The prompts, scored by one verifier or by a combination that the fit split makes."""
    if combine is None:
        return tabulate(records, n=n, provenance=provenance), None
    labelled, raw = tabulate_raw(records, combine, n=n, provenance=provenance)
    fit = _parts(plan, labelled)["fit"]
    combination = fit_combination(combine, raw[fit], labelled.take(fit))
    # The raw outputs have done their part, and would be copied with every part of the table.
    return replace(with_scores(labelled, combination.score_all(raw)), raw={}), combination


def _parts(plan: SplitPlan, labelled: LabelledDraws) -> dict[Part, IntArray]:
    """Rows of each part in the order of ids: rounding follows order, and a file's shall not change a bit."""
    order = np.array(sorted(range(len(labelled)), key=labelled.ids.__getitem__), dtype=np.int64)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return {name: rows[np.argsort(place[rows])] for name, rows in plan.rows(labelled).items()}


def _fitted(feature_map: FeatureMap, fit_split: LabelledDraws) -> FeatureMap:
    if feature_map.fitted:
        return feature_map
    if feature_map.needs_fit and len(fit_split) == 0:
        msg = (
            f"features {feature_map.text!r} must be fitted on prompts that calibration never sees, but the "
            "fit split is empty: raise fit_fraction, or bring more records (a cluster is never split, so "
            "many clusters are needed)"
        )
        raise CalibrationError(msg)
    with naming(fit_split.ids):
        return feature_map.fit(fit_split.draws)


def _units(feature_map: FeatureMap, fit_split: LabelledDraws) -> FloatArray:
    if len(fit_split) == 0:
        msg = (
            "a ridge takes its units from prompts that calibration never sees, but the fit split is empty: "
            "raise fit_fraction, or bring more records"
        )
        raise CalibrationError(msg)
    with naming(fit_split.ids):
        return feature_map.transform(fit_split.draws)


def _calibration_prompts(plan: SplitPlan, part: LabelledDraws, within_clusters: str) -> LabelledDraws:
    if within_clusters not in {"one", "all"}:
        msg = f"within_clusters must be 'one' or 'all', got {within_clusters!r}"
        raise InputError(msg)
    if len(part) == 0:
        msg = "the calibration split is empty: lower fit_fraction and test_fraction, or bring more records"
        raise CalibrationError(msg)
    return _one_per_cluster(plan, part) if within_clusters == "one" else part


def _one_per_cluster(plan: SplitPlan, prompts: LabelledDraws) -> LabelledDraws:
    rows = plan.one_per_cluster(prompts)
    return prompts if len(rows) == len(prompts) else prompts.take(rows)


def _fit_levels(
    data: _Calibration, request: Request, alphas: Sequence[str]
) -> tuple[list[LevelState], dict[str, PackedArray]]:
    """The fitted rules at every level, and the arrays that they refer to, equal ones stored once."""
    arrays: dict[str, PackedArray] = {}

    def stored(state: Mapping[str, FloatArray]) -> dict[str, str]:
        packed = {key: PackedArray.pack(array) for key, array in state.items()}
        arrays.update({array.name: array for array in packed.values()})
        return {key: array.name for key, array in packed.items()}

    levels = []
    for alpha in alphas:
        effective = None
        if request.stability is not None:
            effective = request.stability.effective_alpha(alpha, len(data.labelled))
        rule = request.threshold_rule(alpha, effective)
        fitted = None if effective == "0" else _fit(rule, data)
        marginal = MarginalThreshold(alpha, request.cap).fit(data.features, data.success_scores)
        levels.append(
            LevelState(
                alpha=alpha,
                rule=stored(_nothing(data) if fitted is None else fitted.state_data()),
                marginal=stored(marginal.state_data()),
                effective_alpha=effective,
                slack=_slack(fitted, data),
            )
        )
    return levels, arrays


def _fit(rule: ThresholdRule[Any], data: _Calibration) -> ThresholdRule[Any]:
    if not isinstance(rule, ConditionalThreshold):
        return rule.fit(data.features, data.success_scores)
    return rule.fit(data.features, data.success_scores, data.weights, units_of=data.units_of)


def _nothing(data: _Calibration) -> dict[str, FloatArray]:
    """The state of a marginal rule that has no order statistic: every prompt is flagged."""
    return {"quantile": np.empty(0), "dimension": np.array([float(data.feature_map.dimension)])}


def _slack(fitted: ThresholdRule[Any] | None, data: _Calibration) -> dict[str, float]:
    """By name of a weighting, what a ridge is estimated to cost; the constant pays nothing."""
    if not isinstance(fitted, ConditionalThreshold) or fitted.ridge == 0.0:
        return {}
    return {
        one.name: fitted.ridge_slack(np.array(one.coefficients), data.features, data.weights)
        for one in data.weightings
    }


def _facts(
    plan: SplitPlan,
    labelled: LabelledDraws,
    parts: dict[Part, IntArray],
    data: _Calibration,
    within_clusters: Literal["one", "all"],
    *,
    came_fitted: bool,
    recognised: bool,
) -> CalibrationFacts:
    used = [cluster for cluster in data.labelled.clusters if cluster is not None]
    ids = {name: [labelled.ids[row] for row in rows.tolist()] for name, rows in parts.items()}
    known: tuple[Part, ...] = ("fit", "calibration")
    if recognised:  # not fit for certificates any more, or never
        known = (*known, "certification")
    clusters = [labelled.clusters[row] for name in known for row in parts[name].tolist()]
    return CalibrationFacts(
        size=len(data.labelled),
        recorded_candidates=labelled.recorded or labelled.draws.n,
        extracted_answers=labelled.extracted,
        map_came_fitted=came_fitted,
        fit_size=len(parts["fit"]),
        held_out_size=len(parts["test"]),
        within_clusters=within_clusters,
        exchangeable=len(set(used)) == len(used),
        split=plan,
        digests={
            name: ids_digest(members) for name, members in ids.items() if members or name != "certification"
        },
        sketch=list(plan.sketch(names_of([one for name in known for one in ids[name]], clusters))),
        attainable_coverage=float(np.mean(data.reachable)),
        groups=data.groups,
        certification_size=len(parts["certification"]),
    )

"""`calibrate`: from labelled records to an artifact."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._version import __version__
from langchain_cfc.artifact import (
    THRESHOLD_RULES,
    AttainableGroup,
    CalibrationArtifact,
    CalibrationFacts,
    LevelState,
    PackedArray,
    ThresholdRuleName,
)
from langchain_cfc.calibration.attainability import (
    attainable_groups,
    smallest_alpha,
    smallest_size,
    target_is_attainable,
)
from langchain_cfc.calibration.combining import fit_combination
from langchain_cfc.combination import Combination
from langchain_cfc.discrimination import discrimination
from langchain_cfc.draws import LabelledDraws, names_of
from langchain_cfc.errors import (
    AttainabilityWarning,
    CalibrationError,
    InputError,
    OrientationWarning,
    UnattainableTargetError,
)
from langchain_cfc.features import FeatureMap, naming
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate, tabulate_raw, with_scores
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.splits import Part, SplitPlan, ids_digest, split_plan
from langchain_cfc.thresholds import (
    WINDOW,
    ConditionalThreshold,
    Level,
    MarginalThreshold,
    ThresholdRule,
    alpha_text,
)

DEFAULT_FIT_FRACTION = 0.2
# Scores that tell nothing are taken for reversed ones once in 2,000 calibrations.
ORIENTATION_CONFIDENCE = 0.999
# Groups that a warning names.
MOST_LISTED = 10


@dataclass(frozen=True)
class _Calibration:
    """The calibration split in numbers.

    Attributes:
        labelled: N labelled prompts.
        feature_map: The fitted map.
        features: (N, d) their features.
        success_scores: (N,) their success scores, `cap` where none can be covered.
        cap: Number above 1.
    """

    labelled: LabelledDraws
    feature_map: FeatureMap
    features: FloatArray
    success_scores: FloatArray
    cap: float

    @property
    def reachable(self) -> BoolArray:
        """(N,) whether a threshold below the cap can cover the prompt."""
        return np.asarray(self.success_scores < self.cap, dtype=np.bool_)

    @cached_property
    def groups(self) -> list[AttainableGroup]:
        """Attainable coverage of all prompts first, then of every guaranteed weighting."""
        return attainable_groups(self.feature_map.guaranteed_weights(), self.features, self.reachable)


def calibrate(
    records: Iterable[PromptRecord] | LabelledDraws,
    *,
    alpha: Level | Sequence[Level],
    features: str | FeatureMap = "hat(mean_score, 5)",
    set_rule: str = "all",
    threshold_rule: ThresholdRuleName = "conditional",
    combine: Sequence[str] | None = None,
    n: int | None = None,
    cap: float = 2.0,
    window: int | None = WINDOW,
    seed: str | int = 0,
    fit_fraction: float | None = None,
    test_fraction: float = 0.0,
    within_clusters: Literal["one", "all"] = "one",
    allow_unattainable: bool = False,
    provenance: Provenance | None = None,
) -> CalibrationArtifact:
    """Build a calibration artifact.

    The records are split by hash: one part fits the feature map and the combination of verifiers, one is held
    out if asked, and the rest calibrates the threshold. The success score of a prompt is taken under the set
    rule that will be served, which is what the promise needs (paper, theorem 1, with the cap in place of
    S = 1).

    Args:
        records: Labelled records, such as `read_records(path)`, or the table that `tabulate` makes of them
            (`tabulate_raw` where verifiers are to be combined).
        alpha: Error level or levels, each 0 < alpha < 1; one of them is chosen per call when serving.
        features: Feature map or its text, such as `hat(mean_score, 5)` or `bins(max_score, 5) +
            group(topic)`.
        set_rule: `all`, `best_prefix`, `rank` or `unique(...)` around one of them.
        threshold_rule: `conditional` (the promise holds under every weighting that the features span),
            `marginal` or `learned`.
        combine: Names of verifiers in the candidates' `scores`, whose raw outputs become one score, in place
            of `score`: logistic regression of `correct` on them, see `Combination`.
        n: Number of candidates to use, the first n slots; by default all that are recorded. Fewer suit only
            a verifier that scores each candidate by itself: scores made by comparing all of them would
            differ.
        cap: Success score of a prompt without a correct candidate, above 1; choose it before seeing the data.
        window: How many calibration prompts the artifact keeps for each level of the conditional rule; None
            keeps all. Thresholds that the kept ones do not decide are flagged as not certifiable.
        seed: Another seed gives another split.
        fit_fraction: Share of the prompts not held out that fits the feature map and the combination; by
            default 0.2, or 0 where nothing is to be fitted.
        test_fraction: Share of all prompts held out, for `evaluate` on the same file.
        within_clusters: Calibrate on `one` hash-chosen prompt of each cluster, or on `all`, which no theorem
            covers.
        allow_unattainable: Whether to go on where the target is out of reach overall, so that prompts will
            be flagged.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The artifact.

    Raises:
        InputError: If an argument or a record cannot be used.
        FeatureError: If the feature text is wrong, or calibration meets a category that the fit split did
            not hold.
        CalibrationError: If a split is empty, or a combination is to be fitted to candidates of one kind.
        UnattainableTargetError: If the target coverage is out of reach for these records.
        MissingExtraError: If verifiers are to be combined and SciPy is not installed.

    Warns:
        AttainabilityWarning: If the target is out of reach for a guaranteed group.
        OrientationWarning: If correct candidates score worse than wrong ones.
    """
    alphas = _alphas(alpha)
    if threshold_rule not in THRESHOLD_RULES:
        msg = f"unknown threshold rule {threshold_rule!r}; known are {', '.join(THRESHOLD_RULES)}"
        raise InputError(msg)
    rule = parse_set_rule(set_rule)
    _ = MarginalThreshold(alphas[0], cap)  # refuses an impossible cap before it shapes success scores
    given = FeatureMap.parse(features) if isinstance(features, str) else features
    plan = _plan(given, combine, seed, fit_fraction, test_fraction)
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    labelled, combination = _scored(records, combine, plan, n=n, provenance=provenance)
    _check_answers(labelled, provenance, needed=given.needs_answers or rule.text.startswith("unique"))
    parts = _parts(plan, labelled)
    feature_map = _fitted(given, labelled.take(parts["fit"]))
    prompts = _calibration_prompts(plan, labelled.take(parts["calibration"]), within_clusters)
    with naming(prompts.ids):
        x = feature_map.transform(prompts.draws)
    s = rule.success_scores(prompts, cap)
    data = _Calibration(prompts, feature_map, x, s, float(cap))
    _check_orientation(_one_per_cluster(plan, prompts), combination)
    _check_attainable(data, alphas, threshold_rule, allow_unattainable=allow_unattainable)
    rules = [_rule(threshold_rule, level, cap, window) for level in alphas]
    levels, arrays = _fit_levels(data, rules)
    return CalibrationArtifact(
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
        calibration=_facts(plan, labelled, parts, data, within_clusters, came_fitted=_came_fitted(given)),
        combination=combination,
    )


def _alphas(alpha: Level | Sequence[Level]) -> list[str]:
    several = [alpha] if isinstance(alpha, str) or not isinstance(alpha, Sequence) else alpha
    texts = {alpha_text(one) for one in several}
    if not texts:
        msg = "alpha: at least one error level is needed"
        raise InputError(msg)
    return sorted(texts, key=float)


def _came_fitted(feature_map: FeatureMap) -> bool:
    return feature_map.needs_fit and feature_map.fitted


def _plan(
    feature_map: FeatureMap,
    combine: Sequence[str] | None,
    seed: str | int,
    fit_fraction: float | None,
    test_fraction: float,
) -> SplitPlan:
    """The split, with a part to fit on only where there is something to fit."""
    if _came_fitted(feature_map) and fit_fraction and combine is None:
        msg = (
            "the feature map came fitted: leave fit_fraction out, or give the map's text to have it "
            "fitted here"
        )
        raise InputError(msg)
    if fit_fraction is None:
        learns = combine is not None or (feature_map.needs_fit and not feature_map.fitted)
        fit_fraction = DEFAULT_FIT_FRACTION if learns else 0.0
    return split_plan(seed, fit=fit_fraction, test=test_fraction)


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


def _check_answers(labelled: LabelledDraws, provenance: Provenance | None, *, needed: bool) -> None:
    """Refuse answers that serving could not tell apart in the same way."""
    if needed and labelled.extracted is None:
        msg = (
            "set rule or features look at distinct answers, but only some candidates have an extracted "
            "`answer`: give every candidate one, or none"
        )
        raise InputError(msg)
    if needed and provenance is not None and provenance.answer is not None and not labelled.extracted:
        msg = (
            f"the provenance names the answer extractor {provenance.answer}, but not every candidate has an "
            "`answer`"
        )
        raise InputError(msg)


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


def _check_orientation(prompts: LabelledDraws, combination: Combination | None) -> None:
    """Warn of scores that point the wrong way; at worst thresholds are useless then, never unsafe."""
    found = discrimination(prompts.draws.scores, prompts.correct, ORIENTATION_CONFIDENCE)
    if found is None or found.high >= 0.5:  # noqa: PLR2004 - the AUROC of scores that tell nothing
        return
    cure = (
        "smaller scores must be better, so if the verifier speaks in confidence p, use 1 - p"
        if combination is None
        else "the prompts that the combination was fitted on say the opposite: raise fit_fraction, or look "
        "for what sets them apart"
    )
    msg = (
        f"correct candidates score worse than wrong ones: AUROC {found.auroc:.3f}, "
        f"{100 * found.confidence:g} % interval {found.low:.3f} to {found.high:.3f}, where 0.5 tells "
        f"nothing; {cure}"
    )
    warnings.warn(msg, OrientationWarning, stacklevel=3)


def _check_attainable(
    data: _Calibration, alphas: Sequence[str], threshold_rule: str, *, allow_unattainable: bool
) -> None:
    """Refuse a target out of reach overall, warn of guaranteed groups where it is."""
    size, reached = len(data.labelled), int(data.reachable.sum())
    strictest = alphas[0]
    if not target_is_attainable(strictest, size, reached) and not allow_unattainable:
        needed = smallest_size(strictest, Fraction(reached, size))
        more = f"at least {needed} such prompts would do" if needed else "no number of such prompts would do"
        least = f"Smallest alpha here: {smallest_alpha(size, reached):g}" if reached else "No alpha would do"
        msg = (
            f"alpha = {strictest} is out of reach: {reached} of {size} calibration prompts have a correct "
            f"candidate that can enter the set (attainable coverage {reached / size:.3f}). {least}; for "
            f"alpha = {strictest} {more}. Draw more candidates, improve the model, choose a larger alpha, "
            "or pass allow_unattainable=True (on the command line --allow-unattainable) to have prompts "
            "flagged as not certifiable"
        )
        raise UnattainableTargetError(msg)
    if threshold_rule != "conditional":
        return  # no other rule guarantees anything for a group
    hopeless = [group for group in data.groups[1:] if not group.allows(strictest)]
    if hopeless:
        worst = sorted(hopeless, key=lambda group: -group.smallest_alpha)[:MOST_LISTED]
        listed = "; ".join(f"{group.name} (smallest alpha {group.smallest_alpha:.3f})" for group in worst)
        if len(hopeless) > len(worst):
            listed += f"; and {len(hopeless) - len(worst)} more"
        msg = (
            f"alpha = {strictest} is out of reach for {len(hopeless)} guaranteed group(s), whose prompts "
            f"will often be flagged: {listed}"
        )
        warnings.warn(msg, AttainabilityWarning, stacklevel=3)


def _rule(name: ThresholdRuleName, alpha: str, cap: float, window: int | None) -> ThresholdRule[Any]:
    """The rule to fit at one level."""
    if name == "conditional":
        return ConditionalThreshold(alpha, cap, window=window)
    return THRESHOLD_RULES[name](alpha, cap)


def _fit_levels(
    data: _Calibration, rules: Sequence[ThresholdRule[Any]]
) -> tuple[list[LevelState], dict[str, PackedArray]]:
    """The fitted rules at every level, and the arrays that they refer to, equal ones stored once."""
    arrays: dict[str, PackedArray] = {}

    def stored(rule: ThresholdRule[Any]) -> dict[str, str]:
        fitted = rule.fit(data.features, data.success_scores)
        packed = {key: PackedArray.pack(array) for key, array in fitted.state_data().items()}
        arrays.update({array.name: array for array in packed.values()})
        return {key: array.name for key, array in packed.items()}

    levels = [
        LevelState(
            alpha=str(rule.alpha), rule=stored(rule), marginal=stored(MarginalThreshold(rule.alpha, rule.cap))
        )
        for rule in rules
    ]
    return levels, arrays


def _facts(
    plan: SplitPlan,
    labelled: LabelledDraws,
    parts: dict[Part, IntArray],
    data: _Calibration,
    within_clusters: Literal["one", "all"],
    *,
    came_fitted: bool,
) -> CalibrationFacts:
    used = [cluster for cluster in data.labelled.clusters if cluster is not None]
    ids = {name: [labelled.ids[row] for row in rows.tolist()] for name, rows in parts.items()}
    clusters = [labelled.clusters[row] for name in ("fit", "calibration") for row in parts[name].tolist()]
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
        digests={name: ids_digest(members) for name, members in ids.items()},
        sketch=list(plan.sketch(names_of([*ids["fit"], *ids["calibration"]], clusters))),
        attainable_coverage=float(np.mean(data.reachable)),
        groups=data.groups,
    )

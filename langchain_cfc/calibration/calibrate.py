"""`calibrate`: from labelled records to an artifact."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Literal

from langchain_cfc._version import __version__
from langchain_cfc.artifact import CalibrationArtifact, Confidence, ThresholdRuleName, likelihood_ratios
from langchain_cfc.calibration.checks import (
    check_answers,
    check_attainable,
    check_orientation,
    target_is_attainable,
)
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.calibration.fit import Calibration, Prompts, fit_levels, fitted_map, units
from langchain_cfc.calibration.reference import reference
from langchain_cfc.calibration.request import Request
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certified_policy, tested_levels
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap, name_records_in_errors, parse_statistic
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import PromptRecord, Provenance, Records
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.thresholds import WINDOW, Level


def calibrate(
    records: Iterable[PromptRecord] | LabelledBatch,
    *,
    alpha: Level | Sequence[Level] | None = None,
    features: str | FeatureMap = "hat(mean_score, 5)",
    set_rule: str = "all",
    never_empty: bool = True,
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
    Theorem 4.1, with the cap in place of S = 1).

    Args:
        records: Labelled records, such as `read_records(path)`, or the table that `tabulate` makes of them
            (`tabulate_raw` where verifiers are to be combined). Prompts of a table may have `weights`, where
            they were chosen to be labelled with unequal probabilities: the conditional rule counts them so
            (not with a ridge, a shift, stability or randomised thresholds), and for everything else a fair
            sample of them is taken.
        alpha: Error level or levels, each 0 < alpha < 1; one of them is chosen per call when serving. May be
            left out with `max_wrong_rate`, which then chooses one among levels from 0.05 to 0.9.
        features: Feature map or its text, such as `hat(mean_score, 5)` or `bins(max_score, 5) +
            group(topic)`.
        set_rule: `all`, `best_prefix` or `rank`, or `unique(...)` or `at_least_one(...)` around one of them.
        never_empty: Whether a prompt that is not flagged always gets a set: its best candidate alone where no
            candidate reaches the threshold. Coverage only rises by that and no prompt is flagged for it.
            Without it such a set is empty: an abstention that counts as a miss.
        threshold_rule: `conditional` (the promise holds under every weighting that the features span),
            `marginal`, `grouped` (disjoint groups, with `confident`) or `learned`.
        combine: Names of verifiers in the candidates' `scores`, whose raw outputs become one score, in place
            of `score`: logistic regression of `correct` on them, see `Combination`.
        n: Number of candidates to use, the first n slots; by default all that are recorded. Fewer suit only
            a verifier that scores each candidate by itself: scores made by comparing all of them would
            differ.
        cap: Success score of a prompt without a correct candidate, above 1; choose it before seeing the data.
        window: How many calibration prompts the artifact keeps at least for each level of the conditional
            rule; more where prompts like the calibration prompts need more, as a sample of them shows. None
            keeps all. Prompts unlike any of them may have a threshold that the kept ones do not decide;
            they are flagged as not certifiable.
        ridge: lambda >= 0, the strength of a penalty that smooths thresholds; see `ConditionalThreshold`. The
            promise over all prompts stays exact, under other weightings it becomes an estimate.
        penalised: `slopes`, or `all`: the paper's form, which promises nothing.
        stability: The slack of the paper's CFC-PAC, by which each level is made stricter.
        shift: For a known covariate shift, the statistic that says how much likelier a prompt is where it is
            served than where it was calibrated, in any unit, such as `meta(ratio)`. The promise then holds
            where it is served (weighted exchangeability: Tibshirani, Barber, Candes and Ramdas 2019).
        randomised: Whether to randomise thresholds, so that with `never_empty=False` coverage under every
            weighting that the features span is exactly 1 - alpha for continuous success scores, and at least
            that where they tie (Gibbs, Cherian and Candes 2023). With `never_empty` it is at least that.
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
        The artifact, the same each time but for when it was made; `SOURCE_DATE_EPOCH` in the environment
        states that (reproducible-builds.org).

    Raises:
        InputError: If an argument, a record or `SOURCE_DATE_EPOCH` cannot be used, or two arguments do not go
            together.
        FeatureError: If the feature text is wrong, metadata is missing, or a map that came fitted does not
            know a category.
        CalibrationError: If a split is empty, or a combination is to be fitted to candidates of one kind.
        UnattainableTargetError: If the target coverage is out of reach for these records, or a wrong-answer
            rate or confidence cannot be certified with them.
        MissingExtraError: If verifiers are to be combined or something is certified, and SciPy is not
            installed.

    Warns:
        AttainabilityWarning: If the target is out of reach for a guaranteed group.
        OrientationWarning: If correct candidates score worse than wrong ones.
    """
    config = CalibrationConfig(
        alpha=alpha,
        features=features,
        set_rule=set_rule,
        never_empty=never_empty,
        threshold_rule=threshold_rule,
        combine=combine,
        n=n,
        cap=cap,
        window=window,
        ridge=ridge,
        penalised=penalised,
        stability=stability,
        shift=shift,
        randomised=randomised,
        confident=confident,
        max_wrong_rate=max_wrong_rate,
        wrong_rate_groups=wrong_rate_groups,
        delta=delta,
        seed=seed,
        fit_fraction=fit_fraction,
        test_fraction=test_fraction,
        certification_fraction=certification_fraction,
        within_clusters=within_clusters,
        allow_unattainable=allow_unattainable,
    )
    return _calibrate(records, config, provenance)


def _calibrate(
    records: Iterable[PromptRecord] | LabelledBatch,
    config: CalibrationConfig,
    provenance: Provenance | None,
) -> CalibrationArtifact:
    request = Request.of(config)
    rule = parse_set_rule(config.set_rule)
    given = config.features if isinstance(config.features, FeatureMap) else FeatureMap.parse(config.features)
    plan = request.plan(given, config)
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    prompts = Prompts.of(
        records, config.combine, plan, n=config.n, provenance=provenance, weighs=request.weighs
    )
    ratio = None if request.shift is None else parse_statistic(request.shift)
    asks = given.needs_answers or rule.text.startswith("unique") or request.max_wrong_rate is not None
    asks = asks or (ratio is not None and ratio.needs_answers)
    check_answers(prompts.labelled, provenance, needed=asks)
    fit_split = prompts.part("fit")
    labelled = prompts.calibration(config.within_clusters)
    feature_map = fitted_map(given, fit_split, labelled)
    with name_records_in_errors(labelled.ids):
        data = Calibration(
            labelled=labelled,
            feature_map=feature_map,
            features=feature_map.transform(labelled.draws),
            success_scores=rule.success_scores(labelled, config.cap),
            ratios=None if ratio is None else likelihood_ratios(ratio, labelled.draws),
            units_of=None if request.ridge is None else units(feature_map, fit_split),
            cap=request.cap,
        )
    check_orientation(prompts.one_per_cluster(labelled), prompts.combination)
    alphas = _attainable_levels(request, data)
    check_attainable(
        *data.counts,
        data.groups,
        alphas[0],
        promised=request.rule in {"conditional", "grouped"},
        allow_unattainable=config.allow_unattainable,
    )
    steps = {one: request.steps(one) for one in alphas}
    tried = {step for one in steps.values() for step in one} if request.tested else alphas
    levels, arrays = fit_levels(data, request, sorted(tried, key=float), plan.stays(labelled))
    alike = plan.fair(labelled)
    artifact = CalibrationArtifact(
        library_version=__version__,
        created_at=_now(),
        n=labelled.draws.n,
        cap=data.cap,
        set_rule=rule.text,
        threshold_rule=request.rule,
        features=feature_map.to_data(),
        levels=levels,
        arrays=arrays,
        provenance=provenance,
        calibration=prompts.facts(
            data,
            config,
            came_fitted=given.needs_fit and given.fitted,
            recognised=request.certifies or request.shift is not None,
        ),
        combination=prompts.combination,
        ridge=request.ridge,
        stability=request.stability,
        confidence=_confidence(request, data),
        shift=request.shift,
        randomised=request.randomised,
        never_empty=config.never_empty,
    )
    if request.tested:
        artifact = tested_levels(artifact, prompts.certification(), steps, request.delta)
    artifact = artifact.with_settings()
    artifact = artifact.model_copy(update={"reference": reference(artifact, prompts, alike)})
    if request.max_wrong_rate is None:
        return artifact
    return certified_policy(
        artifact,
        alike,
        prompts.certification(),
        max_wrong_rate=request.max_wrong_rate,
        delta=request.delta,
        by_group=request.by_group,
        keep_levels=request.levels_named,
    )


def _now() -> str:
    """The time of making; `SOURCE_DATE_EPOCH` states it for files that are to be made again byte for byte."""
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        seconds = time.time() if stated is None else int(stated)
        made = datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        msg = f"SOURCE_DATE_EPOCH must be a whole number of seconds since 1970, got {stated!r}"
        raise InputError(msg) from error
    return made.isoformat(timespec="seconds")


def _attainable_levels(request: Request, data: Calibration) -> tuple[str, ...]:
    """The levels to calibrate; of those that nobody named, the ones within reach."""
    if request.levels_named:
        return request.alphas
    within = tuple(one for one in request.alphas if target_is_attainable(one, *data.counts))
    return within or request.alphas[-1:]


def _confidence(request: Request, data: Calibration) -> Confidence | None:
    """What the law of an order statistic gives by itself."""
    if not request.confident or request.tested:
        return None
    names = [one.name for one in data.weightings]
    return Confidence(delta=request.delta, names=names if request.rule == "grouped" else names[:1])

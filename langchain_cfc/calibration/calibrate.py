"""`calibrate`: build an artifact from labelled records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from langchain_cfc._internal import __version__
from langchain_cfc._internal.files import read_creation_time
from langchain_cfc.artifact import (
    CalibrationArtifact,
    Confidence,
    ThresholdRuleName,
    compute_likelihood_ratios,
)
from langchain_cfc.calibration.adaptive import fit_adaptive_alpha
from langchain_cfc.calibration.checks import check_answers, check_attainable, check_orientation, is_attainable
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.calibration.fit import (
    CalibrationData,
    CalibrationPrompts,
    compute_ridge_units,
    fit_feature_map,
    fit_levels,
)
from langchain_cfc.calibration.reference import make_reference_histograms
from langchain_cfc.candidates import LabelledBatch, Unit
from langchain_cfc.certificates import certify_mean_score, certify_policy, select_tested_levels
from langchain_cfc.errors import CalibrationError
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import LabelledRecord, Provenance
from langchain_cfc.records.files import find_provenance
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.thresholds import WINDOW, Level


def calibrate(  # noqa: D417 - `CalibrationConfig` documents the options
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level | Sequence[Level] | None = None,
    adaptive_alpha: bool = False,
    given_drawn: bool = False,
    features: str | FeatureMap = "hat(mean_score, 5)",
    unit: Unit = "answers",
    at_most: int = 0,
    set_rule: str = "all",
    never_empty: bool = True,
    threshold_rule: ThresholdRuleName = "conditional",
    combine: Sequence[str] | None = None,
    n: int | None = None,
    draws: str | None = None,
    cap: float = 2.0,
    window: int | None = WINDOW,
    ridge: float = 0.0,
    penalised: Literal["slopes", "all"] = "slopes",
    stability: PaperStability | None = None,
    shift: str | None = None,
    randomised: bool = False,
    confident: bool = False,
    max_wrong_rate: Level | Sequence[Level] | None = None,
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
    """Build a calibration artifact from labelled records.

    The records are split by hash: one part fits the feature map and the combination of verifiers, one is held
    out for evaluation and one for certificates if requested, and the rest calibrates the threshold. Success
    scores are computed under the set rule that will be served, which is what the guarantee needs (paper,
    Theorem 4.1, with the cap in place of S = 1).

    All other arguments are the fields of `CalibrationConfig`, which documents them.

    Args:
        records: Labelled records, such as `read_records(path)`, or the table that `tabulate` makes of them
            (`tabulate_raw` if verifiers are combined). A table has `weights` if its prompts were chosen to be
            labelled with unequal probabilities. The conditional rule uses the weights (unless there is a
            ridge, a shift, stability or randomised thresholds); everything else uses a fair sample.
        provenance: Header of the records, if they have none of their own.

    Returns:
        The artifact. Equal input gives equal artifacts except for the creation time, which
        `SOURCE_DATE_EPOCH` in the environment fixes (reproducible-builds.org).

    Raises:
        InputError: If an argument, a record or `SOURCE_DATE_EPOCH` cannot be used, or two arguments conflict.
        FeatureError: If the feature text is wrong, metadata is missing, or a map that came fitted does not
            know a category.
        CalibrationError: If a split is empty, the candidates to fit a combination to are all correct or all
            wrong, or `given_drawn` finds no prompt with a correct candidate.
        UnattainableTargetError: If the target coverage is out of reach for these records, or a wrong-answer
            rate or confidence cannot be certified with them.
        MissingExtraError: If SciPy is not installed, but verifiers are combined, levels are adaptive or
            something is certified.

    Warns:
        AttainabilityWarning: If the target is out of reach for a guaranteed group.
        OrientationWarning: If correct candidates score worse than wrong ones.
    """
    options = {name: value for name, value in locals().items() if name not in {"records", "provenance"}}
    return _calibrate(records, CalibrationConfig(**options), provenance)


def _calibrate(
    records: Iterable[LabelledRecord] | LabelledBatch,
    config: CalibrationConfig,
    provenance: Provenance | None,
) -> CalibrationArtifact:
    config.check()
    rule = parse_set_rule(config.rule_text)
    given = config.features if isinstance(config.features, FeatureMap) else FeatureMap.parse(config.features)
    plan = config.plan_split(given)
    provenance = find_provenance(records, provenance)
    prompts = CalibrationPrompts.from_records(records, config, plan, provenance)
    shift = config.shift_statistic
    has_policy_on_sets = config.max_wrong_rate is not None and not config.certifies_mean_score
    needs_answers = (has_policy_on_sets and config.unit == "answers") or any(
        part is not None and part.needs_answers for part in (given, rule, config.draw_rule, shift)
    )
    check_answers(prompts.labelled, provenance, needed=needs_answers)
    fit_split = prompts.get_part("fit")
    everyone = prompts.get_calibration_prompts(config.within_clusters)
    feature_map = fit_feature_map(given, fit_split, everyone)
    labelled = everyone.with_correct_candidate() if config.given_drawn else everyone
    if len(labelled) == 0:
        msg = f"given_drawn: none of {len(everyone)} calibration prompts has a correct candidate"
        raise CalibrationError(msg)
    if config.adaptive_alpha and not config.has_given_levels:
        feature_map = fit_adaptive_alpha(feature_map, fit_split, rule, config)
    with name_records_in_errors(labelled.ids):
        data = CalibrationData(
            labelled=labelled,
            feature_map=feature_map,
            features=feature_map.transform(labelled.draws),
            success_scores=rule.compute_success_scores(labelled, config.cap),
            ratios=None if shift is None else compute_likelihood_ratios(shift, labelled.draws),
            units_of=None if not config.ridge else compute_ridge_units(feature_map, fit_split),
            cap=float(config.cap),
        )
    check_orientation(prompts.select_one_per_cluster(labelled), prompts.combination)
    alphas = _select_alphas(config, data)
    adaptive = feature_map.adaptive_alpha
    check_attainable(
        *data.counts,
        data.groups,
        alphas[0] if adaptive is None else adaptive.list_levels(alphas[0])[-1],
        # Adaptive levels are chosen so that few prompts are flagged; a bot on the mean score flags none.
        promised=(
            config.threshold_rule in {"conditional", "grouped"}
            and adaptive is None
            and not config.certifies_mean_score
        ),
        allow_unattainable=config.allow_unattainable,
        unit=config.unit,
    )
    steps = {alpha: config.list_level_steps(alpha) for alpha in alphas}
    fitted = {step for tried in steps.values() for step in tried} if config.tests_levels else alphas
    levels, arrays = fit_levels(data, config, sorted(fitted, key=float), plan.flag_fair_sample(labelled))
    fair = plan.draw_fair_sample(everyone)
    artifact = CalibrationArtifact(
        library_version=__version__,
        created_at=read_creation_time().isoformat(timespec="seconds"),
        n=prompts.count_candidates(provenance),
        cap=data.cap,
        set_rule=rule.text,
        threshold_rule=config.threshold_rule,
        features=feature_map.to_data(),
        levels=levels,
        arrays=arrays,
        provenance=provenance,
        calibration=prompts.make_facts(
            data,
            config,
            provenance=provenance,
            came_fitted=given.needs_fit and given.fitted,
            drawn_among=len(everyone) if config.given_drawn else None,
        ),
        combination=prompts.combination,
        ridge=config.ridge_penalty,
        stability=config.stability,
        confidence=_make_confidence(config, data),
        shift=None if shift is None else shift.text,
        randomised=config.randomised,
        # An answer without claims keeps the promise about unsupported claims.
        never_empty=config.never_empty and rule.unit == "answers",
        draws=None if config.draw_rule is None else config.draw_rule.stored_text,
    )
    if config.tests_levels:
        artifact = select_tested_levels(
            artifact, prompts.get_certification_prompts(), steps, config.failure_probability
        )
    artifact = _certify_wrong_rates(artifact.with_settings(), prompts, fair, config)
    return artifact.model_copy(update={"reference": make_reference_histograms(artifact, prompts, fair)})


def _certify_wrong_rates(
    artifact: CalibrationArtifact, prompts: CalibrationPrompts, fair: LabelledBatch, config: CalibrationConfig
) -> CalibrationArtifact:
    """Return the artifact with a certified policy for each wrong-answer rate that was asked for."""
    if not config.wrong_rates:
        return artifact
    if config.certifies_mean_score:
        # Labels of the fit split certify as well, unless they made the scores, fixed the groups, or may have
        # chosen the draw rule, as in `suggest`. Records that were drawn by the rule had it before any label.
        drawn_by = None if artifact.provenance is None else artifact.provenance.draws
        is_rule_given = artifact.draws is None or drawn_by is not None
        fits = config.combine is not None or config.wrong_rate_groups or not is_rule_given
        return certify_mean_score(
            artifact,
            prompts.select_one_per_cluster(fair if fits else prompts.get_fit_and_calibration_prompts()),
            max_wrong_rates=config.wrong_rates,
            delta=config.failure_probability,
            by_group=config.wrong_rate_groups,
        )
    return certify_policy(
        artifact,
        fair,
        prompts.get_certification_prompts(),
        max_wrong_rate=config.wrong_rates[0],
        delta=config.failure_probability,
        by_group=config.wrong_rate_groups,
        keep_levels=config.alpha is not None,
    )


def _select_alphas(config: CalibrationConfig, data: CalibrationData) -> tuple[str, ...]:
    """Return the levels to calibrate; without given ones, the default levels that are within reach."""
    if config.alpha is not None:
        return config.alphas
    attainable = tuple(alpha for alpha in config.alphas if is_attainable(alpha, *data.counts))
    attainable = attainable or config.alphas[-1:]
    return attainable[:1] if config.certifies_mean_score else attainable


def _make_confidence(config: CalibrationConfig, data: CalibrationData) -> Confidence | None:
    """Return the confidence that follows from the law of an order statistic; None in all other cases."""
    if not config.confident or config.tests_levels:
        return None
    names = [one.name for one in data.weightings]
    return Confidence(
        delta=config.failure_probability, names=names if config.threshold_rule == "grouped" else names[:1]
    )

"""`calibrate`: build an artifact from labelled records."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from langchain_cfc.artifact import (
    AttemptLedger,
    BatchScores,
    CalibrationArtifact,
    PlannedAttempt,
    Previous,
    replay_prefixes,
)
from langchain_cfc.calibration.adaptive import fit_adaptive_alpha
from langchain_cfc.calibration.checks import (
    check_answers,
    check_attainable,
    check_orientation,
    warn_if_conditional_on_score,
)
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.calibration.fit import (
    CalibrationData,
    fit_feature_map,
    fit_levels,
    make_facts,
    require_fit_split,
    select_independent,
    split_prompts,
)
from langchain_cfc.calibration.reference import make_reference_histograms
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify_mean_score, certify_shown_claims, compute_outcomes
from langchain_cfc.certificates.coverage import compute_records_digest
from langchain_cfc.decision import EVERY_PROMPT
from langchain_cfc.errors import AttainabilityWarning, OverlapError, UnattainableTargetError
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.guarantee import Confidence, PaperPAC
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.records.files import RecordsLike, open_records
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support import __version__
from langchain_cfc.support.files import read_creation_time
from langchain_cfc.support.progress import announce_step
from langchain_cfc.support.units import Unit
from langchain_cfc.thresholds import Level, format_alpha


def calibrate(  # noqa: D417 - `CalibrationConfig` documents the options
    records: RecordsLike,
    *,
    alpha: Level | Sequence[Level] | None = None,
    adaptive_alpha: bool | Level = False,
    max_wrong_rate: Level | Sequence[Level] | None = None,
    max_wrong_of_all: Level | Sequence[Level] | None = None,
    wrong_rate_groups: bool = False,
    delta: Level | None = None,
    features: str | FeatureMap | None = None,
    unit: Unit = "answers",
    at_most: int = 0,
    set_rule: str = "all",
    draws: str | None = None,
    pac: PaperPAC | None = None,
    seed: str | int = 0,
    fit_fraction: float | None = None,
    test_fraction: float = 0.0,
    allow_unattainable: bool = False,
    provenance: Provenance | None = None,
    after: Previous = None,
) -> CalibrationArtifact:
    """Build a calibration artifact from labelled records.

    The records are split by hash: one part fits the feature map, one is held out for evaluation and
    certificates if requested, and the rest calibrates the threshold. Success scores are computed under the
    set rule that will be served, which is what the guarantee needs (paper, Theorem 4.1, with the cap in place
    of S = 1).

    All other arguments are the fields of `CalibrationConfig`, which documents them.

    Args:
        records: Labelled records, such as `read_records(path)`, mappings of their fields, the path of a file,
            a pandas DataFrame with a row for each prompt, or the table that `tabulate` makes of them.
        provenance: Header of the records, if they have none of their own.
        after: What was attempted before with any of these labels: the refusal (`UnattainableTargetError`),
            the artifact or the `AttemptLedger`. What is certified with confidence is tested at the share of
            delta that is left for this attempt; equal records and settings are the same attempt.

    Returns:
        The artifact. Equal input gives equal artifacts except for the creation time, which
        `SOURCE_DATE_EPOCH` in the environment fixes (reproducible-builds.org).

    Raises:
        InputError: If an argument, a record or `SOURCE_DATE_EPOCH` cannot be used, or two arguments conflict.
        FeatureError: If the feature text is wrong, metadata is missing, or a map that came fitted does not
            know a category.
        CalibrationError: If a split is empty.
        UnattainableTargetError: If the target coverage is out of reach for these records, or a wrong-answer
            rate or confidence is not certified with them; its `attempts` belong to the next attempt.
        OverlapError: If figures from the labels of all prompts that would certify were looked at before
            these settings were tried.
        MissingExtraError: If SciPy is not installed, but something is certified or holds with confidence.

    Warns:
        AttainabilityWarning: If the target is out of reach for a guaranteed group, or beside an alpha no
            wrong-answer rate is certified.
        OrientationWarning: If correct candidates score worse than wrong ones.
    """
    given = {"records", "provenance", "after"}
    options = {name: value for name, value in locals().items() if name not in {*given, "given"}}
    ledger = AttemptLedger.collect(after)
    try:
        return _calibrate(records, CalibrationConfig(**options), provenance, ledger)
    except UnattainableTargetError as error:
        error.attempts = error.attempts or ledger
        raise


def _calibrate(
    records: RecordsLike,
    config: CalibrationConfig,
    provenance: Provenance | None,
    ledger: AttemptLedger,
) -> CalibrationArtifact:
    config.check()
    rule = parse_set_rule(config.rule_text)
    plan = config.plan_split()
    records, provenance = open_records(records, provenance)
    shortened = config.draw_rule is not None
    labelled = tabulate(records, provenance=provenance, shortened=shortened, claims=True)
    prompts = replay_prefixes(config.draw_rule, labelled, provenance)
    check_answers(prompts, needed=config.needs_answers)
    parts = split_prompts(prompts, plan)
    labelled = select_independent(parts["calibration"], plan)
    announce_step("fitting features")
    feature_map = fit_feature_map(config.feature_map, parts["fit"], labelled)
    if config.certifies_claims:
        require_fit_split(parts["fit"], "cuts on the scores of claims must be fixed on")
    if config.is_adaptive and config.given_levels is None:
        feature_map = fit_adaptive_alpha(
            feature_map, parts["fit"], rule, config.alphas, share=config.kept_share, size=len(labelled)
        )
    with name_records_in_errors(labelled.ids):
        data = CalibrationData(
            config=config,
            provenance=provenance,
            plan=plan,
            prompts=prompts,
            parts=parts,
            labelled=labelled,
            feature_map=feature_map,
            features=feature_map.transform(labelled.draws),
            success_scores=rule.compute_success_scores(labelled),
        )
    attempt = _plan_attempt(data, ledger)
    if config.alphas:
        check_attainable(data, rule.option)
    made, delta, confidence = ledger, None, None
    if attempt is not None and config.is_confident:
        # A caller may choose among the levels, so the confidence holds for all of them jointly.
        level = attempt.compute_level(config.failure_probability, len(config.alphas))
        confidence = Confidence(delta=config.failure_probability, attempt=attempt.number, level=level)
        delta = format_alpha(level, "delta")
        made = attempt.end(certified=True)  # as an order statistic is in any case
    announce_step("computing thresholds")
    levels, arrays = fit_levels(data, delta)
    artifact = CalibrationArtifact(
        library_version=__version__,
        created_at=read_creation_time().isoformat(timespec="seconds"),
        n=data.n,
        set_rule=rule.text,
        features=feature_map.to_data(),
        levels=levels,
        arrays=arrays,
        provenance=provenance,
        calibration=make_facts(data),
        pac=config.pac,
        confidence=confidence,
        attempts=list(made.attempts),
        draws=None if config.draw_rule is None else config.draw_rule.stored_text,
    )
    artifact = artifact.model_copy(update={"batch": _make_batch_scores(artifact, data)})
    if config.wrong_rates and attempt is not None:
        announce_step("certifying")
        delta, by_group = config.failure_probability, config.wrong_rate_groups
        if config.certifies_claims:
            (rate,) = config.wrong_rates
            artifact = certify_shown_claims(
                artifact, parts["fit"], attempt, max_wrong_rate=rate, delta=delta, by_group=by_group
            )
        else:
            artifact = certify_mean_score(
                artifact, attempt, max_wrong_rates=config.wrong_rates, delta=delta, by_group=by_group
            )
    if artifact.bot is not None and not artifact.bot.certificates:
        warnings.warn(" ".join(artifact.bot.refused.values()), AttainabilityWarning, stacklevel=3)
    if config.max_wrong_of_all is not None:
        warn_if_conditional_on_score(feature_map)
    # Only now, since the labels that show the orientation may have had to certify.
    check_orientation(labelled)
    reference = make_reference_histograms(artifact, parts, labelled)
    if attempt is not None:
        made = attempt.end(certified=artifact.bot is None or bool(artifact.bot.certificates))
    return artifact.model_copy(update={"attempts": list(made.attempts), "reference": reference})


def _select_for_cuts(data: CalibrationData, *, with_fit_split: bool) -> LabelledBatch:
    """Return the prompts whose labels shaped no mean score, one of each cluster."""
    used = data.known if with_fit_split else data.labelled
    return used.take(data.plan.select_one_per_cluster(used))


def _make_batch_scores(artifact: CalibrationArtifact, data: CalibrationData) -> BatchScores | None:
    """Return what batches are answered with; see `artifact.batch` for what must not have used the labels."""
    config = data.config
    if config.unit != "answers" or artifact.subject is not None or not config.alphas:
        return None
    # `suggest` chooses numbers of draws by labels of the fit split, which no ledger of looks protects here.
    is_given = config.draws is None or data.is_drawn_by_rule
    used = _select_for_cuts(data, with_fit_split=is_given)
    if not len(used):
        return None
    wrong = compute_outcomes(artifact, used, None, cut=EVERY_PROMPT).wrong
    scores = MEAN_SCORE.compute_values(used.draws)[wrong]
    return BatchScores.from_scores(len(used), scores, data.known.inputs)


def _plan_attempt(data: CalibrationData, ledger: AttemptLedger) -> PlannedAttempt | None:
    """Plan the attempt to certify something; None if nothing holds with confidence.

    Order statistics rest on the labels of all calibration prompts.
    """
    config, depends_on_suggestion = data.config, True
    if config.wrong_rates:
        # Labels of the fit split certify as well, unless it fixed the groups or the cuts of claims, or may
        # have chosen the draw rule, as in `suggest`.
        rule = None if config.draw_rule is None else config.draw_rule.stored_text
        fits = config.wrong_rate_groups or not (rule is None or data.is_drawn_by_rule)
        used = _select_for_cuts(data, with_fit_split=not (fits or config.certifies_claims))
        # Features and set rules, which `suggest` chooses, do not change the mean scores; fewer candidates do.
        depends_on_suggestion = fits or (config.draws is not None and rule is None)
    elif config.is_confident:
        used = data.labelled
    else:
        return None
    attempt = ledger.plan_attempt(
        used,
        config.digest,
        compute_records_digest(data.known),
        harmless_look=None if depends_on_suggestion else "suggest",
    )
    if config.is_confident and len(attempt.labelled) < len(used):
        msg = (
            "figures from labels of calibration prompts were shown before these settings were first tried, "
            "so nothing holds with confidence: calibrate on prompts whose labels were not looked at"
        )
        raise OverlapError(msg)
    return attempt

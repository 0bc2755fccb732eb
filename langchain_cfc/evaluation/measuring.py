"""`evaluate`: measure an artifact on labelled prompts it has never seen, next to the marginal rule.

*When test prompts contradict the promise.* Given its calibration set, a rule's true coverage lies below tau
about half of the time, so coverage below the target is no alarm. The promise holds on average over
calibration sets, so the count of covered prompts is beta-binomial: the threshold is the k-th of N
exchangeable success scores, k = ceil((N + 1) tau), so the true coverage is Beta(k, N + 1 - k) (Vovk 2012),
and the number of covered prompts among m test prompts is BetaBinomial(m, k, N + 1 - k). This is exact for the
marginal rule and for disjoint groups with continuous scores; ties and flags only raise the count. For soft
weightings, sums of weights replace the numbers of prompts, which is an approximation.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, tabulate_held_out
from langchain_cfc.artifact.model import open_artifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import BatchFigures, compute_outcomes, replay_batches
from langchain_cfc.certificates.batches import BATCH_SIZES, WRONG_SHARES
from langchain_cfc.certificates.bounds import clopper_pearson, lower_bound, upper_bound
from langchain_cfc.certificates.coverage import Outcomes
from langchain_cfc.decision import EVERY_PROMPT, compute_bot_scores
from langchain_cfc.errors import FingerprintWarning
from langchain_cfc.evaluation.report import (
    AnswersReport,
    ClaimsFigures,
    EvaluationReport,
    GroupReport,
    MethodReport,
    state_other_parts,
)
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.records import Provenance
from langchain_cfc.records.files import RecordsLike, open_records
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.support.curves import RiskCurve
from langchain_cfc.support.imports import require
from langchain_cfc.support.progress import announce_step
from langchain_cfc.support.text import format_percent
from langchain_cfc.support.units import UNITS
from langchain_cfc.thresholds import CAP, Level, compute_conformal_rank, compute_tau

# Probability that a kept promise is reported as contradicted.
FALSE_ALARM = 0.025


def is_contradicted(alpha: Level, calibration: float, test: float, kept: float, tests: int) -> bool:
    """Return whether the promise was kept on so few test prompts that chance does not explain it.

    `calibration` and `test` are numbers of prompts or sums of weights, and `kept` is the share of test
    prompts on which the promise was kept. The false-alarm rate of 2.5 % is divided among `tests` groups
    (Bonferroni).

    Examples:
        >>> is_contradicted(0.1, 1000, 500, 0.88, 1), is_contradicted(0.1, 1000, 500, 0.85, 1)
        (False, True)
    """
    size, trials = math.floor(calibration), math.floor(test)
    rank = compute_conformal_rank(size, compute_tau(alpha))
    if not 0 < rank <= size or trials == 0:
        # Nothing can be certified in such a group, so all its prompts are flagged, which keeps the promise. A
        # soft weighting with so little weight is not checked, since thresholds of other prompts affect it.
        return False
    count = math.ceil(kept * trials - 1e-9)  # 0.56 * 100 is 56.00000000000001
    return _compute_beta_binomial_cdf(count, trials, rank, size + 1 - rank) < FALSE_ALARM / tests


def _compute_beta_binomial_cdf(count: int, trials: int, a: int, b: int) -> float:
    """Return P(X <= count), X ~ BetaBinomial(trials, a, b), without `scipy.stats`, whose import is slow."""
    betaln = require("scipy.special", "calibrate", "checking the promise").betaln
    k = np.arange(count + 1)
    log_binomial = -betaln(1 + trials - k, 1 + k) - math.log(1 + trials)
    return float(np.exp(log_binomial + betaln(k + a, trials - k + b) - betaln(a, b)).sum())


def evaluate(
    artifact: CalibrationArtifact | str | os.PathLike[str],
    records: RecordsLike,
    *,
    alpha: Level | None = None,
    provenance: Provenance | None = None,
) -> EvaluationReport:
    """Measure coverage, set sizes and abstentions of an artifact on labelled records.

    Records that the artifact was calibrated on are recognised: only their held-out test part is used, and
    without such a part they are rejected. As in calibration, one prompt of each cluster counts.

    Args:
        artifact: The artifact, or the path of its file.
        records: Labelled records as in `calibrate`, with at least the artifact's number of candidates; the
            first n slots are used.
        alpha: Error level; optional if the artifact has only one.
        provenance: Header of the records; by default the one that they carry.

    Returns:
        The report; `report.model_dump()` is plain data.

    Raises:
        OverlapError: If these are the calibration records and none were held out.
        CalibrationError: If no prompt is left to test on.
        InputError: If a record cannot be used, the artifact does not have the level, or answers are not
            distinguished as in calibration.
        FeatureError: If metadata for the feature map is missing.
        MissingExtraError: If SciPy is not installed.

    Warns:
        FingerprintWarning: If the records come from another generator or verifier than in calibration.
    """
    artifact = open_artifact(artifact)
    records, provenance = open_records(records, provenance)
    differing = artifact.list_differing_parts(provenance)
    if differing:
        warnings.warn(state_other_parts(differing), FingerprintWarning, stacklevel=2)
    labelled, which = tabulate_held_out(artifact, records)
    announce_step("evaluating")
    success = artifact.parsed_set_rule.compute_success_scores(labelled)
    certificates = [] if artifact.bot is None else artifact.bot.certificates
    if artifact.levels or alpha is not None:
        level = artifact.select_level(alpha)
        guarantee = artifact.make_guarantee(level)
        outcomes = compute_outcomes(artifact, labelled, level)
        methods = {"conditional": _report_method(artifact, labelled, outcomes)}
        if artifact.feature_map.dimension > 1:  # else this is one threshold for all prompts already
            compared = compute_outcomes(artifact, labelled, level, marginal=True)
            methods["marginal"] = _report_method(artifact, labelled, compared)
        contradicted = _find_contradicted(artifact, level, methods["conditional"], len(labelled))
    else:  # a bot alone
        guarantee = artifact.make_guarantee(max_wrong_rate=certificates[0].max_wrong_rate)
        level, methods, contradicted = guarantee.alpha, {}, []
    answers = tuple(_report_answers(artifact, labelled, one) for one in certificates)
    scores, wrong = _score_shown(artifact, labelled)
    # The curve counts claims where a rate counts answers, whose points are then not on it.
    on_curve = answers if artifact.unit == "answers" else ()
    points = [(one.answered_rate, one.wrong_rate, one.max_wrong_rate) for one in on_curve if one.answered]
    return EvaluationReport(
        alpha=float(level),
        target_coverage=guarantee.target_coverage,
        n_calibration=artifact.calibration.size,
        n_test=len(labelled),
        n_candidates=artifact.n,
        attainable_coverage=float(np.mean(success < CAP)),
        test_prompts=which,
        subject=artifact.subject,
        artifact_digest=artifact.digest,
        other_parts=tuple(differing),
        guarantee=guarantee.kind,
        promise=artifact.parsed_set_rule.option,
        contradicted=contradicted,
        methods=methods,
        answers=answers,
        batches=_report_batches(artifact, scores, wrong),
        mean_draws=None if artifact.draws is None else float(labelled.draws.counts.mean()),
        certified_by_people=tuple(
            one.sentence
            for one in artifact.people_certificates
            if one.alpha == level or one.about == "answers"
        ),
        curve=RiskCurve.from_scores(scores, wrong, certified=points, labels=artifact.traits.axes),
    )


def _score_shown(artifact: CalibrationArtifact, labelled: LabelledBatch) -> tuple[FloatArray, BoolArray]:
    """Return the scores of what a bot may show, and what is wrong: prompts by mean score, or their claims."""
    if artifact.unit == "claims":
        is_drawn = labelled.draws.is_drawn
        return labelled.draws.scores[is_drawn], ~labelled.correct[is_drawn]
    wrong = compute_outcomes(artifact, labelled, None, cut=EVERY_PROMPT).wrong
    return compute_bot_scores(artifact, labelled.draws), wrong


def _report_answers(
    artifact: CalibrationArtifact, labelled: LabelledBatch, certificate: WrongRateCertificate
) -> AnswersReport:
    outcomes = compute_outcomes(artifact, labelled, None, cut=certificate.cut)
    answered, wrong = outcomes.count_answers(outcomes.decisions.answered)
    rate = float(certificate.max_wrong_rate)
    return AnswersReport(
        max_wrong_rate=rate,
        answered=answered,
        answered_rate=answered / len(labelled),
        wrong=wrong,
        wrong_rate=wrong / max(answered, 1),
        wrong_rate_ci=clopper_pearson(float(wrong), float(answered)),
        contradicted=lower_bound(wrong, answered, FALSE_ALARM) > rate,
        claims=_report_claims(labelled, outcomes.decisions.accepted, np.ones(len(labelled))),
    )


def _report_batches(
    artifact: CalibrationArtifact, scores: FloatArray, wrong: BoolArray
) -> tuple[BatchFigures, ...]:
    if artifact.batch is None or all(one.option == "alpha" for one in artifact.promises):
        return ()
    sizes = [size for size in BATCH_SIZES if size <= len(scores)]
    return tuple(
        replay_batches(scores, wrong, share, size, artifact.batch) for size in sizes for share in WRONG_SHARES
    )


def _report_method(
    artifact: CalibrationArtifact, labelled: LabelledBatch, outcomes: Outcomes
) -> MethodReport:
    decisions = outcomes.decisions
    flagged = decisions.not_certifiable
    empty = decisions.accepted.sum(axis=1) == 0
    guaranteed = [
        (one.name, one.words, one.compute_values(decisions.features))
        for one in artifact.feature_map.list_guaranteed_weights()[1:]
    ]
    by_level = [
        (f"stated {one:.12g}", f"a stated coverage of {format_percent(one, 'g')}", outcomes.stated == one)
        for one in np.unique(outcomes.stated)[::-1].tolist()
    ]
    return MethodReport(
        coverage_ci=_compute_interval(outcomes.covered),
        not_certifiable_ci=_compute_interval(flagged),
        refused_rate=float(decisions.refused.mean()),
        abstention_rate=float(empty.mean()),
        abstention_ci=_compute_interval(empty),
        mean_distinct_answers=float(decisions.distinct_answers.mean()),
        groups=_report_groups(guaranteed, labelled, outcomes),
        stated_levels=_report_groups(by_level, labelled, outcomes) if len(by_level) > 1 else [],
        **_measure(labelled, outcomes, np.ones(len(labelled))),
    )


def _measure(
    labelled: LabelledBatch, outcomes: Outcomes, weights: FloatArray, confidence: float = 0.95
) -> dict[str, Any]:
    """Compute the figures that all prompts and groups have in common, with (N,) weights of prompts."""
    total = float(weights.sum())
    # Kish's effective sample size, which is the number of prompts for a group.
    effective = total**2 / float(weights @ weights)
    kept = float(weights @ outcomes.kept) / total
    return {
        "stated_coverage": round(float(weights @ outcomes.stated) / total, 12),
        "coverage": float(weights @ outcomes.covered) / total,
        "kept_promise": kept,
        "kept_promise_ci": clopper_pearson(kept * effective, effective, confidence),
        "not_certifiable_rate": float(weights @ outcomes.decisions.not_certifiable) / total,
        "mean_set_size": float(weights @ outcomes.decisions.accepted.sum(axis=1)) / total,
        "claims": _report_claims(labelled, outcomes.decisions.accepted, weights),
    }


def _report_claims(labelled: LabelledBatch, kept: BoolArray, weights: FloatArray) -> ClaimsFigures | None:
    """Compute the figures of claims with (N,) weights of answers; None if whole answers are kept."""
    if UNITS[labelled.unit].is_fixed_count:
        return None
    wrong = labelled.draws.is_drawn & ~labelled.correct
    total = float(weights @ labelled.draws.counts)
    shown = float(weights @ kept.sum(axis=1))
    return ClaimsFigures(
        per_answer=total / float(weights.sum()),
        kept=shown / total,
        emptied=float(weights @ ~kept.any(axis=1)) / float(weights.sum()),
        unsupported=float(weights @ wrong.sum(axis=1)) / total,
        unsupported_kept=float(weights @ (wrong & kept).sum(axis=1)) / shown if shown > 0.0 else 0.0,
    )


def _find_contradicted(
    artifact: CalibrationArtifact, level: str, method: MethodReport, n_test: int
) -> list[str]:
    """Return the names of guaranteed weightings on which the promise was kept too rarely for chance."""
    guarantee = artifact.make_guarantee(level)
    target = guarantee.target_coverage - 1e-12  # up to round-off of a mean
    calibrated = {group.name: group.size for group in artifact.calibration.groups}
    overall_name = artifact.calibration.groups[0].name
    # If stated levels differ, the number of kept promises varies less than with the mean level for all
    # prompts (Hoeffding 1956), so testing the mean level does not give more false alarms.
    measured: list[tuple[str, float, MethodReport | GroupReport]] = [(overall_name, n_test, method)]
    measured += [(one.name, one.n, one) for one in method.groups]
    tests = measured if guarantee.weightings else []
    broken = [
        name
        for name, n, seen in tests
        if is_contradicted(
            level if seen.stated_coverage >= target else 1.0 - seen.stated_coverage,
            calibrated[name],
            n,
            seen.kept_promise,
            len(tests),
        )
    ]
    certificate = guarantee.certificate
    if certificate is not None and overall_name not in broken:
        kept = round(method.kept_promise * n_test)
        if upper_bound(kept, n_test, FALSE_ALARM) < certificate.shares[0].kept_at_least:
            broken.append(overall_name)
    return broken


def _report_groups(
    weightings: Sequence[tuple[str, str, FloatArray | BoolArray]], labelled: LabelledBatch, outcomes: Outcomes
) -> list[GroupReport]:
    """Report weightings, by name, words and (N,) weights, that hold test prompts.

    Their intervals hold simultaneously (Bonferroni).
    """
    values = [(name, words, np.maximum(weights, 0.0)) for name, words, weights in weightings]
    represented = [one for one in values if one[2].any()]
    return [
        GroupReport(
            name=name,
            words=words,
            n=float(weights.sum()),
            **_measure(labelled, outcomes, weights, 1.0 - 0.05 / len(represented)),
        )
        for name, words, weights in represented
    ]


def _compute_interval(event: BoolArray) -> tuple[float, float]:
    return clopper_pearson(float(event.sum()), float(len(event)))

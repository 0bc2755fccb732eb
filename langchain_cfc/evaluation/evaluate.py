"""`evaluate`: what an artifact does on labelled prompts it has never seen, beside the marginal rule."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.artifact import CalibrationArtifact, held_out
from langchain_cfc.certificates import outcomes
from langchain_cfc.certificates.bounds import at_least, at_most, clopper_pearson
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import FingerprintWarning
from langchain_cfc.evaluation.check import FALSE_ALARM, kept_too_rarely
from langchain_cfc.evaluation.report import AnswersReport, EvaluationReport, GroupReport, MethodReport
from langchain_cfc.features import GuaranteedWeight, naming
from langchain_cfc.records import PromptRecord, Provenance, Records, tabulate
from langchain_cfc.thresholds import Level


def evaluate(
    artifact: CalibrationArtifact,
    records: Iterable[PromptRecord] | LabelledDraws,
    *,
    alpha: Level | None = None,
    provenance: Provenance | None = None,
) -> EvaluationReport:
    """Measure an artifact on labelled records.

    Records that the artifact was calibrated on are recognised: where a test part was held out of them, only
    that part is used, else they are refused. As in calibration, one prompt of each cluster counts.

    Args:
        artifact: The artifact.
        records: Labelled records with at least the artifact's number of candidates, or the table that
            `tabulate` makes of them; the first n slots are used. Where the artifact combines verifiers,
            scores are made from the candidates' `scores`.
        alpha: Error level; may be left out where the artifact holds only one.
        provenance: Header of the records where they do not carry one themselves.

    Returns:
        The report; `report.model_dump()` is plain data.

    Raises:
        OverlapError: If these are the calibration records and none were held out.
        CalibrationError: If no prompt is left to test on.
        InputError: If a record cannot be used, the level is not held, or answers are not told apart as in
            calibration.
        FeatureError: If the feature map misses metadata.
        MissingExtraError: If SciPy is not installed.

    Warns:
        FingerprintWarning: If the records come from another generator or verifier than the calibration
            records.
    """
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    _compare_provenance(artifact, provenance)
    table = tabulate(records, n=artifact.n, combination=artifact.combination, weighted=True)
    artifact.check_answers(table)
    labelled, which = held_out(artifact, table)
    level = artifact.level(alpha)
    success = artifact.parsed_set_rule.success_scores(labelled, artifact.cap)
    with naming(labelled.ids):
        uniforms = artifact.uniforms(labelled)
        decisions = decide(artifact, labelled.draws, level, uniforms=uniforms)
    own = _method(artifact, labelled, decisions)
    methods: dict[str, MethodReport] = {artifact.threshold_rule: own}
    if artifact.threshold_rule != "marginal":
        methods["marginal"] = _method(
            artifact, labelled, decide(artifact, labelled.draws, level, uniforms=uniforms, marginal=True)
        )
    return EvaluationReport(
        alpha=float(level),
        target_coverage=artifact.guarantee(level).target_coverage,
        n_calibration=artifact.calibration.size,
        n_test=len(labelled),
        n_candidates=artifact.n,
        attainable_coverage=float(np.mean(success < artifact.cap)),
        test_prompts=which,
        artifact_digest=artifact.digest,
        guarantee=artifact.guarantee(level).kind,
        contradicted=_contradicted(artifact, level, own, len(labelled)),
        methods=methods,
        answers=_answers(artifact, labelled),
        n_unknown_category=int(artifact.feature_map.has_unknown_category(decisions.features).sum()),
    )


def _answers(artifact: CalibrationArtifact, labelled: LabelledDraws) -> AnswersReport | None:
    """Bot mode on the test prompts."""
    if artifact.policy is None:
        return None
    certificate = artifact.policy.certificate
    seen = outcomes(artifact, labelled, certificate.alpha, certificate.policy)
    answered = int(seen.decisions.answered.sum())
    wrong = int((seen.wrong & seen.decisions.answered).sum())
    rate = float(certificate.max_wrong_rate)
    return AnswersReport(
        alpha=float(certificate.alpha),
        max_wrong_rate=rate,
        answered=answered,
        answered_rate=answered / len(labelled),
        wrong=wrong,
        wrong_rate=wrong / max(answered, 1),
        wrong_rate_ci=clopper_pearson(float(wrong), float(answered)),
        contradicted=at_least(wrong, answered, FALSE_ALARM) > rate,
    )


def _compare_provenance(artifact: CalibrationArtifact, theirs: Provenance | None) -> None:
    """Measuring another model is legitimate, but must not go unnoticed."""
    for part in artifact.other_parts(theirs):
        msg = (
            f"these records come from another {part} than the calibration records; the artifact promises "
            "nothing about them"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=3)


def _method(artifact: CalibrationArtifact, labelled: LabelledDraws, decisions: Decisions) -> MethodReport:
    covered: BoolArray = np.any(decisions.accepted & labelled.correct, axis=1)
    flagged = decisions.not_certifiable
    sizes = decisions.accepted.sum(axis=1).astype(np.float64)
    empty = sizes == 0.0
    return MethodReport(
        coverage=float(covered.mean()),
        coverage_ci=_interval(covered),
        kept_promise=float((covered | flagged).mean()),
        kept_promise_ci=_interval(covered | flagged),
        not_certifiable_rate=float(flagged.mean()),
        not_certifiable_ci=_interval(flagged),
        refused_rate=float(decisions.refused.mean()),
        abstention_rate=float(empty.mean()),
        abstention_ci=_interval(empty),
        mean_set_size=float(sizes.mean()),
        mean_distinct_answers=float(decisions.distinct_answers.mean()),
        groups=_groups(artifact.feature_map.guaranteed_weights()[1:], decisions, covered, sizes),
    )


def _contradicted(artifact: CalibrationArtifact, level: str, method: MethodReport, n_test: int) -> list[str]:
    """Names of the promised weightings on which the promise was kept too rarely for chance."""
    if artifact.shift is not None:
        return []  # whether these prompts are distributed as those served, nobody has said
    guarantee = artifact.guarantee(level)
    promised = {weighting.name for weighting in guarantee.weightings}
    calibrated = {group.name: group.size for group in artifact.calibration.groups}
    everyone = artifact.calibration.groups[0].name
    seen = [
        (everyone, float(n_test), method.kept_promise),
        *((g.name, g.n, g.kept_promise) for g in method.groups),
    ]
    tests = [(name, n, kept) for name, n, kept in seen if name in promised]
    broken = [
        name
        for name, n, kept in tests
        if kept_too_rarely(level, calibrated[name], n, kept, len(tests), randomised=artifact.randomised)
    ]
    certificate = guarantee.certificate
    if certificate is not None and everyone not in broken:
        kept = round(method.kept_promise * n_test)
        if at_most(kept, n_test, FALSE_ALARM) < certificate.shares[0].kept_at_least:
            broken.append(everyone)
    return broken


def _groups(
    weights: Sequence[GuaranteedWeight], decisions: Decisions, covered: BoolArray, sizes: FloatArray
) -> list[GroupReport]:
    """The weightings that hold test prompts; intervals hold together, for the eye picks the worst."""
    values = [np.maximum(weight.values(decisions.features), 0.0) for weight in weights]
    held = [(weight, of) for weight, of in zip(weights, values, strict=True) if of.any()]
    flagged = decisions.not_certifiable
    groups = []
    for weight, of in held:
        total = float(of.sum())
        effective = total**2 / float(
            of @ of
        )  # Kish's effective sample size; for a group the number of prompts
        kept = float(of @ (covered | flagged)) / total
        groups.append(
            GroupReport(
                name=weight.name,
                words=weight.words,
                n=total,
                coverage=float(of @ covered) / total,
                kept_promise=kept,
                kept_promise_ci=clopper_pearson(kept * effective, effective, 1.0 - 0.05 / len(held)),
                not_certifiable_rate=float(of @ flagged) / total,
                mean_set_size=float(of @ sizes) / total,
            )
        )
    return groups


def _interval(event: BoolArray) -> tuple[float, float]:
    return clopper_pearson(float(event.sum()), float(len(event)))

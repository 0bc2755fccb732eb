"""`evaluate`: measures an artifact on labelled prompts it has never seen, next to the marginal rule.

*When test prompts contradict the promise.* Given its calibration set, a rule's true coverage lies below tau
about half of the time, so "coverage below target" is no alarm. The promise is on average over calibration
sets as well, and the count to compare with is beta-binomial: the threshold is the k-th of N exchangeable
success scores, k = ceil((N + 1) tau), so the true coverage is Beta(k, N + 1 - k) (Vovk 2012), and of m test
prompts a BetaBinomial(m, k, N + 1 - k) number is covered. Exact for the marginal rule and for disjoint groups
with continuous scores; ties and flags only raise the count; for soft weightings the sums of weights stand in
for the numbers of prompts, an approximation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc._internal.imports import require
from langchain_cfc.artifact import CalibrationArtifact, tabulate_held_out
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import compute_outcomes
from langchain_cfc.certificates.bounds import clopper_pearson, lower_bound, upper_bound
from langchain_cfc.certificates.coverage import Outcomes
from langchain_cfc.errors import FingerprintWarning
from langchain_cfc.features import GuaranteedWeight
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.records import LabelledRecord, Provenance, Records
from langchain_cfc.thresholds import Level, compute_tau, conformal_rank


class ReportData(BaseModel):
    """Base of all reports: frozen, without infinities and unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClaimsFigures(ReportData):
    """What was kept of the claims of answers.

    Attributes:
        per_answer: Mean number of claims of an answer.
        kept: Share of all claims that were kept.
        emptied: Share of answers of which no claim was kept.
        unsupported: Share of unsupported ones among all claims.
        unsupported_kept: Share of unsupported ones among the claims kept; 0 where none was.
    """

    per_answer: float
    kept: float
    emptied: float
    unsupported: float
    unsupported_kept: float


class _WithClaims(ReportData):
    """A report that speaks of claims where answers are split into them.

    Attributes:
        claims: What was kept of the claims; left out of the data where whole answers are kept.
    """

    claims: ClaimsFigures | None = None

    @model_serializer(mode="wrap")
    def _without_claims(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialised(self)
        if self.claims is None:
            data.pop("claims", None)
        return data


class GroupFigures(ReportData):
    """The results of a method in one group of test prompts, or under one weighting of them.

    `evaluate` measures one split: intervals are two-sided Clopper-Pearson intervals, and those of all groups
    hold together with confidence 95 % (Bonferroni), approximately, by effective size, for soft groups.
    `compare` measures many: figures are means over splits, with intervals as in `experiments.Spread`.

    Attributes:
        name: Name of the group or weighting.
        words: The same for people.
        n: Sum of its weights: a number of prompts for a group.
        coverage: Weighted share of prompts whose returned set holds a correct answer.
        kept_promise: Weighted share covered or flagged as not certifiable: the guaranteed event.
        kept_promise_ci: Its interval.
        not_certifiable_rate: Weighted share flagged.
        mean_set_size: Weighted mean number of candidates returned.
    """

    name: str
    words: str
    n: float
    coverage: float
    kept_promise: float
    kept_promise_ci: tuple[float, float]
    not_certifiable_rate: float
    mean_set_size: float


class GroupReport(GroupFigures, _WithClaims):
    """The results of an artifact in one group of test prompts, or under one weighting of them.

    Attributes:
        stated_coverage: Weighted mean of the coverage stated for its prompts, which is the target where
            levels are not adaptive.
        claims: What was kept of the claims, with the same weights; None where whole answers are kept.
    """

    stated_coverage: float


class MethodFigures(ReportData):
    """The figures of a method at one level over all test prompts, in one split or as means over many.

    Attributes:
        coverage: Share of prompts whose returned set holds a correct answer (the paper's ECR).
        coverage_ci: Its two-sided 95 % interval; of one split, Clopper and Pearson's.
        kept_promise: Share covered or flagged as not certifiable: the guaranteed event.
        kept_promise_ci: Its interval.
        not_certifiable_rate: Share flagged as not certifiable.
        abstention_rate: Share of prompts without an answer, flagged ones included.
        mean_set_size: Mean number of candidates returned (the paper's APSS).
        mean_distinct_answers: Mean number of distinct answers returned.
    """

    coverage: float
    coverage_ci: tuple[float, float]
    kept_promise: float
    kept_promise_ci: tuple[float, float]
    not_certifiable_rate: float
    abstention_rate: float
    mean_set_size: float
    mean_distinct_answers: float


class LevelReport(ReportData):
    """What is measured at one error level, whatever the methods.

    Attributes:
        alpha: Error level.
        target_coverage: 1 - alpha.
        n_calibration: Number of calibration prompts; over several splits its mean, rounded.
        n_test: Number of test prompts, likewise.
        n_candidates: Number of candidates per prompt.
        attainable_coverage: Share of test prompts with a correct candidate that can enter the set.
    """

    alpha: float
    target_coverage: float
    n_calibration: int
    n_test: int
    n_candidates: int
    attainable_coverage: float


class StatedLevelReport(_WithClaims):
    """The results on the test prompts for which one coverage is stated.

    Attributes:
        stated_coverage: The coverage stated for them.
        n: Their number.
        coverage: Share of them whose returned set holds a correct answer.
        kept_promise: Share covered or flagged as not certifiable.
        kept_promise_ci: Its interval; those of all levels hold together with confidence 95 % (Bonferroni).
        not_certifiable_rate: Share flagged.
        claims: What was kept of their claims; None where whole answers are kept.
    """

    stated_coverage: float
    n: int
    coverage: float
    kept_promise: float
    kept_promise_ci: tuple[float, float]
    not_certifiable_rate: float


class MethodReport(MethodFigures, _WithClaims):
    """The results of one threshold rule over all test prompts.

    Attributes:
        stated_coverage: Mean coverage stated for the prompts, which is the target where levels are not
            adaptive.
        not_certifiable_ci: Interval of the share flagged.
        refused_rate: Share flagged only because the artifact keeps too few calibration prompts to know the
            threshold; part of `not_certifiable_rate`.
        abstention_ci: Interval of the share without an answer.
        groups: The guaranteed weightings that hold test prompts, in the order of the feature map.
        stated_levels: The levels stated for test prompts, the largest coverage first; only where levels are
            adaptive. What is guaranteed are the `groups`, not each level by itself.
        claims: What was kept of the claims; None where whole answers are kept.
    """

    stated_coverage: float
    not_certifiable_ci: tuple[float, float]
    refused_rate: float = 0.0
    abstention_ci: tuple[float, float]
    groups: list[GroupReport]
    stated_levels: list[StatedLevelReport] = []


class AnswersReport(ReportData):
    """The results of bot mode, where the artifact holds a certified policy.

    Attributes:
        alpha: Level of the sets that it answers from.
        max_wrong_rate: The certified bound on the share of wrong answers.
        answered: Number of test prompts answered.
        answered_rate: Their share of all test prompts.
        wrong: How many of them got a wrong best answer.
        wrong_rate: Their share of the answered ones; 0 where none is answered.
        wrong_rate_ci: Its two-sided 95 % Clopper-Pearson interval.
        contradicted: Whether, if the certified rate were true, so many wrong answers would have a probability
            below 2.5 %.
    """

    alpha: float
    max_wrong_rate: float
    answered: int
    answered_rate: float
    wrong: int
    wrong_rate: float
    wrong_rate_ci: tuple[float, float]
    contradicted: bool


class EvaluationReport(LevelReport):
    """The results of an artifact on labelled prompts that it was not calibrated on.

    Attributes:
        test_prompts: Which prompts of the records were used, in words.
        artifact_digest: Digest of the artifact.
        guarantee: Kind of the artifact's guarantee: `conditional`, `marginal`, `certified` or `heuristic`.
        contradicted: Names of the groups (`1` is all prompts) on which the artifact's own rule kept its
            promise, or the certificate over all prompts, too rarely for chance; empty if nothing contradicts
            it.
        methods: By threshold rule; the artifact's own, and `marginal` for comparison.
        answers: The results of bot mode at the smallest certified rate; None where the artifact holds no
            certified policy.
        other_answers: Those at further rates, ascending; left out of the data where there are none.
        n_unknown_category: Number of test prompts of a category that was not calibrated on. The artifact's
            own rule flags them, unless it is the marginal one.
        mean_draws: Mean number of candidates drawn for a prompt, where a draw rule stops drawing; left out of
            the data where there is none.
        certified_by_people: What people's labels certify of the level and of bot mode, in words; left out of
            the data where there is nothing.
    """

    test_prompts: str
    artifact_digest: str
    guarantee: str
    contradicted: list[str]
    methods: dict[str, MethodReport]
    answers: AnswersReport | None = None
    other_answers: tuple[AnswersReport, ...] = ()
    n_unknown_category: int = 0
    mean_draws: float | None = None
    certified_by_people: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialised(self)
        for name in ("other_answers", "mean_draws", "certified_by_people"):
            if getattr(self, name) in {(), None}:
                data.pop(name, None)
        return data

    @property
    def all_answers(self) -> tuple[AnswersReport, ...]:
        """The results of bot mode at every certified rate, ascending."""
        return () if self.answers is None else (self.answers, *self.other_answers)

    def describe_draws(self, each: str) -> str:
        """Say how many candidates a prompt has; `each` is a noun, or words such as `for each prompt`."""
        if self.mean_draws is None:
            return f"{self.n_candidates} {each}"
        return f"at most {self.n_candidates} {each}, {self.mean_draws:.1f} on average"


# Probability that a kept promise is reported as contradicted.
FALSE_ALARM = 0.025


def is_contradicted(
    alpha: Level, calibration: float, test: float, kept: float, tests: int, *, randomised: bool = False
) -> bool:
    """Whether the promise was kept on so few test prompts that chance does not explain it.

    `calibration` and `test` are numbers of prompts or sums of weights, and `kept` is the share of test
    prompts on which the promise was kept. The false-alarm rate of 2.5 % is divided among `tests` groups
    (Bonferroni). Randomised thresholds lie between the ranks k - 1 and k, so the smaller rank is used as a
    bound.

    Examples:
        >>> is_contradicted(0.1, 1000, 500, 0.88, 1), is_contradicted(0.1, 1000, 500, 0.85, 1)
        (False, True)
    """
    size, trials = math.floor(calibration), math.floor(test)
    rank = conformal_rank(size, compute_tau(alpha)) - randomised
    if not 0 < rank <= size or trials == 0:
        # Nothing can be certified in such a group: all of it is flagged, which keeps the promise. A soft
        # weighting of so little weight is not checked, since thresholds of other prompts affect it.
        return False
    count = math.ceil(kept * trials - 1e-9)  # 0.56 * 100 is 56.00000000000001
    return _beta_binomial_cdf(count, trials, rank, size + 1 - rank) < FALSE_ALARM / tests


def _beta_binomial_cdf(count: int, trials: int, a: int, b: int) -> float:
    """Return P(X <= count), X ~ BetaBinomial(trials, a, b); importing `scipy.stats` for it takes a second."""
    betaln = require("scipy.special", "calibrate", "checking the promise").betaln
    k = np.arange(count + 1)
    log_binomial = -betaln(1 + trials - k, 1 + k) - math.log(1 + trials)
    return float(np.exp(log_binomial + betaln(k + a, trials - k + b) - betaln(a, b)).sum())


def evaluate(
    artifact: CalibrationArtifact,
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level | None = None,
    provenance: Provenance | None = None,
) -> EvaluationReport:
    """Measure an artifact on labelled records.

    Records that the artifact was calibrated on are recognised: only the test part that was held out of them
    is used, and without one they are refused. As in calibration, one prompt of each cluster counts.

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
    for part in artifact.differing_parts(provenance):
        msg = (
            f"these records come from another {part} than the calibration records; the artifact promises "
            "nothing about them"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=2)
    labelled, which = tabulate_held_out(artifact, records, "test")
    level = artifact.level(alpha)
    success = artifact.parsed_set_rule.success_scores(labelled, artifact.cap)
    seen = compute_outcomes(artifact, labelled, level)
    own = _report_method(artifact, labelled, seen)
    methods: dict[str, MethodReport] = {artifact.threshold_rule: own}
    if artifact.threshold_rule != "marginal":
        compared = compute_outcomes(artifact, labelled, level, marginal=True)
        methods["marginal"] = _report_method(artifact, labelled, compared)
    certificates = () if artifact.policy is None else artifact.policy.certificates
    answers = [_report_answers(artifact, labelled, one) for one in certificates]
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
        contradicted=_find_contradicted(artifact, level, own, len(labelled)),
        methods=methods,
        answers=answers[0] if answers else None,
        other_answers=tuple(answers[1:]),
        mean_draws=None if artifact.draws is None else float(labelled.draws.counts.mean()),
        certified_by_people=tuple(
            one.sentence() for one in artifact.people_certificates if one.alpha == level or one.policy
        ),
        n_unknown_category=int(artifact.feature_map.has_unknown_category(seen.decisions.features).sum()),
    )


def _report_answers(
    artifact: CalibrationArtifact, labelled: LabelledBatch, certificate: WrongRateCertificate
) -> AnswersReport:
    seen = compute_outcomes(artifact, labelled, certificate.alpha, certificate.policy)
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
        contradicted=lower_bound(wrong, answered, FALSE_ALARM) > rate,
    )


def _report_method(artifact: CalibrationArtifact, labelled: LabelledBatch, seen: Outcomes) -> MethodReport:
    decisions = seen.decisions
    flagged = decisions.not_certifiable
    sizes = decisions.accepted.sum(axis=1).astype(np.float64)
    empty = sizes == 0.0
    return MethodReport(
        stated_coverage=float(seen.stated.mean()),
        coverage=float(seen.covered.mean()),
        coverage_ci=_compute_interval(seen.covered),
        kept_promise=float(seen.kept.mean()),
        kept_promise_ci=_compute_interval(seen.kept),
        not_certifiable_rate=float(flagged.mean()),
        not_certifiable_ci=_compute_interval(flagged),
        refused_rate=float(decisions.refused.mean()),
        abstention_rate=float(empty.mean()),
        abstention_ci=_compute_interval(empty),
        mean_set_size=float(sizes.mean()),
        mean_distinct_answers=float(decisions.distinct_answers.mean()),
        groups=_report_groups(artifact.feature_map.guaranteed_weights()[1:], labelled, seen),
        stated_levels=_report_stated_levels(labelled, seen) if np.ptp(seen.stated) > 0.0 else [],
        claims=_report_claims(labelled, decisions.accepted, np.ones(len(labelled))),
    )


def _report_claims(labelled: LabelledBatch, kept: BoolArray, weights: FloatArray) -> ClaimsFigures | None:
    """Report what was kept of claims, with (N,) weights of answers; None where whole answers are kept."""
    if labelled.unit != "claims":
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


def _report_stated_levels(labelled: LabelledBatch, seen: Outcomes) -> list[StatedLevelReport]:
    """Report the prompts of each stated coverage."""
    levels = np.unique(seen.decisions.stated_alphas)
    reports = []
    for alpha in levels:
        of = seen.decisions.stated_alphas == alpha
        n = int(of.sum())
        reports.append(
            StatedLevelReport(
                stated_coverage=round(1.0 - float(alpha), 12),
                n=n,
                coverage=float(seen.covered[of].mean()),
                kept_promise=float(seen.kept[of].mean()),
                kept_promise_ci=clopper_pearson(float(seen.kept[of].sum()), n, 1.0 - 0.05 / len(levels)),
                not_certifiable_rate=float(seen.decisions.not_certifiable[of].mean()),
                claims=_report_claims(labelled, seen.decisions.accepted, of.astype(np.float64)),
            )
        )
    return reports


def _find_contradicted(
    artifact: CalibrationArtifact, level: str, method: MethodReport, n_test: int
) -> list[str]:
    """Return the names of promised weightings on which the promise was kept too rarely for chance."""
    if artifact.shift is not None:
        return []  # it is unknown whether these prompts are distributed like those served
    guarantee = artifact.guarantee(level)
    target = guarantee.target_coverage - 1e-12  # up to round-off of a mean
    promised = {weighting.name for weighting in guarantee.weightings}
    calibrated = {group.name: group.size for group in artifact.calibration.groups}
    everyone = artifact.calibration.groups[0].name
    # Stated levels that differ make the number of kept promises vary less than the same mean level for all
    # prompts does (Hoeffding 1956), so that the mean level gives no more false alarms.
    seen = [
        (everyone, float(n_test), method.stated_coverage, method.kept_promise),
        *((g.name, g.n, g.stated_coverage, g.kept_promise) for g in method.groups),
    ]
    tests = [one for one in seen if one[0] in promised]
    broken = [
        name
        for name, n, stated, kept in tests
        if is_contradicted(
            level if stated >= target else 1.0 - stated,
            calibrated[name],
            n,
            kept,
            len(tests),
            randomised=artifact.randomised,
        )
    ]
    certificate = guarantee.certificate
    if certificate is not None and everyone not in broken:
        kept = round(method.kept_promise * n_test)
        if upper_bound(kept, n_test, FALSE_ALARM) < certificate.shares[0].kept_at_least:
            broken.append(everyone)
    return broken


def _report_groups(
    weights: Sequence[GuaranteedWeight], labelled: LabelledBatch, seen: Outcomes
) -> list[GroupReport]:
    """Report the weightings that hold test prompts; their intervals hold together (Bonferroni)."""
    values = [np.maximum(weight.values(seen.decisions.features), 0.0) for weight in weights]
    held = [(weight, of) for weight, of in zip(weights, values, strict=True) if of.any()]
    sizes = seen.decisions.accepted.sum(axis=1).astype(np.float64)
    groups = []
    for weight, of in held:
        total = float(of.sum())
        # Kish's effective sample size; for a group the number of prompts.
        effective = total**2 / float(of @ of)
        kept = float(of @ seen.kept) / total
        groups.append(
            GroupReport(
                name=weight.name,
                words=weight.words,
                n=total,
                stated_coverage=float(of @ seen.stated) / total,
                coverage=float(of @ seen.covered) / total,
                kept_promise=kept,
                kept_promise_ci=clopper_pearson(kept * effective, effective, 1.0 - 0.05 / len(held)),
                not_certifiable_rate=float(of @ seen.decisions.not_certifiable) / total,
                mean_set_size=float(of @ sizes) / total,
                claims=_report_claims(labelled, seen.decisions.accepted, of),
            )
        )
    return groups


def _compute_interval(event: BoolArray) -> tuple[float, float]:
    return clopper_pearson(float(event.sum()), float(len(event)))

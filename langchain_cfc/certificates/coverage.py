"""`certify`: certificates about the sets of one frozen artifact, from held-out labelled prompts."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from langchain_cfc.artifact import (
    AttemptLedger,
    CalibrationArtifact,
    PlannedAttempt,
    Previous,
    name_evaluation,
    tabulate_held_out,
)
from langchain_cfc.artifact.model import open_artifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import lower_bound
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.errors import FingerprintError, FingerprintWarning, InputError
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.guarantee import (
    CertifiedAnswers,
    CertifiedShare,
    CoverageCertificate,
)
from langchain_cfc.guarantee.certified import divide_delta
from langchain_cfc.records import LabelledRecord, Provenance
from langchain_cfc.records.files import open_records
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.support.progress import announce_step
from langchain_cfc.support.serialization import canonical_json, compute_sha256
from langchain_cfc.thresholds import Level, format_alpha


@dataclass(frozen=True)
class PromptGroup:
    """The sample of held-out prompts that represents one weighting."""

    name: str  # of the weighting; `1` is all prompts
    words: str
    members: BoolArray  # (m,) which of the held-out prompts represent it

    def count_answers(self, answered: BoolArray, wrong: BoolArray, *, certified: bool) -> CertifiedAnswers:
        """Count answers and wrong answers in the group, given (m,) which prompts got one."""
        answers = answered & self.members
        return CertifiedAnswers(
            name=self.name,
            words=self.words,
            prompts=int(self.members.sum()),
            answered=int(answers.sum()),
            wrong=int((answers & wrong).sum()),
            certified=certified,
        )


def sample_groups(
    artifact: CalibrationArtifact, labelled: LabelledBatch, features: FloatArray
) -> list[PromptGroup]:
    """Return all prompts, then a sample of them for every other named weighting of the feature map.

    A weighting f in [0, 1] is turned into a sample: a prompt represents it with probability f(X), by the hash
    of its id. These are independent prompts from the distribution reweighted by f, so exact binomial bounds
    hold for soft weightings as they do for groups (rejection sampling, von Neumann 1951).
    """
    everyone, *others = artifact.feature_map.list_guaranteed_weights()
    groups = [PromptGroup(everyone.name, everyone.words, np.ones(len(labelled), dtype=np.bool_))]
    for one in others:
        uniforms = artifact.calibration.split.draw_uniforms(f"claim {one.name}", labelled.ids)
        members = np.asarray(uniforms < one.compute_values(features), dtype=np.bool_)
        groups.append(PromptGroup(one.name, one.words, members))
    return groups


@dataclass(frozen=True)
class Outcomes:
    """The decisions of an artifact on m labelled prompts, and whether they were right."""

    decisions: Decisions
    covered: BoolArray  # (m,) whether the set held a correct answer, or few enough unsupported claims
    kept: BoolArray  # (m,) whether the promise was kept: covered, or flagged as not certifiable
    # (m,) whether the best answer is incorrect or, for claims, whether one drawn at random from those kept is
    # unsupported; False for an empty set
    wrong: BoolArray
    shown: IntArray  # (m,) slot of the answer or claim that decides whether it is wrong

    @property
    def stated(self) -> FloatArray:
        """(m,) the coverage stated for each prompt: 1 - alpha, or less if levels are adaptive."""
        return 1.0 - self.decisions.stated_alphas

    def count_answers(self, answered: BoolArray) -> tuple[int, int]:
        """Count answered prompts, and those of them with a wrong best answer."""
        return int(answered.sum()), int((self.wrong & answered).sum())


def compute_outcomes(
    artifact: CalibrationArtifact,
    labelled: LabelledBatch,
    alpha: Level | None,
    *,
    cut: float | None = None,
    marginal: bool = False,
) -> Outcomes:
    """Decide on labelled prompts with the function used in serving, and compare with the labels.

    Arguments are those of `decide`.
    """
    with name_records_in_errors(labelled.ids):
        decisions = decide(artifact, labelled.draws, alpha, cut=cut, marginal=marginal)
    covered = artifact.parsed_set_rule.covers(labelled.correct, decisions.accepted)
    draw_uniforms = partial(artifact.calibration.split.draw_uniforms, "shown claim", labelled.ids)
    shown = artifact.parsed_set_rule.choose_shown(decisions.best, decisions.accepted, draw_uniforms)
    correct = np.take_along_axis(labelled.correct, shown[:, np.newaxis], axis=1)[:, 0]
    return Outcomes(
        decisions,
        covered,
        np.asarray(covered | decisions.not_certifiable, dtype=np.bool_),
        np.asarray(~correct & decisions.accepted.any(axis=1), dtype=np.bool_),
        shown,
    )


def compute_records_digest(labelled: LabelledBatch) -> str:
    """Return a SHA-256 over everything that a test depends on, independent of the prompts' order.

    These are ids, scores, labels, answer codes, lengths (0 is no answer) and metadata (groups).
    """
    codes, lengths = labelled.draws.answer_codes, labelled.draws.lengths
    rows = []
    # Without padding, whose width depends on the other prompts.
    for row, (record_id, n) in enumerate(zip(labelled.ids, labelled.draws.counts.tolist(), strict=True)):
        one = hashlib.sha256(record_id.encode("utf-8", "surrogatepass"))
        one.update(
            labelled.draws.scores[row, :n].astype("<f8").tobytes() + labelled.correct[row, :n].tobytes()
        )
        for known in (codes, lengths):
            one.update(b"" if known is None else known[row, :n].astype("<i8").tobytes())
        one.update(repr(sorted(labelled.draws.metadata[row].items())).encode("utf-8", "surrogatepass"))
        rows.append(one.digest())
    return compute_sha256(b"".join(sorted(rows)))


def certify(
    artifact: CalibrationArtifact,
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level | None = None,
    delta: Level = "0.05",
    provenance: Provenance | None = None,
    after: Previous = None,
) -> CalibrationArtifact:
    """Certify the sets of an artifact on held-out labelled prompts.

    Given the artifact, however its thresholds were computed, the promise is kept on each independent prompt
    with the same unknown probability, so exact binomial bounds hold (Clopper and Pearson 1934). This is an
    attempt on the labels, at its share of delta (see `AttemptLedger`), divided among the levels. Half of that
    goes to the two bounds over all prompts, the other half is divided among those of the groups (Bonferroni),
    so that all of them hold together.

    Args:
        artifact: The artifact.
        records: Labelled records with at least the artifact's number of candidates, independent and
            identically distributed with the prompts to come. Of the records that the artifact was calibrated
            on, the test part is used. One prompt of each cluster counts.
        alpha: Error level; by default every level of the artifact, each with its own certificate.
        delta: Probability that any bound of a certificate is wrong, 0 < delta < 1.
        provenance: Header of the records, if they do not carry one themselves.
        after: What else was attempted with these labels: an artifact, a refusal or an `AttemptLedger`. The
            attempts that the artifact holds are known.

    Returns:
        The artifact with its certificates.

    Raises:
        OverlapError: If these are the calibration records and none were held out, or other figures from all
            the labels held out were looked at; for one of several levels also those of `evaluate`.
        CalibrationError: If no prompt is left to certify on.
        InputError: If the artifact has no sets, lacks a level or has a certificate for it already, a record
            cannot be used, or answers are not distinguished as in calibration.
        FeatureError: If metadata that the feature map needs is missing.
        FingerprintError: If the records come from another generator, verifier or extractor.
        MissingExtraError: If SciPy is not installed.
    """
    text = format_alpha(delta, "delta")
    artifact = open_artifact(artifact)
    levels = artifact.alphas if alpha is None else (artifact.select_level(alpha),)
    if not levels:
        msg = (
            "this bot's rates were certified by `calibrate`, and it has no answer sets to certify: for its "
            "figures on held-out questions run langchain-cfc evaluate ARTIFACT RECORDS"
        )
        raise InputError(msg)
    known = [one.alpha for one in artifact.certificates if one.alpha in levels]
    if known:
        msg = (
            f"alpha = {known[0]} already has a certificate. Certifying again until the result is good would "
            "invalidate it: if there is a reason to certify again, use the artifact that `calibrate` made"
        )
        raise InputError(msg)
    records, provenance = open_records(records, provenance)
    check_origin(artifact, provenance)
    labelled, _ = tabulate_held_out(artifact, records)
    announce_step("certifying")
    # The same artifact made again at another time is no other attempt.
    timeless = artifact.model_copy(update={"created_at": "", "library_version": ""})
    settings = compute_sha256(canonical_json([timeless.frozen_digest, levels, text]))
    attempt = AttemptLedger.collect(artifact, after).plan_attempt(
        labelled,
        settings,
        compute_records_digest(labelled),
        # What `evaluate` shows could have chosen one of several levels.
        harmless_look=name_evaluation(artifact) if levels == artifact.alphas else None,
    )
    level = attempt.compute_level(text, len(levels))
    new = [certify_level(artifact, attempt, one, text, level) for one in levels]
    certificates = sorted([*artifact.certificates, *new], key=lambda one: float(one.alpha))
    attempts = list(attempt.end(certified=True).attempts)
    return artifact.model_copy(update={"certificates": certificates, "attempts": attempts})


def check_origin(artifact: CalibrationArtifact, provenance: Provenance | None) -> None:
    """Raise a `FingerprintError` for records of another generator, verifier, extractor or splitter.

    Warn with a `FingerprintWarning` if the records do not say what made them, and the artifact does.
    """
    if provenance is None and artifact.provenance is not None:
        msg = (
            "these records do not say which generator and verifier made them, so it is unknown whether these "
            "are the ones that the artifact was calibrated for: give records with a header, or provenance="
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=4)
    different = artifact.list_differing_parts(provenance)
    if different:
        msg = (
            f"these records come from another {' and '.join(different)} than the calibration records, so "
            "they cannot certify this artifact; collect records with the one that it was calibrated for"
        )
        raise FingerprintError(msg)


def certify_level(
    artifact: CalibrationArtifact,
    attempt: PlannedAttempt,
    alpha: str,
    delta: str,
    level: float,
) -> CoverageCertificate:
    """Certify the sets at one error level, with a part of delta as the level of its bounds."""
    labelled = attempt.labelled
    seen = compute_outcomes(artifact, labelled, alpha)
    groups = sample_groups(artifact, labelled, seen.decisions.features)
    is_adaptive = artifact.feature_map.adaptive_alpha is not None

    def certify_share(group: PromptGroup, part: float) -> CertifiedShare:
        failing = part / 2  # of each of two bounds
        prompts = int(group.members.sum())
        kept, covered = int(seen.kept[group.members].sum()), int(seen.covered[group.members].sum())
        return CertifiedShare(
            name=group.name,
            words=group.words,
            prompts=prompts,
            kept=kept,
            kept_at_least=lower_bound(kept, prompts, failing),
            covered=covered,
            coverage_at_least=lower_bound(covered, prompts, failing),
            stated=float(seen.stated[group.members].mean()) if is_adaptive and prompts else None,
        )

    return CoverageCertificate(
        alpha=alpha,
        delta=delta,
        attempt=attempt.number,
        level=level,
        prompts=len(labelled),
        shares=tuple(map(certify_share, groups, divide_delta(level, len(groups) - 1))),
        set_rule=artifact.set_rule,
        records_digest=compute_records_digest(labelled),
        artifact_digest=artifact.frozen_digest,
    )

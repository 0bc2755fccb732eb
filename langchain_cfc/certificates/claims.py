"""What certificates speak of: all prompts, and the prompts of each weighting."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.features import naming
from langchain_cfc.guarantee import AnswerPolicy
from langchain_cfc.thresholds import Level


@dataclass(frozen=True)
class Claim:
    """A set of prompts that certificates speak of.

    Attributes:
        name: Name of the weighting; `1` is all prompts.
        words: The same for people.
        members: (m,) which of the held-out prompts speak for it.
    """

    name: str
    words: str
    members: BoolArray


def claims(artifact: CalibrationArtifact, labelled: LabelledDraws, features: FloatArray) -> list[Claim]:
    """All prompts first, then every named weighting of the artifact's feature map.

    A weighting f in [0, 1] is turned into a sample: a prompt speaks for it with probability f(X), by the hash
    of its id. Those that do are independent prompts with the distribution reweighted by f, so that exact
    binomial bounds hold for soft weightings as for groups (rejection sampling, von Neumann 1951).

    Args:
        artifact: The artifact.
        labelled: m held-out prompts.
        features: (m, d) their features.

    Returns:
        The claims.
    """
    everyone, *others = artifact.feature_map.guaranteed_weights()
    found = [Claim(everyone.name, everyone.words, np.ones(len(labelled), dtype=np.bool_))]
    for one in others:
        tickets = artifact.calibration.split.uniforms(f"claim {one.name}", labelled.ids)
        found.append(Claim(one.name, one.words, np.asarray(tickets < one.values(features), dtype=np.bool_)))
    return found


@dataclass(frozen=True)
class Outcomes:
    """What an artifact decided on labelled prompts, and what came of it.

    Attributes:
        decisions: The decisions on m prompts.
        covered: (m,) whether the set held a correct answer.
        kept: (m,) whether the promise was kept: covered, or flagged as not certifiable.
        wrong: (m,) whether the best answer is incorrect; False for an empty set.
    """

    decisions: Decisions
    covered: BoolArray
    kept: BoolArray
    wrong: BoolArray

    def under(self, policy: AnswerPolicy) -> BoolArray:
        """(m,) which prompts another policy would answer."""
        return replace(self.decisions, policy=policy).answered


def outcomes(
    artifact: CalibrationArtifact,
    labelled: LabelledDraws,
    alpha: Level,
    policy: AnswerPolicy = AnswerPolicy(),  # noqa: B008 - frozen
) -> Outcomes:
    """Decide on labelled prompts by the very function that serves, and look at the labels.

    Args:
        artifact: The artifact.
        labelled: m labelled prompts.
        alpha: Error level.
        policy: Which sets are answered.

    Returns:
        What came of it.
    """
    with naming(labelled.ids):
        decisions = decide(
            artifact, labelled.draws, alpha, policy=policy, uniforms=artifact.uniforms(labelled)
        )
    covered = np.any(decisions.accepted & labelled.correct, axis=1)
    correct = np.take_along_axis(labelled.correct, decisions.best[:, np.newaxis], axis=1)[:, 0]
    return Outcomes(
        decisions,
        covered,
        np.asarray(covered | decisions.not_certifiable, dtype=np.bool_),
        np.asarray(~correct & decisions.accepted.any(axis=1), dtype=np.bool_),
    )


def records_digest(labelled: LabelledDraws) -> str:
    """SHA-256 over ids, scores, labels and which answers are equal, whatever the order of the prompts."""
    codes = labelled.draws.answer_codes
    rows = []
    for row, record_id in enumerate(labelled.ids):
        one = hashlib.sha256(record_id.encode("utf-8", "surrogatepass"))
        one.update(labelled.draws.scores[row].astype("<f8").tobytes() + labelled.correct[row].tobytes())
        one.update(b"" if codes is None else codes[row].astype("<i8").tobytes())
        rows.append(one.digest())
    return "sha256:" + hashlib.sha256(b"".join(sorted(rows))).hexdigest()

"""A cascade of two tiers: how it is calibrated, and what it does with questions that it never saw.

The questions are split in three by hash. On the first part the cheap chain is calibrated. Of the second part
the strong chain gets those on which the cheap one, now fixed, abstains: the very choice that the cheap one
makes when it serves. The third part tests.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from two_models import Tier

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc._internal.arrays import BoolArray, IntArray
from langchain_cfc.decision import decide
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records.splits import make_split_plan

ALPHA_CHEAP, ALPHA_STRONG = "0.2", "0.25"
BY_DIFFICULTY = "hat(mean_score, 5)"


@dataclass(frozen=True)
class Split:
    """Row numbers of three parts of the questions.

    Attributes:
        first: Calibrates the cheap chain.
        second: Where the cheap chain abstains on it, calibrates the strong one.
        test: Measures.
    """

    first: IntArray
    second: IntArray
    test: IntArray

    @classmethod
    def of(cls, tier: Tier, seed: int) -> Split:
        """35 %, 35 % and 30 % of the questions, by the hash of their ids: the same for both models."""
        rows = make_split_plan(seed, fit=0.0, test=0.3, certification=0.5).list_rows(tier.table)
        return cls(rows["calibration"], rows["certification"], rows["test"])


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of m questions at one chain.

    Attributes:
        answered: (m,) whether it returned a set; where not, the next tier is asked.
        covered: (m,) whether that set holds a correct answer.
        flagged: (m,) whether the question was flagged as not certifiable.
    """

    answered: BoolArray
    covered: BoolArray
    flagged: BoolArray

    @property
    def kept(self) -> BoolArray:
        """(m,) covered or flagged: what is promised."""
        return self.covered | self.flagged


def calibrate_tier(tier: Tier, rows: IntArray, alpha: str, features: str) -> CalibrationArtifact:
    """Calibrate a chain on some of its questions; what is out of its reach, it will flag and pass on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)
        return calibrate(
            tier.table.take(rows),
            alpha=alpha,
            features=features,
            allow_unattainable=True,
            provenance=tier.provenance,
        )


def decide_questions(artifact: CalibrationArtifact, tier: Tier, rows: IntArray) -> Outcomes:
    """Decide some questions at once, as `CFCRunnable` would."""
    asked = tier.table.take(rows)
    decisions = decide(artifact, asked.draws)
    covered: BoolArray = np.any(decisions.accepted & asked.correct, axis=1)
    return Outcomes(decisions.answered, covered, decisions.not_certifiable)


@dataclass(frozen=True)
class FirstTier:
    """The cheap chain, calibrated, and what it does with the questions that did not calibrate it.

    Attributes:
        artifact: Its artifact.
        on_second: What it did with the second part.
        on_test: What it did with the test part.
    """

    artifact: CalibrationArtifact
    on_second: Outcomes
    on_test: Outcomes

    @classmethod
    def of(cls, cheap: Tier, split: Split, alpha: str = ALPHA_CHEAP) -> FirstTier:
        """Calibrate on the first part.

        Args:
            cheap: The cheap model.
            split: Which questions are for what.
            alpha: Error level, chosen beforehand.
        """
        artifact = calibrate_tier(cheap, split.first, alpha, BY_DIFFICULTY)
        return cls(
            artifact,
            decide_questions(artifact, cheap, split.second),
            decide_questions(artifact, cheap, split.test),
        )


def calibrate_second_tier(
    strong: Tier, split: Split, first: FirstTier, features: str = BY_DIFFICULTY, *, naive: bool = False
) -> CalibrationArtifact:
    """Calibrate the strong chain on the questions that the first passes on.

    Args:
        strong: The strong model.
        split: Which questions are for what.
        first: The cheap tier.
        features: Feature map.
        naive: Whether to calibrate on the whole second part, which is what must not be done.

    Returns:
        The artifact.
    """
    rows = split.second if naive else split.second[~first.on_second.answered]
    return calibrate_tier(strong, rows, ALPHA_STRONG, features)

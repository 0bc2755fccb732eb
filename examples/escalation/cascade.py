"""A cascade of two bots: how it is calibrated, and what it does with questions that it never saw.

The questions are split in three by hash. On the first part the cheap bot is certified. Of the second part the
strong bot gets those on which the cheap one, now fixed, abstains: the very choice that the cheap one makes
when it serves. The third part tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from two_models import Tier

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.certificates import compute_outcomes
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import BoolArray, IntArray

RATE_CHEAP, RATE_STRONG = "0.3", "0.2"
DELTA = "0.05"
# Share of the questions not held out that certify the strong bot.
SHARE_SECOND = 0.5


@dataclass(frozen=True)
class Split:
    """Row numbers of three parts of the questions.

    Attributes:
        first: Certifies the cheap bot.
        second: Where the cheap bot abstains on it, certifies the strong one.
        test: Measures.
    """

    first: IntArray
    second: IntArray
    test: IntArray

    @classmethod
    def of(cls, tier: Tier, seed: int) -> Split:
        """35 %, 35 % and 30 % of the questions, by the hash of their ids: the same for both models."""
        plan = make_split_plan(seed, fit=0.0, test=0.3)
        rows = plan.list_rows(tier.table)
        hashes = plan.draw_uniforms("certification", [f"id:{one}" for one in tier.table.ids])
        is_second = hashes[rows["calibration"]] < SHARE_SECOND
        return cls(rows["calibration"][~is_second], rows["calibration"][is_second], rows["test"])


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of m questions at one bot.

    Attributes:
        answered: (m,) whether it answered; where not, the next tier is asked.
        wrong: (m,) whether it answered wrongly.
    """

    answered: BoolArray
    wrong: BoolArray


def certify_tier(tier: Tier, rows: IntArray, rate: str) -> CalibrationArtifact:
    """Certify a bot on some of its questions."""
    return calibrate(
        tier.table.take(rows), max_wrong_rate=rate, delta=DELTA, features="1", provenance=tier.provenance
    )


def decide_questions(artifact: CalibrationArtifact, tier: Tier, rows: IntArray) -> Outcomes:
    """Decide some questions at once, as `CFCRunnable` would."""
    cut = artifact.certified_bot.certificates[0].cut
    seen = compute_outcomes(artifact, tier.table.take(rows), None, cut=cut)
    answered = seen.decisions.answered
    return Outcomes(answered, answered & seen.wrong)


@dataclass(frozen=True)
class FirstTier:
    """The cheap bot, certified, and what it does with the questions that did not certify it.

    Attributes:
        artifact: Its artifact.
        on_second: What it did with the second part.
        on_test: What it did with the test part.
    """

    artifact: CalibrationArtifact
    on_second: Outcomes
    on_test: Outcomes

    @classmethod
    def of(cls, cheap: Tier, split: Split, rate: str = RATE_CHEAP) -> FirstTier:
        """Certify on the first part.

        Args:
            cheap: The cheap model.
            split: Which questions are for what.
            rate: Largest share of wrong answers, chosen beforehand.
        """
        artifact = certify_tier(cheap, split.first, rate)
        return cls(
            artifact,
            decide_questions(artifact, cheap, split.second),
            decide_questions(artifact, cheap, split.test),
        )


def certify_second_tier(
    strong: Tier, split: Split, first: FirstTier, *, naive: bool = False
) -> CalibrationArtifact:
    """Certify the strong bot on the questions that the first passes on.

    Args:
        strong: The strong model.
        split: Which questions are for what.
        first: The cheap tier.
        naive: Whether to certify on the whole second part, which is what must not be done.

    Returns:
        The artifact.
    """
    rows = split.second if naive else split.second[~first.on_second.answered]
    return certify_tier(strong, rows, RATE_STRONG)

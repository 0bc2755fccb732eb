"""Which prompts an artifact was made from, and what they allow."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from langchain_cfc.draws import PromptKind
from langchain_cfc.guarantee import (
    Alpha,
    AnswerPolicy,
    Count,
    CoverageCertificate,
    Delta,
    Share,
    WrongRateCertificate,
)
from langchain_cfc.splits import SplitPlan


class ArtifactData(BaseModel):
    """Base of what an artifact holds: frozen, strict, without infinities and unknown fields.

    What is left at its default is not written: artifacts keep their content and digest when the format learns
    something new that they do not use.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialised(self)
        for name, field in type(self).model_fields.items():
            if not field.is_required() and getattr(self, name) == field.default:
                data.pop(name, None)
        return data


class AttainableGroup(ArtifactData):
    """How far coverage can go in one guaranteed weighting.

    Attributes:
        name: Name of the weighting.
        words: The same for people.
        size: Sum of the weights over the calibration prompts.
        attainable: Weighted share of calibration prompts with a correct candidate that can enter the set.
        smallest_alpha: The smallest error level at which a threshold below the cap exists there: 1 -
            attainable size / (size + 1); approximate for soft and for overlapping weightings.
    """

    name: str
    words: str
    size: float
    attainable: float
    smallest_alpha: float

    def allows(self, alpha: float | str) -> bool:
        """Whether an error level is within reach here; what round-off may add to the bound is let pass."""
        return float(alpha) >= self.smallest_alpha - 1e-12


class CalibrationFacts(ArtifactData):
    """Which prompts the artifact was made from, and what they allow.

    Attributes:
        size: Number N of calibration prompts.
        recorded_candidates: Number of candidates that were recorded per prompt, of which the first n were
            used.
        extracted_answers: Whether an extractor made the answers; None where some candidates had none.
        map_came_fitted: Whether the feature map was given fitted, on prompts that are not known here.
        fit_size: Number of prompts that fitted the feature map, and the combination of verifiers where there
            is one; none of them calibrated.
        held_out_size: Number of prompts kept out for evaluation.
        within_clusters: `one` prompt of each cluster was used, or `all`.
        exchangeable: Whether no two calibration prompts share a cluster.
        split: The plan that assigns prompts to parts.
        digests: Digest of each part's ids.
        sketch: Keyed hashes of some ids and clusters of the first two parts, and of the third where it can
            certify nothing any more, to recognise them later.
        attainable_coverage: Share of calibration prompts whose success score is below the cap.
        groups: The same for every guaranteed weighting.
        certification_size: Number of prompts of the third split, for certificates.
        sampled: Whether prompts were chosen to be labelled with unequal probabilities.
        weight: Sum of the weights of the calibration prompts, where they weigh for that; None where each
            counts as one.
        window: How many calibration prompts of each level `calibrate` was asked to keep, 0 for all; None for
            the default.
        allow_unattainable: Whether it was asked to go on where the target is out of reach.
        prompt_kinds: Kinds of the calibration prompts, `text`, `messages` and `object`, sorted; None where
            they are unknown, as of arrays.
    """

    size: int
    recorded_candidates: int
    extracted_answers: bool | None
    map_came_fitted: bool
    fit_size: int
    held_out_size: int
    within_clusters: Literal["one", "all"]
    exchangeable: bool
    split: SplitPlan
    digests: dict[str, str]
    sketch: list[str]
    attainable_coverage: float
    groups: list[AttainableGroup]
    certification_size: Count = 0
    sampled: bool = False
    weight: float | None = None
    window: Count | None = None
    allow_unattainable: bool = False
    prompt_kinds: list[PromptKind] | None = None

    @property
    def by_weight(self) -> str:
        """What is to be said of shares of the calibration prompts; empty where each counts as one."""
        return "" if self.weight is None else " by weight"

    @property
    def weighing(self) -> str:
        """What the calibration prompts weigh, to be said behind their number, in the same way."""
        return "" if self.weight is None else f" (weighing {self.weight:.4g})"


class Ridge(ArtifactData):
    """The penalty of a ridge.

    Attributes:
        strength: lambda > 0, see `ConditionalThreshold`.
        penalised: `slopes` of standardised features, the constant left out, or `all` coefficients.
    """

    strength: float
    penalised: Literal["slopes", "all"]


class Confidence(ArtifactData):
    """The promise holds for this very artifact with confidence 1 - delta.

    Attributes:
        delta: Probability that it does not, as decimal text.
        names: Names of the weightings for which it holds so, all of them together.
        prompts: Number of prompts of the third split on which levels were tested; 0 where the law of an order
            statistic gives the confidence, without a third split.
        records_digest: Digest of these prompts, their scores and labels; None where there are none.
        missed: By level, on how many of these prompts the promise failed at the level that is served.
    """

    delta: Delta
    names: list[str]
    prompts: Count = 0
    records_digest: str | None = None
    missed: dict[str, Count] = Field(default={})


class TradeOff(ArtifactData):
    """A policy among those compared.

    Attributes:
        alpha: Level of the sets it answers from, as decimal text.
        policy: Which of them it answers.
        answered: Number of certification prompts answered.
        wrong: How many of these with a wrong best answer.
        wrong_rate_at_most: Upper bound on the wrong-answer rate; the bounds of all policies listed hold
            together with confidence 1 - delta.
    """

    alpha: Alpha
    policy: AnswerPolicy
    answered: Count
    wrong: Count
    wrong_rate_at_most: Share


class CertifiedPolicy(ArtifactData):
    """The policy that bot mode follows, and what it was chosen among.

    Attributes:
        certificate: What is certified about its answers.
        coverage: What the same prompts certify about the sets of each level that the artifact holds, before
            the policy withholds any; bounds of all levels hold together.
        curve: The policies compared, by answered prompts ascending.
        level_chosen: Whether the level, too, was chosen among many that nobody named.
    """

    certificate: WrongRateCertificate
    coverage: list[CoverageCertificate]
    curve: list[TradeOff]
    level_chosen: bool = False

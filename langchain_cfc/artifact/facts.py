"""Which prompts an artifact was made from, and what they allow."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from langchain_cfc.splits import SplitPlan


class ArtifactData(BaseModel):
    """Base of what an artifact holds: frozen, strict, without infinities and unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


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
        held_out_size: Number of prompts kept out of both.
        within_clusters: `one` prompt of each cluster was used, or `all`.
        exchangeable: Whether no two calibration prompts share a cluster.
        split: The plan that assigns prompts to parts.
        digests: Digest of each part's ids.
        sketch: Keyed hashes of some ids and clusters of the first two parts, to recognise them later.
        attainable_coverage: Share of calibration prompts whose success score is below the cap.
        groups: The same for every guaranteed weighting.
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

"""What prompts looked like when an artifact was calibrated: what drift is told by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field, model_validator

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.artifact.facts import ArtifactData
from langchain_cfc.draws import Draws
from langchain_cfc.features import FeatureMap, parse_statistic
from langchain_cfc.guarantee import Alpha, Count

# Beside the features, which may say nothing of scores.
_ALWAYS = ("mean_score", "min_score")


class Watched(ArtifactData):
    """A quantity of prompts, and how often each bin of it was met.

    Attributes:
        name: `mean_score`, `min_score`, a feature by its name, or of a level `threshold` and `decision`.
        edges: Lower ends of all bins but the first, ascending; fixed on prompts that are not counted.
        counts: By name of a guaranteed weighting, how many prompts fell into each bin, of those that were
            taken with their weight as probability.
        alpha: The level whose threshold or decision it is; None for what does not depend on a threshold.
    """

    name: str
    edges: list[float]
    counts: dict[str, list[Count]]
    alpha: Alpha | None = Field(default=None)

    @model_validator(mode="after")
    def _fits(self) -> Watched:
        edges = np.array(self.edges)
        if len(edges) == 0 or (np.diff(edges) <= 0.0).any():
            msg = f"bins of {self.name}: expected edges, ascending"
            raise ValueError(msg)
        if any(len(one) != len(edges) + 1 for one in self.counts.values()):
            msg = f"counts of {self.name}: expected one number for each of {len(edges) + 1} bins"
            raise ValueError(msg)
        return self

    def bins(self, values: FloatArray) -> IntArray:
        """(N,) bin of each value."""
        return np.asarray(np.searchsorted(np.array(self.edges), values, side="right"), dtype=np.int64)


def quantities(feature_map: FeatureMap, features: FloatArray, scores: FloatArray) -> Mapping[str, FloatArray]:
    """What is watched of prompts, whatever the threshold.

    Args:
        feature_map: The fitted map.
        features: (N, d) its features.
        scores: (N, n) verifier scores.

    Returns:
        (N,) values by name.
    """
    draws = Draws(scores, None, None, ())
    told = {name: parse_statistic(name).values(draws) for name in _ALWAYS}
    return {**told, **{name: features[:, column] for column, name in enumerate(feature_map.names)}}

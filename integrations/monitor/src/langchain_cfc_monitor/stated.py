"""`StatedCounts`: how often the promise is kept at each stated coverage, for adaptive levels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.support.arrays import IntArray
from langchain_cfc_monitor.observed import Data, Label, ObservedResult


class StatedLevel(Data):
    """Counts of the labelled results with one stated coverage.

    Attributes:
        stated_coverage: The coverage stated for them.
        labels: Number of labels that say whether the promise was kept.
        kept: Number of these results whose set holds a correct answer or is flagged.
        kept_ci: Approximate two-sided interval for the share kept, in [0, 1] (Wilson 1927). The intervals of
            all levels hold jointly with confidence 95 % (Bonferroni), in one look at a fair sample of labels.
    """

    stated_coverage: float
    labels: int
    kept: int
    kept_ci: tuple[float, float]


@dataclass(frozen=True)
class StatedCounts:
    """Counts of labelled results by the coverage stated for them.

    No test alarms on these counts: the guarantee covers the weightings of the feature map, on average over
    calibration sets, and not each level by itself.
    """

    artifact: CalibrationArtifact
    labels: IntArray  # (k,) number of labels that say whether the promise was kept, by stated coverage
    kept: IntArray  # (k,) number of these with a kept promise

    @classmethod
    def start(cls, artifact: CalibrationArtifact) -> StatedCounts:
        """Return the counts before any label, all zero."""
        zeros = np.zeros(len(_list_coverages(artifact)), dtype=np.int64)
        return cls(artifact, zeros, zeros)

    def update(self, one: ObservedResult, label: Label, least: float) -> StatedCounts:
        """Return the counts after one more label; for `least` see `Label.is_sampled`."""
        adaptive = self.artifact.feature_map.adaptive_alpha
        kept, _ = label.judge(one)
        if adaptive is None or kept is None or not label.is_sampled(one, least):
            return self
        alpha = adaptive.read_alphas(np.array([one.features]), one.alpha)[0]
        here = np.isclose(_list_coverages(self.artifact), 1.0 - alpha, rtol=0.0, atol=1e-9)
        return replace(self, labels=self.labels + here, kept=self.kept + (here & kept))

    def list_levels(self) -> Iterator[StatedLevel]:
        """Yield the levels that have labels, the largest coverage first."""
        coverages = _list_coverages(self.artifact)
        seen = np.flatnonzero(self.labels)
        for place in seen:
            labels, kept = int(self.labels[place]), int(self.kept[place])
            yield StatedLevel(
                stated_coverage=coverages[place],
                labels=labels,
                kept=kept,
                kept_ci=_compute_wilson_interval(kept, labels, 0.05 / len(seen)),
            )

    def to_data(self) -> dict[str, Any]:
        """Return the counts as plain data, without the artifact."""
        return {"labels": self.labels.tolist(), "kept": self.kept.tolist()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> StatedCounts:
        """Restore what `to_data` returned."""
        return cls(artifact, *(np.array(data[name], dtype=np.int64) for name in ("labels", "kept")))


def _compute_wilson_interval(successes: int, size: int, failing: float) -> tuple[float, float]:
    """Return Wilson's interval, which needs no SciPy: shares p with |p - k / m| <= z sqrt(p (1 - p) / m)."""
    z2 = NormalDist().inv_cdf(1.0 - failing / 2.0) ** 2
    middle = (successes + z2 / 2.0) / (size + z2)
    half = math.sqrt(z2 * (successes * (size - successes) / size + z2 / 4.0)) / (size + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def _list_coverages(artifact: CalibrationArtifact) -> list[float]:
    """List the coverages that may be stated at any level, descending; empty if levels are not adaptive."""
    stated = {one for alpha in artifact.alphas for one in artifact.list_adaptive_coverages(alpha)}
    return sorted(stated, reverse=True)

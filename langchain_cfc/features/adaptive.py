"""`AdaptiveAlpha`: the error level of each prompt as a function of its mean score."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import Statistic, format_number
from langchain_cfc.features.weights import GuaranteedWeight

_MEAN_SCORE = Statistic("mean_score")
_DECIMAL = re.compile(r"0\.\d{0,11}[1-9]")


@dataclass(frozen=True)
class AdaptiveAlpha:
    """A step function a(x) of the mean score: the error level that is stated for a prompt.

    The threshold rule needs the level of each prompt, and the feature map needs functions of the level, so
    that stated coverages are calibrated. Both are in its columns: two hat functions of a(x), one at its
    smallest and one at its largest value, which sum to one. `read_alphas` computes the levels from them.
    Where all prompts have the same level there are no columns.

    The function must be fixed before calibration prompts are seen; `fit_adaptive_alpha` fits it on the fit
    split. Source: Cherian, Gibbs and Candes (2024), "Large language model validity via enhanced conformal
    prediction methods", section 3.1 (level-adaptive conformal prediction).

    Attributes:
        cuts: k increasing mean scores, at which the level changes.
        alphas: k + 1 error levels as decimal text: below the first cut, between cuts, and from the last one
            on. Neighbours differ.
        margin: What was added to the estimated probability that no correct candidate is drawn.

    Example:
        >>> adaptive = AdaptiveAlpha(cuts=(0.5, 0.7), alphas=("0.1", "0.3", "0.6"), margin=0.05)
        >>> columns = adaptive.transform(CandidateBatch.of([[0.2, 0.4], [0.5, 0.7], [0.8, 1.0]]))
        >>> adaptive.read_alphas(columns, "0.1").tolist(), adaptive.read_alphas(columns, "0.5").tolist()
        ([0.1, 0.3, 0.6], [0.5, 0.5, 0.6])
    """

    cuts: tuple[float, ...]
    alphas: tuple[str, ...]
    margin: float

    def list_levels(self, alpha: str) -> tuple[str, ...]:
        """List the levels that prompts may have, ascending, if none may be below alpha."""
        texts = {one if float(one) > float(alpha) else alpha for one in self.alphas}
        return tuple(sorted(texts, key=float))

    @cached_property
    def _knots(self) -> FloatArray:
        """(2,) smallest and largest level; (0,) where all are equal."""
        levels = sorted({float(one) for one in self.alphas})
        return np.array(levels[:: len(levels) - 1] if len(levels) > 1 else [])

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `stated_coverage[0.9]`, one for each knot."""
        return tuple(f"stated_coverage[{end}]" for end in self._ends)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Each hat function; coefficients of the constant, then of the columns."""
        return tuple(
            GuaranteedWeight(
                name,
                "hat",
                f"prompts weighted by how near their stated coverage is to {end} "
                f"(falling to zero at {other})",
                coefficients,
            )
            for name, end, other, coefficients in zip(
                self.names,
                self._ends,
                reversed(self._ends),
                ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
                strict=False,  # there may be no columns
            )
        )

    @property
    def _ends(self) -> list[str]:
        """The stated coverage at each knot."""
        return [format_number(round(1.0 - knot, 12)) for knot in self._knots]

    @staticmethod
    def read_mean_scores(draws: CandidateBatch) -> FloatArray:
        """Return the (N,) mean scores of prompts."""
        return _MEAN_SCORE.values(draws)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, 2) hat functions, or (N, 0) where all levels are equal."""
        return self.compute_columns(self.read_mean_scores(draws))

    def compute_columns(self, mean_scores: FloatArray) -> FloatArray:
        """Compute the columns of prompts from their (N,) mean scores."""
        if len(self._knots) == 0:
            return np.empty((len(mean_scores), 0))
        places = np.searchsorted(np.array(self.cuts), mean_scores, side="right")
        low, high = self._knots
        share = (np.array([float(one) for one in self.alphas])[places] - low) / (high - low)
        return np.stack([1.0 - share, share], axis=1)

    def read_alphas(self, features: FloatArray, alpha: str) -> FloatArray:
        """Return the (N,) error levels of prompts, none below alpha.

        Args:
            features: (N, d) features, whose last columns are those of this term.
            alpha: The smallest error level, as decimal text.
        """
        levels = np.array(sorted({float(one) for one in self.alphas}))
        if len(levels) == 1:
            return np.full(len(features), max(levels[0], float(alpha)))
        values = features[:, -len(self._knots) :] @ self._knots
        nearest = np.abs(values[:, np.newaxis] - levels).argmin(axis=1)
        return np.asarray(np.maximum(levels[nearest], float(alpha)), dtype=np.float64)

    def to_data(self) -> dict[str, Any]:
        """Return the step function, ready for JSON."""
        return {"cuts": list(self.cuts), "alphas": list(self.alphas), "margin": self.margin}

    @classmethod
    def from_data(cls, data: object) -> AdaptiveAlpha:
        """Return the step function from the result of `to_data`; a FeatureError for anything else."""
        if not isinstance(data, Mapping) or set(data) != {"cuts", "alphas", "margin"}:
            msg = f"adaptive levels are stored as an object with cuts, alphas and margin, got {data!r}"
            raise FeatureError(msg)
        cuts, alphas, margin = data["cuts"], data["alphas"], data["margin"]
        if not (
            isinstance(cuts, list)
            and isinstance(alphas, list)
            and isinstance(margin, float)
            and all(isinstance(one, float) and np.isfinite(one) for one in (*cuts, margin))
            and all(low < high for low, high in pairwise(cuts))
            and all(isinstance(one, str) and _DECIMAL.fullmatch(one) and 0 < float(one) < 1 for one in alphas)
            and len(alphas) == len(cuts) + 1
            and all(one != other for one, other in pairwise(alphas))
        ):
            msg = f"adaptive levels must be increasing cuts and one level more, got {cuts!r} and {alphas!r}"
            raise FeatureError(msg)
        return cls(tuple(cuts), tuple(alphas), margin)

"""`AdaptiveAlpha`: the error level of each prompt as a function of its mean score."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import MEAN_SCORE, format_number
from langchain_cfc.features.weights import GuaranteedWeight
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.text import format_percent

_DECIMAL = re.compile(r"0\.\d{0,11}[1-9]")


@dataclass(frozen=True)
class AdaptiveAlpha:
    """A step function a(x) of the mean score: the error level that is stated for a prompt.

    The threshold rule needs the level of each prompt, and the feature map needs functions of the level, so
    that stated coverages are calibrated. The columns serve both: hat functions of a(x), which sum to one,
    with knots at its smallest, a middle and its largest value. `read_alphas` computes the levels from them.
    If all prompts have the same level, there are no columns.

    The function must be fixed before calibration prompts are seen; `fit_adaptive_alpha` fits it on the fit
    split. Source: Cherian, Gibbs and Candes (2024), "Large language model validity via enhanced conformal
    prediction methods".

    Attributes:
        cuts: k increasing mean scores, at which the level changes.
        alphas: k + 1 error levels as decimal text: below the first cut, between cuts, and from the last one
            on. Neighbours differ.
        knots: The levels at which hat functions are largest, ascending: the smallest and the largest of
            `alphas`, and perhaps others between them. Only one if all levels are equal.
        margin: Margin that was added to the estimated probability that no correct candidate is drawn.
        share: With claims, the share of an answer's claims that its level was fitted to keep, as decimal
            text; None for answers.

    Examples:
        >>> adaptive = AdaptiveAlpha((0.5, 0.7), ("0.1", "0.3", "0.6"), knots=("0.1", "0.6"), margin=0.0)
        >>> columns = adaptive.transform(CandidateBatch.from_arrays([[0.2, 0.4], [0.5, 0.7], [0.8, 1.0]]))
        >>> adaptive.read_alphas(columns, "0.1").tolist(), adaptive.read_alphas(columns, "0.5").tolist()
        ([0.1, 0.3, 0.6], [0.5, 0.5, 0.6])
    """

    cuts: tuple[float, ...]
    alphas: tuple[str, ...]
    knots: tuple[str, ...]
    margin: float
    share: str | None = None

    def list_levels(self, alpha: str) -> tuple[str, ...]:
        """List the levels that prompts may have, ascending, with smaller ones raised to alpha."""
        texts = {one if float(one) > float(alpha) else alpha for one in self.alphas}
        return tuple(sorted(texts, key=float))

    @cached_property
    def _knots(self) -> FloatArray:
        """(k,) the knots of the hat functions; (0,) if all levels are equal."""
        return np.array([float(one) for one in self.knots] if len(self.knots) > 1 else [])

    @property
    def names(self) -> tuple[str, ...]:
        """One name per knot, such as `stated_coverage[0.9]`."""
        return tuple(f"stated_coverage[{end}]" for end in self._ends)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """One weight per hat function."""
        ends = self._ends
        found = []
        for place, (name, row) in enumerate(zip(self.names, np.eye(len(ends)), strict=True)):
            others = " and ".join(ends[max(place - 1, 0) : place] + ends[place + 1 : place + 2])
            words = f"how near their stated coverage is to {ends[place]} (falling to zero at {others})"
            found.append(GuaranteedWeight(name, "hat", f"prompts weighted by {words}", tuple(row.tolist())))
        return tuple(found)

    @cached_property
    def _ends(self) -> list[str]:
        """The stated coverage at each knot."""
        return [format_number(round(1.0 - knot, 12)) for knot in self._knots]

    @property
    def words(self) -> str:
        """What is stated for which mean scores, and how the levels were fitted."""
        stated = [format_percent(1.0 - float(alpha), "g") for alpha in self.alphas]
        steps = [f"{one} up to {cut:.3g}" for one, cut in zip(stated, self.cuts, strict=False)]
        steps.append(f"{stated[-1]} above" if steps else stated[-1])
        aim = f"margin {self.margin:g}"
        if self.share is not None:
            aim = f"to keep {format_percent(float(self.share), 'g')} of the claims of an answer"
        return f"by mean score {', '.join(steps)}; {aim}"

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, k) hat functions, or (N, 0) if all levels are equal."""
        if len(self._knots) == 0:
            return np.empty((len(draws), 0))
        places = np.searchsorted(np.array(self.cuts), MEAN_SCORE.compute_values(draws), side="right")
        levels = np.array([float(one) for one in self.alphas])[places]
        return np.stack([np.interp(levels, self._knots, row) for row in np.eye(len(self._knots))], axis=1)

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
        return {
            "cuts": list(self.cuts),
            "alphas": list(self.alphas),
            "knots": list(self.knots),
            "margin": self.margin,
            **({} if self.share is None else {"share": self.share}),
        }

    @classmethod
    def from_data(cls, data: object) -> AdaptiveAlpha:
        """Return the step function from the result of `to_data`; raise a FeatureError for anything else."""
        if not isinstance(data, Mapping) or set(data) - {"share"} != {"cuts", "alphas", "knots", "margin"}:
            msg = f"adaptive levels are stored as an object with cuts, alphas, knots and margin, got {data!r}"
            raise FeatureError(msg)
        cuts, alphas, knots, margin = (data[name] for name in ("cuts", "alphas", "knots", "margin"))
        share = data.get("share")
        levels = [alphas, knots, [] if share is None else [share]]
        if not (
            all(isinstance(one, list) and all(map(_is_level, one)) for one in levels)
            and isinstance(cuts, list)
            and all(isinstance(one, float) for one in [*cuts, margin])
            and len(alphas) == len(cuts) + 1
            and knots
        ):
            msg = f"adaptive levels must be cuts, one more level as decimal text, and knots, got {data!r}"
            raise FeatureError(msg)
        return cls(tuple(cuts), tuple(alphas), tuple(knots), margin, share)


def _is_level(text: object) -> bool:
    return isinstance(text, str) and _DECIMAL.fullmatch(text) is not None

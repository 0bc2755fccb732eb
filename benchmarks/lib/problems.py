"""The data that thresholds are measured on, made from seeds: the same in every process and every run.

Needs only NumPy, because it is also imported in the peers' environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from langchain_cfc.thresholds import ConditionalThreshold

FloatArray = npt.NDArray[np.float64]

ALPHA, TAU = "0.1", Fraction(9, 10)
CAP = 2.0
UNATTAINABLE_SHARE = 0.05  # share of prompts without a correct candidate, whose score is the cap


@dataclass(frozen=True)
class Problem:
    """Calibration data, and new prompts to ask.

    Attributes:
        features: (N, d) calibration features, the first column constant.
        scores: (N,) success scores, at most `CAP`.
        prompts: (m, d) features of new prompts, from the same distribution.
    """

    features: FloatArray
    scores: FloatArray
    prompts: FloatArray

    @property
    def mean(self) -> FloatArray:
        """The (d,) mean prompt, at which the base regression is solved."""
        mean: FloatArray = self.features.mean(axis=0)
        return mean

    def save(self, path: Path) -> None:
        """Write everything to an .npz file."""
        np.savez(path, features=self.features, scores=self.scores, prompts=self.prompts)

    @classmethod
    def load(cls, path: Path) -> Problem:
        """Read what `save` wrote."""
        with np.load(path) as data:
            return cls(data["features"], data["scores"], data["prompts"])


def _draw_uniform(rng: Any, size: int, d: int) -> FloatArray:
    features: FloatArray = rng.random((size, d))
    features[:, 0] = 1.0
    return features


def _draw_indicators(rng: Any, size: int, d: int) -> FloatArray:
    features: FloatArray = (rng.random((size, d)) < np.linspace(0.5, 0.1, d)).astype(float)
    features[:, 0] = 1.0
    return features


def _draw_hats(rng: Any, size: int, d: int) -> FloatArray:
    place = rng.random(size)
    knots = np.linspace(0.0, 1.0, d) if d > 1 else np.zeros(1)
    return np.stack([np.interp(place, knots, row) for row in np.eye(d)], axis=1)


def _draw_smooth_scores(rng: Any, features: FloatArray) -> FloatArray:
    second = features[:, min(1, features.shape[1] - 1)]
    scores: FloatArray = 0.5 * second + 0.5 * rng.random(len(features))
    return scores


def _draw_continuous_scores(rng: Any, features: FloatArray) -> FloatArray:
    return _add_unattainable(rng, _draw_smooth_scores(rng, features))


def _draw_tied_scores(rng: Any, features: FloatArray) -> FloatArray:
    return _add_unattainable(rng, np.round(_draw_smooth_scores(rng, features), 1))


def _draw_atom_scores(rng: Any, features: FloatArray) -> FloatArray:
    """Most scores are 0, and the more so the further to the left a prompt lies."""
    right = features @ np.linspace(0.0, 1.0, features.shape[1])
    scores = np.where(rng.random(len(right)) < 0.995 - 0.3 * right, 0.0, rng.random(len(right)))
    return _add_unattainable(rng, scores)


def _add_unattainable(rng: Any, scores: FloatArray) -> FloatArray:
    return np.where(rng.random(len(scores)) < UNATTAINABLE_SHARE, CAP, scores)


Features = Callable[[Any, int, int], FloatArray]
Scores = Callable[[Any, FloatArray], FloatArray]

KINDS: dict[str, tuple[Features, Scores]] = {
    "continuous": (_draw_uniform, _draw_continuous_scores),
    "tied": (_draw_uniform, _draw_tied_scores),
    "groups": (_draw_indicators, _draw_continuous_scores),
    "tied groups": (_draw_indicators, _draw_tied_scores),
    "no atoms": (_draw_uniform, _draw_smooth_scores),
    "atoms": (_draw_hats, _draw_atom_scores),
}
"""How features and scores are made.

Of every hundred prompts five have no correct candidate, except under `no atoms`. `tied` rounds scores to a
grid of 0.1; `groups` has a constant and d - 1 overlapping indicators; `tied groups` has both. `atoms` has d
hat functions of one number, and most scores are 0.
"""


def make_rule() -> ConditionalThreshold:
    """Make our rule, not yet fitted."""
    from langchain_cfc.thresholds import ConditionalThreshold

    return ConditionalThreshold(alpha=ALPHA, cap=CAP)


def make_problem(kind: str, d: int, size: int, prompts: int, draw: int = 0) -> Problem:
    """Make a problem of a kind with d features, the constant included; `draw` numbers its data sets."""
    features, scores = KINDS[kind]
    rng = np.random.default_rng([list(KINDS).index(kind), d, size, draw])
    calibration = features(rng, size, d)
    return Problem(calibration, scores(rng, calibration), features(rng, prompts, d))

"""The data that is measured on: made from seeds, so that every process and every run sees the same numbers.

Needs NumPy and nothing else, for it is read in the peers' environments too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

ALPHA, TAU = "0.1", Fraction(9, 10)
CAP = 2.0
HOPELESS = 0.05  # prompts without a correct candidate, whose score is the cap


@dataclass(frozen=True)
class Problem:
    """Calibration data and new prompts.

    Attributes:
        features: (N, d) calibration features, the first column constant.
        scores: (N,) success scores, at most `CAP`.
        prompts: (m, d) features of new prompts, from the same distribution.
        ridge: Penalty on standardised features, 0 for none.
    """

    features: FloatArray
    scores: FloatArray
    prompts: FloatArray
    ridge: float = 0.0

    @property
    def mean(self) -> FloatArray:
        """The (d,) mean prompt, at which the base regression is solved."""
        mean: FloatArray = self.features.mean(axis=0)
        return mean

    @property
    def bytes(self) -> int:
        """Size of the calibration arrays."""
        return int(self.features.nbytes + self.scores.nbytes)

    def save(self, path: Path) -> None:
        """Write everything to an .npz file."""
        np.savez(
            path, features=self.features, scores=self.scores, prompts=self.prompts, ridge=np.array(self.ridge)
        )

    @classmethod
    def load(cls, path: Path) -> Problem:
        """Read what `save` wrote."""
        with np.load(path) as data:
            return cls(data["features"], data["scores"], data["prompts"], float(data["ridge"]))


def _uniform(rng: Any, size: int, d: int) -> FloatArray:
    features: FloatArray = rng.random((size, d))
    features[:, 0] = 1.0
    return features


def _indicators(rng: Any, size: int, d: int) -> FloatArray:
    features: FloatArray = (rng.random((size, d)) < np.linspace(0.5, 0.1, d)).astype(float)
    features[:, 0] = 1.0
    return features


def _hats(rng: Any, size: int, d: int) -> FloatArray:
    place = rng.random(size)
    knots = np.linspace(0.0, 1.0, d) if d > 1 else np.zeros(1)
    return np.stack([np.interp(place, knots, row) for row in np.eye(d)], axis=1)


def _smooth(rng: Any, features: FloatArray) -> FloatArray:
    second = features[:, min(1, features.shape[1] - 1)]
    scores: FloatArray = 0.5 * second + 0.5 * rng.random(len(features))
    return scores


def _continuous(rng: Any, features: FloatArray) -> FloatArray:
    return _hopeless(rng, _smooth(rng, features))


def _tied(rng: Any, features: FloatArray) -> FloatArray:
    return _hopeless(rng, np.round(_smooth(rng, features), 1))


def _atom(rng: Any, features: FloatArray) -> FloatArray:
    """Most are 0, and the more of them the further to the left a prompt lies."""
    right = features @ np.linspace(0.0, 1.0, features.shape[1])
    scores = np.where(rng.random(len(right)) < 0.995 - 0.3 * right, 0.0, rng.random(len(right)))
    return _hopeless(rng, scores)


def _hopeless(rng: Any, scores: FloatArray) -> FloatArray:
    return np.where(rng.random(len(scores)) < HOPELESS, CAP, scores)


Features = Callable[[Any, int, int], FloatArray]
Scores = Callable[[Any, FloatArray], FloatArray]

KINDS: dict[str, tuple[Features, Scores]] = {
    "continuous": (_uniform, _continuous),
    "tied": (_uniform, _tied),
    "groups": (_indicators, _continuous),
    "tied groups": (_indicators, _tied),
    "no atoms": (_uniform, _smooth),
    "atoms": (_hats, _atom),
}
"""How features and scores are made.

Of every hundred prompts five have no correct candidate, except under `no atoms`. `tied` rounds scores to a
grid of 0.1; `groups` has a constant and d - 1 overlapping indicators; `tied groups` has both. `atoms` has d
hat functions of one number, and most scores are 0.
"""


def made(kind: str, d: int, size: int, prompts: int, *, ridge: float = 0.0, draw: int = 0) -> Problem:
    """A problem of a kind.

    Args:
        kind: One of `KINDS`.
        d: Number of features, constant included.
        size: Number of calibration prompts.
        prompts: Number of new prompts.
        ridge: Penalty.
        draw: Which of many data sets of this kind and size.
    """
    features, scores = KINDS[kind]
    rng = np.random.default_rng([list(KINDS).index(kind), d, size, draw])
    calibration = features(rng, size, d)
    return Problem(calibration, scores(rng, calibration), features(rng, prompts, d), ridge)

"""Features as a ridge wants them: in comparable units, with the constant as a column of its own.

A ridge depends on the units of the features. By default they are standardised, which takes units out, and the
constant is not penalised, which keeps the coverage over all prompts exact: the parts of all rows below the
fit still add up to tau (N + 1). The paper's form penalises every coefficient of the features as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds.columns import DEPENDENT, power_of_two, triangular

# Of the identity in the metric, for directions that no feature takes.
LEAST = 1e-3
Penalised: TypeAlias = Literal["slopes", "all"]


@dataclass(frozen=True)
class Standardised:
    """A change of units for (m, d) features, and the penalties in these units.

    Attributes:
        shift: (d,) subtracted first.
        spread: (d,) divided by then; 0 for a column that is left out.
        penalty: (r,) penalties of the new columns; the first is 0 if that is the constant.
    """

    shift: FloatArray
    spread: FloatArray
    penalty: FloatArray

    @classmethod
    def of(cls, features: FloatArray, penalty: float, penalised: Penalised) -> Standardised:
        """From (N, d) calibration features.

        Args:
            features: Their features.
            penalty: Above 0; the objective holds half of it times each squared coefficient.
            penalised: `slopes` or `all`.

        Returns:
            The change of units. Entries become at most one in size, by powers of two that the penalties
            make up for.
        """
        # Powers of two first: squares of the features as they are may be too large or too small.
        base = power_of_two(np.abs(features).max(axis=0))
        scaled = features / base
        constant = penalised == "slopes" and spans_constant(scaled)
        middle = scaled.mean(axis=0) if constant else np.zeros(scaled.shape[1])
        largest = np.abs(scaled - middle).max(axis=0)
        # What round-off leaves of a constant column is no feature.
        varies = largest > DEPENDENT
        unit = 1.0 / base
        if penalised == "slopes":
            unit = np.where(varies, np.sqrt(np.mean((scaled - middle) ** 2, axis=0)), 1.0)
        power = power_of_two(np.where(varies, largest / unit, 0.0))
        with np.errstate(over="ignore", divide="ignore"):  # refused below
            penalties = penalty / power[varies] ** 2
            spread = np.where(varies, unit * power * base, 0.0)
        if not (np.isfinite(spread).all() and np.isfinite(penalties).all() and (penalties > 0.0).all()):
            msg = "a ridge on these features is out of floating point: give them units of a comparable size"
            raise InputError(msg)
        return cls(middle * base, spread, np.append([0.0], penalties) if constant else penalties)

    def apply(self, features: FloatArray) -> FloatArray:
        """(m, r) features in the new units."""
        kept = self.spread > 0.0
        scaled: FloatArray = (features[:, kept] - self.shift[kept]) / self.spread[kept]
        if len(self.penalty) == scaled.shape[1]:
            return scaled
        return np.column_stack([np.ones(len(features)), scaled])

    def root(self, features: FloatArray) -> FloatArray:
        """(r, r) triangular root of a metric for (N, r) features in the new units.

        Penalised columns need not be independent; a thousandth of the identity makes the root regular.
        """
        width, size = features.shape[1], len(features)
        factor = np.vstack([triangular(features), LEAST * np.sqrt(size) * np.eye(width)])
        return np.asarray(triangular(factor) / np.sqrt(size), dtype=np.float64)

    def to_arrays(self) -> dict[str, FloatArray]:
        """As named arrays."""
        return {"shift": self.shift, "spread": self.spread, "penalty": self.penalty}

    @classmethod
    def from_arrays(cls, data: Mapping[str, FloatArray], d: int) -> Standardised:
        """From named arrays, which may come from a file that anyone wrote.

        Raises:
            InputError: If an array has an impossible shape or value.
        """
        shift, spread, penalty = (data[name] for name in ("shift", "spread", "penalty"))
        columns = int((spread > 0.0).sum())
        fits = (
            shift.shape == spread.shape == (d,)
            and bool((spread >= 0.0).all())
            and bool((penalty[len(penalty) - columns :] > 0.0).all())
            and (len(penalty) == columns or (len(penalty) == columns + 1 and penalty[0] == 0.0))
        )
        if not fits:
            msg = "the arrays 'shift', 'spread' and 'penalty' of a ridge's state do not fit each other"
            raise InputError(msg)
        return cls(shift, spread, penalty)


def spans_constant(features: FloatArray) -> bool:
    """Whether some combination of the (N, d) features is one for every row."""
    factor = triangular(np.column_stack([features, np.ones(len(features))]))
    last = np.abs(factor[-1, -1]) if len(factor) > features.shape[1] else 0.0
    return bool(last <= DEPENDENT * np.sqrt(len(features)))

"""Features as a ridge wants them: in comparable units, with the constant as a column of its own.

A ridge depends on the units of the features. By default they are standardised, which takes units out, and the
constant is not penalised, which keeps the coverage over all prompts exact: the parts of all rows below the
fit still add up to tau (N + 1). The paper's form penalises every coefficient of the features as they are.

*Whose units.* Exact coverage wants a regression that treats calibration prompts and the new one alike. Units
taken from the calibration features do not, by one prompt in N. Units taken from other prompts do: then they
are a fixed function of the features. What they fix is the mean, the spread, and which columns take part; the
powers of two are the calibration's own, but penalties make up for them, so that no fit depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds.columns import DEPENDENT, LARGEST, power_of_two, triangular

# Of the identity in the metric, for directions that no feature takes.
LEAST = 1e-3
# Of the largest value of a function: what round-off may take a value of zero for.
NEGLIGIBLE = 1e-6
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
    def of(
        cls, features: FloatArray, penalty: float, penalised: Penalised, units_of: FloatArray | None = None
    ) -> Standardised:
        """For (N, d) calibration features.

        Args:
            features: Their features.
            penalty: Above 0; the objective holds half of it times each squared coefficient.
            penalised: `slopes` or `all`.
            units_of: (M, d) features whose mean and spread are the units of `slopes`, and of which a column
                that does not vary is left out; by default those of the calibration prompts. `all` takes no
                units from anywhere.

        Returns:
            The change of units. Entries of the calibration features become at most one in size, by powers of
            two that the penalties make up for.

        Raises:
            InputError: If the constant is in the span of the calibration features but not in that of
                `units_of`, or the units are out of floating point.
        """
        others = None if penalised == "all" else units_of
        source = features if others is None else others
        # Powers of two first: squares of the features as they are may be too large or too small.
        base = _sizes(source)
        scaled = source / base
        constant = penalised == "slopes" and spans_constant(scaled)
        if others is not None and not constant and spans_constant(features / _sizes(features)):
            # To free it because of the calibration features would make it depend on them; to penalise it
            # would break the promise over all prompts in silence.
            msg = (
                "the constant is a combination of the calibration features but not of those that the units "
                "of the ridge come from: take them from prompts of the same kind, or from none "
                "(units_of=None)"
            )
            raise InputError(msg)
        middle = scaled.mean(axis=0) if constant else np.zeros(scaled.shape[1])
        # What round-off leaves of a constant column is no feature.
        varies = np.abs(scaled - middle).max(axis=0) > DEPENDENT
        unit = 1.0 / base
        if penalised == "slopes":
            unit = np.where(varies, np.sqrt(np.mean((scaled - middle) ** 2, axis=0)), 1.0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # refused below
            largest = np.abs(features / base - middle).max(axis=0)
            power = power_of_two(np.where(varies, largest / unit, 0.0))
            penalties = penalty / power[varies] ** 2
            spread = np.where(varies, unit * power * base, 0.0)
        if not (np.isfinite(spread).all() and _in_range(penalties)):
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

    def coordinates(self, values: FloatArray, features: FloatArray) -> FloatArray:
        """The coefficients of a function in the new units.

        Where several do, any will: those of a penalised fit balance whichever combination a function is.

        Args:
            values: (N,) its values.
            features: (N, d) at these prompts.

        Returns:
            (r,) coefficients of the new columns.

        Raises:
            InputError: If it is no combination of the new columns, since it uses one that is left out.
        """
        scaled = self.apply(features)
        # Lengths and angles of the columns are those of the triangular factor, which is small.
        factor = triangular(np.column_stack([scaled, values]))
        found = np.linalg.lstsq(factor[:, :-1], factor[:, -1], rcond=DEPENDENT)[0]
        if (np.abs(values - scaled @ found) > NEGLIGIBLE * np.abs(values).max(initial=0.0)).any():
            msg = (
                "the function is no combination of the columns that the ridge works on: it uses one that "
                "is left out, since it does not vary among the prompts that the units come from"
            )
            raise InputError(msg)
        return np.asarray(found, dtype=np.float64)

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
            and _in_range(penalty[len(penalty) - columns :])
            and (len(penalty) == columns or (len(penalty) == columns + 1 and penalty[0] == 0.0))
        )
        if not fits:
            msg = "the arrays 'shift', 'spread' and 'penalty' of a ridge's state do not fit each other"
            raise InputError(msg)
        return cls(shift, spread, penalty)


def _in_range(penalties: FloatArray) -> bool:
    """Whether penalties are above zero, and products of two neither overflow nor vanish."""
    return bool(((penalties > 1.0 / LARGEST) & (penalties < LARGEST)).all())


def _sizes(features: FloatArray) -> FloatArray:
    """(d,) powers of two that bring the columns of (N, d) features to order one."""
    return power_of_two(np.abs(features).max(axis=0))


def spans_constant(features: FloatArray) -> bool:
    """Whether some combination of the (N, d) features is one for every row."""
    factor = triangular(np.column_stack([features, np.ones(len(features))]))
    last = np.abs(factor[-1, -1]) if len(factor) > features.shape[1] else 0.0
    return bool(last <= DEPENDENT * np.sqrt(len(features)))

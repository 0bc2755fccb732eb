"""`Combination`: the raw outputs of several verifiers made one score, as frozen data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError

# Exponential functions of different machines differ in the last digit. Rounded far above that, a served
# candidate with the raw outputs of a calibrated one gets the very score that the threshold may stand on.
DECIMALS = 12
# exp of more would overflow; the score is 0 or 1 long before.
_FARTHEST = 700.0


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


_Texts: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
_Numbers: TypeAlias = Annotated[tuple[float, ...], BeforeValidator(_as_tuple)]


class Combination(BaseModel):
    """A fitted combination of k verifiers: raw outputs to one score.

    With the log-odds of being correct, z = intercept + sum_k coefficient_k (raw_k - centre_k) / scale_k, the
    score is 1 - 1 / (1 + exp(-z)), rounded to 12 decimals. Raw outputs may be in any unit and point either
    way: the sign of the coefficient says which.

    Attributes:
        names: Names of the k >= 1 verifiers, as in the `scores` of the records.
        centres: Mean raw output of each, over the prompts that it was fitted on.
        scales: Standard deviation of each, above 0; 1 where the verifier always said the same.
        coefficients: Change of the log-odds for one standard deviation; 0 where the verifier always said the
            same, which leaves it out whatever it says later.
        intercept: The log-odds where every verifier is at its centre.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    names: _Texts
    centres: _Numbers
    scales: _Numbers
    coefficients: _Numbers
    intercept: float

    @model_validator(mode="after")
    def _fits(self) -> Combination:
        check_names(self.names)
        if not len(self.names) == len(self.centres) == len(self.scales) == len(self.coefficients):
            msg = f"expected a centre, a scale and a coefficient for each of {len(self.names)} names"
            raise ValueError(msg)
        if min(self.scales) <= 0.0:
            msg = f"expected scales above 0, got {min(self.scales)}"
            raise ValueError(msg)
        return self

    def score(self, raw: FloatArray | Sequence[Sequence[float]]) -> FloatArray:
        """The scores of candidates.

        A candidate's score depends on its own raw outputs alone, to the bit: however many are scored at once.

        Args:
            raw: (m, k) raw outputs, a row per candidate and a column per verifier, in the order of `names`:
                for one prompt `np.column_stack([outputs[name] for name in combination.names])`.

        Returns:
            (m,) scores in [0, 1], smaller is better.

        Raises:
            InputError: If there are not k numbers for each candidate, one of them is missing or not finite,
                or they are so large that no score can be computed.

        >>> judge = Combination(
        ...     names=["judge"], centres=[5.0], scales=[2.0], coefficients=[1.0], intercept=0.0
        ... )
        >>> judge.score([[5.0], [9.0], [1.0]]).round(3).tolist()
        [0.5, 0.119, 0.881]
        """
        columns = self._checked(raw)
        log_odds = np.full(columns.shape[1], self.intercept)
        settings = zip(columns, self.coefficients, self.centres, self.scales, strict=True)
        with np.errstate(over="ignore", invalid="ignore"):
            # One column after the other: a product of matrices rounds differently for different sizes.
            for column, coefficient, centre, scale in settings:
                log_odds += coefficient * ((column - centre) / scale)
        if not np.isfinite(log_odds).all():
            row = int(np.flatnonzero(~np.isfinite(log_odds))[0])
            msg = f"the raw outputs of candidate {row} are too large to be combined: {columns[:, row]}"
            raise InputError(msg)
        worse = np.exp(np.clip(log_odds, -_FARTHEST, _FARTHEST))
        return np.asarray(np.round(1.0 / (1.0 + worse), DECIMALS), dtype=np.float64)

    def score_all(self, raw: FloatArray) -> FloatArray:
        """(N, n) scores of the candidates of N prompts, from their (N, n, k) raw outputs; see `score`."""
        return self.score(raw.reshape(-1, raw.shape[-1])).reshape(raw.shape[:-1])

    def _checked(self, raw: FloatArray | Sequence[Sequence[float]]) -> FloatArray:
        """(k, m) raw outputs by verifier."""
        expected = f"expected {len(self.names)} numbers for each candidate ({', '.join(self.names)})"
        try:
            given = np.asarray(raw)
            # Texts would pass for numbers.
            numbers = np.asarray(given if given.dtype.kind in "bfiuO" else None, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            msg = f"{expected}, got {type(raw).__name__}: {error}"
            raise InputError(msg) from error
        if numbers.ndim != 2 or numbers.shape[1] != len(self.names):  # noqa: PLR2004 - rows and columns
            msg = f"{expected}, got an array of shape {given.shape} and type {given.dtype}"
            raise InputError(msg)
        bad = ~np.isfinite(numbers)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            msg = (
                f"raw output of {self.names[column]!r} for candidate {row} is {numbers[row, column]}; "
                "expected a finite number"
            )
            raise InputError(msg)
        return np.ascontiguousarray(numbers.T)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that do not tell verifiers apart.

    Args:
        names: Names of the verifiers to combine.

    Raises:
        InputError: If there is none, one is no text or empty, or one comes twice.
    """
    listed = not isinstance(names, str) and all(bool(name) for name in names)
    if not listed or not names or len(set(names)) < len(names):
        msg = f"expected a list of different names of verifiers, such as ['judge', 'p_true'], got {names!r}"
        raise InputError(msg)

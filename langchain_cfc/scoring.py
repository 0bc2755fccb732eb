"""`Combination`: the raw outputs of several verifiers made one score, as frozen data.

How well scores tell right from wrong: the area under the ROC curve (AUROC), with an interval.

Candidates of one prompt are not independent: an easy prompt has many correct ones, and all of its scores may
be low. The variance is therefore that of Obuchowski (1997, "Nonparametric analysis of clustered ROC curve
data", Biometrics 53), in which prompts are the independent units.

Each correct candidate x has a placement V(x), the share of all wrong candidates that it beats (ties count
half), and each wrong one y the share V(y) of all correct candidates that beat it; either kind has the AUROC A
for its mean. With m correct and w wrong candidates, and d_i = sum over the correct candidates of prompt i of
(V - A) / m, e_i the same over its wrong ones and / w,

    var(A) = I_c / (I_c - 1) sum_i d_i^2 + I_w / (I_w - 1) sum_i e_i^2 + 2 I / (I - 1) sum_i d_i e_i,

where I_c and I_w count the prompts that hold a correct and a wrong candidate, I all prompts. The interval is
A's on the logit scale, which keeps it within [0, 1], and no shorter than so many prompts allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from langchain_cfc._internal.arrays import BoolArray, FloatArray
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
    """Refuse names that do not tell verifiers apart."""
    listed = not isinstance(names, str) and all(bool(name) for name in names)
    if not listed or not names or len(set(names)) < len(names):
        msg = f"expected a list of different names of verifiers, such as ['judge', 'p_true'], got {names!r}"
        raise InputError(msg)


@dataclass(frozen=True)
class Discrimination:
    """How well scores tell correct candidates from wrong ones.

    Attributes:
        auroc: Probability that a correct candidate has a smaller score than a wrong one, ties counting half:
            1 is perfect, 0.5 tells nothing, and below it the scores point the wrong way.
        low: Lower end of its interval.
        high: Upper end.
        confidence: Confidence level of the two-sided interval, approximate for few prompts.
        n_correct: Number of correct candidates.
        n_wrong: Number of wrong candidates.
        n_prompts: Number of prompts.
    """

    auroc: float
    low: float
    high: float
    confidence: float
    n_correct: int
    n_wrong: int
    n_prompts: int


def discrimination(scores: FloatArray, correct: BoolArray, confidence: float = 0.95) -> Discrimination | None:
    """The AUROC of scores, pooled over the candidates of all prompts.

    Args:
        scores: (N, n) finite scores in any unit, smaller is better.
        correct: (N, n) whether each candidate is correct.
        confidence: Confidence level of the interval, in (0, 1).

    Returns:
        AUROC and interval; None where all candidates are correct, or all wrong: there is nothing to tell
        apart. The time taken is that of sorting the scores.

    Raises:
        InputError: If shapes differ, a score is not finite, a label is no boolean or the confidence is no
            level.

    >>> found = discrimination(np.array([[0.1, 0.4], [0.4, 0.8]]), np.array([[True, False], [True, False]]))
    >>> found.auroc, found.n_correct, found.n_wrong
    (0.875, 2, 2)
    """
    _check(scores, correct, confidence)
    right, wrong = scores[correct], scores[~correct]
    if len(right) == 0 or len(wrong) == 0:
        return None
    # Twice the number of the others that are beaten, or that beat: whole numbers, so that no order of
    # summation can change the AUROC.
    beaten = 2 * len(wrong) - _twice_below(right, wrong)
    beating = _twice_below(wrong, right)
    auroc = int(beaten.sum()) / (2 * len(right) * len(wrong))
    size = len(scores)
    right_sums = _by_prompt(correct, beaten / (2 * len(wrong)) - auroc)
    wrong_sums = _by_prompt(~correct, beating / (2 * len(right)) - auroc)
    with_right, with_wrong = (int(np.any(kind, axis=1).sum()) for kind in (correct, ~correct))
    variance = _variance(right_sums, wrong_sums, with_right, with_wrong)
    low, high = _logit_interval(auroc, variance, NormalDist().inv_cdf(0.5 + confidence / 2.0))
    seen = _seen_at_least(min(with_right, with_wrong, size // 2), confidence)
    low, high = min(low, seen * auroc), max(high, 1.0 - seen * (1.0 - auroc))
    return Discrimination(auroc, low, high, confidence, len(right), len(wrong), size)


def _check(scores: FloatArray, correct: BoolArray, confidence: float) -> None:
    if scores.ndim != 2 or scores.shape != correct.shape or correct.dtype != np.bool_:  # noqa: PLR2004 - rows and columns
        msg = (
            "expected (N, n) scores and as many boolean labels, got shapes "
            f"{scores.shape} and {correct.shape}, labels of type {correct.dtype}"
        )
        raise InputError(msg)
    if not np.isfinite(scores).all():
        row, slot = (int(i) for i in np.argwhere(~np.isfinite(scores))[0])
        msg = f"score of candidate {slot} of prompt {row} is {scores[row, slot]}; expected a finite number"
        raise InputError(msg)
    if not 0.0 < confidence < 1.0:
        msg = f"confidence must lie strictly between 0 and 1, got {confidence}"
        raise InputError(msg)


def _twice_below(scores: FloatArray, others: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each score, twice the number of others below it and once that of its equals."""
    ordered = np.sort(others)
    # Looked up in ascending order, each search ends where the last one has already been.
    order = np.argsort(scores)
    ascending = scores[order]
    counts = np.empty(len(scores), dtype=np.int64)
    counts[order] = np.searchsorted(ordered, ascending, side="left")
    counts[order] += np.searchsorted(ordered, ascending, side="right")
    return counts


def _by_prompt(members: BoolArray, deviations: FloatArray) -> FloatArray:
    """(N,) sums over the members of each prompt, in shares of all members."""
    sums = np.bincount(np.nonzero(members)[0], weights=deviations, minlength=len(members))
    return np.asarray(sums / len(deviations), dtype=np.float64)


def _variance(right: FloatArray, wrong: FloatArray, with_right: int, with_wrong: int) -> float:
    """Obuchowski's variance; infinite where one prompt holds all correct, or all wrong, candidates."""
    size = len(right)
    if min(with_right, with_wrong) == 1:
        return math.inf
    own = with_right / (with_right - 1) * (right @ right) + with_wrong / (with_wrong - 1) * (wrong @ wrong)
    # Not below zero in exact arithmetic, since the factors of the squares are the larger ones.
    return max(0.0, float(own + 2.0 * size / (size - 1) * (right @ wrong)))


def _logit_interval(auroc: float, variance: float, quantile: float) -> tuple[float, float]:
    if auroc in {0.0, 1.0}:
        return auroc, auroc
    centre = math.log(auroc / (1.0 - auroc))
    half = quantile * math.sqrt(variance) / (auroc * (1.0 - auroc))
    return _expit(centre - half), _expit(centre + half)


def _expit(value: float) -> float:
    return 0.5 + 0.5 * math.tanh(0.5 * value)


def _seen_at_least(pairs: int, confidence: float) -> float:
    """What share of all pairs is surely like those seen, though the variance may be zero.

    Take disjoint pairs of prompts, a correct candidate from one and a wrong one from the other. What none of
    so many independent pairs showed may still happen, to a share u of them that (1 - u)^pairs is half of
    1 - confidence (Clopper and Pearson's bound for no success). In that share the order may be any other,
    which moves the AUROC down to (1 - u) A or up to u + (1 - u) A. Without this bound perfect separation, and
    scores that are all equal, would count as certain, and one candidate out of order as saying more than
    none.
    """
    return float(((1.0 - confidence) / 2.0) ** (1.0 / pairs)) if pairs else 0.0

"""Combine verifiers into one score, and measure how well scores separate correct from wrong candidates.

`compute_auroc` computes the area under the ROC curve (AUROC) with an interval.

Candidates of one prompt are not independent: an easy prompt has many correct ones, and all of its scores may
be low. The variance is therefore that of Obuchowski (1997, "Nonparametric analysis of clustered ROC curve
data", Biometrics 53), in which prompts are the independent units.

Each correct candidate x has a placement V(x), the share of all wrong candidates that it beats (ties count
half), and each wrong one y has V(y), the share of all correct candidates that beat it. Both kinds have the
AUROC A as their mean. With m correct and w wrong candidates, d_i the sum of (V - A) / m over the correct
candidates of prompt i, and e_i the sum of (V - A) / w over its wrong ones,

    var(A) = I_c / (I_c - 1) sum_i d_i^2 + I_w / (I_w - 1) sum_i e_i^2 + 2 I / (I - 1) sum_i d_i e_i,

where I_c and I_w count the prompts with a correct and with a wrong candidate, and I counts all prompts. The
interval is computed on the logit scale, which keeps it within [0, 1], and widened as
`_compute_observed_share` asks.
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

# The last digit of the exponential function differs between machines. Scores are rounded to fewer digits, so
# that equal raw outputs give equal scores everywhere. This matters because a threshold may equal a score.
_DECIMALS = 12
# exp overflows for larger values; the rounded score is 0 or 1 long before.
_MAX_LOG_ODDS = 700.0


_FromList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
_Texts: TypeAlias = Annotated[tuple[str, ...], _FromList]
_Numbers: TypeAlias = Annotated[tuple[float, ...], _FromList]


class Combination(BaseModel):
    """A fitted combination of k verifiers, which turns their raw outputs into one score.

    With the log-odds of being correct, z = intercept + sum_k coefficient_k (raw_k - centre_k) / scale_k, the
    score is 1 - 1 / (1 + exp(-z)), rounded to 12 decimals. Raw outputs may have any unit and either
    orientation, which the sign of the coefficient accounts for.

    Attributes:
        names: Names of the k >= 1 verifiers, as in the `scores` of the records.
        centres: Mean raw output of each verifier, over the prompts that the combination was fitted on.
        scales: Standard deviation of each, above 0; 1 for a verifier with constant output.
        coefficients: Change of the log-odds per standard deviation; 0 for a verifier with constant output.
        intercept: The log-odds if every raw output equals its centre.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    names: _Texts
    centres: _Numbers
    scales: _Numbers
    coefficients: _Numbers
    intercept: float

    @model_validator(mode="after")
    def _check_sizes(self) -> Combination:
        check_names(self.names)
        if not len(self.names) == len(self.centres) == len(self.scales) == len(self.coefficients):
            msg = f"expected a centre, a scale and a coefficient for each of {len(self.names)} names"
            raise ValueError(msg)
        if min(self.scales) <= 0.0:
            msg = f"expected scales above 0, got {min(self.scales)}"
            raise ValueError(msg)
        return self

    def score(self, raw: FloatArray | Sequence[Sequence[float]]) -> FloatArray:
        """Compute the scores of candidates from their raw outputs.

        A candidate's score depends only on its own raw outputs, bit for bit, and not on the batch size.

        Args:
            raw: (m, k) raw outputs, a row per candidate and a column per verifier, in the order of `names`:
                for one prompt `np.column_stack([outputs[name] for name in combination.names])`.

        Returns:
            (m,) scores in [0, 1], smaller is better.

        Raises:
            InputError: If a candidate lacks one of k finite numbers, or they are too large for a score.

        Examples:
            >>> judge = Combination(
            ...     names=["judge"], centres=[5.0], scales=[2.0], coefficients=[1.0], intercept=0.0
            ... )
            >>> judge.score([[5.0], [9.0], [1.0]]).round(3).tolist()
            [0.5, 0.119, 0.881]
        """
        columns = self._to_columns(raw)
        log_odds = np.full(columns.shape[1], self.intercept)
        settings = zip(columns, self.coefficients, self.centres, self.scales, strict=True)
        with np.errstate(over="ignore", invalid="ignore"):
            # Column by column, because the rounding of a matrix product depends on its size.
            for column, coefficient, centre, scale in settings:
                log_odds += coefficient * ((column - centre) / scale)
        if not np.isfinite(log_odds).all():
            row = int(np.flatnonzero(~np.isfinite(log_odds))[0])
            msg = f"the raw outputs of candidate {row} are too large to be combined: {columns[:, row]}"
            raise InputError(msg)
        odds = np.exp(np.clip(log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS))
        return np.asarray(np.round(1.0 / (1.0 + odds), _DECIMALS), dtype=np.float64)

    def score_all(self, raw: FloatArray) -> FloatArray:
        """Compute (N, n) scores from (N, n, k) raw outputs of the candidates of N prompts; see `score`.

        A candidate without a raw output (NaN) is no answer, or has no verdict, and scores 1.
        """
        is_scored = ~np.isnan(raw).any(axis=-1)
        scores = np.ones(raw.shape[:-1])
        scores[is_scored] = self.score(raw[is_scored])
        return scores

    def _to_columns(self, raw: FloatArray | Sequence[Sequence[float]]) -> FloatArray:
        """Check raw outputs and transpose them to (k, m)."""
        expected = f"expected {len(self.names)} numbers for each candidate ({', '.join(self.names)})"
        try:
            given = np.asarray(raw)
            # NumPy would convert strings to numbers.
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
    """Reject verifier names that are missing, empty or repeated, with an InputError."""
    listed = not isinstance(names, str) and all(bool(name) for name in names)
    if not listed or not names or len(set(names)) < len(names):
        msg = f"expected a list of distinct verifier names, such as ['judge', 'p_true'], got {names!r}"
        raise InputError(msg)


@dataclass(frozen=True)
class Discrimination:
    """AUROC of scores: how well they separate correct candidates from wrong ones, with an interval."""

    # Probability that a correct candidate has a smaller score than a wrong one, ties counting half: 1 is
    # perfect, 0.5 is chance, and smaller values mean that the scores have the wrong orientation.
    auroc: float
    low: float  # Lower end of its interval
    high: float  # Upper end of its interval
    confidence: float  # Confidence level of the two-sided interval, approximate for few prompts
    n_correct: int  # Number of correct candidates
    n_wrong: int  # Number of wrong candidates
    n_prompts: int  # Number of prompts


def compute_auroc(scores: FloatArray, correct: BoolArray, confidence: float = 0.95) -> Discrimination | None:
    """Compute the AUROC of scores, pooled over the candidates of all prompts.

    Args:
        scores: (N, n) finite scores in any unit, smaller is better.
        correct: (N, n) whether each candidate is correct.
        confidence: Confidence level of the interval, in (0, 1).

    Returns:
        AUROC and interval; None if all candidates are correct or all are wrong. The running time is
        dominated by sorting the scores.

    Raises:
        InputError: If shapes differ, a score is not finite, a label is not a boolean, or the confidence is
            out of range.

    Examples:
        >>> scores, correct = np.array([[0.1, 0.4], [0.4, 0.8]]), np.array([[True, False], [True, False]])
        >>> found = compute_auroc(scores, correct)
        >>> found.auroc, found.n_correct, found.n_wrong
        (0.875, 2, 2)
    """
    _check_scores(scores, correct, confidence)
    right, wrong = scores[correct], scores[~correct]
    if len(right) == 0 or len(wrong) == 0:
        return None
    # Twice the number of pairs won or lost: integers, so the AUROC does not depend on the order of summation.
    beaten = 2 * len(wrong) - _count_twice_below(right, wrong)
    beating = _count_twice_below(wrong, right)
    auroc = int(beaten.sum()) / (2 * len(right) * len(wrong))
    size = len(scores)
    right_sums = _sum_by_prompt(correct, beaten / (2 * len(wrong)) - auroc)
    wrong_sums = _sum_by_prompt(~correct, beating / (2 * len(right)) - auroc)
    with_right, with_wrong = (int(np.any(kind, axis=1).sum()) for kind in (correct, ~correct))
    variance = _compute_variance(right_sums, wrong_sums, with_right, with_wrong)
    low, high = _compute_logit_interval(auroc, variance, NormalDist().inv_cdf(0.5 + confidence / 2.0))
    observed = _compute_observed_share(min(with_right, with_wrong, size // 2), confidence)
    low, high = min(low, observed * auroc), max(high, 1.0 - observed * (1.0 - auroc))
    return Discrimination(auroc, low, high, confidence, len(right), len(wrong), size)


def _check_scores(scores: FloatArray, correct: BoolArray, confidence: float) -> None:
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


def _count_twice_below(scores: FloatArray, others: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return for each score twice the number of `others` below it plus the number equal to it."""
    ordered = np.sort(others)
    # Searching in ascending order keeps memory accesses local.
    order = np.argsort(scores)
    ascending = scores[order]
    counts = np.empty(len(scores), dtype=np.int64)
    counts[order] = np.searchsorted(ordered, ascending, side="left")
    counts[order] += np.searchsorted(ordered, ascending, side="right")
    return counts


def _sum_by_prompt(members: BoolArray, deviations: FloatArray) -> FloatArray:
    """Sum the members' deviations by prompt, and divide by the total number of members."""
    sums = np.bincount(np.nonzero(members)[0], weights=deviations, minlength=len(members))
    return np.asarray(sums / len(deviations), dtype=np.float64)


def _compute_variance(right: FloatArray, wrong: FloatArray, with_right: int, with_wrong: int) -> float:
    """Compute Obuchowski's variance; infinite if one prompt holds all correct or all wrong candidates."""
    size = len(right)
    if min(with_right, with_wrong) == 1:
        return math.inf
    own = with_right / (with_right - 1) * (right @ right) + with_wrong / (with_wrong - 1) * (wrong @ wrong)
    # Non-negative in exact arithmetic, because no factor of a square is smaller than that of the product.
    return max(0.0, float(own + 2.0 * size / (size - 1) * (right @ wrong)))


def _compute_logit_interval(auroc: float, variance: float, quantile: float) -> tuple[float, float]:
    if auroc in {0.0, 1.0}:
        return auroc, auroc
    centre = math.log(auroc / (1.0 - auroc))
    half = quantile * math.sqrt(variance) / (auroc * (1.0 - auroc))
    low, high = (0.5 + 0.5 * math.tanh(0.5 * value) for value in (centre - half, centre + half))
    return low, high


def _compute_observed_share(pairs: int, confidence: float) -> float:
    """Compute a lower bound on the share of pairs that behave like those observed, for zero variance.

    Take disjoint pairs of prompts, a correct candidate from one and a wrong one from the other. An order that
    none of these independent pairs shows may still occur in a share u of all pairs, where (1 - u)^pairs is
    half of 1 - confidence (Clopper and Pearson's bound for no success). That moves the AUROC down to
    (1 - u) A or up to u + (1 - u) A. The result is 1 - u. Without it, perfect separation and all-equal scores
    would count as certain, and one candidate out of order would give a wider interval than none.
    """
    return float(((1.0 - confidence) / 2.0) ** (1.0 / pairs)) if pairs else 0.0

"""Our marginal and group thresholds against crepes, which shares no code with this library.

A conformal regressor with residuals for success scores predicts 0 +- the order statistic that split conformal
prediction takes: from the largest residual down, the one of rank int((1 - confidence) (N + 1)). Where the
exact number is whole, the float may fall below it, and crepes then takes the next larger residual: it errs
towards larger intervals. Of the 18,400 cells N = 1 ... 400, alpha = 0.05, 0.06, ... 0.50 that happens in 222,
all of which have (N + 1) alpha whole: at alpha = 0.1, 0.2 and 0.35, for instance, never at 0.05, 0.25, 0.3,
0.4 or 0.5. Everywhere else both agree to the bit.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds import ConditionalThreshold, GroupedThreshold
from tests.lengths import mostly_long

CAP = 2.0
ALPHAS = tuple(f"0.{percent:02d}" for percent in range(5, 51))


def make_regressor() -> Any:
    """Return a regressor of crepes, which takes most of a second to import."""
    from crepes import ConformalRegressor

    return ConformalRegressor()


def predict_upper_ends(
    success_scores: FloatArray, alpha: str, bins: IntArray | None = None, asked: Sequence[int] = (0,)
) -> list[float]:
    """The upper ends of crepes' intervals around 0, `inf` where they reach the cap."""
    fitted = make_regressor().fit(success_scores, bins=bins)
    with warnings.catch_warnings():
        # It warns where no score suffices, which is what the answer says as well.
        warnings.filterwarnings(
            "ignore", message="the no. of calibration examples is too", category=UserWarning
        )
        intervals = fitted.predict_int(
            np.zeros(len(asked)),
            bins=None if bins is None else np.array(asked),
            confidence=float(1 - Fraction(alpha)),
        )
    return [end if end < CAP else math.inf for end in intervals[:, 1].tolist()]


def compute_float_rank(size: int, alpha: str) -> int:
    """The rank from above by crepes' arithmetic."""
    return int((1 - float(1 - Fraction(alpha))) * (size + 1))


def compute_exact_rank(size: int, alpha: str) -> int:
    """The same in fractions: N + 1 - ceil((N + 1) tau) = floor((N + 1) alpha)."""
    return math.floor(Fraction(alpha) * (size + 1))


def compute_our_threshold(success_scores: FloatArray, alpha: str) -> float:
    return (
        GroupedThreshold(alpha, CAP).fit(np.ones((len(success_scores), 1)), success_scores).threshold([1.0])
    )


def get_from_above(success_scores: FloatArray, rank: int) -> float:
    """The order statistic of a rank from above, `inf` where there is none or where it reaches the cap."""
    value = float(np.sort(success_scores)[-rank]) if 0 < rank <= len(success_scores) else math.inf
    return value if value < CAP else math.inf


@mostly_long("kind", ["continuous", "tied", "capped"], quick=1)
def test_marginal_threshold_equals_that_of_crepes(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    seen: Counter[str] = Counter()
    for size in (*range(1, 42), 59, 79, 99, 100, 199, 299, 399):
        scores = rng.integers(0, 11, size) / 10 if kind == "tied" else rng.random(size)
        if kind == "capped":
            scores[rng.random(size) < 0.3] = CAP
        for alpha in ALPHAS:
            (theirs,), mine = predict_upper_ends(scores, alpha), compute_our_threshold(scores, alpha)
            rank = compute_exact_rank(size, alpha)
            assert mine == get_from_above(scores, rank)
            if compute_float_rank(size, alpha) != rank:
                assert theirs == get_from_above(scores, rank - 1)
                seen["round-off"] += 1
                seen["round-off that shows"] += theirs > mine
                continue
            assert theirs == mine
            seen["agrees"] += 1
            seen["agrees at a whole number"] += (Fraction(alpha) * (size + 1)).denominator == 1
            # The control: one rank further up or down.
            near = {get_from_above(scores, rank - 1), get_from_above(scores, rank + 1)} if rank else {0.0}
            seen["a rank off is seen"] += theirs not in near
    # Numbers of cells, the same for all kinds.
    assert seen["agrees"] + seen["round-off"] == 48 * len(ALPHAS)
    assert min(seen["agrees at a whole number"], seen["round-off"]) > 50
    if kind == "continuous":
        assert seen["a rank off is seen"] == seen["agrees"]
        assert seen["round-off that shows"] == seen["round-off"]


@pytest.mark.parametrize("alpha", ["0.05", "0.15", "0.25", "0.30", "0.33", "0.50"])
def test_group_thresholds_equal_mondrian_categories_of_crepes(alpha: str) -> None:
    rng = np.random.default_rng(int(alpha[2:]))
    infinite = unlike = 0
    for number in range(12):
        sizes = rng.integers(10, 80, size=4)
        groups = rng.permutation(np.repeat(np.arange(4), sizes))
        # Hard groups have larger scores, so that the categories matter.
        scores = rng.random(len(groups)) * 0.5 + 0.1 * groups
        if number % 3 == 0:
            scores = scores.round(1)
        if number % 3 == 1:
            scores[(groups == 3) & (rng.random(len(groups)) < 0.6)] = CAP  # hopeless, most of them
        assert all(
            compute_float_rank(size, alpha) == compute_exact_rank(size, alpha) for size in sizes.tolist()
        )
        found = ConditionalThreshold(alpha, CAP).fit(np.eye(4)[groups], scores).solve(np.eye(4))
        theirs = np.array(predict_upper_ends(scores, alpha, groups, range(4)))
        finite = np.isfinite(theirs)
        infinite += int((~finite).sum())
        assert np.array_equal(finite, np.isfinite(found.values))
        assert np.array_equal(found.values[finite], theirs[finite])
        # The control: without categories thresholds are others.
        unlike += bool((np.array(predict_upper_ends(scores, alpha) * 4)[finite] != theirs[finite]).any())
    assert unlike == 12
    assert infinite > 0

from __future__ import annotations

import sys

import pytest
from scipy import stats

from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import MissingExtraError
from tests.lengths import repetitions


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("size", [1, 2, 7, 30, 1000])
def test_clopper_pearson_agrees_with_scipy(size: int, confidence: float) -> None:
    for successes in range(0, size + 1, max(1, size // repetitions(30, share=0.3))):
        exact = stats.binomtest(successes, size).proportion_ci(confidence, method="exact")
        assert clopper_pearson(successes, size, confidence) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_clopper_pearson_reaches_the_ends_at_no_and_all_successes(size: int) -> None:
    # At the ends the bounds are known: 1 - (0.05 / 2)^(1 / n) and its mirror image.
    bound = 0.025 ** (1 / size)
    none, every = clopper_pearson(0, size), clopper_pearson(size, size)
    assert (none[0], every[1]) == (0.0, 1.0)
    assert (none[1], every[0]) == pytest.approx((1 - bound, bound))


def test_clopper_pearson_without_trials_says_nothing() -> None:
    assert clopper_pearson(0.0, 0.0) == (0.0, 1.0)


def test_clopper_pearson_contains_fractional_shares() -> None:
    for successes in (0.1, 1.0, 2.5, 3.4):
        low, high = clopper_pearson(successes, 3.5)
        assert 0.0 <= low < successes / 3.5 < high <= 1.0


def test_clopper_pearson_accepts_round_off_beyond_the_ends() -> None:
    assert clopper_pearson(-1e-18, 3.0) == pytest.approx(clopper_pearson(0.0, 3.0))
    assert clopper_pearson(3.0000000000000004, 3.0) == pytest.approx(clopper_pearson(3.0, 3.0))


def test_clopper_pearson_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(MissingExtraError, match=r"needs scipy, .* 'langchain-cfc\[calibrate\]'"):
        clopper_pearson(1, 2)

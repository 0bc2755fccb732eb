"""Agreement with HiGHS over d = 1 ... 20, with windows and without: a tenth of ten thousand thresholds.

`CFC_LONG=1` compares all of them.

Where the two are further apart than 1e-9, rational arithmetic decides which one is right.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, compute_tau
from langchain_cfc.thresholds._rows import Columns, Rows
from langchain_cfc.thresholds._simplex import Fit, QuantileSimplex
from tests.lengths import repetitions

from .cases import ALPHAS, KINDS, Case, cases
from .oracles import prove_value, solve_dual_programme

AGREEMENT = 1e-9
AT_CAP = 1e-9


def make_wide_case(rng: np.random.Generator) -> Case:
    """Up to 20 features and 400 prompts: continuous, tied, with atoms, in groups, some without hope."""
    d, size = int(rng.integers(9, 21)), int(rng.integers(60, 401))
    features = rng.random((size, d)) if rng.random() < 0.5 else rng.normal(size=(size, d))
    features[:, 0] = 1.0
    if rng.random() < 0.3:
        features = np.eye(d)[rng.integers(0, d, size)]
    scores = rng.random(size) if rng.random() < 0.6 else rng.integers(0, 21, size) / 20
    cap = float(rng.choice([1.0 + 1e-6, 1.5, 2.0]))
    scores = np.where(rng.random(size) < rng.choice([0.0, 0.05, 0.2]), cap, scores)
    queries = np.vstack([features[rng.integers(0, size, 3)], features.mean(axis=0), 1.5 * features[:1]])
    return Case(features, scores, queries, ALPHAS[rng.integers(len(ALPHAS))], cap)


def list_wide_cases(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(zlib.crc32(b"wide"))
    for _ in range(count):
        yield make_wide_case(rng)


def prove_threshold(case: Case, phi: FloatArray) -> Fraction | None:
    """The threshold of a case by a vertex that rational arithmetic proves; None where it is unbounded."""
    columns, _ = Columns.choose(case.features)
    rows, reduced = columns.reduce(case.features)[0], columns.reduce(phi[np.newaxis])[0][0]
    fit = QuantileSimplex(Rows.with_unit_weights(rows, case.scores), compute_tau(case.alpha)).minimise(
        reduced
    )
    if not isinstance(fit, Fit):
        return None
    return prove_value(rows, case.scores, case.alpha, reduced, basis=fit.vertex.basis, below=fit.vertex.below)


def compare_with_highs(every: Iterator[Case]) -> dict[str, float]:
    """How often thresholds were finite, infinite, refused or arbitrated, and the largest difference."""
    found = {"finite": 0.0, "infinite": 0.0, "refused": 0.0, "arbitrated": 0.0, "largest": 0.0}
    for number, case in enumerate(every):
        window = (None, 1024, 64, 16)[number % 4]
        rule = ConditionalThreshold(case.alpha, cap=case.cap, window=window)
        solved = rule.fit(case.features, case.scores).solve(case.queries)
        for phi, value, outside in zip(case.queries, solved.values, solved.outside, strict=True):
            if outside:
                found["refused"] += 1
                continue
            expected = solve_dual_programme(case.features, case.scores, case.alpha, phi)
            expected = np.inf if expected >= case.cap - AT_CAP else expected
            difference = 0.0 if value == expected else abs(value - expected)
            if difference > AGREEMENT * max(1.0, abs(value)):
                exact = prove_threshold(case, phi)
                expected = np.inf if exact is None or exact >= Fraction(case.cap) else float(exact)
                found["arbitrated"] += 1
                difference = 0.0 if value == expected else abs(value - expected)
            assert difference <= AGREEMENT * max(1.0, abs(value))
            found["infinite" if np.isinf(value) else "finite"] += 1
            found["largest"] = max(found["largest"], difference)
    return found


def report_figures(found: dict[str, float], record: Callable[[str, object], None]) -> float:
    """Note the figures for the test report, and return how many thresholds were compared."""
    # Plain numbers: reports travel between processes.
    record("agreement with HiGHS", {name: float(value) for name, value in found.items()})
    print(found)  # noqa: T201 - the figures are what the test is run for
    return found["finite"] + found["infinite"]


@pytest.mark.long
def test_conditional_threshold_agrees_with_highs_over_up_to_20_features(
    record_property: Callable[[str, object], None],
) -> None:
    thousands = repetitions(10, share=0.1)

    def every() -> Iterator[Case]:
        for kind in KINDS:
            yield from cases(kind, 12 * thousands)
        yield from list_wide_cases(90 * thousands)

    found = compare_with_highs(every())
    assert report_figures(found, record_property) > 1_000 * thousands
    assert found["infinite"] > 100 * thousands
    assert found["arbitrated"] <= 2 * thousands


@pytest.mark.long
def test_agreement_with_highs_notices_thresholds_shifted_by_1e_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    original = Fit.compute_values

    def shifted(fit: Fit, phis: FloatArray) -> tuple[FloatArray, FloatArray]:
        values, errors = original(fit, phis)
        return values + 1e-8, errors

    monkeypatch.setattr(Fit, "compute_values", shifted)
    with pytest.raises(AssertionError):
        compare_with_highs(list_wide_cases(3))

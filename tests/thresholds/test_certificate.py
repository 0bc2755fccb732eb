"""Certificates: primal and dual objectives agree, and both are those of the full data."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.errors import InputError, NotFittedError, OutsideCertifiedRegionError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import Certificate, ConditionalThreshold
from langchain_cfc.thresholds._rows import Columns, Rows, RowSums
from langchain_cfc.thresholds._simplex import Fit, QuantileSimplex, Vertex
from langchain_cfc.thresholds.certificate import Problem
from tests.lengths import mostly_long

from .cases import KINDS, cases

TAU = 0.9


def is_proof(certificate: Certificate, size: float) -> bool:
    """Whether objectives agree and the dual is balanced and in its box."""
    inside = (certificate.basis_dual >= TAU - 1 - 1e-9) & (certificate.basis_dual <= TAU + 1e-9)
    return bool(abs(certificate.gap) <= 1e-12 * size and certificate.balance <= 1e-13 and inside.all())


def compute_objective(features: FloatArray, scores: FloatArray, phi: FloatArray, beta: FloatArray) -> float:
    residuals = scores - features @ beta
    return float(np.maximum(TAU * residuals, (TAU - 1) * residuals).sum() - TAU * phi @ beta)


def test_conditional_threshold_refuses_features_that_are_not_numbers() -> None:
    rule = ConditionalThreshold("0.1").fit(np.ones((20, 1)), np.linspace(0.0, 1.0, 20))
    for asked in (rule.make_certificate, rule.threshold, rule.solve):
        with pytest.raises(InputError, match=r"^features must be an array of numbers: "):
            asked(["one"])


@pytest.mark.parametrize("window", [64, 1024, None])
def test_certificate_objectives_agree_and_are_those_of_the_full_data(window: int | None) -> None:
    rng = np.random.default_rng(1)
    size = 5_000
    features = np.stack([np.ones(size), rng.random(size), rng.normal(size=size)], axis=1)
    scores = np.where(rng.random(size) < 0.05, 2.0, 0.4 * features[:, 1] + 0.6 * rng.random(size))
    rule = ConditionalThreshold("0.1", window=window).fit(features, scores)
    for phi in features[:50]:
        certificate = rule.make_certificate(phi)
        assert certificate is not None
        assert is_proof(certificate, size)
        assert certificate.value == rule.threshold(phi)
        state = rule.fitted.columns
        rows = certificate.basis_features * state.scale
        beta = np.asarray(np.linalg.solve(rows, certificate.basis_scores), dtype=np.float64)
        assert certificate.primal == pytest.approx(compute_objective(features, scores, phi, beta), rel=1e-11)
        assert len(certificate.basis_dual) == 3
        assert certificate.above + certificate.below + 3 <= size


@mostly_long("kind", KINDS, quick=6)
def test_certificate_exists_for_every_finite_threshold(kind: str) -> None:
    for case in cases(kind, 5):
        rule = ConditionalThreshold(case.alpha, cap=1e3).fit(case.features, case.scores)
        for phi in case.queries:
            certificate = rule.make_certificate(phi)
            if certificate is not None:
                size = abs(certificate.primal) + len(case.scores)
                assert abs(certificate.gap) <= 1e-9 * size
                assert certificate.value == pytest.approx(rule.threshold(phi), rel=1e-12)
            else:
                assert rule.threshold(phi) == np.inf


def test_certificate_of_a_vertex_that_is_not_optimal_has_a_gap() -> None:
    """The negative control: another prompt's vertex, and the right one with a side changed."""
    rng = np.random.default_rng(2)
    features = np.stack([np.ones(200), rng.random(200)], axis=1)
    rows = Rows.with_unit_weights(features, rng.random(200))
    simplex, phi = QuantileSimplex(rows, Fraction(9, 10)), features[0]
    right, other = simplex.minimise(phi), simplex.minimise(np.array([0.2, 3.0]))
    assert isinstance(right, Fit)
    assert isinstance(other, Fit)
    problem = Problem(rows, RowSums.zeros(2), TAU, np.zeros(2), phi)

    def certified(fit: Fit, vertex: Vertex) -> Certificate:
        return problem.certify(vertex, fit.beta, fit.compute_value(phi))

    assert is_proof(certified(right, right.vertex), 200)
    assert not is_proof(certified(other, other.vertex), 200)
    flipped = right.vertex.below.copy()
    flipped[np.setdiff1d(np.arange(200), right.vertex.basis)[0]] ^= True
    assert not is_proof(certified(right, Vertex(right.vertex.basis, flipped)), 200)


def test_certificate_is_refused_or_none_without_a_threshold() -> None:
    rng = np.random.default_rng(3)
    features = np.stack([np.ones(3_000), rng.normal(size=3_000)], axis=1)
    rule = ConditionalThreshold("0.1", window=64)
    with pytest.raises(NotFittedError):
        rule.make_certificate([1.0, 0.0])
    fitted = rule.fit(features, rng.random(3_000))
    with pytest.raises(InputError):
        fitted.make_certificate([1.0])
    with pytest.raises(OutsideCertifiedRegionError):
        fitted.make_certificate([1.0, 60.0])
    assert ConditionalThreshold("0.1").fit([[1.0, 0.0]] * 20, [0.5] * 20).make_certificate([0.0, 1.0]) is None


def test_certificate_columns_are_the_independent_ones() -> None:
    features = np.repeat(np.eye(2), 30, axis=0) @ np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    certificate = (
        ConditionalThreshold("0.5").fit(features, np.linspace(0, 1, 60)).make_certificate(features[0])
    )
    assert certificate is not None
    assert certificate.basis_features.shape == (2, 2)
    assert len(Columns.choose(features)[0].kept) == 2

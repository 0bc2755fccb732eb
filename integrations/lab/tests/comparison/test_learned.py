"""The baseline that predicts success scores by plain quantile regression."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from langchain_cfc_lab.methods import predict_learned

from langchain_cfc.thresholds import ConditionalThreshold
from tests.lengths import mostly_long
from tests.thresholds.cases import KINDS, Case, cases
from tests.thresholds.oracles import compute_smallest_pinball_loss


def fit(case: Case) -> ConditionalThreshold:
    # A large cap: the regression is tested, and not where it is cut.
    return ConditionalThreshold(case.alpha, cap=1e6, window=None).fit(case.features, case.scores)


@mostly_long("kind", KINDS, quick=6)
def test_predict_learned_attains_the_smallest_pinball_loss(kind: str) -> None:
    for case in cases(kind, 15):
        tau = float(1 - Fraction(case.alpha))
        residuals = case.scores - predict_learned(fit(case), case.features).values
        loss = np.maximum(tau * residuals, (tau - 1.0) * residuals).sum()
        smallest = compute_smallest_pinball_loss(case.features, case.scores, case.alpha)
        assert loss == pytest.approx(smallest, abs=1e-9)
        # The control: other coefficients lose more.
        shifted = residuals - 10.0 * case.features.sum(axis=1)
        assert np.maximum(tau * shifted, (tau - 1.0) * shifted).sum() > smallest

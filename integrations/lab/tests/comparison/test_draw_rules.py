"""Comparisons apply the draw rule."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_lab import compare

from langchain_cfc import calibrate, evaluate
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate
from tests.calibration.test_draws import SEPARATE, VOTES, make_records, score_by_votes


def test_fewer_candidates_than_the_verifier_compared_are_refused() -> None:
    voted = score_by_votes(make_records())
    options: dict[str, Any] = {"alpha": "0.3", "features": "1", "allow_unattainable": True}
    words = "record exactly that many"
    with pytest.raises(InputError, match=words):
        calibrate(voted, draws="fixed(3)", provenance=VOTES, **options)
    with pytest.raises(InputError, match=words):
        compare(voted, draws="fixed(3)", alpha=0.3, splits=2, methods="marginal", provenance=VOTES)
    words = "n = 3: the verifier compares .* among the 8 recorded: record 3"
    with pytest.raises(InputError, match=words):
        calibrate(tabulate(voted, n=3), provenance=VOTES, **options)
    with pytest.raises(InputError, match=words):
        compare(tabulate(voted, n=3), alpha=0.3, splits=2, methods="marginal", provenance=VOTES)
    # Allowed: the recorded number, or scores that do not depend on the other candidates.
    short = score_by_votes(make_records(), 3)
    artifact = calibrate(short, provenance=VOTES.model_copy(update={"n": 3}), **options)
    assert calibrate(make_records(), draws="fixed(3)", provenance=SEPARATE, **options).n == artifact.n == 3
    with pytest.raises(InputError, match=words):
        evaluate(artifact, score_by_votes(make_records(1, 40)))

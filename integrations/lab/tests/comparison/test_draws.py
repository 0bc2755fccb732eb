"""`compare(draws=...)`: all methods stop drawing by one rule, replayed on prefixes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cfc_lab import compare

from langchain_cfc.demo import load_recording
from langchain_cfc.errors import InputError
from langchain_cfc.records import Provenance, tabulate
from tests.calibration.test_draws import make_records

RULE = "lead(3, at_most=10)"


def test_compare_with_a_draw_rule_stops_every_method() -> None:
    records = load_recording()
    found = compare(records, alpha=0.2, draws=RULE, splits=1, features="1")
    mean = compare(records, alpha=0.2, draws="fixed(10)", splits=1, features="1")
    for report, least, most in ((found, 5.0, 6.0), (mean, 10.0, 10.0)):
        drawn = [
            one.figures["mean_candidates_drawn"].mean
            for name, one in report.methods.items()
            if name != "sampling"  # a method that stops by its own rule
        ]
        assert all(least <= one <= most for one in drawn)
    assert found.notes[-2].startswith(f"Draw rule {RULE}: 5.2")
    assert "sampling" in found.notes[-1]
    assert "conditional" in found.methods
    assert "sampling" not in found.methods
    # Fewer candidates cover less: padding is no candidate.
    assert found.attainable_coverage < mean.attainable_coverage
    assert found.data.prompts == mean.data.prompts
    assert found.data.scores.wrong != mean.data.scores.wrong
    counted = sum(found.data.scores.wrong) + sum(found.data.scores.correct)
    assert counted / found.data.prompts == pytest.approx(
        float(found.notes[-2].split(": ")[1].split()[0]), abs=0.01
    )


def test_compare_refuses_fewer_candidates_than_the_verifier_compared() -> None:
    votes = Provenance(n=8, verifier={"id": "self-consistency"})
    options: dict[str, Any] = {"alpha": 0.3, "splits": 2, "methods": "marginal", "provenance": votes}
    with pytest.raises(InputError, match="collect by this rule"):
        compare(make_records(), draws="fixed(3)", **options)
    with pytest.raises(InputError, match="record 3"):
        compare(tabulate(make_records(), n=3), **options)

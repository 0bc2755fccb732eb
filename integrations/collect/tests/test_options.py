"""Options of a run, and the progress bar."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from langchain_cfc_collect import CallPolicy, CollectionStatus, show_progress
from langchain_cfc_collect.costs import Usage
from rich.console import Console

from langchain_cfc.errors import InputError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 0}, "concurrency is 0; expected a whole number of at least 1"),
        ({"attempts": 2.5}, "attempts is 2.5; expected a whole number of at least 1"),
        ({"requests_per_second": 0}, "requests_per_second is 0; expected a number above 0, or None"),
        ({"timeout": math.inf}, "timeout is inf; expected a number above 0, or None"),
        ({"timeout": math.nan}, "timeout is nan; expected a number above 0, or None"),
    ],
)
def test_call_policy_refuses_invalid_values(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CallPolicy(**given)


def make_status(**given: Any) -> CollectionStatus:
    known: dict[str, Any] = {
        "total": 8,
        "labelled": 4,
        "failed": 1,
        "covered": 3,
        "candidates": [5, 3],
        "score_sums": [4.0, 0.6],
        "usage": Usage(),
    }
    return CollectionStatus(**{**known, **given})


def show(*statuses: CollectionStatus) -> str:
    """Return what a terminal of 160 columns is shown."""
    out = io.StringIO()
    with show_progress(Console(file=out, force_terminal=True, width=160, color_system=None)) as update:
        for status in statuses:
            update(status)
    return next(line for line in reversed(out.getvalue().splitlines()) if "/min" in line)


def test_progress_bar_shows_prompts_coverage_scores_failures_and_cost() -> None:
    shown = show(make_status(), make_status(labelled=6, cost=0.0123))
    for words in ("7/8", "/min", "pass@n 0.50", "correct 0.20, wrong 0.80", "1 failed", "cost 0.0123"):
        assert words in shown, words


def test_progress_bar_of_claims_shows_claims_and_waiting_batches() -> None:
    shown = show(make_status(unit="claims", waiting="1 batch, 20 requests"))
    for words in ("8 claims, 0.38 of them supported", "unsupported 0.80", "1 batch, 20 requests"):
        assert words in shown, words

"""`PatternMatch`: patterns that find the answer, and references that are patterns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import PatternMatch
from tests.calls import is_correct
from tests.factories import labeler_input


def test_pattern_match_compares_the_whole_match_without_an_answer_group() -> None:
    labeler = PatternMatch(r"[A-Z]{3}-\d+")
    assert is_correct(labeler, "ABC-12", "The ticket is ABC-12, not XYZ-3.")
    assert not is_correct(labeler, "XYZ-3", "The ticket is ABC-12, not XYZ-3.")
    assert not is_correct(labeler, "ABC-12", "no ticket")
    # Other groups do not count.
    assert is_correct(PatternMatch(r"([A-Z]{3})-\d+"), "ABC-12", "ABC-12")


def test_pattern_match_compares_the_answer_group() -> None:
    labeler = PatternMatch(r"(?i)answer:\s*(?P<answer>[^\n]+)")
    assert is_correct(labeler, "Lima", "Some reasons.\nANSWER: Lima \nmore")
    assert is_correct(labeler, ["Quito", " Lima "], "answer: Lima")
    # Exactly: neither case nor punctuation is forgiven.
    labels = labeler.invoke(labeler_input("Lima", "answer: lima", "answer: Lima.", "Lima"))
    assert labels == [False, False, False]


def test_pattern_match_ignores_an_answer_group_that_did_not_match() -> None:
    assert not is_correct(PatternMatch(r"none|(?P<answer>\d+)"), "", "none")
    assert is_correct(PatternMatch(r"none|(?P<answer>\d*)"), "", "some")


def test_pattern_match_keeps_flags_and_states_them_in_the_fingerprint() -> None:
    plain, caseless = PatternMatch("lima"), PatternMatch(re.compile("lima", re.IGNORECASE))
    assert not is_correct(plain, "LIMA", "LIMA")
    assert is_correct(caseless, "LIMA", "LIMA")
    assert plain.fingerprint != caseless.fingerprint


def test_pattern_match_uses_references_as_patterns() -> None:
    labeler = PatternMatch()
    labels = labeler.invoke(labeler_input(r"(?i)(the )?u\.?s\.?a?\.?", "USA", "the U.S.", "US of A"))
    assert labels == [True, True, False]
    # All of the candidate must match, or "un" would do for "unknown".
    assert not is_correct(labeler, "un", "unknown")
    assert is_correct(labeler, ["x", "un.*"], " unknown\n")


def test_pattern_match_refuses_references_that_are_no_pattern() -> None:
    with pytest.raises(LabelerError, match=r"the reference '\(' is not a regular expression: missing \)"):
        is_correct(PatternMatch(), ["a", "("], "a")
    # To a pattern it is a text like any other.
    assert is_correct(PatternMatch(r"\("), "(", "f(x)")


@pytest.mark.parametrize("pattern", ["(", "(?P<answer>", 5, b"bytes", re.compile(b"bytes")])
def test_pattern_match_refuses_invalid_patterns(pattern: Any) -> None:
    with pytest.raises(InputError, match=r"is not a regular expression|matches bytes"):
        PatternMatch(pattern)


@pytest.mark.parametrize("reference", [5, [None], {"a": 1}])
def test_pattern_match_refuses_references_that_are_no_text(reference: Any) -> None:
    for labeler in (PatternMatch(), PatternMatch("5")):
        with pytest.raises(LabelerError, match="reference"):
            is_correct(labeler, reference, "5")

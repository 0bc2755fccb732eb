"""`NormalisedMatch` against descriptions of the two published evaluation scripts."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import NormalisedMatch, compute_normal_form
from tests.calls import is_correct


def words_of(text: str) -> list[str]:
    """The runs of letters, digits and underscores, and the signs between them one by one."""
    parts: list[str] = []
    for char in text:
        is_word = char.isalnum() or char == "_"
        if is_word and parts and (parts[-1][-1].isalnum() or parts[-1][-1] == "_"):
            parts[-1] += char
        else:
            parts.append(char)
    return parts


def normalise_by_description(text: str, signs: str, becomes: str) -> str:
    """Normalise step by step as described: case, punctuation, articles, white space."""
    lowered = text.lower()
    bare = "".join(becomes if char in signs else char for char in lowered)
    kept = "".join(" " if word in {"a", "an", "the"} else word for word in words_of(bare))
    return " ".join(kept.split())


ALPHABET = "aAntheTHEx9 _.-'!?" + "\u2018\u2019\u00b4`\u00e9\u2014\t\n"


@drawn(st.text(ALPHABET, max_size=30))
def test_compute_normal_form_follows_the_published_descriptions(text: str) -> None:
    assert compute_normal_form(text) == normalise_by_description(text, string.punctuation, "")
    more = string.punctuation + "\u2018\u2019\u00b4`"
    assert compute_normal_form(text, "triviaqa") == normalise_by_description(text, more, " ")


@drawn(st.text(ALPHABET, max_size=30))
def test_triviaqa_normal_form_is_idempotent(text: str) -> None:
    once = compute_normal_form(text, "triviaqa")
    assert compute_normal_form(once, "triviaqa") == once


@pytest.mark.parametrize(
    ("text", "squad", "triviaqa"),
    [
        ("The Beatles", "beatles", "beatles"),
        ("  an   APPLE ", "apple", "apple"),
        ("U.S.A.", "usa", "u s"),
        ("rock-'n'-roll", "rocknroll", "rock n roll"),
        ("O\u2019Neill", "o\u2019neill", "o neill"),
        ("New_York", "newyork", "new york"),
        ("Dr. No", "dr no", "dr no"),
        ("-5", "5", "5"),
        ("3.14", "314", "3 14"),
        ("1,378", "1378", "1 378"),
        ("Adélie", "adélie", "adélie"),
        ("theatre", "theatre", "theatre"),
        ("the-a-an", "theaan", ""),
        ("!!!", "", ""),
    ],
)
def test_compute_normal_form_of_squad_and_triviaqa(text: str, squad: str, triviaqa: str) -> None:
    assert compute_normal_form(text, "squad") == squad
    assert compute_normal_form(text, "triviaqa") == triviaqa


def test_normalised_match_accepts_any_alias() -> None:
    labeler, aliases = NormalisedMatch(), ["Bolivar", "Bolivian peso"]
    assert is_correct(labeler, aliases, "the bolivian PESO.")
    assert is_correct(labeler, aliases, "Bolivar")
    assert is_correct(labeler, "Bolivar", "bolivar")
    assert not is_correct(labeler, aliases, "peso")
    assert not is_correct(labeler, aliases, "Bolivian peso, or Bolivar")


# Cases from recordings of short answers, where the match and their labels may differ.
@pytest.mark.parametrize(
    ("reference", "text", "label"),
    [
        ("Sao Paulo", "São Paulo", False),  # accents count
        ([".pe", "pe"], "com.pe", False),  # a second level of the domain
        ([".pe", "pe"], "The domain of Peru is .pe", False),  # a sentence around the answer
        ([".pe", "pe"], "pe.*", True),  # signs after the answer are none
        ("Fe", "Fe#", True),
        ("1246", "+1-246", True),
    ],
)
def test_normalised_match_on_cases_found_in_recordings(reference: Any, text: str, label: bool) -> None:
    assert is_correct(NormalisedMatch(), reference, text) is label


def test_triviaqa_normal_form_splits_at_hyphens() -> None:
    assert not is_correct(NormalisedMatch("triviaqa"), ["1246", "+1246"], "+1-246")


def test_normalised_match_ignores_references_that_normalise_to_nothing() -> None:
    assert not is_correct(NormalisedMatch(), ["The", "Who"], "")
    assert not is_correct(NormalisedMatch(), ["The", "Who"], "a")
    assert is_correct(NormalisedMatch(), ["The", "Who"], "the who")
    for nothing in ("The", [")", "!!!"]):
        with pytest.raises(LabelerError, match="is empty without articles and punctuation"):
            is_correct(NormalisedMatch(), nothing, "")


@pytest.mark.parametrize("reference", [7, ["seven", 7], {"answer": "seven"}, True])
def test_normalised_match_refuses_references_that_are_no_text(reference: Any) -> None:
    with pytest.raises(LabelerError, match="expected text or texts"):
        is_correct(NormalisedMatch(), reference, "7")


def test_normalised_match_refuses_an_unknown_convention() -> None:
    other: Any = "bleu"
    with pytest.raises(InputError, match="convention is 'bleu'; expected one of squad, triviaqa"):
        NormalisedMatch(other)


@pytest.mark.parametrize(
    ("text", "exactly", "anywhere"),
    [
        ("The capital of Peru is Lima.", False, True),
        ("Lima", True, True),
        ("Limassol", False, False),
        ("San José!", True, True),
        ("It is San Salvador, not San\nJosé", False, True),
        ("San or José", False, False),
        ("", False, False),
    ],
)
def test_normalised_match_anywhere_finds_whole_words(text: str, exactly: bool, anywhere: bool) -> None:
    assert is_correct(NormalisedMatch(), ["Lima", "San José"], text) is exactly
    assert is_correct(NormalisedMatch(anywhere=True), ["Lima", "San José"], text) is anywhere


def test_normalised_match_fingerprint_depends_on_anywhere() -> None:
    assert NormalisedMatch().fingerprint != NormalisedMatch(anywhere=True).fingerprint
    assert "anywhere" not in str(NormalisedMatch().fingerprint)

"""The normal form of answers, `NormalisedMatch` and `ClosedSet`, on frozen and on drawn spellings.

`spellings/*.jsonl` were written before the code that reads them. At least half of the rows are from public
data sets or outputs of models; each names its source.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import ClosedSet, NormalisedMatch, VerdictExtractor
from langchain_cfc.labelers.matching import TextMatcher
from langchain_cfc.sampling.candidates import make_candidate
from langchain_cfc.verifiers import SelfConsistency, normalise_answer
from tests.calls import invoke_sync, is_correct
from tests.factories import verifier_input

SPELLINGS = Path(__file__).parent / "spellings"
MATCHERS: dict[str, TextMatcher] = {
    "text": NormalisedMatch(),
    "articles": NormalisedMatch(articles="en"),
    "anywhere": NormalisedMatch(anywhere=True),
}
# The least share of right answers that have to be read; none of the wrong ones may be.
SHARE_READ = 0.85


def read_spellings(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SPELLINGS / name).read_text("utf-8").splitlines()]


def label_texts() -> Iterator[tuple[dict[str, Any], bool, bool]]:
    """Each row of a text, whether it is right, and whether it is labelled right."""
    for row in read_spellings("texts.jsonl"):
        yield row, row["right"], is_correct(MATCHERS[row["labeler"]], row["reference"], row["text"])


def label_verdicts() -> Iterator[tuple[dict[str, Any], bool, bool]]:
    """The same for each member of each closed set."""
    for row in read_spellings("closed_sets.jsonl"):
        labeler = ClosedSet(row["members"])
        for member in row["members"]:
            yield row, member == row["reference"], is_correct(labeler, member, row["text"])


@pytest.mark.parametrize("label", [label_texts, label_verdicts])
def test_frozen_spellings_are_never_wrongly_right_and_mostly_read(label: Any) -> None:
    labelled = list(label())
    wrongly_right = [row["text"] for row, right, label in labelled if label and not right]
    read = [label for _, right, label in labelled if right]
    assert not wrongly_right
    assert sum(read) >= SHARE_READ * len(read), f"{sum(read)} of {len(read)} right spellings are read"


def test_at_least_half_of_the_frozen_spellings_are_public() -> None:
    sources = [row["source"] for name in ("texts.jsonl", "closed_sets.jsonl") for row in read_spellings(name)]
    assert len(sources) >= 300
    assert sum(source != "own" for source in sources) >= len(sources) / 2


# The normal form

UNIFIED = [
    "“",
    "”",
    "’",
    "«",
    "–",
    "−",
    "\u200b",
    "\u00ad",
    "\ufe0f",
    "\u202f",
    "Ａ",
    "１",
    "ﬁ",
    "²",
    "½",
    "₂",
]
TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from([*UNIFIED, *"aA1 .!'\"*-`\n"])), max_size=12
)


@drawn(TEXTS)
def test_normalise_answer_is_idempotent_and_ignores_unicode_forms(text: str) -> None:
    form = normalise_answer(text)
    assert normalise_answer(form) == form
    assert normalise_answer(unicodedata.normalize("NFD", text)) == form
    assert normalise_answer(f"\ufeff {text}\u200b\n") == form


@drawn(TEXTS, st.sampled_from(["\u200b", "\u2060", "\ufeff", "\u00ad", "\u200e", "\ufe0e", "\x00"]))
def test_normalise_answer_ignores_invisible_characters_anywhere(text: str, invisible: str) -> None:
    inside = "".join(character + invisible for character in unicodedata.normalize("NFC", text))
    # A mark after an invisible character is on its own, so that only texts without marks are compared.
    if not any(unicodedata.combining(one) for one in unicodedata.normalize("NFKD", text)):
        assert normalise_answer(inside) == normalise_answer(text)


@drawn(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from("+-/^.,:<>=≤×%#*!@&|"))
def test_normalise_answer_keeps_signs_between_numbers(one: int, other: int, sign: str) -> None:
    assert normalise_answer(f"{one}{sign}{other}") != normalise_answer(f"{one}{other}")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("L\u0456ma", "lima"),
        ("L\u03b9ma", "lima"),
        ("Lim\u0430, \u0420eru", "lima, peru"),
        ("\u039aOBE 7", "kobe 7"),
        ("Mo\u0441kau", "moskau".replace("s", "c")),  # a Cyrillic es has the shape of c
        ("\u041c\u043e\u0441\u043a\u0432a", "\u043c\u043e\u0441\u043a\u0432\u0430"),
        ("\u0391\u03b8\u03ae\u03bda", "\u03b1\u03b8\u03ae\u03bda"),  # a and alpha differ
        ("\u0441\u043e\u0440", "\u0441\u043e\u0440"),
        ("TNF\u03b1", "tnf\u03b1"),
        ("\u0410 B", "\u0430 b"),
    ],
)
def test_normalise_answer_reads_look_alikes_in_words_that_mix_scripts(text: str, read: str) -> None:
    assert normalise_answer(text) == read == normalise_answer(read)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("```python\nif x:\n    a()\nb()\n```", "```python\nif x:\n    a()\n    b()\n```"),
        ("~~~\nA = 1\na = 2", "~~~\nA = 1\nA = 2"),
        ('Run `rm "/a  b"`.', 'Run `rm "/a b"`.'),
        ("<pre>a\n b</pre>", "<pre>a\nb</pre>"),
        ("if x:\n\ta\nb", "if x:\n\ta\n\tb"),
    ],
)
def test_normalise_answer_keeps_white_space_in_code(text: str, other: str) -> None:
    assert normalise_answer(text) == normalise_answer(f" {text}\r\n") != normalise_answer(other)
    assert normalise_answer(normalise_answer(text)) == normalise_answer(text)
    assert normalise_answer("In `Lima`:  \n  a") == normalise_answer("in `lima`: A")


def test_answers_with_one_normal_form_are_correct_and_agree_alike() -> None:
    for row in read_spellings("texts.jsonl"):
        if row["labeler"] == "text" and isinstance(row["reference"], str):
            scores = invoke_sync(SelfConsistency(), verifier_input("?", row["reference"], row["text"]))
            assert (scores == [0.0, 0.0]) is is_correct(NormalisedMatch(), row["reference"], row["text"])


# NormalisedMatch


@pytest.mark.parametrize("reference", [7, ["seven", 7], {"answer": math.nan}, {"answer": {7}}, True])
def test_normalised_match_refuses_references_that_are_no_text(reference: Any) -> None:
    with pytest.raises(LabelerError, match="expected text, texts or JSON"):
        is_correct(NormalisedMatch(), reference, "7")


@pytest.mark.parametrize("labeler", MATCHERS.values())
@pytest.mark.parametrize(
    ("reference", "text", "label"),
    [
        ({"total": 12.5, "paid": True}, '{"paid": true, "total": 12.50}', True),
        ([{"total": 1}, {"total": 2}], '{"total": 2.0}', True),
        ({"lines": [1, 2]}, '{"lines": [2, 1]}', False),
        ({"total": 1}, '{"total": "1"}', False),
        ({"total": 1}, '{"total": true}', False),
        ({"total": 1}, '{"total": 1, "paid": null}', False),
        ({"total": 1}, '{"total": 1, "total": 1}', False),
        ({"total": 1}, 'It is {"total": 1}.', False),
        ({"city": "Lima"}, '{"city": "lima"}', False),
    ],
)
def test_normalised_match_compares_json_by_value(
    labeler: TextMatcher, reference: Any, text: str, label: bool
) -> None:
    assert is_correct(labeler, reference, text) is label
    assert (
        is_correct(labeler, reference, make_candidate(0, json.loads(text)).text if label else text) is label
    )


def test_normalised_match_refuses_a_reference_without_any_sign_that_counts() -> None:
    assert not is_correct(NormalisedMatch(), ["...", "Who"], "")
    with pytest.raises(LabelerError, match="holds no more than signs"):
        is_correct(NormalisedMatch(), [";", "..."], "")


@pytest.mark.parametrize(
    ("language", "text"),
    [("en", "The Netherlands"), ("de", "die Netherlands"), ("it", "l'Netherlands"), ("pt", "Os Netherlands")],
)
def test_normalised_match_drops_articles_of_one_language(language: str, text: str) -> None:
    assert is_correct(NormalisedMatch(articles=language), "Netherlands", text)
    assert not is_correct(NormalisedMatch(), "Netherlands", text)
    assert not is_correct(NormalisedMatch(articles=language), "Netherlands", "Netherlands the")


def test_normalised_match_refuses_articles_of_an_unknown_language() -> None:
    with pytest.raises(InputError, match="articles is 'tlh'; expected one of de, en"):
        NormalisedMatch(articles="tlh")


@pytest.mark.parametrize(
    ("reference", "text", "label"),
    [
        ("Lima", "In Peru, it is Lima.", True),
        ("Lima", "Lima", True),
        ("Lima", "Limassol", False),
        ("Lima", "Lima is not the capital.", False),
        ("Lima", "I am not sure, maybe Lima.", False),
        ("Lima", "Lima. Wait, Cusco.", False),
        ("Lima", "Lima and Cusco", False),
        ("Lima", "Lima y Cusco", False),
        ("Lima", "- Lima\n- Cusco", False),
        ("Lima", "Lima, Cusco, Arequipa", False),
        ("Lima", "Lima... no, Cusco", False),
        ("Lima", "Cusco, near Lima", False),
        ("Lima", "Lima of Cusco", False),
        ("Lima", "Lima, Cusco", False),
        ("Lima", "the mayor of Lima", False),
        ("Lima", "Cusco (Lima)", False),
        ("Lima", "In Peru, Lima is the capital.", True),
        ("Lima", "It moved from Lima to Cusco.", False),
        ("Lima", "It was Lima until 1900; now it is Cusco.", False),
        ("Lima", "People often think it is Lima, but it is Cusco.", False),
        ("Lima", "To nie jest Lima", False),
        ("Lima", "Bu Lima değil", False),
        ("Lima", "Lima is the capital of Peru.", True),
        ("Lima", "Peru's capital is Lima, not Cusco.", True),
        ("Lima", "Of course, Lima.", True),
        ("Lima", "The capital is Lima [1].", True),
        ("gold", "Au stands for gold.", True),
        ("gold", "It is white gold.", False),
        ("gold", "It is made of gold.", True),
        ("Guinea", "guinea pig", False),
        ("China", "It is the Republic of China.", False),
        ("Bach", "It was C.P.E. Bach.", False),
        ("Clyde", "Bonnie and Clyde", False),
        ("Korea", "It is in North Korea.", False),
        ("Apollo", "It was Apollo 11.", False),
        ("000", "It has 1 000 rows.", False),
        ("San José", "It is San\nJosé", True),
        ("true", "It is not true.", False),
        ("yes", "Well, yes.", True),
        ("京都", "東京都", False),
        ("京都", "答えは京都です。", True),
    ],
)
def test_normalised_match_anywhere_finds_what_a_sentence_asserts(
    reference: str, text: str, label: bool
) -> None:
    assert is_correct(NormalisedMatch(anywhere=True), reference, text) is label


# ClosedSet


@pytest.mark.parametrize(
    ("members", "reference"),
    [
        ([True, False], True),
        ([True, False], "yes"),
        (["yes", "no"], True),
        (["yes", "no"], ["yes", "true"]),
        ([1, 0], 1),
        ([1, 0], 1.0),
        (["1", "0"], True),
        (["Yes", "No"], "YES."),
    ],
)
def test_closed_set_reads_booleans_numbers_and_texts_as_references(
    members: list[Any], reference: Any
) -> None:
    labeler = ClosedSet(members)
    assert is_correct(labeler, reference, "Yes, it is.")
    assert not is_correct(labeler, reference, "No, it is not.")


@pytest.mark.parametrize("reference", ["maybe", None, ["yes", "no"], {"answer": "yes"}, 2, []])
def test_closed_set_refuses_references_that_name_no_single_member(reference: Any) -> None:
    with pytest.raises(LabelerError, match="reference"):
        is_correct(ClosedSet(), reference, "yes")


@pytest.mark.parametrize("members", [["yes"], [], ["yes", "Yes."], "yes no", ["yes", ""], [True, "true"]])
def test_closed_set_refuses_members_that_are_not_distinct(members: Any) -> None:
    with pytest.raises(InputError, match="at least two answers"):
        ClosedSet(members)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("No, the answer is yes.", ""),
        ("Yes, it is not.", ""),
        ("Yes, it never was.", ""),
        ("Yes, unless it rains.", ""),
        ("If it rains, yes.", ""),
        ("Yes, partly.", ""),
        ("Yes, it's not.", ""),
        ("Yes, it cannot.", ""),
        ("Yes, it did, but no longer.", ""),
        ("Yes, he was, although not since 2006.", ""),
        ("Yes, although only partly.", ""),
        ("Yes, you can, but you must sign.", "yes"),
        ("Yes. It does, although the interval can be longer.", "yes"),
        ("Yes, you can, but not here.", ""),
        ("Yes, it is, but just for members.", ""),
        ("Yes, it is, but rarely.", ""),
        ("Yes, it was, but it is a bar today.", ""),
        ("No, it is not, but it will be.", ""),
        ("Yes, I don't think so.", ""),
        ("Yes, I'm afraid not.", ""),
        ("Yes, you are mistaken.", ""),
        ("No, I don't think so.", "no"),
        ("No, you are mistaken.", "no"),
        ("Absolutely not.", "no"),
        ("Of course not!", "no"),
        ("Absolutely not a fraud.", ""),
        ("Others say absolutely not.", ""),
        ("My answer is 'no'", "no"),
        ("People say 'no'.", ""),
        ("Q: Is it?\nA: Yes", "yes"),
        ("Plan A: Yes", ""),
        ("Yes men are rare.", ""),
        ("To be true, it needs proof.", ""),
        ("Yes, it is not allowed.", "yes"),
        ("No. That is not true.", "no"),
        ("Yes. That is not true.", ""),
        ("It's not the case that it's true.", ""),
        ("Some people say yes.", ""),
        ("The answer is no longer yes.", ""),
        ("Answer: yes\n\nQuestion: And now?\nAnswer: no", ""),
        ('{"reasons": "no rain", "answer": true}', "yes"),
        ('{"answer": true, "result": false}', ""),
        ("not " * 1000 + "yes", ""),
        ("The answer is " + "yes " * 1000, ""),
    ],
)
def test_verdict_extractor_reads_one_verdict_or_none(text: str, verdict: str) -> None:
    assert VerdictExtractor(["yes", "no"])(text) == verdict


def test_verdict_extractor_needs_a_statement_for_numbers_and_single_letters() -> None:
    extract = VerdictExtractor([1, 0])
    assert [extract(text) for text in ("1. The sky is green.", "The answer is 1.", "0")] == ["", "1", "0"]


@drawn(st.text("yesno ,.?!\n", max_size=40))
def test_verdict_extractor_never_prefers_one_of_two_equal_verdicts(text: str) -> None:
    extract = VerdictExtractor(["yes", "no"])
    assert extract(f"{text}\nyes, no.") in {"", extract(text)} - {"yes", "no"}


def test_fingerprints_state_members_and_the_normal_form() -> None:
    stated = [
        one.fingerprint
        for one in (ClosedSet(), ClosedSet([True, False]), NormalisedMatch(), NormalisedMatch(anywhere=True))
    ]
    assert all(one["normalised"] == SelfConsistency().fingerprint["normalised"] for one in stated)
    assert len({json.dumps(one, sort_keys=True) for one in stated}) == len(stated)
    assert VerdictExtractor(["no", "yes"]).fingerprint == VerdictExtractor(["yes", "no"]).fingerprint

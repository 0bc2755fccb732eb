"""`MultipleChoice`: which option a candidate chooses, if any."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import MultipleChoice
from langchain_cfc.labelers.multiple_choice import find_choice
from tests.calls import is_correct
from tests.factories import labeler_input


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "b",
        " B. ",
        "(B)",
        "[B]",
        "**B**",
        '"B"',
        "B)",
        "b.",
        "(b)",
        "Answer: B",
        "ANSWER: B",
        "answer = B",
        "**Answer:** B",
        "**Answer**: (B)",
        "Answer: **B**.",
        "The answer is B.",
        "The answer is: B",
        "the answer is (b), for the others are too high",
        "The correct answer is option B",
        "The correct option is B because A is the coast.",
        "My choice is B",
        "A is on the coast and C is too high. So the answer is B.",
        "Answer: B\nAnswer: B",
        "B. Quito",
        "(B) Quito",
        "B) Quito",
        "B: Quito, as it lies on the equator",
        "**B.** Quito",
        "B.\nIt lies on the equator.",
        "I think that it must be (B).",
        "(B) and only (B)",
        "It is not A, the answer is B",
        "B, not C",
        "The answer is B. Note that C is a common distractor.",
        "Option B is correct.",
        "I would choose B",
        "\\boxed{\\text{B}}",
        "<answer>(B)</answer>",
        '{"answer": "B", "reason": "A is too high"}',
        "### Answer\nB",
        "~~A~~ B",
        "Ｂ",
        "La bonne réponse est la B.",
        "Die richtige Antwort lautet B.",
        "A alternativa correta é a B.",
        "Правильный ответ — B.",
        "故选B。",
        "答えはBです。",
        "정답은 B입니다.",
    ],
)
def test_find_choice_finds_a_letter(text: str) -> None:
    assert find_choice(text, "ABCD") == "B"
    # Where there is no such letter, nothing is chosen.
    assert find_choice(text, "CD") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none of these",
        "Answer: B\nNo, wait. Answer: C",
        "It is (A) or (B)",
        "A dog would say so",
        "I do not know",
        "the answer is a matter of taste",
        "Bees",
        "not Quito but Lima",
        "B2",
        "Answer: B or C",
        "Answer: B, C",
        "B/C",
        "(B) and (C)",
        "The answer is B, but C is also possible.",
        "The answer is B if x > 0, otherwise C.",
        "The answer is B. No wait, C.",
        "Any option except (B)",
        "I doubt that the answer is B.",
        "B is wrong",
        "A. Lima\nB. Quito\nC. La Paz",
        "Answer: Quito or Lima",
        "答案：B或C",
        '{"A": 0.1, "B": 0.9}',
        "Answer: Quito; Lima",
        "The student's answer is B.",
        "A tempting choice is B.",
        "Answer: B/F",
        "Answer: B\u0336",
        "Answer: B's",
        "Answer: Both",
        "f(B)",
    ],
)
def test_find_choice_returns_none_for_ambiguous_texts(text: str) -> None:
    assert find_choice(text, "ABCD") is None


def test_find_choice_uses_the_first_place_that_names_an_option() -> None:
    assert find_choice("A. is what many say, but the answer is B", "ABCD") == "B"
    assert find_choice("A. Not (B), I would say", "ABCD") == "A"
    # A letter that is none of this question's is passed over.
    assert find_choice("Answer: E, and then (B)", "ABCD") == "B"


@pytest.mark.parametrize(
    "hostile",
    [
        *(
            "answer ",
            "answer is ",
            "answer: (",
            "(",
            "*",
            " ",
            "(B) ",
            "B. ",
            "B is right ",
            "\n",
            "{",
            "\\boxed{",
            "<b>",
        ),
        *("answer: B or ", "\\frac{", "a_", "^{", "option"),
    ],
)
def test_find_choice_is_fast_on_long_hostile_texts(hostile: str) -> None:
    find_choice(hostile * (50_000 // len(hostile)) + "?", "ABCD")
    find_choice("answer" + hostile.removeprefix("answer") * 10_000 + "?", "ABCD")
    find_choice("answer is option" + " " * 50_000 + "?", "ABCD")


# References


@pytest.mark.parametrize("reference", ["B", "b", " B "])
def test_multiple_choice_accepts_a_letter_as_reference(reference: str) -> None:
    assert MultipleChoice().invoke(labeler_input(reference, "Quito", "(B)", "A")) == [False, True, False]


@pytest.mark.parametrize("reference", ["F", "Quito", "", 1, ["B"], None, "AB"])
def test_multiple_choice_refuses_references_that_name_no_option(reference: Any) -> None:
    with pytest.raises(LabelerError, match="names no option: give one of the letters ABCDE"):
        is_correct(MultipleChoice(), reference, "B")


def test_multiple_choice_reads_the_letters_that_it_is_given() -> None:
    assert is_correct(MultipleChoice(), "E", "Answer: E")
    assert not is_correct(MultipleChoice(letters="ABCDEF"), "E", "Answer: F")


@pytest.mark.parametrize("letters", ["", "AA", "ab", "A1", "A B"])
def test_multiple_choice_refuses_letters_that_are_no_distinct_capitals(letters: str) -> None:
    with pytest.raises(InputError, match="expected distinct capital letters"):
        MultipleChoice(letters=letters)

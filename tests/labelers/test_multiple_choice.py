"""`MultipleChoice`: which option a candidate chooses, if any."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import MultipleChoice
from langchain_cfc.labelers.multiple_choice import find_choice
from tests.calls import Invoke, is_correct
from tests.factories import labeler_input

CITIES = ["Lima", "Quito", "La Paz", "St. John's"]
OPTIONS = {"lima": "A", "quito": "B", "la paz": "C", "st. john's": "D"}


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
    assert find_choice(text, "ABCD", {}) == "B"
    assert find_choice(text, "ABCD", OPTIONS) == "B"
    # Where there is no such letter, nothing is chosen.
    assert find_choice(text, "CD", {}) is None


@pytest.mark.parametrize("text", ["Quito", "quito.", " **Quito** ", "Answer: Quito", "The answer is Quito."])
def test_find_choice_finds_the_text_of_a_known_option(text: str) -> None:
    assert find_choice(text, "ABCD", OPTIONS) == "B"
    assert find_choice(text, "ABCD", {}) is None


def test_find_choice_respects_signs_inside_options() -> None:
    assert find_choice("St. John's", "ABCD", OPTIONS) == "D"
    assert find_choice("St Johns", "ABCD", OPTIONS) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none of these",
        "Answer: B\nNo, wait. Answer: C",
        "It is (A) or (B)",
        "B. Lima",
        "Answer: B\nor rather: the answer is Lima",
        "Answer: B. Or rather, the answer is Lima",
        "A dog would say so",
        "I do not know",
        "the answer is a matter of taste",
        "Bees",
        "not Quito but Lima",
        "Lima (B)",
        "B2",
        "Answer: B or C",
        "Answer: B, C",
        "B/C",
        "(B) and (C)",
        "The answer is B, but C is also possible.",
        "The answer is B if x > 0, otherwise C.",
        "The answer is B. No wait, C.",
        "Any option except (B)",
        "I don't think that B is correct.",
        "If the coast counts, B is correct.",
        "I doubt that the answer is B.",
        "B is wrong",
        "A. Lima\nB. Quito\nC. La Paz",
        "Answer: Quito or Lima",
        "Answer: A. Quito",
        "答案：B或C",
        '{"A": 0.1, "B": 0.9}',
        "A. It is Quito.",
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
    assert find_choice(text, "ABCD", OPTIONS) is None


def test_find_choice_uses_the_first_place_that_names_an_option() -> None:
    assert find_choice("A. is what many say, but the answer is B", "ABCD", {}) == "B"
    assert find_choice("A. Not (B), I would say", "ABCD", {}) == "A"
    # A letter that is none of this question's is passed over.
    assert find_choice("Answer: E, and then (B)", "ABCD", {}) == "B"


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
    find_choice(hostile * (50_000 // len(hostile)) + "?", "ABCD", OPTIONS)
    find_choice("answer" + hostile.removeprefix("answer") * 10_000 + "?", "ABCD", OPTIONS)
    find_choice("answer is option" + " " * 50_000 + "?", "ABCD", OPTIONS)


# References


@pytest.mark.parametrize("reference", ["B", "b", " B ", "Quito", "quito."])
def test_multiple_choice_accepts_letters_and_option_texts_as_reference(reference: str) -> None:
    labeler = MultipleChoice(CITIES)
    assert labeler.invoke(labeler_input(reference, "Quito", "(B)", "A", "Lima")) == [True, True, False, False]


@pytest.mark.parametrize("reference", ["E", "Cusco", "", 1, ["B"], None, "AB"])
def test_multiple_choice_refuses_references_that_name_no_option(reference: Any) -> None:
    with pytest.raises(LabelerError, match="names no option"):
        is_correct(MultipleChoice(CITIES), reference, "B")


def test_multiple_choice_refuses_references_that_name_two_options() -> None:
    # "B" is the second letter, and the text of the first option.
    with pytest.raises(LabelerError, match="names two options"):
        is_correct(MultipleChoice(["B", "A"]), "B", "x")
    assert find_choice("B", "AB", {"b": "A", "a": "B"}) is None
    assert is_correct(MultipleChoice(["A", "B"]), "B", "B")


def test_multiple_choice_without_options_accepts_letters_only() -> None:
    assert is_correct(MultipleChoice(), "E", "Answer: E")
    assert not is_correct(MultipleChoice(letters="ABCDEF"), "E", "Answer: F")
    with pytest.raises(LabelerError, match="give one of the letters ABCDE"):
        is_correct(MultipleChoice(), "F", "F")
    with pytest.raises(LabelerError, match="names no option"):
        is_correct(MultipleChoice(), "Quito", "Quito")


# Options that differ between prompts


def list_options(prompt: Any) -> list[str]:
    return str(prompt).split("\n")


def test_multiple_choice_accepts_options_computed_from_the_prompt(invoke: Invoke) -> None:
    asked = labeler_input("Quito", "B", "Lima", "Quito", prompt="Lima\nQuito")
    assert invoke(MultipleChoice(list_options), asked) == [True, False, True]
    # There are two letters now.
    with pytest.raises(LabelerError, match="one of the letters AB,"):
        invoke(MultipleChoice(list_options), labeler_input("C", "B", prompt="Lima\nQuito"))


INVALID_OPTIONS: list[tuple[Any, str]] = [
    ([], "expected a list of 1 to 26 texts"),
    (["x", 1], "expected a list of 1 to 26 texts"),
    ([str(number) for number in range(27)], "expected a list of 1 to 26 texts"),
    (["Lima", "lima."], "two differ only in case and signs"),
    (["Lima", "..."], "is empty, or two differ"),
]


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS)
def test_multiple_choice_refuses_options_that_are_no_distinct_texts(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MultipleChoice(options)
    with pytest.raises(LabelerError, match=message):
        is_correct(MultipleChoice(lambda _: options), "A", "A")


def test_multiple_choice_raises_labeler_error_for_a_failing_options_function() -> None:
    nothing: Any = lambda _: "Lima"  # noqa: E731 - shorter than a function
    with pytest.raises(LabelerError, match="the options are 'Lima'; expected a list"):
        is_correct(MultipleChoice(nothing), "A", "A")

    def failing(prompt: Any) -> list[str]:
        raise KeyError(prompt)

    with pytest.raises(LabelerError, match="the options function failed with KeyError"):
        is_correct(MultipleChoice(failing), "A", "A")


@pytest.mark.parametrize("letters", ["", "AA", "ab", "A1", "A B"])
def test_multiple_choice_refuses_letters_that_are_no_distinct_capitals(letters: str) -> None:
    with pytest.raises(InputError, match="expected distinct capital letters"):
        MultipleChoice(letters=letters)

"""`NumericMatch` and `find_final_number`: notations that are read, and those that are refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import given as drawn
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import NumericMatch, find_final_number
from tests.calls import is_correct
from tests.factories import labeler_input
from tests.lengths import mostly_long


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("007", "7"),
        ("0.50", "1/2"),
        (".5", "1/2"),
        ("$.50", "1/2"),
        ("it costs 3.", "3"),
        ("wait...5", "5"),
        ("1,234", "1234"),
        ("$1,234,567.80", "6172839/5"),
        ("12,34,567", "1234567"),
        ("1, 2, 3", "3"),
        ("-5", "-5"),
        ("x = -5", "-5"),
        ("\u22125 degrees", "-5"),
        ("it is \u20135", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("10-3", "3"),
        ("(4)-3", "3"),
        ("x-3", "3"),
        ("10 - 3", "3"),
        ("10 -3", "-3"),
        ("pages 5\u201310", "10"),
        ("€5", "5"),
        ("5€", "5"),
        ("US$5", "5"),
        ("5 dollars", "5"),
        ("5kg", "5"),
        ("the 5th", "5"),
        ("50%", "50"),
        ("50 percent", "50"),
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("1 1/2", "3/2"),
        ("-1 1/2", "-3/2"),
        ("1½ cups", "3/2"),
        ("1 ½ cups", "3/2"),
        ("¾", "3/4"),
        ("⅒", "1/10"),
        ("5² m", "5"),
        ("3\u20444", "3/4"),
        ("5 10/2", "5"),
        ("(12*2/3) + (12/2) = 24/6", "4"),
        ("1/4 + 1/2 = 3/4", "3/4"),
        ("1.5e3", "1500"),
        ("2E-2", "1/50"),
        ("3 x 10^5", "300000"),
        ("3×10^-2", "3/100"),
        ("3 \u00b7 10^{2}", "300"),
        ("5 million", "5000000"),
        ("2.5 Billion", "2500000000"),
        ("H2O has 3 atoms", "3"),
        ("3 atoms of H2O", "3"),
        ("900/30*2.5=75", "75"),
        ("900/30=30. He earns 30 * $2.5 = $75.", "75"),
        ("1.50*5+0.5=8.00", "8"),
        ("So 31/4=7.75, and she needs 8 boxes", "8"),
        ("5 + 7 = <<5+7=12>>12 apples\n#### 12", "12"),
        ("#### 12 apples in 3 boxes", "12"),
        ("#### 1\n#### 2", "2"),
        ("#### $1,200", "1200"),
    ],
)
def test_find_final_number_reads_every_notation(text: str, number: str) -> None:
    assert find_final_number(text) == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no number",
        "five",
        "H2O",
        "x2.5",
        "x2,500",
        "12 + 30 =" + " #### ",
        "1,23",
        "0,123",
        "87,7791",
        "1.234,5",
        "1.2.3",
        "3/4/2025",
        "5/0",
        "5k",
        "5M",
        "2.5B",
        "1e401",
        "1e-" + "9" * 500,
        "3 x 10^" + "9" * 500,
        "9" * 401,
        "1/" + "9" * 401,
        "\u0663",
    ],
)
def test_find_final_number_returns_none_for_unreadable_texts(text: str) -> None:
    assert find_final_number(text) is None


def test_find_final_number_does_not_skip_an_unreadable_last_number() -> None:
    assert find_final_number("first 5, then 1,23") is None


@pytest.mark.parametrize(
    ("text", "read_as", "could_be"),
    [
        ("50%", "50", "1/2"),
        ("5 apples for 3 boys", "3", "5"),
        ("12:30", "30", "25/2"),
        ("-5 apples", "-5", "5"),
        ("2 + 3", "3", "5"),
        ("10^5", "5", "100000"),
        ("$5.00-$7.00", "7", "5"),
        ("\\frac{3}{4}", "4", "3/4"),
        ("45/9", "5", "9"),
    ],
)
def test_find_final_number_reads_ambiguous_texts_as_documented(
    text: str, read_as: str, could_be: str
) -> None:
    assert find_final_number(text) == Fraction(read_as) != Fraction(could_be)


NUMBERS = st.decimals(-(10**9), 10**9, places=3, allow_nan=False, allow_infinity=False)
AROUND = st.text(
    st.characters(categories=["Ll", "Lu", "Po", "Zs"], exclude_characters=".,%·/*#"), max_size=20
)


@drawn(NUMBERS, AROUND, st.sampled_from(["{:f}", "{:,f}", "${:,f}", "€ {:f}", "{:f}%", "{:e}"]))
def test_find_final_number_reads_formatted_numbers_exactly(number: Any, words: str, form: str) -> None:
    written = form.format(number)
    assert find_final_number(f"{words} = {written}.") == Fraction(number)
    assert find_final_number(f"{words} 17 = {written} .") == Fraction(number)


@drawn(st.integers(0, 50), st.integers(1, 50), st.integers(2, 60))
def test_find_final_number_reads_fractions_exactly(whole: int, above: int, below: int) -> None:
    assert find_final_number(f"it is {above}/{below}") == Fraction(above, below)
    assume(above < below)
    assert find_final_number(f"it is {whole} {above}/{below} cups") == whole + Fraction(above, below)


@mostly_long(
    "hostile",
    ["1,", "1.", "1/", "1 ", "1e", "-", "$", " ", "x1", "1 1/", "9", "####", "½", "10^", "5 million "],
    quick=3,
)
def test_find_final_number_is_fast_on_long_hostile_texts(hostile: str) -> None:
    # 200,000 characters: a quadratic algorithm would not return in time.
    find_final_number(hostile * (200_000 // len(hostile)))


# Comparison


def test_numeric_match_compares_numbers_instead_of_texts() -> None:
    for text in ("1500", "1,500.00", "$1.5e3", "3000/2", "It is 1500 m."):
        assert is_correct(NumericMatch(), 1500, text)
        assert is_correct(NumericMatch(), "#### 1,500", text)
    for text in ("1501", "-1500", "150", "15 00", "1500.0001", "none"):
        assert not is_correct(NumericMatch(), 1500, text)


def test_numeric_match_compares_exactly() -> None:
    assert is_correct(NumericMatch(), 0.1, "0.1")
    assert not is_correct(NumericMatch(), 0.1, "0.1000000000000000055")
    assert not is_correct(NumericMatch(), "1/3", "0.3333333333333333333333")
    assert is_correct(NumericMatch(), "1/3", "2/6")
    assert is_correct(NumericMatch(), 0.5, "1/2")


@pytest.mark.parametrize("tolerance", ["0.01", 0.01, "1/100", Fraction(1, 100)])
def test_numeric_match_tolerance_is_absolute_and_inclusive(tolerance: Any) -> None:
    labeler = NumericMatch(tolerance=tolerance)
    assert labeler.fingerprint["tolerance"] == "1/100"
    assert is_correct(labeler, "1/3", "0.33")
    assert is_correct(labeler, 5, "5.01")
    assert is_correct(labeler, 5, "4.99")
    assert not is_correct(labeler, 5, "5.010000001")


@pytest.mark.parametrize("tolerance", [-1, "-0.1", math.nan, math.inf, "a little", "1/0", None, True])
def test_numeric_match_refuses_an_invalid_tolerance(tolerance: Any) -> None:
    with pytest.raises(InputError, match="tolerance is"):
        NumericMatch(tolerance=tolerance)


def test_numeric_match_accepts_any_alias() -> None:
    assert NumericMatch().invoke(labeler_input(["75", 80.0], "75", "80", "77")) == [True, True, False]


@pytest.mark.parametrize(
    "reference",
    [
        "seventy-five",
        "72 hours 30 minutes",
        "1,23",
        "5k",
        "#### none",
        math.nan,
        math.inf,
        True,
        {"value": 5},
        ["75", "none"],
        "",
    ],
)
def test_numeric_match_refuses_references_that_are_not_one_number(reference: Any) -> None:
    with pytest.raises(LabelerError, match="is not one number: give a number"):
        is_correct(NumericMatch(), reference, "75")


def test_numeric_match_reads_the_marked_number_of_a_reference() -> None:
    assert is_correct(NumericMatch(), "He has 5 * 4 = <<5*4=20>>20 eggs.\n#### 20", "20 eggs")


def test_numeric_match_uses_the_answer_extractor() -> None:
    text = "15 games a week make 120 games in 2 weeks"
    assert not is_correct(NumericMatch(), 120, text)
    assert is_correct(NumericMatch(answer=lambda one: one.split(" in ")[0]), 120, text)

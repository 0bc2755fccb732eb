"""`NumericMatch` and `find_final_number`: notations that are read, and those that are refused."""

from __future__ import annotations

import math
import unicodedata
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import given as drawn
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import NumericMatch, extract_number, find_final_number
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
        ("-5", "-5"),
        ("x = -5", "-5"),
        ("\u22125 degrees", "-5"),
        ("it is \u20135", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("€5", "5"),
        ("5€", "5"),
        ("US$5", "5"),
        ("5 dollars", "5"),
        ("5kg", "5"),
        ("the 5th", "5"),
        ("50%", "50"),
        ("50 percent", "50"),
        ("영하 5도", "-5"),
        ("It rang 2 + 3 = 5 times.", "5"),
        ("They take 7 days, i.e. a week.", "7"),
        ("James writes 624 pages a year.", "624"),
        ("Water boils at 100 °C.", "100"),
        ("The war ended in 1945.", "1945"),
        ("Im Jahr 1969", "1969"),
        ("It dates back to 1215.", "1215"),
        ("There are currently 118 known elements.", "118"),
        ("Kora: 20 dishes", "20"),
        ("A hexagon has six (6) sides.", "6"),
        ("It has a population of 8.9 million.", "8900000"),
        ("Yes, 5.", "5"),
        ("Number of bags: 5", "5"),
        ("He ate 3/4 of the pizza.", "3/4"),
        ("She was the 16th president.", "16"),
        ("Es gibt 5 Äpfel.", "5"),
        ("Ci sono 5 mele.", "5"),
        ("У него 5 яблок.", "5"),
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("1 1/2", "3/2"),
        ("-1 1/2", "-3/2"),
        ("1½ cups", "3/2"),
        ("1 ½ cups", "3/2"),
        ("¾", "3/4"),
        ("⅒", "1/10"),
        ("3\u20444", "3/4"),
        ("(12*2/3) + (12/2) = 24/6", "4"),
        ("1/4 + 1/2 = 3/4", "3/4"),
        ("10^5", "100000"),
        ("1.560e+1", "15.6"),
        ("The total is **$18**.", "18"),
        ("\u0663", "3"),
        ("1.5e3", "1500"),
        ("2E-2", "1/50"),
        ("3 x 10^5", "300000"),
        ("3×10^-2", "3/100"),
        ("3 \u00b7 10^{2}", "300"),
        ("5 million", "5000000"),
        ("2.5 Billion", "2500000000"),
        ("H2O has 3 atoms", "3"),
        ("So she needs 5 large red bags to carry the rice.", "5"),
        ("Therefore, he makes $5 every day at the market.", "5"),
        ("3 atoms of H2O", "3"),
        ("900/30*2.5=75", "75"),
        ("900/30=30. He earns 30 * $2.5 = $75.", "75"),
        ("1.50*5+0.5=8.00", "8"),
        ("5 + 7 = <<5+7=12>>12 apples\n#### 12", "12"),
        ("#### $1,200", "1200"),
    ],
)
def test_find_final_number_reads_every_notation(text: str, number: str) -> None:
    assert find_final_number(text) == Fraction(number)


UNREADABLE = """
    no number | five | one in 5 people | Less than: 5 apples | It fell to under 5 km. |
    It is apparently 5 km. | in 500 BC | He might have 5 apples. | It surpasses 5 km. | mehr als 5 Äpfel |
    al menos 5 manzanas | 5 тисяч | H2O | x2.5 | x2,500 | 1,23 | 0,123 | 87,7791 | 1.2.3 | 3/4/2025 | 5/0 |
    10-3 | x-3 | 10 -3 | pages 5\u201310 | 12 boxes or 3 bags | 1, 2, 3 | x = 3, y = 5 | Ann: 3\nBob: 5 |
    #### 1\n#### 2 | \\boxed{1} and \\boxed{2} | The answer is 5. No, wait. | I doubt that the answer is 5. |
    If the answer is 5, the sum is odd. | 3 + x = 10 | 2x = 10 | 5 and a half | half of 10 | at least 5 |
    -(7) | x1 = 5, x2 = 6 | 5 and five sixths | half past 5 | 5 May | A common wrong answer is 5. |
    The student's answer is 5. | 5\n\n6 | 5\u0336 | ten minus 5 | 5k | 5M | 5 bilionů | 5. Mai | 5 de mayo |
    44 BC | 44 v. Chr. | 5 degrees below zero | 5 grados bajo cero | 101 in binary | 5 and up | 5 o más |
    hasta 5 | 最大5 | 5개 이상 | the 1990s | 0.333... | 12 is too high | type 2 diabetes | 5 juta |
    5 tysięcy | 5 हज़ार | 5 ล้าน | 5 ألف | 5 χιλιάδες | 5 января | 5 исключено | 5 dozen eggs | 5 tens |
    5 times as many | 5 miles de euros | The answer was thought to be 5. | the last 5 days |
    The answer is #5 | até 5 maçãs | 5 sevenths | 5 K | 5° S | R$ 5 mi | ($5) | windows 11 | The square of 5 |
    The answer might be 5. | Is the total 7 | I don't know. My data end in 2023. | 2.5B | 1e401
"""


@pytest.mark.parametrize(
    "text",
    [
        *map(str.strip, UNREADABLE.split(" |")),
        "",
        "12 + 30 =" + " #### ",
        "1e-" + "9" * 500,
        "3 x 10^" + "9" * 500,
        "9" * 401,
        "1/" + "9" * 401,
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
        ("-5 apples", "-5", "5"),
        ("45/9", "5", "9"),
        ("3.142", "3.142", "3142"),
        ("2 billion", "2000000000", "2000000000000"),
    ],
)
def test_find_final_number_reads_ambiguous_texts_as_documented(
    text: str, read_as: str, could_be: str
) -> None:
    assert find_final_number(text) == Fraction(read_as) != Fraction(could_be)


# Two decimals: 12.500 might be a group of thousands.
NUMBERS = st.decimals(-(10**9), 10**9, places=2, allow_nan=False, allow_infinity=False)
FORMS = ["{:f}", "{:,f}", "${:,f}", "€ {:f}", "{:f}%", "{:e}", "\\boxed{{{:f}}}", "<answer>{:,f}</answer>"]
AROUND = st.text(
    st.characters(categories=["Ll", "Lu", "Po", "Zs", "Nd", "Sm", "Ps", "Pe", "Sc", "Pd"]), max_size=20
)


@drawn(NUMBERS, st.sampled_from(FORMS), st.sampled_from(["It costs", "So we get x =", "Answer:"]))
def test_find_final_number_reads_formatted_numbers_exactly(number: Any, form: str, words: str) -> None:
    assert find_final_number(f"{words} {form.format(number)}.") == Fraction(number)


@drawn(NUMBERS, NUMBERS, st.sampled_from(FORMS[:6]), st.sampled_from(FORMS[:6]))
def test_extract_number_never_merges_different_numbers(one: Any, other: Any, form: str, second: str) -> None:
    assume(one != other)
    assert extract_number(form.format(one)) != extract_number(second.format(other))
    # Two numbers side by side are no answer.
    assert extract_number(f"{form.format(one)} or {second.format(other)}") == ""


@drawn(st.integers(2, 999), AROUND, AROUND)
def test_extract_number_refuses_noise_instead_of_changing_the_number(
    number: int, before: str, after: str
) -> None:
    words = f"{before} The answer is {number} {after}"
    assume(not any(unicodedata.category(one) == "Nd" for one in before + after))
    assert extract_number(words) in {"", str(number), f"-{number}"}


@drawn(AROUND)
def test_extract_number_reads_what_it_wrote(text: str) -> None:
    assert extract_number(extract_number(text)) == extract_number(text)


@drawn(st.integers(0, 50), st.integers(1, 50), st.integers(2, 60))
def test_find_final_number_reads_fractions_exactly(whole: int, above: int, below: int) -> None:
    assert find_final_number(f"it is {above}/{below}") == Fraction(above, below)
    assume(above < below)
    assert find_final_number(f"it is {whole} {above}/{below} cups") == whole + Fraction(above, below)


@mostly_long(
    "hostile",
    [
        *("1,", "1.", "1/", "1 ", "1e", "-", "$", " ", "x1", "1 1/", "9", "####", "½", "10^", "5 million "),
        *(
            "answer",
            "answer is ",
            "\\boxed{",
            "{",
            "<answer>",
            "=",
            "x=",
            "5. ",
            "5\n",
            "(",
            "[1]",
            "*",
            "minus ",
        ),
    ],
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
    for text in ("1501", "-1500", "150", "15 00", "1500 or 1501", "1500.0001", "none"):
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


@pytest.mark.parametrize(
    ("reference", "same", "other"),
    [
        ("5 km", "5 kilometres", "5 m"),
        ("25 m²", "25 square meters", "25 cm^2"),
        ("$5", "5 dollars", "€5"),
        ("$5", "5", "5 cents"),
        ("100 °C", "100 degrees", "100 °F"),
        ("60 km/h", "\\boxed{60\\text{ km/h}}", "60 mph"),
        ("5 minutes", "5 min", "5 hours"),
    ],
)
def test_numeric_match_tells_units_apart(reference: str, same: str, other: str) -> None:
    assert is_correct(NumericMatch(), reference, same)
    assert not is_correct(NumericMatch(), reference, other)
    assert is_correct(NumericMatch(), 5, "5 m")

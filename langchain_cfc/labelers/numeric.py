r"""Find the final number of a text, and compare it exactly.

The final number is the first one after the last `####`, with which GSM8K marks final answers (Cobbe et al.
2021, "Training verifiers to solve math word problems"), else the last number of the text. These are read:

- whole numbers and decimals with a point: `42`, `0.50`, `.5`;
- separators of thousands: `1,234,567`, and `12,34,567` as in India;
- a sign directly before (`-`, `−`, `–`) that follows no digit, letter or closing bracket: `x = -5`, `-$5`;
- simple and mixed fractions: `3/4`, `1 1/2`, `1½`;
- scientific notation: `1.5e3`, `3 x 10^5`, `3 × 10^-5`;
- `thousand`, `million`, `billion` and `trillion` after the number, by powers of a thousand.

Currency signs, percent signs and units around a number are dropped. Digits directly after a letter, as in
`H2O`, are not a number. A text whose final number is written in another way has no number: `1,23` and
`1.234,5` may be decimals, lists or typing errors, `3/4/2025` is a date, and `5k`, `5M` or `5B` may be
anything.

These notations remain ambiguous, and are read like this:

- `50%` is 50, as GSM8K writes references, and not 0.5;
- `5 apples for 3 boys` is 3, and `12:30` is 30: make models state the answer last, or extract it;
- `-5` at the start of a line is a negative number, though it may be an item of a list;
- a calculation is not carried out: `2 + 3` is 3, `10^5` is 5, but `45/9` is a fraction and so 5;
- `$5.00-$7.00` is 7, the upper end of the range;
- words (`five`) and LaTeX (`\frac{3}{4}`) are not read: extract them with `answer=`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers.matching import TextMatcher, list_aliases
from langchain_cfc.verifiers.self_consistency import Extractor

_MARK = "####"
_MINUS = r"[-\u2212\u2013]"
_CURRENCY = "[$€£¥₹]"
_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![\w)\]}}%]){_MINUS})?
    {_CURRENCY}?
    (?P<inner>(?<={_CURRENCY}){_MINUS})?
    (?<!\w)(?<![0-9][.,])                    # neither `x2` nor the rest of `x2.5`
    (?:(?P<whole>[0-9]{{1,9}})[ ]{{1,2}}(?=[0-9]+[/\u2044]))?
    (?P<body>(?:(?<![\w.])\.)?[0-9]+(?:[.,][0-9]+)*)
    (?P<below>(?:[/\u2044][0-9]+)+(?![0-9]|[.,][0-9]))?
    (?:[eE](?P<e>[-+]?[0-9]+)(?!\w))?
    (?:\s?[x×*·]\s?10\s?\^\s?\{{?(?P<power>[-+\u2212]?[0-9]+)\}}?)?
    (?:\s?(?i:(?P<scale>thousand|million|billion|trillion))\b|(?P<abbreviated>[kKMB])\b)?
    """,
    re.VERBOSE,
)
_SCALES = {"": 0, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PLAIN_NUMBER = re.compile(r"[0-9]*(?:\.[0-9]+)?")
_GROUPED_NUMBER = re.compile(r"[1-9](?:[0-9]{0,2}(?:,[0-9]{3})+|[0-9]?(?:,[0-9]{2})+,[0-9]{3})(?:\.[0-9]+)?")
# Most digits, and largest exponent: beyond any answer, and far below where arithmetic takes noticeable time.
_MAX_DIGITS = 400
# NFKC writes them with a fraction slash; applied to whole texts, it would turn `5²` into `52`.
_FRACTIONS = {ord(sign): f" {unicodedata.normalize('NFKC', sign)}" for sign in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}


def find_final_number(text: str) -> Fraction | None:
    """Return the final number of a text, as described at the top of the module.

    Args:
        text: Any text.

    Returns:
        The exact number; None if there is none, or if it is written in a way that is not read.

    Examples:
        >>> find_final_number("She pays 3 x $1,250.50 = $3,751.50."), find_final_number("about 1 1/2 cups")
        (Fraction(7503, 2), Fraction(3, 2))
    """
    _, marked, rest = text.rpartition(_MARK)
    found = list(_NUMBER.finditer(rest.translate(_FRACTIONS)))
    if not found:
        return None
    return _read_value(found[0] if marked else found[-1])


def extract_number(text: str) -> str:
    """Return the final number of a text in plain digits, as an answer extractor.

    Args:
        text: Any text.

    Returns:
        A decimal if that is exact, else a fraction; empty if `find_final_number` finds none.

    Examples:
        >>> extract_number("She pays $1,250.50."), extract_number("a third, 1/3"), extract_number("none")
        ('1250.5', '1/3', '')
    """
    number = find_final_number(text)
    if number is None:
        return ""
    decimal = Decimal(number.numerator) / Decimal(number.denominator)
    return f"{decimal.normalize():f}" if Fraction(decimal) == number else str(number)


class NumericMatch(TextMatcher):
    """A candidate is correct if its final number equals that of the reference.

    The reference is a number, a text that holds exactly one or marks its final one with `####`, or a list of
    these. Numbers are compared as fractions: 0.1 is 1/10, and 0.333 is not 1/3 unless the tolerance allows
    it. A float counts as the decimal that it prints as. A candidate without a readable final number is wrong.

    Args:
        tolerance: Largest absolute difference that counts as equal, at least 0; text such as "0.01" or
            "1/100", or a number.
        answer: Function or Runnable, plain or async, from a text to its answer; by default the whole text.

    Raises:
        InputError: If the tolerance is not a finite number of at least 0.
    """

    def __init__(self, *, tolerance: str | float | Fraction = 0, answer: Extractor | None = None) -> None:
        self._tolerance = _read_tolerance(tolerance)
        super().__init__("numeric-match", {"tolerance": str(self._tolerance)}, {"answer": answer})

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test that compares with the numbers of the aliases."""
        expected = [_read_reference_number(one) for one in list_aliases(reference)]

        def is_near(answer: str) -> bool:
            number = find_final_number(answer)
            return number is not None and any(abs(number - one) <= self._tolerance for one in expected)

        return is_near


def _read_tolerance(given: Any) -> Fraction:
    try:
        tolerance = Fraction(str(given))
    except (ValueError, ZeroDivisionError):
        tolerance = Fraction(-1)
    if tolerance < 0:
        msg = f"tolerance is {given!r}; expected a finite number of at least 0"
        raise InputError(msg)
    return tolerance


def _read_reference_number(reference: Any) -> Fraction:
    if isinstance(reference, str):
        number = find_final_number(reference)
        several = _MARK not in reference and len(_NUMBER.findall(reference.translate(_FRACTIONS))) > 1
        if number is not None and not several:
            return number
    elif isinstance(reference, (int, float)) and not isinstance(reference, bool) and math.isfinite(reference):
        return Fraction(str(reference))
    msg = (
        f"the reference {reference!r:.80} is not one number: give a number, or a text that holds exactly "
        f"one or marks the final one with {_MARK}"
    )
    raise LabelerError(msg)


def _read_value(found: re.Match[str]) -> Fraction | None:
    """Return the number of a match; None where its notation is ambiguous."""
    body = _read_decimal(found["body"])
    below = 1 if found["below"] is None else _read_integer(found["below"][1:])
    powers = [_read_integer(found[part] or "0") for part in ("e", "power")]
    if body is None or not below or None in powers or found["abbreviated"] is not None:
        return None
    exponent = sum(power for power in powers if power is not None) + _SCALES[(found["scale"] or "").lower()]
    if abs(exponent) > _MAX_DIGITS:
        return None
    size = _join_mixed_number(found["whole"], body, below) * Fraction(10) ** exponent
    return -size if found["sign"] or found["inner"] else size


def _join_mixed_number(whole: str | None, above: Fraction, below: int) -> Fraction:
    """Add the whole number before a fraction below one; `5 10/2` are two numbers."""
    fraction = above / below
    return fraction + int(whole) if whole is not None and fraction < 1 else fraction


def _read_decimal(body: str) -> Fraction | None:
    if len(body) > _MAX_DIGITS:
        return None
    if _PLAIN_NUMBER.fullmatch(body):
        return Fraction(body)
    return Fraction(body.replace(",", "")) if _GROUPED_NUMBER.fullmatch(body) else None


def _read_integer(digits: str) -> int | None:
    """Return the value of digits; None if there are too many, or if they are of a date, as in `4/2025`."""
    plain = digits.replace("\u2212", "-")
    return int(plain) if len(plain) <= _MAX_DIGITS and not re.search("[/\u2044]", plain) else None

r"""Find the number that a text gives as its answer, and compare it exactly.

The number is looked for in the first of these places that a text has:

1. after the mark `####` of GSM8K (Cobbe et al. 2021, "Training verifiers to solve math word problems"),
   inside `<answer>...</answer>` or inside `\boxed{...}`;
2. after a word for "answer" in ten languages (English, German, French, Spanish, Italian, Portuguese, Russian,
   Chinese, Japanese, Korean): `The answer is 5`, `{"answer": 5}`, `答案：5`;
3. in its last sentence with a number: `So she needs 5 bags`. After an equals sign, only what follows counts.

The place must hold exactly one number, and several places of one kind must agree. These are read: decimals
with a point; thousands in every common form (`1,000`, `1 000`, `1'000`, `1{,}000`, `12,34,567`, `1.000.000`,
`1.234,50`); the decimal digits of every script; signs, and words for minus in the ten languages; simple and
mixed fractions (`3/4`, `1½`, `\frac{3}{4}`); powers of ten (`1.5e3`, `3 \times 10^{8}`, `1.5×10³`) and
words for them (`5 million`, `5万`). Currencies, percent signs and units are dropped, with the exponents
of units: `25 m^2` is 25, and `50%` is 50, as GSM8K writes references. `NumericMatch` compares units where the
reference and the answer both name a known one: 5 m is not 5 km. Remarks in brackets after the number and
marks of citation are skipped.

A number that cannot be read with certainty is no number: two candidates (`3 or 5`), a range, an inequality, a
denial ("It is not 5"), a rejection, a doubt ("maybe 5"), a question, a supposition, a calculation or a power
that is not carried out (`10 - 3`, `2^{10}`, `5²`), a variable (`5x`), a root, a base (`204_5`), a time, a
date, a tuple, a name (`Apollo 11`), numbers in words (`five`, `3 and a half`), abbreviations (`5k`, `5M`),
and what may be a decimal or a group of thousands (`1,5`, `1.500`).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, TypeAlias

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers._words import (
    ADDITION,
    ALTERNATIVE,
    DOUBT,
    EXPLANATION,
    NEGATION,
    QUESTION,
    REJECTION,
    RETRACTION,
    SCALE_ABBREVIATIONS,
    SCALES,
    SINGLE_UNITS,
    STARTERS,
    SUPPOSITION,
    UNIT_NAMES,
    UNSURE,
    compile_lead,
    join_words,
)
from langchain_cfc.labelers.matching import TextMatcher, list_aliases
from langchain_cfc.labelers.statements import (
    READING,
    UNREADABLE,
    list_contents,
    list_statements,
    remove_markup,
    unwrap_latex,
)
from langchain_cfc.support.normalisation import fold_characters, state_versions

_MARK = "####"
# Most digits, and largest exponent: beyond any answer, and far below where arithmetic takes noticeable time.
_MAX_DIGITS = 400
# 10! is a factorial, and 42! an exclamation.
_LARGEST_FACTORIAL = 20
# How much before and after a number is looked at.
_CONTEXT = 60

_GROUPED = re.compile(
    r"""
    [0-9]*(?:\.[0-9]+)?
    | [1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?
    | [1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?                       # as in India
    | [1-9][0-9]{0,2}(?:['’][0-9]{3})+(?:\.[0-9]+)?                    # as in Switzerland
    | [1-9][0-9]{0,2}(?P<points>(?:\.[0-9]{3})+,[0-9]{1,2}|(?:\.[0-9]{3}){2,})
    | [1-9][0-9]{0,2}(?:[ ][0-9]{3})+(?:\.[0-9]+|(?P<rest>,[0-9]{1,2}))?
    """,
    re.VERBOSE,
)
# 1.500 is 1.5 in English and 1500 in German. Without a zero at the end it is read as in English.
_AMBIGUOUS = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{2}0")
_NUMBER = re.compile(
    r"""
    (?:(?:(?<=[\s(=:~≈→"'$|\[,])|^)(?P<sign>[-+–]))?
    (?:(?P<whole>[0-9]{1,9})[ ]{1,2}(?=[0-9]+/[0-9]))?
    (?P<body>(?:(?<![0-9.])\.)?[0-9]+(?:(?:[.,'’]|[ ](?=[0-9]))[0-9]+)*)
    (?P<below>(?:[ ]?/[ ]?[0-9]+(?:\.[0-9]+)?)+)?
    (?:(?<=10)\^(?P<ten>[-+]?[0-9]+)(?![\w^]))?
    (?:[eE](?P<e>[-+]?[0-9]+)(?!\w))?
    (?:\s?[x×*·]\s?10\s?\^\s?(?P<power>[-+]?[0-9]+))?
    """,
    re.VERBOSE,
)

# A word with the vowels that other scripts write as marks.
_WORD = re.compile(r"(?:[^\W\d_]|[\u0900-\u0963\u0970-\u0dff\u0e00-\u0eff])*")
# What makes another number of the one before or after it.
_PART = (
    "half halves thirds? quarters? fourths fifths sixths sevenths eighths ninths tenths hundredths "
    "thousandths halb halbe hälfte demi demie moitié media medio mitad metà mezzo mezza metade meio meia "
    "половин[аоыу]й? четверть"
)
# Units that are distinguished, with their other names.
_SAME_UNITS = r"""
    km kilomet(?:er|re)s? kms; m met(?:er|re)s?; cm centimet(?:er|re)s?; mm millimet(?:er|re)s?; inch(?:es)?
    in(?=\W*$); ft foot feet; yd yards?; mi miles? mph; kg kilograms? kilos?; g grams?; mg milligrams?;
    lbs?; oz ounces?; s sec(?:ond)?s?; ms milliseconds?; min(?:ute)?s?; h hrs? hours?; days?; weeks?; months?;
    yrs? years?; l L lit(?:er|re)s?; ml mL millilit(?:er|re)s?; % percent; cents? ¢;
    dollars? USD \$; euros? EUR €; GBP £; rupees? INR ₹; yen JPY; yuan CNY;
    °?C Celsius; °?F Fahrenheit; K kelvin; kB KB; MB; GB; TB; W; kW; MW
"""
_UNITS = re.compile(
    r"\s?(?:(?:square|cubic|sq\.?|degrees?)\s)?\s?(?:"
    + "|".join(f"({'|'.join(names.split())})" for names in _SAME_UNITS.split(";"))
    + r")(?!\w)"
)
_MONTHS = r"""
    january february march april may june july august septem\w+ o[ck]to\w+ novem\w+ de[cz]em\w+ januar februar
    märz mai juni juli janvier février mars avril juin juillet août décembre enero febrero marzo abril mayo
    junio julio agosto diciembre gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre
    janeiro fevereiro março maio junho julho outubro январ[яь] феврал[яь] марта? апрел[яь] ма[яй] июн[яь]
    июл[яь] августа? \w+тябр[яь] ноябр[яь] декабр[яь]
"""
# What an amount is at least or at most, after "and" or "or".
_BOUNDS = (
    "más più mais mehr plus more less fewer up upwards? above over below under menos meno moins более больше"
)
_CHANGED_BEFORE = re.compile(
    rf"(?:{join_words(_PART)})(?: (?:of|past|to|von|de|di|del|от))?\s*\W?$|(?:"
    + join_words(
        r"""
        times plus over root(?:_of)? twice double triple log ln sin cos tan sqrt than least most under below
        above within up_to exceed\w* mini?m?(?:um|al) maxi?m?(?:um|al) max upwards_of far_from
        as_(?:many|few|much|little|high|low)_as als mindestens höchstens über unter bis plus_de moins_de
        au_moins au_plus jusqu'à más_de menos_de al_menos hasta più_di meno_di almeno fino_a mais_de
        pelo_menos até более менее больше меньше до (?:hundred|thousand|million)(?:_and)?
        """,
        "至少 [超大小低高][过過于] 不到 不足 最[低高大小多] 少なくとも 적어도 최대 최소 [公紀]元前 기원전",
    )
    + rf"|{join_words(_MONTHS)})\.?\s*\W?$",
    re.IGNORECASE,
)
_CHANGED_AFTER = re.compile(
    rf"[\s-]*(?:(?:and|und|et|y|e|и)[\s-]+)?(?:[^\W\d_]{{1,12}}[\s-]+)?(?:{join_words(_PART)})"
    rf"|(?:st|nd|rd|th|er|º)?\.?\s?(?:(?:of|de|di) )?(?:{join_words(_MONTHS)})"
    rf"|\s(?:and|und|et|y|e|и|o|ou)\s(?:{join_words(_BOUNDS)})"
    # Before Christ, below zero, in another base.
    r"|,? (?:B\.? ?C|v\. ?Chr|av\. ?J|до н\.)"
    r"|(?:°|\s)[^.,;]{0,10}\b(?:below|bajo|unter|sotto|sous|ниже|мороза)\b"
    r"|\s?\(?(?:in )?(?:binary|octal|hex\w*|base)\b"
    r"|\s?[号號多余餘]|\s?[^\W\d_]{0,3}\s?(?:以上|以下|未満|이상|이하|미만)|[\s-]*(?:"
    + join_words(
        r"""
        dozens? scores? gross squared cubed factorial plus minus times(?=_\w\b) divided over mod modulo
        point pi [ap]\.?m mal fold ish at_(?:most|least) max(?:imum)? minimum tops per_mille upwards bin bi
        billionen bilion(?:ów|ů)? biljoen trillionen bill[oó]n(?:es)? bilh(?:ão|ões) trilh(?:ão|ões)
        """,
        "倍 배",
    )
    + ")",
    re.IGNORECASE,
)
_MINUS = re.compile(
    r"(?P<before>[^\W\d_]+|[^\w\s]|)\s*\b(?:minus|negative|moins|menos|meno|минус)\s*\W?$"
    r"|(?:负|負|零下|マイナス|氷点下|마이너스|영하)\s?$",
    re.IGNORECASE,
)
# After other words, minus subtracts: "ten minus 5".
_BEFORE_MINUS = re.compile(
    r"[=:(\"'$→≈,*]?|"
    + join_words("is was are be to of a about exactly equals ist sind est es è é это равно"),
    re.IGNORECASE,
)
# Words that name a place in a document, and not a quantity.
_PLACE_NAMES = """
    steps? pages? table fig(?:ure)? eq(?:uation)? section question line chapter verse part note no version
    type route error status
"""
_PLACE_NAME = re.compile(rf"(?:{join_words(_PLACE_NAMES)}|[#№第])\.?\s*\(?$", re.IGNORECASE)
_CITATION = re.compile(
    r"(?:(?<=[\w.%)])|(?<=[0-9.%)]\s)|(?<=[a-z]\s)(?=\[\^?[0-9]{1,3}\]\W*$))"
    r"\[\^?[0-9]{1,3}(?:\s?[,–-]\s?[0-9]{1,3})*\]"
)
_REMARK = re.compile(r"(?<=\s)\((?!(?:mod|base)\b)[^()]*[^\W\d_]{2}[^()]*\)")
_SENTENCE_END = re.compile(
    r"""
    (?:(?<!\.)(?<!\b[Nn]o)(?<!\bvs)(?<!\b[Ff]ig)(?<!\b[Ee]q)(?<!\bi\.e)(?<!\be\.g)(?<!\bd\.h)(?<!\bmax)(?<!\bmin)[.?;]
      (?!\s(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez)) | (?<![\d.])!)(?=\s|$|["'*)\]])
    | [\n。！？；]
    """,
    re.VERBOSE,
)
_EQUALITY = re.compile(r"={1,3}|[≈→]|\bequals\b")
_ASSIGNED = re.compile(r"(?<![^\W_])[A-Za-z](?:_?[0-9]{1,2})?\s*=")
# A term with a letter in it before an equals sign: an equation is no result.
_UNKNOWN = re.compile(
    r"[-+*×·^]\s*[^\W\d_]{1,20}\s*(?:[-+*×·^]|$)|(?<![^\W_])[A-Za-z]\s*[-+*/×·^]\s*\d|\d[a-zA-Z]\s*(?:[-+]|$)"
    rf"|[|{UNREADABLE}]"
)
# Where a stated number ends, and a second one after it.
_HEAD_END = re.compile(rf",(?=[\s\"'])|[(;]|{EXPLANATION.pattern}", re.IGNORECASE)
_SECOND = re.compile(r"[^\w$.]*(?:(?:and|und|et|y|e|и)\b\W*)?(?:[A-Za-z]\s*=|[-+$]{0,2}\.?\d)")
# A value that is ruled out; "she rejected 5 offers" counts what was rejected.
_REJECTED = re.compile(
    rf"(?:{REJECTION.pattern})\W{{0,3}}[\d.,]*\d(?=\s*(?:[.,;:)]|$))"
    rf"|\d\W{{0,3}}(?:(?:is|was|can be|could be) )?(?:{REJECTION.pattern})",
    re.IGNORECASE,
)
# A line that only gives a value, perhaps with its name.
_ENTRY = re.compile(r"\W*(?:[^\W\d_][^:=\d]{0,40}[:=]\s*)?[-+$\d][\d.,' /%$]*[^\W\d_]{0,12}\W*")
_SUMMARY = re.compile(
    join_words(
        "total sum answer result final therefore summe gesamt somme suma totale soma итого всего",
        "合计 总 合計 총",
    ),
    re.IGNORECASE,
)
_LEAD = compile_lead(choices=False)

# What is read at one place: nothing, one number, or None for what cannot be read with certainty.
_Reading: TypeAlias = "list[Fraction | None]"


def find_final_number(text: str) -> Fraction | None:
    """Return the number that a text gives as its answer, as described at the top of the module.

    Args:
        text: Any text.

    Returns:
        The exact number; None if there is none, or if it cannot be read with certainty.

    Examples:
        >>> find_final_number("She pays 3 x $1,250.50 = $3,751.50."), find_final_number("about 1 1/2 cups")
        (Fraction(7503, 2), Fraction(3, 2))
        >>> find_final_number("3 or 5"), find_final_number("25 m^2")
        (None, Fraction(25, 1))
    """
    folded = re.sub(r"<<[^<>]*>>", "", fold_characters(text))
    _, *marked = folded.split(_MARK)
    contents = [one.strip().partition("\n")[0] for one in marked] or list_contents(folded)
    if contents:
        return _agree([_read_place(_tidy(one)) for one in contents])
    plain = _tidy(folded)
    stated = [_read_statement(one) for one in list_statements(plain, _LEAD)]
    return _agree(stated) if any(stated) else _agree([_read_last_sentence(plain)])


@state_versions(reads=READING)
def extract_number(text: str) -> str:
    """Return the number that a text gives as its answer, in plain digits, as an answer extractor.

    Texts that give different numbers never get the same result, except the empty one, which means that no
    number was read.

    Args:
        text: Any text.

    Returns:
        A decimal if that is exact, else a fraction; empty if `find_final_number` finds none.

    Examples:
        >>> extract_number("She pays $1,250.50."), extract_number("a third, 1/3"), extract_number("3 or 5")
        ('1250.5', '1/3', '')
    """
    number = find_final_number(text)
    if number is None:
        return ""
    decimal = Decimal(number.numerator) / Decimal(number.denominator)
    return f"{decimal.normalize():f}" if Fraction(decimal) == number else str(number)


class NumericMatch(TextMatcher):
    """A candidate is correct if the number that it gives as its answer equals that of the reference.

    The reference is a number, a text from which the same reader reads one, or a list of these. Numbers are
    compared as fractions: 0.1 is 1/10, and 0.333 is not 1/3 unless the tolerance allows it. A float counts
    as the decimal that it prints as. A candidate without a number that can be read with certainty is wrong.

    Args:
        tolerance: Largest absolute difference that counts as equal, at least 0; text such as "0.01" or
            "1/100", or a number.

    Raises:
        InputError: If the tolerance is not a finite number of at least 0.
    """

    def __init__(self, *, tolerance: str | float | Fraction = 0) -> None:
        self._tolerance = _read_tolerance(tolerance)
        settings = {"reads": READING, "tolerance": str(self._tolerance)}
        super().__init__("numeric-match", settings)

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test that compares with the numbers of the aliases."""
        aliases = [(_read_reference_number(one), str(one)) for one in list_aliases(reference)]
        expected = [(number, _find_units(alias, number)) for number, alias in aliases]

        def is_near(answer: str) -> bool:
            number = find_final_number(answer)
            if number is None or all(abs(number - one) > self._tolerance for one, _ in expected):
                return False
            units = _find_units(answer, number)
            return any(
                abs(number - one) <= self._tolerance and not (units and named and units.isdisjoint(named))
                for one, named in expected
            )

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
        if number is not None:
            return number
    elif isinstance(reference, (int, float)) and not isinstance(reference, bool) and math.isfinite(reference):
        return Fraction(str(reference))
    msg = (
        f"the reference {reference!r:.80} is not one number: give a number, or a text that holds exactly "
        f"one, readable with certainty, or marks the final one with {_MARK}"
    )
    raise LabelerError(msg)


def _find_units(text: str, number: Fraction) -> set[int | None]:
    """Return which known units and currencies stand beside a number in a text."""
    folded = fold_characters(text)
    signs = {one for one in folded if unicodedata.category(one) == "Sc"}
    plain = _tidy(folded)
    places = [place for value, place in _read_numbers(plain) if value == number]
    units = [_UNITS.match(plain, end) for _, end in places]
    if len(signs) == 1 and any("$" in plain[max(0, start - 2) : end + 2] for start, end in places):
        units.append(_UNITS.match(signs.pop()))
    return {one.lastindex for one in units if one}


def _tidy(text: str) -> str:
    """Return a text without markup, in which operators and currencies have one spelling."""
    text = remove_markup(unwrap_latex(re.sub(r"\bhttps?://\S+", " ", text)))
    for several, one in (("!=", "≠"), ("<=", "≤"), (">=", "≥"), ("=>", "→"), ("->", "→")):
        text = text.replace(several, one)
    text = "".join("$" if unicodedata.category(one) == "Sc" else one for one in text)
    text = re.sub(r"(?<=\d)\s?x\s?(?=[\d$])", "×", text)
    text = re.sub(r"(?<=\d)(\.\d+)\.{2,}", rf"\1{UNREADABLE}", text)  # it goes on
    return re.sub(r"(?<![\w)\]])([-+–])\s?\$\s?(?=[\d.])", r" $\1", text)


def _agree(places: list[_Reading]) -> Fraction | None:
    values = {value for place in places for value in place}
    return values.pop() if len(values) == 1 else None


def _read_statement(text: str) -> _Reading:
    """Read the number that follows words for "answer"."""
    text = text.lstrip(" \t\n:#\"'*_")
    end = _SENTENCE_END.search(text)
    sentence = text[: end.start()] if end else text
    if QUESTION.search(text[: end.end()] if end else text) or not (digit := re.search(r"\d", sentence)):
        return []
    stop = _HEAD_END.search(sentence, digit.end())
    head, rest = (sentence[: stop.start()], sentence[stop.start() :]) if stop else (sentence, "")
    number = _read_place(head)
    is_doubtful = (
        NEGATION.search(head)
        or DOUBT.search(head)
        or _REJECTED.search(sentence)
        or SUPPOSITION.search(sentence)
        or ALTERNATIVE.search(head)
        or _SECOND.match(rest)
        or (re.search(r"\d", rest) and (ALTERNATIVE.search(rest) or ADDITION.search(rest)))
        or RETRACTION.search(text, len(head))
    )
    return [None] if number and is_doubtful else number


def _read_last_sentence(text: str) -> _Reading:
    """Read the last sentence with a number."""
    starts = [0, *(one.end() for one in _SENTENCE_END.finditer(text))]
    sentences = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    with_digits = [index for index, one in enumerate(sentences) if re.search(r"\d", one)]
    for index in reversed(with_digits):
        number = _read_place(sentences[index].rstrip(" .?;\n。！？；"))
        if number:
            earlier = sentences[max((one for one in with_digits if one < index), default=index)]
            return (
                [None]
                if _is_doubtful(*sentences[index:])
                or _continues_list(earlier, sentences[index])
                or UNSURE.search("".join(sentences[:index]))
                else number
            )
    return []


def _is_doubtful(sentence: str, *later: str) -> bool:
    """Return whether a sentence denies, asks, supposes or offers a choice, or is taken back by later ones."""
    *terms, _ = _EQUALITY.split(sentence)
    # "If" may precede a calculation.
    supposed = terms[-1].rpartition(", ")[2] if terms else sentence
    return bool(
        QUESTION.search(sentence)
        or _LEAD.search(sentence)  # its statement was refused
        or NEGATION.search(sentence)
        or DOUBT.search(sentence)
        or _REJECTED.search(sentence)
        or ALTERNATIVE.search(sentence)
        or SUPPOSITION.search(supposed)
        or RETRACTION.search("\n" + "".join(later))
    )


def _continues_list(earlier: str, sentence: str) -> bool:
    """Return whether two sentences only give a value each, so that no single answer is given."""
    is_list = _ENTRY.fullmatch(earlier) and _ENTRY.fullmatch(sentence) and earlier is not sentence
    return bool(is_list and not _SUMMARY.search(sentence))


def _read_place(text: str) -> _Reading:
    """Read the only number of a piece of text; None if it is not alone, or part of something else."""
    if QUESTION.search(text):
        return [None]
    for aside in (_CITATION, _REMARK):
        found = aside.search(text)
        first = re.search(r"\d", text)
        if found and first and first.start() < found.start():
            text = aside.sub(" ", text)
    *terms, value = _EQUALITY.split(text)
    if terms and re.search(r"\d", text):
        if len(_ASSIGNED.findall(text)) > 1 or _UNKNOWN.search(terms[-1]) or not re.search(r"\d", value):
            return [None]
        text = value
    numbers = [value for value, _ in islice(_read_numbers(text), 2)]
    return [None] if len(numbers) > 1 else numbers


def _read_numbers(text: str) -> Iterator[tuple[Fraction | None, tuple[int, int]]]:
    """Yield the numbers of a text with their places; None for what cannot be read."""
    for found in _NUMBER.finditer(text):
        before = text[max(0, found.start() - _CONTEXT) : found.start()]
        after = text[found.end() : found.end() + _CONTEXT]
        if _is_name(before):
            continue
        value = None if _is_proper_name(before, found[0], after) else _read_value(found)
        sign = _read_sign(found, before)
        exponent = _read_exponent(found, after, is_money=before.rstrip(" ").endswith("$"))
        is_read = (
            value is not None and sign is not None and exponent is not None and abs(exponent) <= _MAX_DIGITS
        )
        number = sign * value * Fraction(10) ** exponent if is_read else None  # type: ignore[operator]
        yield number, found.span()


def _is_name(before: str) -> bool:
    """Return whether digits belong to a name (`H2O`), to the exponent of a unit (`m^2`) or to a reference."""
    last = before[-1:]
    is_attached = last.isalpha() and not _is_unspaced(last)
    return is_attached or bool(
        re.search(r"[^\W\d]\^[-+]?$|[^\W\d_]_$", before) or _PLACE_NAME.search(before[-20:])
    )


def _is_proper_name(before: str, number: str, after: str) -> bool:
    """Return whether a number directly follows a word with a capital, as in `Apollo 11` and `iPhone 15`."""
    found = re.search(r"(?<![$\ufffd])(?<![^\W_])([^\W\d_]+)[ -]$", before)
    if not found or not any(map(str.isupper, found[1])):
        return False
    is_grouped = re.search(r"\d\D\d{3}(?!\d)", number)
    # In a sentence of capitals alone, none marks a name.
    is_shouted = before + after == (before + after).upper() and " " in before.strip()
    return not (is_grouped or is_shouted or found[1].casefold() in STARTERS)


def _is_unspaced(letter: str) -> bool:
    """Return whether a letter is of a script that puts no spaces around numbers, such as Chinese or Thai."""
    return "\u0e00" <= letter <= "\u0fff" or letter >= "\u3000"


def _is_numeral(letter: str) -> bool:
    """Return whether a letter is a numeral, such as those of Chinese."""
    return letter.isalpha() and unicodedata.numeric(letter, None) is not None


def _read_sign(found: re.Match[str], before: str) -> int | None:
    """Return 1 or -1; None if what is before a number makes another one of it."""
    sign = -1 if found["sign"] in {"-", "–"} else 1
    if minus := _MINUS.search(before):
        return -sign if _BEFORE_MINUS.fullmatch(minus["before"] or "") else None
    bare = before.rstrip(" $\"'")
    is_operand = (
        bare[-1:] in set(f"+-*×·÷/^√∛∜±|!@&\\<>≤≥≠)_{UNREADABLE}")
        or _CHANGED_BEFORE.search(before)
        or re.search(r"[\w)+*×·÷/^√-]\($|\d\s?:$|(?<!\w)\w\s?–$", bare)
        or (found["sign"] and re.search(r"(?<![^\W_])[A-Za-z]$", bare))
        or _is_numeral(bare[-1:])
    )
    return None if is_operand else sign


def _read_exponent(found: re.Match[str], after: str, *, is_money: bool) -> int | None:
    """Return the power of ten after a number; None if what follows makes another number of it."""
    powers = [found[one] or "0" for one in ("ten", "e", "power")]
    if any(len(one) > len("-400") for one in powers) or (found["ten"] and found["body"] != "10"):
        return None
    exponent = sum(map(int, powers)) - (found["ten"] is not None)
    bare = after.lstrip(" $")
    is_operand = (
        re.match(
            r"[\^(\u0300-\u036f]|_\w|['\"′″]\d|:\d|/(?![^\W\d_]{2}|[hs]\b)|-\d|\s?[-–]\s?[A-Za-z](?![^\W_])|!(?!\s|$)",
            after,
        )
        or bare[:1] in set(f"+×*·÷^±<>≤≥≠|√&@‰{UNREADABLE}")
        or _CHANGED_AFTER.match(after)
        or (re.fullmatch("[12][0-9]{2}0", found[0]) and re.match(r"'?s\b", after))  # a decade
        or (after.startswith("!") and (_read_decimal(found["body"]) or 0) <= _LARGEST_FACTORIAL)
    )
    if is_operand:
        return None
    word = _WORD.match(bare)[0]  # type: ignore[index]
    scale = _read_scale(word, bare[len(word) :], is_attached=after[:1].isalpha(), is_money=is_money)
    return None if scale is None else exponent + scale


def _read_scale(word: str, rest: str, *, is_attached: bool, is_money: bool) -> int | None:
    """Return the power of ten for which a word after a number stands; None if that is not certain."""
    if word and _is_unspaced(word[0]):
        if re.match("千[克米瓦卡焦帕字]", word):  # kilogram, kilometre, ...
            return 0
        named = next(filter(word.startswith, SCALES), "")
        following = word[len(named) :] + rest
        is_compound = _is_numeral(following[:1]) or following.startswith((*SCALES, *"0123456789"))
        return None if is_compound else SCALES.get(named, 0)
    if (scale := SCALES.get(word.casefold(), 0)) != 0:
        following = re.match(r"[\s^-]*([^\W_]*)", rest)[1]  # type: ignore[index]
        return None if following.casefold() in SCALES or rest[:1] in {"-", "^"} else scale
    known = set(UNIT_NAMES.split()) if is_attached else SINGLE_UNITS if len(word) == 1 else {word}
    is_split = rest[:1].isdigit() and (is_attached or word == "e")  # `5h30`, `5 e3`
    is_unit = word in known and word not in SCALE_ABBREVIATIONS and not is_split
    return 0 if not word or (is_unit and not (is_money and word in set("mMbBkK"))) else None


def _read_value(found: re.Match[str]) -> Fraction | None:
    """Return the number of a match without its sign and power; None where its notation is ambiguous."""
    body = _read_decimal(found["body"])
    parts = [part.strip() for part in (found["below"] or "/1").split("/")[1:]]
    if _AMBIGUOUS.fullmatch(found["body"]) and not (found["e"] or found["power"]):
        return None
    if body is None or len(parts) > 1 or len(parts[0]) > _MAX_DIGITS or not Fraction(parts[0]):
        return None
    value = body / Fraction(parts[0])
    if found["whole"] is None:
        return value
    return int(found["whole"]) + value if value < 1 else None


def _read_decimal(body: str) -> Fraction | None:
    if len(body) > _MAX_DIGITS or not (found := _GROUPED.fullmatch(body)):
        return None
    if found["points"]:
        body = body.replace(".", "").replace(",", ".")
    elif found["rest"]:
        body = body.replace(",", ".")
    return Fraction(re.sub("[,'’ ]", "", body))

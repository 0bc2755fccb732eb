"""The one normal form in which answers are compared: by labels, self-consistency, set rules and features.

Spellings that look or mean the same are unified; nothing is deleted that a reader sees, except signs that end
a sentence and marks around the whole answer. So `C++`, `C#` and `C` differ, as do `1/2` and `12`, `x > 5` and
`x < 5`, `5!` and `5`, or `Lima?` and `Lima`.

The base is Unicode's canonical form (NFC). Its compatibility form (NFKC) would make `x²` equal `x2`, `10⁶`
equal `106`, `1½` equal `11/2` and `ℝ` equal `R`. So only those compatibility characters are unified that are
the same signs in another width, position or font (full-width forms, ligatures, letters of Arabic, units such
as `㎏`, Roman numerals, mathematical alphabets). Superscripts become `^` and digits, fractions `1/2`, and
subscripts digits only after a letter (`H₂O` is `H2O`, but `10₂` is not `102`). Then letters are casefolded,
but not in JSON objects and arrays, such as the arguments of tools.

Accents, articles and vocalisation are kept, because they tell words apart. So are joiners between letters of
Arabic and Indic scripts, and within emoji. Letters of other scripts that look alike stay different too.

`ftfy` repairs text that was decoded with the wrong encoding, and `PyICU` folds by locale: neither decides
which signs an answer may lose. `regex` knows scripts, but serving has to do without it. The table below takes
everything from Python's `unicodedata`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import TypeVar

_Extractor = TypeVar("_Extractor", bound=Callable[[str], str])
# Stated in fingerprints: change it when `normalise_answer` changes. The version of Unicode is left out:
# Python versions differ in it, but in no character that is in use.
NORMALISATION = "answers-2"

_APOSTROPHES = "\u2018\u2019\u201a\u201b\u2032\u2035\u00b4`\u02b9\u02bb\u02bc\u02bd\u055a\ua78c\uff07"
_QUOTES = "\u201c\u201d\u201e\u201f\u2033\u2036\u00ab\u00bb\u2039\u203a\u301d\u301e\u301f\uff02"
_SAME = {
    **dict.fromkeys(_APOSTROPHES, "'"),
    **dict.fromkeys(_QUOTES, '"'),
    # Marks of quotations and titles in East Asia.
    **dict.fromkeys("\u300a\u300b\u3008\u3009\u300c\u300d\u300e\u300f\u3010\u3011\uff62\uff63", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
    **dict.fromkeys("\u2044\u2215", "/"),
    **dict.fromkeys("\u3002\uff61", "."),
    "\u2800": " ",  # a blank in Braille
    "\u0640": "",  # stretches an Arabic word
    "\u20e3": "",  # the frame of a keycap
    # Signs of Arabic numbers, and invisible operators.
    **dict(zip("\u066b\u066c\u060c\u066a\u2062\u2063\u2064", ".,,%\u00d7,+", strict=True)),
}
# What readers of sentences distinguish: line breaks, the ends of sentences, marks of code, and long dashes.
_READ = frozenset("\n`\u2013\u2014\u3002")
_JOINERS = "\u200c\u200d"
# Characters that show nothing although Unicode does not class them as format characters.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Format characters that show: signs before Arabic numbers, and the tags that tell the flags of regions apart.
_VISIBLE = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U000e0020-\U000e007f]"
)
_UNIFIED_KINDS = (
    "<compat> <final> <fraction> <initial> <isolated> <medial> <narrow> <small> <square> <vertical> <wide>"
)
_MATHEMATICAL_LETTERS = range(0x1D400, 0x1D800)
_SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074-\u207e"
_SUPERSCRIPT = re.compile(f"[{_SUPERSCRIPTS}]+")
_SUBSCRIPT = re.compile(r"(?<=[^\W\d_])[\u2080-\u2089]+|(?<=[)\]])[\u2080-\u2089]+")
_LOWERED = re.compile("[\u2080-\u2089]+")
_MIXED_NUMBER = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")
# Where joiners tell words or emoji apart; elsewhere they show nothing.
_JOINED = "\u0600-\u0dff\u0f00-\u109f\u1780-\u18af\u2600-\u27bf\U0001f000-\U0001faff"
_LOOSE_JOINER = re.compile(f"(?<![{_JOINED}])[{_JOINERS}]|[{_JOINERS}](?![{_JOINED}])")


class _Unified(dict[int, str]):
    """Table for `str.translate` that is filled as characters occur; those in `kept` stay."""

    def __init__(self, kept: frozenset[str]) -> None:
        super().__init__()
        self._kept = kept

    def __missing__(self, code: int) -> str:
        one = chr(code)
        self[code] = unified = one if one in self._kept else _unify_character(one)
        return unified


def _unify_character(character: str) -> str:
    if character in _SAME:
        return _SAME[character]
    if character.isspace():
        return " "
    is_format = unicodedata.category(character) in {"Cc", "Cf"} and character not in _JOINERS
    if _INVISIBLE.match(character) or (is_format and not _VISIBLE.match(character)):
        return ""
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    kind, *codes = unicodedata.decomposition(character).split() or [""]
    parts = [chr(int(code, 16)) for code in codes]
    # Spacing accents would become a space with an accent.
    is_unified = kind in _UNIFIED_KINDS.split() and parts[0] != " "
    if is_unified or (parts and ord(character) in _MATHEMATICAL_LETTERS):
        return "".join(map(_unify_character, parts))
    return character


_UNIFIED, _READABLE = _Unified(frozenset()), _Unified(_READ)


def unify_characters(text: str) -> str:
    r"""Return a text in which characters that look or mean the same are the same, in its own case.

    Args:
        text: Any text.

    Returns:
        The text in NFC, without invisible characters, with single spaces and none at its ends. It is empty
        if the text shows nothing.

    Examples:
        >>> unify_characters("Lima\u200b \u201cＰｅｒú\u201d"), unify_characters("1½ m²")
        ('Lima "Perú"', '1 1/2 m^2')
    """
    text = _unify(text, _UNIFIED)
    return " ".join((text if text.isascii() else _SUBSCRIPT.sub(_write_on_line, text)).split())


def fold_characters(text: str) -> str:
    r"""Return a text with the same characters unified for a reader of sentences.

    Line breaks, spaces, long dashes and ends of sentences stay, and lowered digits follow `_`.

    Examples:
        >>> fold_characters("\uff22\n"), fold_characters("10\u2082"), fold_characters("1\u00bd")
        ('B\n', '10_2', '1 1/2')
    """
    return _LOWERED.sub(lambda found: "_" + _write_on_line(found), _unify(text, _READABLE))


def _unify(text: str, table: _Unified) -> str:
    if not text.isascii():
        text = _MIXED_NUMBER.sub(" ", unicodedata.normalize("NFC", text))
    text = text.translate(table)
    if not text.isascii():
        text = unicodedata.normalize("NFC", _LOOSE_JOINER.sub("", text))
        text = _SUPERSCRIPT.sub(lambda found: "^" + _write_on_line(found), text)
    return text


def _write_on_line(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-")


_SENTENCE_END = " .,;:\u3001\u060c\u061b\u0964\u0965\u06d4"
# After a digit or a single Latin letter, an exclamation mark is a factorial.
_EXCLAMATION = re.compile(r"(?:[^\W\d_]{2}|[^\x00-\x7f]|[\"'*?.,]|^)!+$")
_SENTENCE_START = "\u00a1\u00bf "
# Marks on both sides of an answer. One on one side only may belong to it: 5', A*, f'.
_MARKS = (
    ("**", "**"),
    ("'''", "'''"),
    *((mark, mark) for mark in "\"'*_$"),
    (r"\boxed{", "}"),
    (r"\text{", "}"),
    ("<answer>", "</answer>"),
)


def state_versions(**versions: str) -> Callable[[_Extractor], _Extractor]:
    """Return a decorator that gives an answer extractor a fingerprint: its name does not say its version."""

    def state(extractor: _Extractor) -> _Extractor:
        name = extractor.__name__
        stated = {"class": f"langchain_cfc.{name}", "id": name, **versions}
        extractor.fingerprint = stated  # type: ignore[attr-defined]
        return extractor

    return state


@state_versions(normalised=NORMALISATION)
def normalise_answer(text: str) -> str:
    """Return an answer without differences that do not change its meaning.

    Characters are unified, letters casefolded, and white space collapsed; see the top of the module. Quotes
    and marks of emphasis are stripped where they surround the whole answer, and signs that end a sentence
    from its end. Others stay: `-5` is not `5`, `50%` not `50`, `[0, 1)` not `(0, 1]` and `x²` not `x2`.

    Args:
        text: An answer.

    Returns:
        The normalised answer; it may be empty.

    Examples:
        >>> normalise_answer(' "New  York." ')
        'new york'
    """
    plain = unify_characters(text)
    if plain[:1] in {"{", "["} and plain[-1:] in {"}", "]"} and '"' in plain:
        return plain
    folded = plain.casefold()
    if not folded.isascii():
        # The dot of a capital I in Turkish.
        folded = unify_characters(folded.replace("i\u0307", "i"))
    while True:
        inner = folded.rstrip(_SENTENCE_END).lstrip(_SENTENCE_START)
        if inner.endswith("!") and _EXCLAMATION.search(inner):
            inner = inner.rstrip("!")
        for opening, closing in _MARKS:
            if inner.startswith(opening) and inner.endswith(closing):
                middle = inner[len(opening) : -len(closing)]
                if middle and opening not in middle and closing not in middle:
                    inner = middle.strip()
        if inner == folded:
            return inner
        folded = inner

r"""The one normal form in which answers are compared: by labels, self-consistency, set rules and features.

Spellings that look or mean the same are unified; nothing is deleted that a reader sees, except signs that end
a sentence and marks around the whole answer. So `C++`, `C#` and `C` differ, as do `1/2` and `12`, `x > 5` and
`x < 5`, `5!` and `5`, or `Lima?` and `Lima`.

The base is Unicode's canonical form (NFC). Its compatibility form (NFKC) would make `x²` equal `x2`, `10⁶`
equal `106`, `1½` equal `11/2` and `ℝ` equal `R`. So only those compatibility characters are unified that are
the same signs in another width, position or font (full-width forms, ligatures, letters of Arabic, units such
as `㎏`, Roman numerals, mathematical alphabets). Superscripts become `^` and digits, fractions `1/2`, and
subscripts digits only after a letter (`H₂O` is `H2O`, but `10₂` is not `102`). Then letters are casefolded,
and white space is collapsed.

Not so where white space and case may change what is done. JSON objects and arrays are compared by value, so
that the order of keys, blanks between values, escapes and `1.0` for `1` make no difference; texts in them
keep case and white space, and the arguments of tools every character. A text with code of several lines or
with several blanks at once (in Markdown, HTML, or lines indented by four) keeps case and white space.

Accents, articles and vocalisation are kept, because they tell words apart. So are joiners between letters of
Arabic and Indic scripts, and within emoji. Invisible characters are dropped wherever they stand, invisible
operators too, because a reader sees `34` in both.

Cyrillic and Greek letters that have the shape of a Latin letter are read as that letter, but only in a word
that mixes the scripts: it is read in the script of most of its letters, if each of the others has a letter of
the same shape there. So `L\u0456ma` is `Lima`, while a word of one script stays what it is. The pairs are
those of Unicode's confusables.txt (UTS #39, "Unicode Security Mechanisms") whose upright letters look the
same; `\u03b1` and `a` do not, and other scripts are not read.

`ftfy` repairs text that was decoded with the wrong encoding, and `PyICU` folds by locale: neither decides
which signs an answer may lose. `regex` knows scripts, but serving has to do without it. The table below takes
everything from Python's `unicodedata`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from langchain_cfc.support.json_text import check_json, parse_json
from langchain_cfc.support.serialization import canonical_json

_Extractor = TypeVar("_Extractor", bound=Callable[[str], str])
# The keys of a message that calls tools, as candidates state it.
_CALL_KEYS = {"content", "tool_calls", "invalid_tool_calls"}
# Stated in fingerprints: change it when `normalise_answer` changes. The version of Unicode is left out:
# Python versions differ in it, but in no character that is in use.
NORMALISATION = "answers-4"

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
    **dict(zip("\u066b\u066c\u060c\u066a", ".,,%", strict=True)),  # signs of Arabic numbers
}
# What readers of sentences distinguish: line breaks, the ends of sentences, marks of code, and long dashes.
_READ = "\n`\u2013\u2014\u3002"
_JOINERS = "\u200c\u200d"
# The class of the characters that show nothing: controls, those that Unicode's Default_Ignorable_Code_Point
# lists (fillers, variation selectors, tags), format characters, and signs that are drawn without ink. Signs
# before Arabic numbers are format characters that show.
INVISIBLE = (
    r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\U00013430-\U0001343f\U00016fe4"
    r"\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[{INVISIBLE}]")
# What a terminal obeys instead of showing it, such as `ESC[2J`.
TERMINAL_ESCAPE = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
_TERMINAL_ESCAPE = re.compile(TERMINAL_ESCAPE)
_UNIFIED_KINDS = (
    "<compat> <final> <fraction> <initial> <isolated> <medial> <narrow> <small> <square> <vertical> <wide>"
)
_MATHEMATICAL_LETTERS = range(0x1D400, 0x1D800)
_SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074-\u207e"
_SUPERSCRIPT = re.compile(f"[{_SUPERSCRIPTS}]+")
_SUBSCRIPT = re.compile(r"(?<=[^\W\d_])[\u2080-\u2089]+|(?<=[)\]])[\u2080-\u2089]+")
_LOWERED = re.compile("[\u2080-\u2089]+")
_MIXED_NUMBER = re.compile(f"(?<=\\d)(?=[{INVISIBLE}]*[\u00bc-\u00be\u2150-\u215e])")
# Where joiners tell words or emoji apart; elsewhere they show nothing.
_JOINED = "\u0600-\u0dff\u0f00-\u109f\u1780-\u18af\u2600-\u27bf\U0001f000-\U0001faff"
_LOOSE_JOINER = re.compile(f"(?<![{_JOINED}])[{_JOINERS}]|[{_JOINERS}](?![{_JOINED}])")
# Tags tell flags of regions apart, from a black flag to the last tag; elsewhere they show nothing.
_TAGS = re.compile("(\U0001f3f4[\U000e0030-\U000e007a]{3,6}\U000e007f)|[\U000e0000-\U000e007f]")
# Letters of the same shape, in three scripts.
_SHAPES = {
    script: dict(zip(letters, latin, strict=True))
    for script, letters, latin in (
        (
            "CYRILLIC",
            (
                "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423"
                "\u0425\u0474\u050c\u051a\u051c\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456"
                "\u0458\u04bb\u0501\u051b\u051d\u04cf\u0475"
            ),
            "ABESIJKMHOPCTYXVGQWaeopcyxsijhdqwlv",
        ),
        (
            "GREEK",
            (
                "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
                "\u03f9\u03bf\u03b9\u03bd\u03f2\u03f3"
            ),
            "ABEZHIKMNOPTYXCoivcj",
        ),
    )
}
# Table for `str.translate` that reads each such letter as Latin.
LATIN_SHAPES = str.maketrans({**_SHAPES["CYRILLIC"], **_SHAPES["GREEK"]})
_WORD = re.compile(r"[^\W\d_]+")


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
    if _INVISIBLE.match(character):
        return character if character in _JOINERS or _TAGS.match(character) else ""
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


_UNIFIED, _READABLE, _SPACED = (_Unified(frozenset(kept)) for kept in ("", _READ, "\t\n\v\f\r`"))


def unify_characters(text: str) -> str:
    r"""Return a text in which characters that look or mean the same are the same, in its own case.

    Args:
        text: Any text.

    Returns:
        The text in NFC, without invisible characters, with single spaces and none at its ends. It is empty
        if the text shows nothing.

    Examples:
        >>> unify_characters("\x1b[1mLima\u200b\x1b[m \u201cＰｅｒú\u201d"), unify_characters("1½ m²")
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
    text = _TERMINAL_ESCAPE.sub("", text)
    if not text.isascii():
        text = _MIXED_NUMBER.sub(" ", unicodedata.normalize("NFC", text))
    text = text.translate(table)
    if not text.isascii():
        text = _TAGS.sub(lambda found: found[1] or "", _LOOSE_JOINER.sub("", text))
        text = unicodedata.normalize("NFC", text)
        for script, shapes in _SHAPES.items():
            if not shapes.keys().isdisjoint(text):
                text = _WORD.sub(partial(_read_in_one_script, script, shapes), text)
        text = _SUPERSCRIPT.sub(lambda found: "^" + _write_on_line(found), text)
    return text


def _read_in_one_script(script: str, shapes: Mapping[str, str], found: re.Match[str]) -> str:
    """Return a word of Latin and another script in the script of most letters, if all can be read in it."""
    word = found[0]
    others = [letter for letter in word if unicodedata.name(letter, "").startswith(script)]
    latin = [
        letter for letter in word if letter.isascii() or unicodedata.name(letter, "").startswith("LATIN")
    ]
    if not others or len(others) + len(latin) < len(word) or not latin:
        return word
    back = {plain: letter for letter, plain in shapes.items()}
    readings = [(latin, others, shapes), (others, latin, back)]
    for _, rest, same in sorted(readings, key=lambda one: -len(one[0])):
        if all(letter in same for letter in rest):
            return "".join(same[letter] if letter in rest else letter for letter in word)
    return word


def _write_on_line(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-")


def _normalise_json(text: str) -> str | None:
    """Return JSON in one form; None if a text is no strict JSON."""
    try:
        value = check_json(parse_json(text))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and value.keys() <= _CALL_KEYS and (calls := _list_calls(value)):
        # Calls that are made at once have no order, and what is said beside them is no part of what is done.
        value = sorted(canonical_json(_unify_json(call, str)) for call in calls)
        return f'{{"tool_calls":[{",".join(value)}]}}'
    return canonical_json(_unify_json(value, _unify_spaced))


def _list_calls(value: Mapping[str, Any]) -> list[Any]:
    calls = [value.get(name, []) for name in ("tool_calls", "invalid_tool_calls")]
    return [*calls[0], *calls[1]] if all(isinstance(one, list) for one in calls) else []


def _unify_json(value: Any, unify: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _unify_json(one, unify) for key, one in value.items()}
    if isinstance(value, list):
        return [_unify_json(one, unify) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return unify(value) if isinstance(value, str) else value


_unify_spaced = partial(_unify, table=_SPACED)


def _normalise_layout(text: str, plain: str) -> str | None:
    """Return JSON, or a text with code that other white space would change, in its form; None for others."""
    is_json = plain[:1] in {"{", "["} and plain[-1:] in {"}", "]"} and '"' in plain
    if text == plain and not is_json:
        return None
    spaced = _unify_spaced(text.replace("\r\n", "\n")).strip()
    if is_json:
        return _normalise_json(text) or _normalise_json(spaced) or spaced
    has_code = any(mark in spaced for mark in _CODE_MARKS)
    found = _CODE.finditer(spaced) if has_code else ()
    codes = ((one[2] or one[4] or one[6]).strip() for one in found)
    return spaced if _INDENTED.search(spaced) or any(map(_LAYOUT.search, codes)) else None


_SENTENCE_END = " .,;:\u3001\u060c\u061b\u0964\u0965\u06d4"
# After a digit or a single Latin letter, an exclamation mark is a factorial.
_EXCLAMATION = re.compile(r"(?:[^\W\d_]{2}|[^\x00-\x7f]|[\"'*?.,]|^)!+$")
_SENTENCE_START = "\u00a1\u00bf "
# Most answers are words of ASCII, in which the rules change nothing but the case of letters.
_PLAIN = re.compile(r"[A-Za-z0-9]+(?: [A-Za-z0-9]+)*")
# Code: blocks between fences, which may be cut off; spans between backticks or tags; indented lines.
_CODE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})(.+?)(?:^ {0,3}\1|\Z)|(?<!`)(`+)(?!`)(.+?)(?<!`)\3(?!`)|<(pre|code)>(.+?)</\5>",
    re.DOTALL | re.MULTILINE,
)
_CODE_MARKS = ("`", "~~~", "<pre>", "<code>")  # what each of these begins with
_INDENTED = re.compile(r"\n(?: {4}| *\t)[ \t]*\S")
_LAYOUT = re.compile(r"[^\S ]|  ")
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

    Characters are unified, letters casefolded, and white space collapsed, but not in code; see the top of the
    module. JSON objects and arrays are compared by value, and calls of tools without their order and the text
    beside them. Quotes and marks of emphasis are stripped where they surround the whole answer, and signs
    that end a sentence from its end. Others stay: `-5` is not `5`, `50%` not `50`, and `x²` not `x2`.

    Args:
        text: An answer.

    Returns:
        The normalised answer; it may be empty.

    Examples:
        >>> normalise_answer(' "New  York." '), normalise_answer('{"b": 1.0, "a": "x"}')
        ('new york', '{"a":"x","b":1}')
    """
    if _PLAIN.fullmatch(text):
        return text.lower()
    plain = unify_characters(text)
    if (kept := _normalise_layout(text, plain)) is not None:
        return kept
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

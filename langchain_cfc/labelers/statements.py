r"""Find where a text states its answer: what is common to reading numbers and choices.

A statement is what follows the words for "answer" in one of ten languages (English, German, French, Spanish,
Italian, Portuguese, Russian, Chinese, Japanese, Korean), as in `Answer: B`, `"answer": 5` or `La respuesta es
B`, and what stands inside `\boxed{...}` or `<answer>...</answer>`. One that is denied, doubted or supposed
("I doubt that the answer is B", "maybe the answer is B", "if the answer is B") states nothing, and one that
is taken back afterwards ("No, wait") makes the whole text unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, zip_longest

from langchain_cfc.labelers._words import DOUBT, NEGATION, OTHER_ANSWER, SUPPOSITION, UNASSERTED

# The version of how statements are read, for fingerprints: another one may give other labels.
READING = "statements-7"
# What marks something in a text that cannot be read, such as an unknown command of LaTeX.
UNREADABLE = "\ufffd"

_STYLES = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|normal|style)?|math(?:rm|bf|it|sf|tt)|[mh]box|emph|bm|boldsymbol|operatorname|underline|left"
    r"|right|[bB]igg?|displaystyle|limits|boxed|fbox)(?![A-Za-z])\*?"
)
_SYMBOLS = {
    name: symbol
    for symbol, names in {
        "×": "times ast",
        "·": "cdot bullet",
        "÷": "div",
        "≈": "approx simeq approxeq doteq",
        "→": "implies to rightarrow Rightarrow Longrightarrow",
        "°": "circ degree",
        " ": "quad qquad thinspace space therefore",
        "\n": "newline",
    }.items()
    for name in names.split()
}
_LATEX = re.compile(
    r"\\begin\{[^{}]{0,20}\}|\\end\{[^{}]{0,20}\}|\\\\|\\(?P<name>[A-Za-z]+)|\\(?P<sign>[^A-Za-z])"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")


def unwrap_latex(text: str) -> str:
    r"""Return a text without LaTeX: `\frac{3}{4}` as 3/4, symbols as signs, styles and delimiters as spaces.

    What is not known, such as `\sqrt`, becomes `UNREADABLE`.

    Examples:
        >>> unwrap_latex(r"2\frac{1}{2}"), unwrap_latex(r"1{,}000"), unwrap_latex(r"3 \times 10^{8}")
        ('2 1/2 ', '1,000', '3 × 10^8')
    """
    if "\\" not in text and "{" not in text:
        return text
    text = re.sub(r"\\!|\\\\(?=boxed|frac|text)", lambda found: "\\" * (found[0] == "\\\\"), text)
    text = re.sub(r"(?<=\d)\s?\{\s*,\s*\}\s?(?=\d)", ",", text)
    text = re.sub(r"(?<=\d)\{?(?:\\[,:; ]|~)\}?(?=\d)", " ", text)
    text = _STYLES.sub("", text)
    text = re.sub(r"\{\s*\{([^{}]*)\}\s*\}", r"{\1}", text)
    text = re.sub(r"\{\s*([A-Za-z/ ]{1,20}?)\s*\}(?=\^)", r" \1", text)
    text = _FRACTION.sub(_write_fraction, text)
    text = re.sub(r"([\^_])\s*\{\s*([^{}]*?)\s*\}", r"\1\2", text)
    text = re.sub(r"\^\s*\\circ(?![A-Za-z])", "\u00b0", text)
    return re.sub(r"[{}]", " ", _LATEX.sub(_write_symbol, text))


def _write_fraction(found: re.Match[str]) -> str:
    above, below = ((found[one] or found[one + 1] or "").strip() for one in (1, 3))
    if not all(re.fullmatch(r"-?\d[\d.,]*", one) for one in (above, below)):
        return f" {UNREADABLE} "
    # After a digit, the fraction is the rest of a mixed number.
    return f"{' ' * found.string[max(0, found.start() - 1) : found.start()].isdigit()}{above}/{below} "


def _write_symbol(found: re.Match[str]) -> str:
    if found["name"]:
        return _SYMBOLS.get(found["name"], f" {UNREADABLE} ")
    sign = found["sign"]
    return "\n" if sign is None else sign if sign in "$%&#_{}" else " "


_BOX = re.compile(r"\\+(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_ANSWER_TAG, _ANSWER_END = (
    re.compile(rf"<{end}(?:answer|final_answer|ans)>", re.IGNORECASE) for end in ("", "/")
)
_ASKED = re.compile(r"[$)\]}*.\s]*\?")
_STRUCK = re.compile(r"~~[^~\n]*~~|<(s|del|strike)>[^<]*</\1>")
_TAG = re.compile(r"</?(?:[a-z]|[A-Za-z_]{2,20}[0-9]?)(?:\s[^<>]{0,100})?/?>")


# Marks of emphasis; a sign of multiplication stands between two operands, or between spaces.
_EMPHASIS = re.compile(
    r"""
    `+
    | \*{2}(?=[\u3000-\uffef]) | (?<=[\u3000-\uffef])\*{2}         # beside letters of scripts without spaces
    | (?<![\w)\]$*])\*{1,3}(?=[^\s*]) | (?<=[^\s*])\*{1,3}(?![\w(\[$\\*]|\.\d)
    | (?<!\w)__?(?=\w) | (?<=[^\W_])__?(?!\w)
    """,
    re.VERBOSE,
)


def list_contents(text: str) -> list[str]:
    r"""Return what stands inside the answer tags of a text, or inside its `\boxed{...}` if it has no tags."""
    opened = [_ANSWER_TAG.split(one) for one in _ANSWER_END.split(text)[:-1]]
    return [one[-1] for one in opened if len(one) > 1] or list(_list_boxes(text))


def _list_boxes(text: str) -> Iterator[str]:
    starts: list[int | None] = []
    for found in _BOX.finditer(text) if "boxed" in text or "fbox" in text else ():
        if "box" in found[0]:
            starts.append(found.end())
        elif found[0] == "{":
            starts.append(None)
        elif found[0] == "}" and starts:
            start = starts.pop()
            if start is not None and not _ASKED.match(text, found.end()):
                yield text[start : found.start()]


def remove_markup(text: str) -> str:
    """Return a text without tags, what is struck out, fences of code, and marks of emphasis outside words."""
    text = _STRUCK.sub(" ", text)
    text = re.sub(r"<su([pb])>", lambda found: "^" if found[1] == "p" else "_", text)
    return _EMPHASIS.sub(" ", _TAG.sub(" ", text))


# Later ones are not read: bounds the time for texts that repeat themselves.
_MAX_STATEMENTS = 500
_SENTENCE = re.compile(r"[.!?\n。]")
_CLAUSE = re.compile(r"[,;:，]")


def list_statements(text: str, lead: re.Pattern[str]) -> Iterator[str]:
    """Yield what follows each lead of a text, up to the next, unless it is denied, supposed or another's."""
    found = list(islice(lead.finditer(text), _MAX_STATEMENTS))
    for one, following in zip_longest(found, found[1:]):
        sentence = _SENTENCE.split(text[max(0, one.start() - 200) : one.start()])[-1]
        clause = _CLAUSE.split(sentence)[-1]
        is_denied = any(words.search(clause) for words in (NEGATION, DOUBT, OTHER_ANSWER, UNASSERTED))
        if not is_denied and not SUPPOSITION.search(sentence):
            yield text[one.end() : following.start() if following else len(text)]

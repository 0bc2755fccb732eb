"""The grammar of feature text.

    map       = term { "+" term } ;
    term      = "1"
              | statistic [ "^" degree ]
              | "bins" "(" statistic "," count ")"
              | "hat" "(" statistic "," count ")"
              | "group" "(" key ")"
              | "hard" "(" statistic "," { statistic "," } fraction ")" ;
    statistic = name | "meta" "(" key ")" ;
    name      = "mean_score" | "min_score" | "max_score" | "std_score" | "score_gap"
              | "entropy" | "distinct_answers" | "top_share"
              | "mean_length" | "min_length" | "max_length" | "std_length" ;
    key       = identifier | string ;
    degree    = integer ;                         (* 1 to 10 *)
    count     = integer ;                         (* 2 to 1000 *)
    fraction  = [ "0" ] "." digit { digit } ;     (* above 0, below 1 *)
    identifier = ( letter | "_" ) { letter | digit | "_" } ;
    string    = a JSON string in double quotes ;

Letters are those of ASCII, and whitespace is free between symbols. `mean_score^2` stands for every power up
to the second, so that with the constant it is [1, T, T^2]. No term may appear twice, nor one statistic with
two degrees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import STATISTICS, Statistic
from langchain_cfc.features.terms import Bins, Constant, Group, Hard, Hat, Polynomial, Term

HIGHEST_DEGREE = 10
HIGHEST_COUNT = 1000

_STATISTIC = f"a statistic ({', '.join(STATISTICS)} or meta(KEY))"
_TERM = (
    "a term: 1, bins(STATISTIC, COUNT), hat(STATISTIC, COUNT), group(KEY), hard(STATISTIC, ..., FRACTION), "
    f"or {_STATISTIC}"
)
_TOKEN = re.compile(
    r"""
    (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<number> [0-9]+ (?: \.[0-9]+ )? | \.[0-9]+ )
    | (?P<string> "(?: [^"\\] | \\. )*" )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def parse_terms(text: str) -> tuple[Term[Any], ...]:
    """Read feature text."""
    if not isinstance(text, str):
        msg = f"feature text must be a string such as 'hat(mean_score, 5)', got {text!r}"
        raise FeatureError(msg)
    return _Parser(text).terms()


def parse_statistic(text: str) -> Statistic:
    """Read the text of one statistic.

    Args:
        text: Such as `meta(ratio)` or `mean_score`.

    Returns:
        The statistic.

    Raises:
        FeatureError: With the place and what was expected there, if it is none.
    """
    parser = _Parser(text)
    statistic = parser.statistic(_STATISTIC)
    if parser.next.kind != "end":
        parser.fail(f"unexpected {_shown(parser.next)}", "the end: one statistic alone")
    return statistic


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Parser:
    """Recursive descent: one method per rule of the grammar, each of which consumes what it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        matches = (match for match in _TOKEN.finditer(text) if not match[0].isspace())
        self.tokens = [_Token(str(match.lastgroup), match[0], match.start()) for match in matches]
        self.tokens.append(_Token("end", "", len(text)))
        self.place = 0
        self.calls: dict[str, Callable[[], Term[Any]]] = {
            "bins": lambda: Bins(*self.counted_statistic()),
            "hat": lambda: Hat(*self.counted_statistic()),
            "group": lambda: Group(self.key()),
            "hard": self.hard,
        }

    @property
    def next(self) -> _Token:
        return self.tokens[self.place]

    def terms(self) -> tuple[Term[Any], ...]:
        found: dict[str, Term[Any]] = {}
        while True:
            start = self.next
            term = self.term()
            # Of two degrees of one statistic, the lower adds nothing but columns with the same names.
            identity = term.statistic.text if isinstance(term, Polynomial) else term.text
            if identity in found:
                self.fail(f"{term.text} repeats {found[identity].text}", "each term once", start)
            found[identity] = term
            if self.next.kind == "end":
                return tuple(found.values())
            self.take("+", "'+' and another term, '^' and a degree, or the end")

    def term(self) -> Term[Any]:
        if self.next.text == "1":
            self.advance()
            return Constant()
        if self.next.text in self.calls:
            return self.call()
        statistic = self.statistic(_TERM)
        if self.next.text != "^":
            return Polynomial(statistic, 1)
        self.advance()
        return Polynomial(statistic, self.integer("a degree", 1, HIGHEST_DEGREE))

    def call(self) -> Term[Any]:
        rule = self.calls[self.advance().text]
        self.take("(")
        term = rule()
        self.take(")")
        return term

    def hard(self) -> Hard:
        parts: dict[Statistic, None] = {}
        while self.next.kind != "number" or not parts:
            start = self.next
            statistic = self.statistic(_STATISTIC)
            if statistic in parts:
                self.fail(f"{statistic.text} is repeated", "each statistic once", start)
            parts[statistic] = None
            self.take(",", "',' and a statistic or a fraction")
        return Hard(tuple(parts), self.fraction())

    def counted_statistic(self) -> tuple[Statistic, int]:
        statistic = self.statistic(_STATISTIC)
        self.take(",")
        return statistic, self.integer("a count", 2, HIGHEST_COUNT)

    def statistic(self, expected: str) -> Statistic:
        token = self.next
        if token.text == "meta":
            self.advance()
            self.take("(")
            statistic = Statistic("meta", self.key())
            self.take(")")
            return statistic
        if token.text not in STATISTICS:
            self.fail_unknown(token, expected)
        return Statistic(self.advance().text)

    def key(self) -> str:
        token = self.next
        key = _json_string(token.text) if token.kind == "string" else token.text
        if token.kind not in ("name", "string") or key is None:
            self.fail("no metadata key", 'a name such as topic, or a JSON string such as "my topic"')
        self.advance()
        return key

    def integer(self, what: str, low: int, high: int) -> int:
        token = self.next
        # The length comes first: Python refuses to read integers of thousands of digits.
        plain = token.text.isdecimal() and len(token.text) <= len(str(high))
        if token.kind != "number" or not plain or not low <= int(token.text) <= high:
            self.fail(f"{_shown(token)} is not {what}", f"a whole number from {low} to {high}")
        return int(self.advance().text)

    def fraction(self) -> str:
        token = self.next
        whole, _, decimals = token.text.partition(".")
        significant = decimals.rstrip("0")
        if whole.strip("0") or not significant:
            self.fail(f"{_shown(token)} is not a fraction", "a number above 0 and below 1, such as 0.925")
        self.advance()
        return f"0.{significant}"

    def advance(self) -> _Token:
        token = self.next
        self.place += 1
        return token

    def take(self, symbol: str, expected: str | None = None) -> None:
        if self.next.text != symbol:
            self.fail(f"unexpected {_shown(self.next)}", expected or f"'{symbol}'")
        self.advance()

    def fail_unknown(self, token: _Token, expected: str) -> NoReturn:
        if token.kind != "name":
            self.fail(f"unexpected {_shown(token)}", expected)
        known = [*STATISTICS, "meta", *self.calls]
        near = get_close_matches(token.text, known, n=1)
        advice = f"metadata is read by meta({token.text}), if it is a number, or else by group({token.text})"
        if near:
            advice = f"did you mean '{near[0]}'?"
        self.fail(f"unknown name '{token.text}'", f"{expected}; {advice}")

    def fail(self, problem: str, expected: str, token: _Token | None = None) -> NoReturn:
        start = (token or self.next).start
        # Line breaks and tabs in the text would move the caret away from the place it shows.
        line = re.sub(r"\s", " ", self.text)
        msg = (
            f"{problem}, at character {start + 1} of the features\n"
            f"    {line}\n    {' ' * start}^\nexpected {expected}"
        )
        raise FeatureError(msg)


def _json_string(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except json.JSONDecodeError:
        return None


def _shown(token: _Token) -> str:
    return "end of the text" if token.kind == "end" else f"'{token.text}'"

"""The grammar of feature text, and its parser.

    map       = term { "+" term } ;
    term      = "1"
              | statistic [ "^" degree ]
              | "bins" "(" statistic "," count ")"
              | "hat" "(" statistic "," count ")"
              | "group" "(" key ")"
              | "hard" "(" statistic "," { statistic "," } fraction ")" ;
    statistic = name | "meta" "(" key ")" ;
    name      = "mean_score" | "min_score" | "max_score" | "std_score" | "score_gap" | "count"
              | "entropy" | "distinct_answers" | "top_share"
              | "mean_length" | "min_length" | "max_length" | "std_length" ;
    key       = identifier | string ;
    degree    = integer ;                         (* 1 to 10 *)
    count     = integer ;                         (* 2 to 1000 *)
    fraction  = [ "0" ] "." digit { digit } ;     (* above 0, below 1 *)
    identifier = ( letter | "_" ) { letter | digit | "_" } ;
    string    = a JSON string in double quotes ;

Letters are ASCII, and whitespace is allowed between symbols. `mean_score^2` stands for every power up to the
second, so that with the constant it is [1, T, T^2]. No term may appear twice, and no statistic with two
degrees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import STATISTICS, Statistic
from langchain_cfc.features.terms import Bins, Constant, Group, Hard, Hat, Polynomial, Term
from langchain_cfc.support.suggestions import find_nearest

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
    """Parse feature text to unfitted terms; raise a FeatureError with the place of the first problem."""
    if not isinstance(text, str):
        msg = f"feature text must be a string such as 'hat(mean_score, 5)', got {text!r}"
        raise FeatureError(msg)
    return _Parser(text).parse_terms()


def parse_statistic(text: str) -> Statistic:
    """Parse the text of one statistic.

    Args:
        text: Such as `meta(ratio)` or `mean_score`.

    Returns:
        The statistic.

    Raises:
        FeatureError: If it is not a statistic, with the place and what was expected there.
    """
    parser = _Parser(text)
    statistic = parser.parse_statistic(_STATISTIC)
    if parser.next.kind != "end":
        parser.raise_error(f"unexpected {_describe(parser.next)}", "the end, after one statistic")
    return statistic


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Parser:
    """A recursive descent parser. Each rule of the grammar has a method that consumes its tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        matches = (match for match in _TOKEN.finditer(text) if not match[0].isspace())
        self.tokens = [_Token(str(match.lastgroup), match[0], match.start()) for match in matches]
        self.tokens.append(_Token("end", "", len(text)))
        self.place = 0
        self.functions: dict[str, Callable[[], Term[Any]]] = {
            "bins": lambda: Bins(*self.parse_statistic_and_count()),
            "hat": lambda: Hat(*self.parse_statistic_and_count()),
            "group": lambda: Group(self.parse_key()),
            "hard": self.parse_hard,
        }

    @property
    def next(self) -> _Token:
        return self.tokens[self.place]

    def parse_terms(self) -> tuple[Term[Any], ...]:
        found: dict[str, Term[Any]] = {}
        while True:
            start = self.next
            term = self.parse_term()
            # The lower of two degrees of one statistic would only add columns with the same names.
            identity = term.statistic.text if isinstance(term, Polynomial) else term.text
            if identity in found:
                self.raise_error(f"{term.text} repeats {found[identity].text}", "each term once", start)
            found[identity] = term
            if self.next.kind == "end":
                return tuple(found.values())
            self.take("+", "'+' and another term, '^' and a degree, or the end")

    def parse_term(self) -> Term[Any]:
        if self.next.text == "1":
            self.advance()
            return Constant()
        if self.next.text in self.functions:
            rule = self.functions[self.advance().text]
            self.take("(")
            term = rule()
            self.take(")")
            return term
        statistic = self.parse_statistic(_TERM)
        if self.next.text != "^":
            return Polynomial(statistic, 1)
        self.advance()
        return Polynomial(statistic, self.parse_integer("a degree", 1, HIGHEST_DEGREE))

    def parse_hard(self) -> Hard:
        parts: dict[Statistic, None] = {}
        while self.next.kind != "number" or not parts:
            start = self.next
            statistic = self.parse_statistic(_STATISTIC)
            if statistic in parts:
                self.raise_error(f"{statistic.text} is repeated", "each statistic once", start)
            parts[statistic] = None
            self.take(",", "',' and a statistic or a fraction")
        return Hard(tuple(parts), self.parse_fraction())

    def parse_statistic_and_count(self) -> tuple[Statistic, int]:
        statistic = self.parse_statistic(_STATISTIC)
        self.take(",")
        return statistic, self.parse_integer("a count", 2, HIGHEST_COUNT)

    def parse_statistic(self, expected: str) -> Statistic:
        token = self.next
        if token.text == "meta":
            self.advance()
            self.take("(")
            statistic = Statistic("meta", self.parse_key())
            self.take(")")
            return statistic
        if token.text not in STATISTICS:
            self.raise_unknown(token, expected)
        return Statistic(self.advance().text)

    def parse_key(self) -> str:
        token = self.next
        key = _parse_json_string(token.text) if token.kind == "string" else token.text
        if token.kind not in ("name", "string") or key is None:
            self.raise_error("no metadata key", 'a name such as topic, or a JSON string such as "my topic"')
        self.advance()
        return key

    def parse_integer(self, what: str, low: int, high: int) -> int:
        token = self.next
        # The length comes first: Python refuses to parse integers of thousands of digits.
        plain = token.text.isdecimal() and len(token.text) <= len(str(high))
        if token.kind != "number" or not plain or not low <= int(token.text) <= high:
            self.raise_error(f"{_describe(token)} is not {what}", f"a whole number from {low} to {high}")
        return int(self.advance().text)

    def parse_fraction(self) -> str:
        token = self.next
        whole, _, decimals = token.text.partition(".")
        significant = decimals.rstrip("0")
        if whole.strip("0") or not significant:
            expected = "a number above 0 and below 1, such as 0.925"
            self.raise_error(f"{_describe(token)} is not a fraction", expected)
        self.advance()
        return f"0.{significant}"

    def advance(self) -> _Token:
        token = self.next
        self.place += 1
        return token

    def take(self, symbol: str, expected: str | None = None) -> None:
        if self.next.text != symbol:
            self.raise_error(f"unexpected {_describe(self.next)}", expected or f"'{symbol}'")
        self.advance()

    def raise_unknown(self, token: _Token, expected: str) -> NoReturn:
        if token.kind != "name":
            self.raise_error(f"unexpected {_describe(token)}", expected)
        known = [*STATISTICS, *self.functions]
        # Half a name, such as `mean`, resembles other names more than the whole one.
        begun = [name for name in known if name.startswith(f"{token.text}_")]
        near = next(iter(begun), None) or find_nearest(token.text, known)
        what, metadata = "statistic", f"meta({token.text}) if it is a number"
        if expected == _TERM:
            what, metadata = "term", f"group({token.text}), or {metadata}"
        advice = f"for metadata, write {metadata}" if near is None else f"did you mean '{near}'?"
        self.raise_error(f"unknown name '{token.text}'", f"a {what} such as mean_score; {advice}")

    def raise_error(self, problem: str, expected: str, token: _Token | None = None) -> NoReturn:
        start = (token or self.next).start
        line = re.sub(r"\s", " ", self.text)
        msg = f"{problem}, at character {start + 1} of the features: expected {expected}\n    {line}"
        raise FeatureError(msg)


def _parse_json_string(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except json.JSONDecodeError:
        return None


def _describe(token: _Token) -> str:
    return "end of the text" if token.kind == "end" else f"'{token.text}'"

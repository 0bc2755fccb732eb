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
from typing import Any

from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import STATISTICS, Statistic
from langchain_cfc.features.terms import Bins, Constant, Group, Hard, Hat, Polynomial, Term
from langchain_cfc.support.suggestions import find_nearest

HIGHEST_DEGREE = 10
HIGHEST_COUNT = 1000

_FORMS = {
    "bins": "bins(STATISTIC, COUNT)",
    "hat": "hat(STATISTIC, COUNT)",
    "group": "group(KEY)",
    "hard": "hard(STATISTIC, ..., FRACTION)",
    "meta": "meta(KEY)",
}
_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_STATISTIC = rf"(?:meta\s*\(\s*(?:{_NAME}|{_STRING})\s*\)|{_NAME})"
_NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_PLUS = re.compile(rf"({_STRING})|\+", re.DOTALL)


def _compile_rule(*symbols: str) -> re.Pattern[str]:
    """Compile symbols, between which there may be white space."""
    return re.compile(r"\s*".join(symbols), re.DOTALL)


_COUNTED = _compile_rule("(bins|hat)", r"\(", f"({_STATISTIC})", ",", f"({_NUMBER})", r"\)")
_GROUP = _compile_rule("group", r"\(", f"({_NAME}|{_STRING})", r"\)")
_HARD = _compile_rule("hard", r"\(", rf"((?:{_STATISTIC}\s*,\s*)+)", f"({_NUMBER})", r"\)")
_POWER = _compile_rule(f"({_STATISTIC})", rf"(?:\^\s*({_NUMBER}))?")


def parse_terms(text: str) -> tuple[Term[Any], ...]:
    """Parse feature text to unfitted terms; raise a FeatureError that names the first term with a problem."""
    if not isinstance(text, str):
        msg = f"feature text must be a string such as 'hat(mean_score, 5)', got {text!r}"
        raise FeatureError(msg)
    found: dict[str, Term[Any]] = {}
    # A plus sign in a string separates no terms.
    for part in _PLUS.sub(lambda sign: sign[1] or "\0", text).split("\0"):
        term = _parse_term(part.strip())
        # The lower of two degrees of one statistic would only add columns with the same names.
        identity = term.statistic.text if isinstance(term, Polynomial) else term.text
        if identity in found:
            problem = f"{term.text} repeats {found[identity].text}"
            raise _make_error(problem, "each term once")
        found[identity] = term
    return tuple(found.values())


def _parse_term(text: str) -> Term[Any]:
    if text == "1":
        return Constant()
    if (found := _COUNTED.fullmatch(text)) is not None:
        kind = Bins if found[1] == "bins" else Hat
        return kind(_make_statistic(found[2]), _read_integer(found[3], "count", 2, HIGHEST_COUNT))
    if (found := _GROUP.fullmatch(text)) is not None:
        return Group(_read_key(found[1]))
    if (found := _HARD.fullmatch(text)) is not None:
        parts = [_make_statistic(one) for one in re.findall(_STATISTIC, found[1], re.DOTALL)]
        if len(set(parts)) < len(parts):
            problem = f"{text} repeats a statistic"
            raise _make_error(problem, "each statistic once")
        return Hard(tuple(parts), _read_fraction(found[2]))
    if (found := _POWER.fullmatch(text)) is not None:
        degree = _read_integer(found[2] or "1", "degree", 1, HIGHEST_DEGREE)
        return Polynomial(_make_statistic(found[1], group=f"group({found[1]}), or "), degree)
    name = re.match(_NAME, text)
    meant = name and find_nearest(name[0], _FORMS)
    every = f"1, {', '.join(_FORMS.values())} or a statistic such as mean_score"
    raise _make_error(f"found {text[:60]!r}" if text else "found nothing", _FORMS[meant] if meant else every)


def _make_statistic(text: str, group: str = "") -> Statistic:
    """Make a statistic; `group` is another advice for an unknown name."""
    if "(" in text:
        return Statistic("meta", _read_key(text[text.index("(") + 1 : -1].strip()))
    if text in STATISTICS:
        return Statistic(text)
    known = [*STATISTICS, "bins", "hat", "group", "hard"]
    # Half a name, such as `mean`, resembles other names more than the whole one.
    begun = [name for name in known if name.startswith(f"{text}_")]
    near = next(iter(begun), None) or find_nearest(text, known)
    advice = f"for metadata, write {group}meta({text}) if it is a number"
    if near is not None:
        advice = f"did you mean '{near}'?"
    problem = f"unknown name '{text}'"
    raise _make_error(problem, f"a {'term' if group else 'statistic'} such as mean_score; {advice}")


def _read_key(text: str) -> str:
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except json.JSONDecodeError:
        expected = 'a name such as topic, or a JSON string such as "my topic"'
        problem = f"{text} is no metadata key"
        raise _make_error(problem, expected) from None


def _read_integer(text: str, what: str, low: int, high: int) -> int:
    # Python refuses to parse integers of thousands of digits.
    if not text.isdecimal() or len(text) > len(str(high)) or not low <= int(text) <= high:
        problem = f"'{text[:20]}' is not a {what}"
        raise _make_error(problem, f"a whole number from {low} to {high}")
    return int(text)


def _read_fraction(text: str) -> str:
    whole, _, decimals = text.partition(".")
    significant = decimals.rstrip("0")
    if whole.strip("0") or not significant:
        problem = f"'{text}' is not a fraction"
        raise _make_error(problem, "a number above 0 and below 1, such as 0.925")
    return f"0.{significant}"


def _make_error(problem: str, expected: str) -> FeatureError:
    return FeatureError(f"features: {problem}; expected {expected}")

"""Set rules: from scores to entry levels, success scores and answer sets, vectorised over prompts."""

from __future__ import annotations

import re

from langchain_cfc.errors import InputError
from langchain_cfc.set_rules.accept_all import AcceptAll
from langchain_cfc.set_rules.at_least_one import AtLeastOne
from langchain_cfc.set_rules.best_prefix import BestPrefix
from langchain_cfc.set_rules.rank import Rank
from langchain_cfc.set_rules.rule import SetRule, accepted
from langchain_cfc.set_rules.unique import Unique

__all__ = ["AcceptAll", "AtLeastOne", "BestPrefix", "Rank", "SetRule", "Unique", "accepted", "parse_set_rule"]

_PLAIN: dict[str, type[SetRule]] = {"all": AcceptAll, "best_prefix": BestPrefix, "rank": Rank}
_WRAPPERS = ("at_least_one", "unique")


def parse_set_rule(text: str) -> SetRule:
    """The set rule of a name.

    Args:
        text: `all`, `best_prefix` or `rank`, perhaps inside `unique(...)`, `at_least_one(...)` or both. The
            order of these two does not matter, and `unique(at_least_one(...))` is how it is written; without
            brackets they stand around `all`.

    Returns:
        The rule.

    Raises:
        InputError: If the name is unknown.

    >>> parse_set_rule("unique(best_prefix)").text
    'unique(best_prefix)'
    >>> parse_set_rule("at_least_one(unique)").text
    'unique(at_least_one(all))'
    """
    inner, wrappers = text.replace(" ", ""), []
    while wrapped := re.fullmatch(rf"({'|'.join(_WRAPPERS)})(?:\((.+)\))?", inner):
        wrappers.append(wrapped[1])
        inner = wrapped[2] or "all"
    if inner not in _PLAIN or len(set(wrappers)) < len(wrappers):
        known = ", ".join([*_PLAIN, *(f"{wrapper}(...) around one of them" for wrapper in _WRAPPERS)])
        msg = f"unknown set rule {text!r}; known are {known}, or unique(at_least_one(...))"
        raise InputError(msg)
    rule = _PLAIN[inner]()
    if "at_least_one" in wrappers:
        rule = AtLeastOne(rule)
    return Unique(rule) if "unique" in wrappers else rule

"""Set rules: from scores to entry levels, success scores and answer sets, vectorised over prompts."""

from __future__ import annotations

import re

from langchain_cfc.errors import InputError
from langchain_cfc.set_rules.accept_all import AcceptAll
from langchain_cfc.set_rules.best_prefix import BestPrefix
from langchain_cfc.set_rules.rank import Rank
from langchain_cfc.set_rules.rule import SetRule, accepted
from langchain_cfc.set_rules.unique import Unique

__all__ = ["AcceptAll", "BestPrefix", "Rank", "SetRule", "Unique", "accepted", "parse_set_rule"]

_PLAIN: tuple[type[SetRule], ...] = (AcceptAll, BestPrefix, Rank)


def parse_set_rule(text: str) -> SetRule:
    """The set rule of a name.

    Args:
        text: `all`, `best_prefix`, `rank`, `unique(...)` around one of them, or `unique` for `unique(all)`.

    Returns:
        The rule.

    Raises:
        InputError: If the name is unknown.

    >>> parse_set_rule("unique(best_prefix)").text
    'unique(best_prefix)'
    """
    plain = {rule().text: rule for rule in _PLAIN}
    name = text.replace(" ", "")
    wrapped = re.fullmatch(r"unique(?:\((\w+)\))?", name)
    inner = (wrapped.group(1) or "all") if wrapped else name
    if inner not in plain:
        known = ", ".join([*plain, *(f"unique({rule})" for rule in plain)])
        msg = f"unknown set rule {text!r}; known are {known}"
        raise InputError(msg)
    rule = plain[inner]()
    return Unique(rule) if wrapped else rule

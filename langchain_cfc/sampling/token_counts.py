"""Read and add up the numbers of tokens that models state, whatever else they state beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, cast

from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

from langchain_cfc.support.serialization import canonical_json

# LangChain's own fields, which its messages validate: numbers of tokens, and dictionaries of such numbers.
_DETAILS = {"input_token_details", "output_token_details"}
_STATED = (UsageMetadata, InputTokenDetails, OutputTokenDetails)
_COUNTS = {name for one in _STATED for name in one.__annotations__} - _DETAILS
# No request has more tokens, and sums over millions of prompts fit in the 64 bits of a database.
_MAX_COUNT = 10**12
_MAX_DEPTH = 20
# Pydantic writes at most 255 levels.
_MAX_BRACKETS = 200


def read_count(value: object) -> int | None:
    """Return a number of tokens: a whole number from 0 to 10**12, perhaps a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (Integral, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    count = int(value)
    return count if 0 <= count <= _MAX_COUNT else None


def read_usage(stated: object, depth: int = 0) -> dict[str, Any]:
    """Return what a model states about its usage, with numbers of tokens as integers.

    Providers also state costs, tiers, lists and null. These are kept as they are, except in the fields that
    LangChain defines, where only numbers of tokens are kept.

    Args:
        stated: The `usage_metadata` of a message, unchecked.
        depth: How deep `stated` is nested; more than 20 levels are left out.

    Returns:
        Plain JSON data; empty if no usage is stated.
    """
    read: dict[str, Any] = {}
    for name, value in stated.items() if isinstance(stated, Mapping) and depth < _MAX_DEPTH else ():
        if not isinstance(name, str) or not _is_json(name):
            continue
        if isinstance(value, Mapping):
            if name not in _COUNTS:
                read[name] = read_usage(value, depth + 1)
        elif name not in _DETAILS:
            count = read_count(value)
            if count is not None:
                read[name] = count
            elif name not in _COUNTS and _is_json(value):
                read[name] = value
    return read


def is_complete(usage: Mapping[str, Any]) -> bool:
    """Return whether usage from `read_usage` states the tokens of both the request and the answer.

    Clients also write 0 for what a server does not state, and no request is without tokens.
    """
    return bool(usage.get("input_tokens")) and usage.get("output_tokens") is not None


def sum_usage(usages: Iterable[Mapping[str, Any] | None]) -> UsageMetadata | None:
    """Add up usage from `read_usage`: numbers are added, of anything else the first is kept.

    Returns:
        Usage as LangChain's messages accept it; None if there is none.
    """
    total: dict[str, Any] = {}
    for one in usages:
        if one:
            tokens = {name: one.get(name, 0) for name in ("input_tokens", "output_tokens")}
            _add(total, {**tokens, "total_tokens": sum(tokens.values()), **one})
    return cast("UsageMetadata", total) if total else None


def _add(total: dict[str, Any], one: Mapping[str, Any]) -> None:
    for name, value in one.items():
        known = total.get(name)
        if isinstance(value, dict) and (isinstance(known, dict) or name not in total):
            _add(total.setdefault(name, {}), value)
        elif type(value) is int and not isinstance(known, dict):  # True and False are no numbers
            total[name] = value + (known if type(known) is int else 0)
        else:
            total.setdefault(name, value)


def _is_json(value: object) -> bool:
    if isinstance(value, str) and value.isascii():
        return True
    try:
        written = canonical_json(value).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return written.count(b"[") + written.count(b"{") <= _MAX_BRACKETS

"""Classify failed calls by their exceptions: which are transient, and which may have been charged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from langchain_cfc.errors import CFCError
from langchain_cfc.execution import (
    PERMANENT_FAILURES,
    FailureKind,
    classify_failure,
    is_raised_in_model,
)

# A server that answered so has not charged for the request, and neither has one that was not reached.
_FREE: frozenset[FailureKind | None] = PERMANENT_FAILURES | {"rate", "conflict", "server", "not_connected"}


def is_transient(outcome: Any) -> bool:
    """Return whether an outcome is an exception for a transient failure, after which a retry may succeed."""
    return isinstance(outcome, Exception) and classify_failure(outcome) not in {None, *PERMANENT_FAILURES}


def ends_run(error: BaseException) -> bool:
    """Return whether a server refused the key or the model, which no other prompt will change.

    A malformed request (status 400) does not: servers also refuse single prompts like that.
    """
    return classify_failure(error) in {"key", "access"}


def may_be_charged(error: BaseException) -> bool:
    """Return whether a server may have answered, and charge for, a request whose call failed.

    False if the server refused the request or was not reached.
    """
    return classify_failure(error) not in _FREE


def follows_answer(error: BaseException) -> bool:
    """Return whether a parser, or other code around a model, failed, so that the answer has been counted."""
    return classify_failure(error) is None and not is_raised_in_model(error)


def read_retry_after(error: Any) -> float | None:
    """Return the seconds that a server asks clients to wait, from the headers on a client's exception.

    None if there is no such header, or it holds no number of seconds.
    """
    while isinstance(error, CFCError) and error.__cause__ is not None:
        error = error.__cause__
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return None
    values = {str(name).lower(): str(value) for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            return max(0.0, float(values[name]) * unit)
    return None

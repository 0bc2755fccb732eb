"""Classify failed calls by their exceptions: which are transient, and which may have been charged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from langchain_cfc.errors import CFCError, ServingTimeoutError
from langchain_cfc.execution import is_malformed_response, is_permanent, is_refusal, read_status

_CLIENT_ERROR = 400
# Time-outs of a server or gateway: the request may have been answered nevertheless.
_ANSWERED_STATUS = {408, 504}
# Names of exceptions of clients and of the operating system if there is no connection.
_NOT_CONNECTED = {
    "ConnectError",
    "ConnectTimeout",
    "ConnectionRefusedError",
    "gaierror",
    "ClientConnectorError",
    "NewConnectionError",
}
# Each client has its own exception types for these, without a common base class, but with similar names.
_TRANSIENT_NAMES = (
    "Connect",
    "Timeout",
    "RemoteProtocol",
    "ReadError",
    "WriteError",
    "RateLimit",
    "Overloaded",
)


def is_transient(outcome: Any) -> bool:
    """Return whether an outcome is an exception for a transient failure, after which a retry may succeed."""
    if not isinstance(outcome, Exception):
        return False
    if isinstance(outcome, CFCError) and not isinstance(outcome, ServingTimeoutError):
        # Look at the cause: a failed call of a verifier, for example, is wrapped in a `VerifierError`.
        return outcome.__cause__ is not None and is_transient(outcome.__cause__)
    if is_permanent(outcome):
        return False
    status = read_status(outcome)
    if status is not None and status >= _CLIENT_ERROR:
        return True
    names = [kind.__name__ for kind in type(outcome).__mro__]
    return (
        is_malformed_response(outcome)
        or isinstance(outcome, (ConnectionError, TimeoutError, asyncio.TimeoutError))
        or any(word in name for name in names for word in _TRANSIENT_NAMES)
    )


def ends_run(error: BaseException) -> bool:
    """Return whether a server refused the key or the model, which no other prompt will change.

    A malformed request (status 400) does not: servers also refuse single prompts like that.
    """
    return any(map(is_refusal, _list_causes(error)))


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return an exception with those that caused it."""
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    return chain


def may_be_charged(error: BaseException) -> bool:
    """Return whether a server may have answered, and charge for, a request whose call failed.

    False if the server refused the request or was not reached.
    """
    chain = _list_causes(error)
    statuses = [status for one in chain if (status := read_status(one)) is not None]
    if statuses:
        return statuses[0] in _ANSWERED_STATUS or statuses[0] < _CLIENT_ERROR
    kinds = {kind.__name__ for one in chain for kind in type(one).__mro__}
    return not kinds & _NOT_CONNECTED


def read_retry_after(error: Any) -> float | None:
    """Return the seconds that a server asks clients to wait, from the headers on a client's exception.

    None if there is no such header, or it cannot be parsed.
    """
    while isinstance(error, CFCError) and error.__cause__ is not None:
        error = error.__cause__
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return None
    values = {str(name).lower(): str(value) for name, value in headers.items()}
    units = {"retry-after-ms": 0.001, "retry-after": 1.0}
    waits = (_parse_seconds(values[name], unit) for name, unit in units.items() if name in values)
    return next((seconds for seconds in waits if seconds is not None), None)


def _parse_seconds(text: str, unit: float) -> float | None:
    try:
        return max(0.0, float(text) * unit)
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:  # HTTP dates are UTC
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(tz=timezone.utc)).total_seconds())

"""Read exceptions of models' clients: what they say about the server, and a text of them without secrets.

Each client has its own exception types. They agree on the names of a few attributes, and on the methods of
LangChain's chat models that they pass through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from traceback import walk_tb
from types import FrameType
from typing import Any, Literal, TypeAlias

from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr, ValidationError

from langchain_cfc.errors import CFCError
from langchain_cfc.support.text import REDACTED, quote

FailureKind: TypeAlias = Literal[
    "key",
    "access",
    "request",
    "rate",
    "conflict",
    "timeout",
    "server",
    "not_connected",
    "connection_lost",
    "unreadable",
]
"""What a failed call says about its server: it refused the key or account, the model or permission, or this
request; it limits the rate, is busy with the same request, took too long, or has a fault; it was not reached,
the connection ended early, or its response cannot be read."""

PERMANENT_FAILURES: frozenset[FailureKind] = frozenset({"key", "access", "request"})
"""Kinds of failures after which the same request fails again."""

_STATUSES: Mapping[int, FailureKind] = {
    **dict.fromkeys((401, 402), "key"),
    **dict.fromkeys((403, 404), "access"),
    # 522 and later: of gateways whose server did not answer in time.
    **dict.fromkeys((408, 504, 522, 524, 598, 599), "timeout"),
    **dict.fromkeys((409, 425), "conflict"),
    429: "rate",
}
# The status of an empty account is that of a rate limit at OpenAI, so its name of the error counts first.
_CODES: Mapping[str, FailureKind] = {
    "insufficient_quota": "key",
    "invalid_api_key": "key",
    "model_not_found": "access",
}
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
# Each client has its own exception types without a common base class, but with similar names.
_NAMES: tuple[tuple[FailureKind, re.Pattern[str]], ...] = (
    (
        "not_connected",
        re.compile(
            "ConnectError|ConnectTimeout|ConnectionRefused|gaierror|ClientConnector|NewConnection"
            "|EndpointConnection"
        ),
    ),
    ("timeout", re.compile("Timeout")),
    ("rate", re.compile("RateLimit")),
    ("server", re.compile("Overloaded")),
    ("connection_lost", re.compile("Connect|RemoteProtocol|ReadError|WriteError|ServerDisconnected")),
)
# A server that refuses the key, the model or the rate has not read the request, so it quotes no answer.
_UNREAD_STATUS = frozenset({401, 402, 403, 404, 429})
# Names of clients' functions that read a response, and of those that only prepare the request.
_READS_RESPONSE = re.compile(r"response|(?<!_get)_result|_output|decode")
_MAKES_REQUEST = re.compile(r"request|payload|input")
# Headers that every client sends. The values of all others may be secrets.
_PUBLIC_HEADERS = re.compile(
    r"(?i)accept|accept-encoding|connection|content-(type|length)|host|user-agent|x-stainless-.*|.*-version"
)
_MIN_SECRET_LENGTH = 4


def read_status(error: BaseException) -> int | None:
    """Return the HTTP status on a client's exception, or the one in an error body that came with another."""
    response = getattr(error, "response", None)
    for holder, name in (
        # LangChain's client of OpenAI raises a `ValueError` of the error in a body that came with status 200.
        (error.args[0] if error.args else None, "code"),
        (error, "status_code"),
        (response, "status_code"),
        (error, "status"),
        (error, "code"),  # of Google's clients
    ):
        value = _read_field(holder, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def list_causes(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes, the error itself first."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def classify_failure(error: BaseException) -> FailureKind | None:
    """Return what a failed call says about its server, by the error or what caused it; None for nothing.

    The first status or code in the chain of causes decides, and without any the names of the errors.
    """
    chain = list_causes(error)
    for one in chain:
        holders = (one, one.args[0] if one.args else None)
        names = (str(_read_field(holder, name)) for holder in holders for name in ("code", "type"))
        kind = next((_CODES[name] for name in names if name in _CODES), None)
        status = read_status(one)
        if kind is None and status is not None and status >= _CLIENT_ERROR:
            kind = _STATUSES.get(status, "request" if status < _SERVER_ERROR else "server")
        if kind is not None:
            return kind
    types = {each.__name__ for one in chain for each in type(one).__mro__}
    for known, pattern in _NAMES:
        if any(map(pattern.search, types)):
            return known
    return "unreadable" if any(map(is_malformed_response, chain)) else None


def is_permanent(error: BaseException) -> bool:
    """Return whether a server refused a request, so that repeating the same one changes nothing."""
    return classify_failure(error) in PERMANENT_FAILURES


def _read_field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def is_malformed_response(error: BaseException) -> bool:
    """Return whether a chat model's client could not read the response: no choices, HTML, an error body.

    Clients raise the errors of Python's own data types then, and so do parsers of an answer and code that
    prepares a request. So the traceback decides. A `ValidationError` is about the model's answer: with
    structured output, clients check it against the schema.
    """
    frames = [frame for _, frame in _list_model_frames(error)]
    if not frames or isinstance(error, (CFCError, ValidationError)):
        return False
    if isinstance(error, TypeError):
        return "argument" not in str(error)  # the client does not know a parameter of the request
    if isinstance(error, (LookupError, AttributeError)):
        return True
    names = [frame.f_code.co_name for frame in frames]
    reads = any(_READS_RESPONSE.search(name) and not _MAKES_REQUEST.search(name) for name in names)
    return isinstance(error, ValueError) and reads


def is_raised_in_model(error: BaseException) -> bool:
    """Return whether a chat model raised an error or its cause, rather than code around the model."""
    return any(map(_list_model_frames, list_causes(error)))


def is_own_error(error: BaseException) -> bool:
    """Return whether this package or one of its companions raised an error: their messages quote by `quote`.

    Verifiers and other parts of users may raise the same types with texts of their own.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    where = frames[-1].f_globals.get("__name__", "") if frames else ""
    return isinstance(error, CFCError) and where.partition(".")[0].startswith("langchain_cfc")


def describe_error(error: BaseException) -> str:
    """Return the type and text of an exception, quoted for messages; only the type if `__str__` fails."""
    is_own = is_own_error(error) or getattr(error, "status_code", None) in _UNREAD_STATUS
    try:
        text = str(error)
        for secret in sorted(_list_secrets(error), key=len, reverse=True):
            text = text.replace(secret, REDACTED)
        described = f"{type(error).__name__}: {quote(text, is_own=is_own)}"
    except Exception:  # noqa: BLE001 - a user-defined `__str__` may fail
        described = type(error).__name__
    if is_malformed_response(error):
        return f"a response of the model's server that cannot be read ({described})"
    return described


def _list_model_frames(error: BaseException) -> list[tuple[BaseChatModel, FrameType]]:
    """Return the frames from the last chat model of an exception's traceback on, with that model."""
    found: list[tuple[BaseChatModel, FrameType]] = []
    for frame, _ in walk_tb(error.__traceback__):
        caller = frame.f_locals.get("self")
        if isinstance(caller, BaseChatModel):
            found = [*(found if found and found[0][0] is caller else []), (caller, frame)]
        elif found:
            found.append((found[0][0], frame))
    return found


def _list_secrets(error: BaseException) -> set[str]:
    """Return the keys and the values of unusual headers that were sent with the request that failed."""
    headers: list[tuple[str, str]] = []
    for holder in (error, getattr(error, "response", None)):
        with suppress(Exception):  # httpx raises if there is no request
            headers += getattr(holder, "request").headers.items()  # noqa: B009 - no type has it
    secrets = set()
    for model, _ in _list_model_frames(error)[:1]:
        for name, value in vars(model).items():
            if isinstance(value, SecretStr):
                secrets.add(value.get_secret_value())
            elif "headers" in name and isinstance(value, Mapping):
                headers += value.items()
    for name, value in headers:
        if not _PUBLIC_HEADERS.fullmatch(name):
            # Also the last word, which is the key of `Bearer KEY`.
            secrets.update((str(value), str(value).rpartition(" ")[2]))
    return {secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH}

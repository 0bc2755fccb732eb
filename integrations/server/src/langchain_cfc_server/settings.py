"""`Settings`: the operator's settings of a server."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from typing import Any

from langchain_core.stores import BaseStore

from langchain_cfc.errors import InputError
from langchain_cfc_server.tokens import check_tokens

# A scheme, a host and perhaps a port, without a path, as browsers send it.
_ORIGIN = re.compile(
    r"\*|[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?|[a-z]+://\[[0-9a-f:]+\](:[0-9]{1,5})?"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The operator's settings; everything except the tokens has a safe default.

    Tokens are required unless authentication is off.

    Args:
        tokens: Bearer tokens, each of at least 16 characters; a request needs one of them.
        token_file: File with tokens and their clients, read again whenever it changes; instead of `tokens`.
        authentication: Whether requests need a token; False serves every client that can reach the port.
        ignore: Fields of requests that are ignored instead of refused although they would make the model
            differ from the calibrated one, such as "temperature,max_tokens" or "system" for system messages:
            for chat interfaces that always send some. After a model's name and "=", for that model only.
        origins: Origins of web pages whose scripts may send requests (CORS), such as "https://chat.example";
            "*" for all.
        decisions: A `BaseStore` of bytes that keeps each client's decisions: a question that the client asks
            again is not drawn again.
        abstain_message: The text of an abstention.
        body_limit: Maximum size of a request's body, in bytes.
        concurrency: Maximum number of requests processed at once.
        queue: Maximum number of further requests that wait; more are refused.
        per_token: Maximum number of requests of one client that wait or are processed, unless the token file
            states another number; more are refused. None for half of the places if there are several
            clients, and all of them otherwise.
        connections: Maximum number of open connections. Beyond it, a new connection replaces the one that
            has been idle longest; if none is idle, the new one is refused.
        time_limit: Maximum seconds from the start of a request to its answer, including waiting.
        cooldown_after: Number of consecutive failures of a model's upstream that start a cooldown for the
            client that met them; 0 for never.
        cooldown: Duration of a cooldown, in seconds; the client's requests to the model get a 503 meanwhile.
        log_content: Whether logs hold prompts, answers, and error texts, which may quote either.

    Raises:
        InputError: If a setting is invalid, or there are no tokens and authentication is on.
    """

    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: str | os.PathLike[str] | None = None
    authentication: bool = True
    ignore: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    decisions: BaseStore[str, Any] | None = field(default=None, repr=False)
    abstain_message: str = "I do not know."
    body_limit: int = 1 << 20
    concurrency: int = 64
    queue: int = 128
    per_token: int | None = None
    connections: int = 1024
    time_limit: float = 60.0
    cooldown_after: int = 10
    cooldown: float = 10.0
    log_content: bool = False

    def __post_init__(self) -> None:
        self._check_tokens()
        if self.per_token is not None and not self.authentication:
            msg = "per_token is set, but authentication is off: remove one of the two"
            raise InputError(msg)
        least_of = {"body_limit": 1, "concurrency": 1, "queue": 0, "connections": 1, "cooldown_after": 0}
        if self.per_token is not None:
            least_of["per_token"] = 1
        for name, least in least_of.items():
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                msg = f"{name} is {number!r}: expected a whole number of at least {least}"
                raise InputError(msg)
        for name in ("time_limit", "cooldown"):
            seconds = getattr(self, name)
            if not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0):
                msg = f"{name} is {seconds!r}: expected seconds above 0"
                raise InputError(msg)
        self._check_texts()

    def _check_texts(self) -> None:
        for name, example in (("ignore", "temperature,max_tokens"), ("origins", "https://chat.example")):
            if isinstance(getattr(self, name), str):
                msg = f"{name} is a single text: expected a tuple of texts such as {example!r}"
                raise InputError(msg)
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                msg = f"origins: {origin!r} is no origin; expected one such as https://chat.example, or *"
                raise InputError(msg)
        if not isinstance(self.decisions, BaseStore | None):
            msg = f"decisions is a {type(self.decisions).__name__}: expected a BaseStore of LangChain's"
            raise InputError(msg)

    def _check_tokens(self) -> None:
        """Check that tokens and authentication fit together; errors never quote a token."""
        if isinstance(self.tokens, str):
            msg = "tokens is a single text: expected a tuple of tokens"
            raise InputError(msg)
        given = bool(self.tokens) + (self.token_file is not None)
        if self.authentication and not given:
            msg = "there are no tokens: give some, or turn authentication off to serve every client"
            raise InputError(msg)
        if not self.authentication and given:
            msg = "there are tokens, but authentication is off: remove one of the two"
            raise InputError(msg)
        if given > 1:
            msg = "there are tokens and a token_file: remove one of the two"
            raise InputError(msg)
        check_tokens(self.tokens)

"""`Settings`: what an operator decides."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from langchain_cfc.errors import InputError

# What RFC 6750 lets stand after `Bearer`.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SHORTEST = 16


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an operator decides; everything but the tokens has a safe default.

    Without tokens every request is refused, unless authentication is off.

    Args:
        tokens: Bearer tokens, each of at least 16 characters; a request needs one of them.
        authentication: False serves every client that can reach the port.
        sampling_parameters: What is done with `temperature`, `tools` and others that would make the model
            another one than calibrated: `refuse` the request, or `ignore` them, for chat interfaces that
            always send some.
        abstain_message: What is said on abstention.
        body_limit: Most bytes of a request's body.
        concurrency: Most requests worked on at once.
        queue: Most that wait for their turn beyond these; more are refused.
        per_token: Most requests of one token that wait or are worked on at once; more are refused. None for
            no limit but that of all together.
        connections: Most connections open at once. Beyond it the connection idle longest is closed for a new
            one; if none is idle, the new one is refused.
        time_limit: Seconds from a request's first byte to its answer, waiting included.
        log_content: Whether logs hold prompts, answers and texts of errors, which may quote either.

    Raises:
        InputError: If one of them cannot be used, or there are no tokens and authentication is on.
    """

    tokens: tuple[str, ...] = field(default=(), repr=False)
    authentication: bool = True
    sampling_parameters: Literal["refuse", "ignore"] = "refuse"
    abstain_message: str = "I do not know."
    body_limit: int = 1 << 20
    concurrency: int = 64
    queue: int = 128
    per_token: int | None = None
    connections: int = 1024
    time_limit: float = 60.0
    log_content: bool = False

    def __post_init__(self) -> None:
        self._check_tokens()
        if self.per_token is not None and not self.authentication:
            msg = "per_token is set, but authentication is off: leave out one of the two"
            raise InputError(msg)
        least_of = {"body_limit": 1, "concurrency": 1, "queue": 0, "connections": 1}
        if self.per_token is not None:
            least_of["per_token"] = 1
        for name, least in least_of.items():
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                msg = f"{name} is {number!r}: expected a whole number of at least {least}"
                raise InputError(msg)
        if not (math.isfinite(self.time_limit) and self.time_limit > 0):
            msg = f"time_limit is {self.time_limit!r}: expected seconds above 0"
            raise InputError(msg)
        if self.sampling_parameters not in {"refuse", "ignore"}:
            msg = f"sampling_parameters is {self.sampling_parameters!r}: expected 'refuse' or 'ignore'"
            raise InputError(msg)

    def _check_tokens(self) -> None:
        """Refuse tokens that would let every request in, or none; a token itself is never quoted."""
        if isinstance(self.tokens, str):
            msg = "tokens is a single text: expected a tuple of tokens"
            raise InputError(msg)
        if self.authentication and not self.tokens:
            msg = "there are no tokens: give some, or turn authentication off if everybody may ask"
            raise InputError(msg)
        if not self.authentication and self.tokens:
            msg = "there are tokens, but authentication is off: leave out one of the two"
            raise InputError(msg)
        for position, token in enumerate(self.tokens):
            if len(token) < _SHORTEST or not _TOKEN.fullmatch(token):
                msg = (
                    f"token {position} cannot be used: expected at least {_SHORTEST} letters, digits or any "
                    "of ._~+/- such as `openssl rand -hex 32` prints"
                )
                raise InputError(msg)

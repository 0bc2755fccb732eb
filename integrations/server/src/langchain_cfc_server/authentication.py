"""Authentication: a request needs a valid bearer token."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from langchain_cfc_server.errors import RefusedError

# Supervisors and load balancers have no token. These two answer only yes or no.
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
_SCHEME = b"bearer"
_POSITION = "langchain_cfc_server.position_of_token"


def get_token_position(scope: Scope) -> int | None:
    """Return the position of the token that a request presented; None where authentication is off."""
    position: int | None = scope.get(_POSITION)
    return position


class Authentication:
    """Lets requests with a valid bearer token through, and all to the open paths.

    A presented token is hashed and compared with every hash, so that the time taken reveals neither a token's
    length, nor its first characters, nor which of them it was.

    Args:
        app: The application that answers those let through.
        tokens: The valid tokens.
    """

    def __init__(self, app: ASGIApp, tokens: Iterable[str]) -> None:
        self._app = app
        self._hashes = tuple(sha256(token.encode()).digest() for token in tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or refuse it.

        Raises:
            RefusedError: If there is no valid token.
        """
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scope[_POSITION] = self._position(scope)
        await self._app(scope, receive, send)

    def _position(self, scope: Scope) -> int:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        # Of several headers, a proxy may have checked another one than is read here.
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        presented = sha256(token.strip(b" ")).digest()
        matches = [hmac.compare_digest(presented, valid) for valid in self._hashes]
        if scheme.lower() != _SCHEME or not any(matches):
            raise RefusedError(
                401,
                "invalid_api_key",
                "a valid token is needed, once, as in the header `Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": 'Bearer realm="langchain-cfc"'},
            )
        return matches.index(True)

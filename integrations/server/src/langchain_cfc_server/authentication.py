"""`Authentication`: middleware that requires a valid bearer token."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.tokens import Client, ClientTokens

# Open, because supervisors and load balancers have no token. These paths only reveal the server's state.
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
METRICS = "/metrics"
_SCHEME = b"bearer"
_CLIENT = "langchain_cfc_server.client"


def get_client(scope: Scope) -> Client | None:
    """Return the client whose token a request presented; None if no token was checked."""
    client: Client | None = scope.get(_CLIENT)
    return client


class Authentication:
    """Middleware that only passes requests with a valid bearer token, or to an open path.

    A metrics token gives access to the metrics only. If there is one, no other token may read the metrics.

    Args:
        app: The application that answers.
        tokens: The valid tokens.
    """

    def __init__(self, app: ASGIApp, tokens: ClientTokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it.

        Raises:
            RefusedError: If the request has no valid token, or the token does not allow this path.
        """
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            client = scope[_CLIENT] = self._find_client(scope)
            is_metrics = scope["path"] == METRICS
            if client.only_metrics != is_metrics and (client.only_metrics or self._tokens.has_metrics_token):
                msg = "this token is for the metrics" if client.only_metrics else "the metrics have a token"
                raise RefusedError(403, "token_not_for_this", f"{msg} alone; use the other one here")
        await self._app(scope, receive, send)

    def _find_client(self, scope: Scope) -> Client:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        # Several headers are refused, because a proxy may have checked another one than this server would.
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        client = self._tokens.find_client(token.strip(b" "))
        if scheme.lower() != _SCHEME or client is None:
            raise RefusedError(
                401,
                "invalid_api_key",
                "a valid token is needed, exactly once, as in the header `Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": 'Bearer realm="langchain-cfc"'},
            )
        return client

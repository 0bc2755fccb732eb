"""No answer without a valid token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.limits import Authentication
from langchain_cfc_server.tokens import ClientTokens
from starlette.types import ASGIApp, Receive, Scope, Send

from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, TOKEN, Server, make_request, run_server

INVALID_HEADERS: dict[str, list[tuple[bytes, bytes]]] = {
    "missing": [],
    "empty": [(b"authorization", b"")],
    "no token": [(b"authorization", b"Bearer")],
    "no token, but a space": [(b"authorization", b"Bearer ")],
    "wrong": [(b"authorization", b"Bearer wrong-token-of-the-tests")],
    "prefix": [(b"authorization", f"Bearer {TOKEN[:-1]}".encode())],
    "first character": [(b"authorization", f"Bearer {TOKEN[0]}".encode())],
    "longer": [(b"authorization", f"Bearer {TOKEN}x".encode())],
    "two tokens": [(b"authorization", f"Bearer {TOKEN} {OTHER_TOKEN}".encode())],
    "both with a comma": [(b"authorization", f"Bearer {TOKEN},{OTHER_TOKEN}".encode())],
    "other case": [(b"authorization", f"Bearer {TOKEN.upper()}".encode())],
    "without scheme": [(b"authorization", TOKEN.encode())],
    "basic": [(b"authorization", f"Basic {TOKEN}".encode())],
    "token": [(b"authorization", f"Token {TOKEN}".encode())],
    "scheme's prefix": [(b"authorization", f"Bear {TOKEN}".encode())],
    "longer scheme": [(b"authorization", f"Bearers {TOKEN}".encode())],
    "tab": [(b"authorization", f"Bearer\t{TOKEN}".encode())],
    "quoted": [(b"authorization", f'Bearer "{TOKEN}"'.encode())],
    "non-ASCII": [(b"authorization", f"Bearer {TOKEN}é".encode())],
    "not UTF-8": [(b"authorization", b"Bearer \xff\xfe")],
    "all tokens at once": [(b"authorization", f"Bearer {TOKEN}\x0c{OTHER_TOKEN}".encode())],
    "valid twice": [(b"authorization", f"Bearer {TOKEN}".encode())] * 2,
    "valid and wrong": [
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"authorization", b"Bearer wrong"),
    ],
    "other header": [(b"x-api-key", TOKEN.encode())],
    "proxy's header": [(b"proxy-authorization", f"Bearer {TOKEN}".encode())],
    "cookie": [(b"cookie", f"authorization=Bearer {TOKEN}".encode())],
}
PATHS = [
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/bot"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/redoc"),
    ("GET", "/"),
    ("GET", "/nothing/here"),
    ("GET", "/health"),
    ("GET", "/health/live/"),
    ("GET", "//health/live"),
    ("GET", "/health/live/../../v1/models"),
    ("GET", "/health/live%2f..%2f..%2fv1/models"),
    ("OPTIONS", "/v1/models"),
    ("HEAD", "/v1/models"),
]


class ServedError(Exception):
    """The request got through."""


async def raise_served(_: Scope, __: Receive, ___: Send) -> None:
    raise ServedError


def is_served(middleware: ASGIApp, headers: list[tuple[bytes, bytes]]) -> bool:
    scope = {"type": "http", "path": "/v1/models", "method": "GET", "headers": headers}
    with pytest.raises((RefusedError, ServedError)) as caught:
        asyncio.run(_ask(middleware, scope))
    return isinstance(caught.value, ServedError)


async def _ask(middleware: ASGIApp, scope: Scope) -> None:
    await middleware(scope, _receive_nothing, _receive_nothing)


async def _receive_nothing(*_: object) -> Any:
    raise NotImplementedError


class LenientMiddleware:
    """A wrong check, by `in` and `startswith`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [value.decode("latin-1") for name, value in scope["headers"] if b"authorization" in name]
        token = headers[-1].rpartition(" ")[2] if headers else ""
        if not any(valid.startswith(token) for valid in (TOKEN, OTHER_TOKEN)):
            raise RefusedError(401, "", "")
        await raise_served(scope, receive, send)


@pytest.mark.parametrize("name", INVALID_HEADERS)
def test_authentication_refuses_invalid_headers(name: str) -> None:
    assert not is_served(
        Authentication(raise_served, ClientTokens([TOKEN, OTHER_TOKEN])), INVALID_HEADERS[name]
    )


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
@pytest.mark.parametrize("token", [TOKEN, OTHER_TOKEN])
def test_authentication_accepts_each_valid_token(scheme: str, token: str) -> None:
    headers = [(b"authorization", f"{scheme} {token}".encode())]
    assert is_served(Authentication(raise_served, ClientTokens([TOKEN, OTHER_TOKEN])), headers)


def test_lenient_middleware_accepts_some_invalid_headers() -> None:
    assert sum([is_served(LenientMiddleware(), headers) for headers in INVALID_HEADERS.values()]) > 3


def test_authentication_compares_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("langchain_cfc_server.tokens.hmac.compare_digest", compare)
    check = Authentication(raise_served, ClientTokens([TOKEN, OTHER_TOKEN]))
    for headers in (
        [],
        [(b"authorization", f"Bearer {TOKEN}".encode())],
        INVALID_HEADERS["prefix"],
        INVALID_HEADERS["basic"],
    ):
        compared.clear()
        is_served(check, headers)
        # As many comparisons of as many bytes, whatever was presented.
        assert compared == [(32, 32), (32, 32)]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_path_requires_a_token(server: Server, method: str, path: str) -> None:
    refused = server.request(method, path, token=None)
    head, _, body = refused.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b'www-authenticate: Bearer realm="langchain-cfc"' in head
    assert method == "HEAD" or b'"code":"invalid_api_key"' in body
    allowed = server.request(method, path)
    assert not allowed.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_health_paths_need_no_token_and_have_no_body(server: Server, path: str) -> None:
    response = server.get(path, {})
    assert response.status_code == 200
    assert response.content in {b'{"status":"live"}', b'{"status":"ready"}'}


def test_server_without_authentication_needs_no_token(bots: dict[str, str]) -> None:
    with run_server(bots, "--no-auth", tokens=None) as server:
        assert server.ask(make_request(EASY), {}).json()["choices"][0]["message"]["content"] == GOOD
        document = server.get("/openapi.json", {}).json()
        assert "securitySchemes" not in document["components"]


def test_server_reads_tokens_from_file(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OTHER_TOKEN}\n\n", encoding="utf-8")
    with run_server(bots, "--token-file", str(path)) as server:
        assert server.get("/v1/models", {"Authorization": f"Bearer {OTHER_TOKEN}"}).status_code == 200
        # Those of the environment are not meant then.
        assert server.get("/v1/models", HEADERS).status_code == 401

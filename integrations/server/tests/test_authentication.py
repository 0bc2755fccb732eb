"""No answer without a valid token: headers, and the token file with its clients, limits and changes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_cfc_server import Settings
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.limits import Authentication, RateLimiter
from langchain_cfc_server.tokens import Client, ClientTokens
from starlette.types import ASGIApp, Receive, Scope, Send

from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.parts import (
    OTHER_TOKEN,
    TOKEN,
    Server,
    make_headers,
    make_request,
    run_server,
    wait_for_value,
)
from langchain_cfc.errors import InputError

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


OLD, NEW, METRICS = (f"{name}-token-of-the-tests" for name in ("old", "new", "metrics"))


def hash_token(token: str) -> str:
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def replace_file(path: Path, text: str) -> None:
    """Put another file in its place, as operators should."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def find_client(tokens: ClientTokens, token: str) -> Client | None:
    return tokens.find_client(token.encode())


@contextmanager
def run_with_tokens(bots: dict[str, str], path: Path, *options: str) -> Iterator[Server]:
    environment = {**bots, "BOTS_GATE": str(path.with_name("gate"))}
    with run_server(environment, "--token-file", str(path), *options, tokens=None) as server:
        yield server


def test_token_file_lines_name_clients(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"# the app\n{hash_token(OLD)} name=app concurrent=8 per_minute=600\n\n{NEW} per_minute=600 name=app "
        f"concurrent=8 # to replace it\n{METRICS} only=metrics\n"
    )
    tokens = ClientTokens(path=path)
    assert find_client(tokens, OLD) == find_client(tokens, NEW) == Client("app", 8, 600)
    assert find_client(tokens, METRICS) == Client("token-5", only_metrics=True)
    assert tokens.has_metrics_token
    # Its digest is no token.
    assert find_client(tokens, hash_token(OLD)) is None
    assert find_client(tokens, hash_token(OLD).removeprefix("sha256:")) is None


MALFORMED = {
    "": "holds no tokens for clients",
    f"{METRICS} only=metrics": "holds no tokens for clients",
    "short": "line 1: a token has at least 16",
    f"{OLD}\nname {NEW}": "line 2: a token has at least 16",
    f"{OLD} {NEW}": "line 1: expected",
    f"{OLD} unknown=1": "line 1: expected",
    f"{OLD} concurrent=0": "line 1: expected",
    f"{OLD} concurrent=-1": "line 1: expected",
    f"{OLD} per_minute=1.5": "line 1: expected",
    f"{OLD} name=": "line 1: expected",
    f"{OLD} name=a name=b": "line 1: expected",
    f"{OLD} only=all": "line 1: expected",
    f"{OLD}\n{hash_token(OLD)}": "line 2: this token is on another line",
    f"{OLD} name=a\n{NEW} name=a per_minute=1": "line 2: another line with the name a has other limits",
    "sha256:abc": "line 1: expected 64 digits",
    hash_token(OLD).upper(): "line 1: a token has",
    hash_token(OLD)[:-1]: "line 1: expected 64 digits",
    f"{OLD}é": "line 1: a token has",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_token_file_is_refused_without_quoting_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=MALFORMED[text]) as caught:
        ClientTokens(path=path)
    assert OLD not in str(caught.value)
    assert NEW not in str(caught.value)
    # In place of one that is in order, it changes nothing and lets in no token that was not valid.
    replace_file(path, OLD)
    tokens = ClientTokens(path=path)
    replace_file(path, text)
    assert find_client(tokens, OLD) == Client("token-1")
    assert find_client(tokens, NEW) is find_client(tokens, METRICS) is None
    assert (tokens.is_stale, tokens.refused, tokens.replaced) == (True, 1, 0)
    replace_file(path, NEW)
    assert find_client(tokens, NEW) == Client("token-1")
    assert find_client(tokens, OLD) is None
    assert (tokens.is_stale, tokens.refused, tokens.replaced) == (False, 1, 1)


def test_missing_or_binary_token_file_leaves_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    tokens = ClientTokens(path=path)
    path.unlink()
    assert find_client(tokens, OLD) is not None
    assert find_client(tokens, OLD) is not None
    assert (tokens.is_stale, tokens.refused) == (True, 1)
    path.write_bytes(b"\xff" * 20)
    assert find_client(tokens, OLD) is not None
    assert (tokens.is_stale, tokens.refused) == (True, 2)
    # The same file as before, which is none the less in order again.
    path.write_text(OLD)
    assert find_client(tokens, OLD) is not None
    assert not tokens.is_stale


def test_deleted_token_file_revokes_every_token_but_not_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    tokens = ClientTokens(path=path)
    now = 100.0
    monkeypatch.setattr("langchain_cfc_server.tokens.time.monotonic", lambda: now)
    for _ in range(2):  # the time between the deletions does not count
        path.unlink()
        now += 1.5
        assert find_client(tokens, OLD) is not None
        path.write_text(OLD)
        assert find_client(tokens, OLD) is not None
    path.unlink()
    assert find_client(tokens, OLD) is not None
    now += 3.0
    assert find_client(tokens, OLD) is None
    assert len(tokens) == 0
    path.write_text(NEW)
    assert find_client(tokens, NEW) is not None
    assert find_client(tokens, OLD) is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_token_file_of_all_users_is_refused_or_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.txt"
    plain, digest = "0123456789abcdef", f"sha256:{'0' * 64}"
    for text, mode, is_warned in (
        (f"# app\n {plain} name=app\n", 0o644, True),
        (f"{digest}\n{plain} name=app\n", 0o604, True),
        (f"# app\n\n{digest} name=app # {plain}\n", 0o644, False),
        (plain, 0o640, False),
    ):
        caplog.clear()
        path.write_text(text)
        path.chmod(mode)
        tokens = ClientTokens(path=path)
        assert any("may read the tokens" in one.message for one in caplog.records) == is_warned
        assert plain not in caplog.text
    path.write_text("fedcba9876543210")
    path.chmod(0o646)
    with pytest.raises(InputError, match="may add tokens"):
        ClientTokens(path=path)
    tokens.reload()
    assert tokens.is_stale
    assert tokens.find_client(plain.encode()) is not None
    path.unlink()
    tokens.reload()
    assert (tokens.is_stale, len(tokens)) == (True, 1)
    assert "the previous ones stay valid" in caplog.text


def test_client_tokens_notice_changes_with_equal_mtime(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    tokens = ClientTokens(path=path)
    before = path.stat()
    # In place, of the same length and with the same time.
    path.write_text(NEW)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(OLD) == len(NEW)
    assert find_client(tokens, OLD) is None
    assert find_client(tokens, NEW) is not None


def test_settings_accept_tokens_or_a_token_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="remove one of the two"):
        Settings(tokens=(OLD,), token_file=tmp_path)
    with pytest.raises(InputError, match="authentication is off"):
        Settings(token_file=tmp_path, authentication=False)
    text: Any = "60"
    with pytest.raises(InputError, match="expected seconds"):
        Settings(tokens=(OLD,), time_limit=text)


@given(st.integers(1, 500), st.lists(st.floats(0, 20), max_size=200))
def test_rate_limiter_allows_each_client_its_rate(rate: int, gaps: list[float]) -> None:
    limiter, client = RateLimiter(), Client("app", per_minute=rate)
    taken: list[float] = []
    now = 1e6
    for gap in (0.0, *gaps):
        now += gap
        wait = limiter.take(client, now)
        if wait:
            # Not later than it says.
            assert limiter.take(client, now + wait * 1.001 + 1e-6) == 0.0
            now += wait * 1.001 + 1e-6
        taken.append(now)
    for begin, first in enumerate(taken):
        # At once as many as in a minute, and then one for each part of a minute.
        for count, last in enumerate(taken[begin:], 1):
            assert count <= rate + (last - first) * rate / 60 + 1e-3
    # Another client is not held up.
    assert limiter.take(Client("other", per_minute=1), now) == 0.0


def test_replaced_token_file_takes_effect_at_once(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD} name=app\n{METRICS} only=metrics name=prometheus\n")
    with run_with_tokens(bots, path) as server, ThreadPoolExecutor(1) as pool:
        assert server.ask(make_request(EASY), make_headers(OLD)).status_code == 200
        assert server.ask(make_request(EASY), make_headers(NEW)).status_code == 401
        under_way = pool.submit(server.ask, make_request(EASY, "slow"), make_headers(OLD))
        wait_for_value(lambda: "cfc_server_working 1.0" in server.get("/metrics", make_headers(METRICS)).text)
        replace_file(path, f"{hash_token(NEW)} name=app\n{METRICS} only=metrics name=prometheus\n")
        assert server.ask(make_request(EASY), make_headers(OLD)).status_code == 401
        assert server.ask(make_request(EASY), make_headers(NEW)).status_code == 200
        # What was let in is answered.
        path.with_name("gate").touch()
        assert under_way.result().status_code == 200
        replace_file(path, f"{OLD} {NEW}\n")
        assert server.ask(make_request(EASY), make_headers(OLD)).status_code == 401
        assert server.ask(make_request(EASY), make_headers(NEW)).status_code == 200
        figures = server.get("/metrics", make_headers(METRICS)).text
        for line in ("_stale 1.0", "_replaced 1.0", "_refused 1.0", " 2.0"):
            assert f"cfc_server_client_tokens{line}\n" in figures
        assert 'cfc_server_client_requests_total{client="app",status="200"} 4.0' in figures
        [refused] = [line for line in server.log if line["message"].startswith("tokens not replaced")]
        assert refused["level"] == "error"
        assert "line 1: expected" in refused["problem"]
        log = server.log_path.read_text(encoding="utf-8")
        assert OLD not in log
        assert NEW not in log
        assert {line.get("client") for line in server.log if line["message"] == "request"} == {
            "app",
            "prometheus",
            None,
        }


def test_signal_reloads_the_token_file(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    with run_with_tokens(bots, path) as server:
        replace_file(path, NEW)
        server.process.send_signal(signal.SIGHUP)
        line = wait_for_value(
            lambda: next((one for one in server.log if one["message"] == "tokens replaced"), None)
        )
        assert (line["tokens"], line["added"], line["removed"]) == (1, 1, 1)
        assert server.get("/v1/models", make_headers(NEW)).status_code == 200
    with run_server(bots, tokens=OLD) as server:
        # Without a file there is nothing to read, and the signal ends nothing.
        server.process.send_signal(signal.SIGHUP)
        assert server.get("/v1/models", make_headers(OLD)).status_code == 200


def test_each_client_has_its_own_limits(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"{OLD} name=app per_minute=3\n{NEW} name=app per_minute=3\n{METRICS} name=b concurrent=1"
    )
    with run_with_tokens(bots, path, "--per-token", "5") as server, ThreadPoolExecutor(1) as pool:
        said = [server.ask(make_request(EASY), make_headers(token)).status_code for token in (OLD, NEW, OLD)]
        assert said == [200, 200, 200]
        refused = server.ask(make_request(EASY), make_headers(NEW))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests_a_minute")
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        # Only work counts.
        assert server.get("/v1/models", make_headers(NEW)).status_code == 200
        under_way = pool.submit(server.ask, make_request(EASY, "slow"), make_headers(METRICS))
        wait_for_value(lambda: "cfc_server_working 1.0" in server.get("/metrics", make_headers(METRICS)).text)
        refused = server.ask(make_request(EASY), make_headers(METRICS))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests_of_token")
        path.with_name("gate").touch()
        assert under_way.result().status_code == 200


def test_metrics_have_their_own_token(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD} name=app\n{METRICS} only=metrics\n")
    with run_with_tokens(bots, path) as server:
        assert server.get("/metrics", make_headers(METRICS)).status_code == 200
        refused = server.get("/metrics", make_headers(OLD))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "token_not_for_this")
        assert refused.json()["error"]["type"] == "permission_error"
        for path_ in ("/v1/models", "/openapi.json", "/metrics/", "/nothing"):
            assert server.get(path_, make_headers(METRICS)).status_code == 403
        assert server.ask(make_request(EASY), make_headers(METRICS)).status_code == 403
        assert server.get("/metrics", make_headers(NEW)).status_code == 401
        # Without one, every token reads them.
        replace_file(path, f"{OLD}\n")
        assert server.get("/metrics", make_headers(OLD)).status_code == 200
        assert server.get("/metrics", make_headers(METRICS)).status_code == 401

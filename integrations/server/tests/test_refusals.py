"""Malformed requests are refused with a 4xx status and a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.reading import read_request
from langchain_cfc_server.schema import ChatRequest

from integrations.server.tests.bots import EASY
from integrations.server.tests.malformed import BODIES
from integrations.server.tests.parts import HEADERS, TOKEN, Server, make_request, run_server

UNKNOWN_MODELS = {"model unknown", "model of another case", "model with spaces"}


def test_at_least_a_hundred_distinct_bodies_are_malformed() -> None:
    assert len(BODIES) >= 100
    assert len({body for body, _ in BODIES.values()}) == len(BODIES)


@pytest.mark.parametrize("kind", BODIES)
def test_malformed_body_is_refused_with_a_reason(server: Server, kind: str, upstream: Any) -> None:
    drawn = len(upstream[1].requests)
    body, field = BODIES[kind]
    response = server.ask(body)
    assert response.status_code == (404 if kind in UNKNOWN_MODELS else 400)
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert 10 < len(error["message"]) < 600
    assert len(upstream[1].requests) == drawn


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-16", 415),
        ("application/jsonx", 415),
        ("", 415),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
    ],
)
def test_completions_require_json_content_type(server: Server, content_type: str, status: int) -> None:
    response = server.ask(make_request(EASY), {**HEADERS, "Content-Type": content_type})
    assert response.status_code == status
    assert status == 200 or response.json()["error"]["code"] == "unsupported_media_type"


def test_compressed_bodies_are_refused(server: Server) -> None:
    response = server.ask(BODIES["compressed"][0], {**HEADERS, "Content-Encoding": "gzip"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PATCH", "/health/live", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions/", 404, "not_found"),
        ("POST", "/v1/completions", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/v1/models/%00", 404, "model_not_found"),
        ("GET", "/v1/models/..%2f..%2fetc", 404, "model_not_found"),
    ],
)
def test_unknown_paths_and_methods_are_refused(
    server: Server, method: str, path: str, status: int, code: str
) -> None:
    sent = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    )
    head, _, body = server.say(sent.encode()).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert (b"\r\nallow: " in head) == (status == 405)
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
    ],
)
def test_invalid_http_is_refused_with_a_json_error(server: Server, sent: bytes) -> None:
    head, _, body = server.say(sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_refusal_reasons_contain_no_values() -> None:
    hidden = "do-not-repeat-me"
    for body in (
        {"model": 1, "messages": hidden},
        {"model": "bot", "messages": [{"role": hidden, "content": hidden}]},
        {"model": "bot", "messages": [{"role": "user", "content": [{"type": hidden}]}]},
        {"model": "bot", "messages": [{"role": "user", "content": "x"}], "cfc": {"alpha": hidden}},
        {"model": "bot", "messages": [{"role": "user", "content": "x"}], "user": [hidden]},
    ):
        with pytest.raises(RefusedError) as caught:
            read_request(json.dumps(body).encode(), ChatRequest, {})
        assert hidden not in caught.value.message


def run_schemathesis(server: Server, folder: Path, examples: int) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with all its checks and the same examples each time."""
    program = Path(sys.executable).with_name("schemathesis")
    options = ["--checks", "all", "--seed", "1", "--max-examples", str(examples), "--no-color"]
    return subprocess.run(
        [program, "run", f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )


@pytest.mark.long
def test_server_matches_its_openapi_document_under_fuzzing(bots: dict[str, str], tmp_path: Path) -> None:
    with run_server(bots, models="integrations.server.tests.bots:anything") as server:
        found = run_schemathesis(server, tmp_path, 100)
        assert found.returncode == 0, found.stdout
        lines = [line for line in server.log if line["message"] == "request"]
        statuses = {line["status"] for line in lines if line["route"] == "/v1/chat/completions"}
        # It has been asked properly, improperly and without a token.
        assert {200, 400, 401, 405} <= statuses
        assert not [line for line in lines if line["status"] >= 500]


@pytest.mark.long
def test_fuzzing_finds_a_broken_server(bots: dict[str, str], tmp_path: Path) -> None:
    with run_server(bots, models="integrations.server.tests.bots:broken") as server:
        found = run_schemathesis(server, tmp_path, 5)
        assert found.returncode == 1
        assert "Server error" in found.stdout

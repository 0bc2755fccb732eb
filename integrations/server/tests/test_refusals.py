"""Malformed requests are refused with a 4xx status and a reason."""

from __future__ import annotations

import gzip
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
from integrations.server.tests.parts import HEADERS, TOKEN, Server, make_request, run_server

_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def _with(**fields: Any) -> bytes:
    return json.dumps(make_request(EASY, **fields)).encode()


def _without(name: str) -> bytes:
    return json.dumps({key: value for key, value in make_request(EASY).items() if key != name}).encode()


def _messages(*messages: Any) -> bytes:
    return json.dumps({"model": "bot", "messages": list(messages)}).encode()


def _message(**fields: Any) -> bytes:
    return _messages({"role": "user", "content": EASY, **fields})


def _parts(*parts: Any) -> bytes:
    return _message(content=list(parts))


def _raw(field: str) -> bytes:
    """The usual body with a field that `json.dumps` would not write."""
    return _with()[:-1] + f", {field}}}".encode()


# What is wrong, the body, and the field that the reason names.
BODIES: dict[str, tuple[bytes, str | None]] = {
    # No JSON.
    "empty": (b"", None),
    "blank": (b" \r\n\t", None),
    "form": (b"model=bot&messages=hello", None),
    "half": (_with()[:40], None),
    "more than one": (_with() + b"{}", None),
    "trailing comma": (_with()[:-1] + b",}", None),
    "single quotes": (_with().replace(b'"', b"'"), None),
    "line break in text": (_raw('"user": "a\nb"'), None),
    "null byte": (b"\0" + _with(), None),
    "control character in text": (_raw('"user": "\x01"'), None),
    "NaN": (_raw('"user": NaN'), None),
    "Infinity": (_raw('"metadata": {"a": Infinity}'), None),
    "number too large": (_raw('"metadata": {"a": 1e999}'), None),
    "number of too many digits": (_raw(f'"metadata": {{"a": {"1" * 5000}}}'), None),
    "plus sign": (_raw('"n": +1'), None),
    "name twice": (_raw('"model": "bot"'), None),
    "name twice, escaped": (_raw('"mod\\u0065l": "bot"'), None),
    "name twice inside": (_raw('"metadata": {"a": 1, "a": 2}'), None),
    "nested lists": (b"[" * 100_000, None),
    "nested objects": (b'{"a":' * 100_000, None),
    "nested in a field": (_raw(f'"metadata": {{"a": {"[" * 50_000}{"]" * 50_000}}}'), None),
    "not UTF-8": (b"\xff" + _with(), None),
    "not UTF-8 in text": (_raw('"user": "x"').replace(b'"x"', b'"\xc3\x28"'), None),
    "overlong UTF-8": (_raw('"user": "x"').replace(b'"x"', b'"\xc0\xaf"'), None),
    "surrogate in UTF-8": (_raw('"user": "x"').replace(b'"x"', b'"\xed\xa0\x80"'), None),
    "UTF-16": (_with().decode().encode("utf-16"), None),
    "byte order mark": (b"\xef\xbb\xbf" + _with(), None),
    "lone surrogate": (_raw('"user": "\\ud800"'), None),
    "lone low surrogate in a prompt": (_message(content="\udc00"), None),
    "surrogates in the wrong order": (_message(content="\udc00\ud800"), None),
    "lone surrogate as a name": (_raw('"\\ud800": 1'), None),
    "compressed": (gzip.compress(_with()), None),
    # JSON of something else.
    "null": (b"null", None),
    "number": (b"1", None),
    "text": (b'"bot"', None),
    "list": (b"[]", None),
    "list of requests": (b"[" + _with() + b"]", None),
    "empty object": (b"{}", "model"),
    # The model.
    "no model": (_without("model"), "model"),
    "model null": (_with(model=None), "model"),
    "model number": (_with(model=1), "model"),
    "model empty": (_with(model=""), "model"),
    "model list": (_with(model=["bot"]), "model"),
    "model unknown": (_with(model="none"), "model"),
    "model of another case": (_with(model="BOT"), "model"),
    "model with spaces": (_with(model=" bot "), "model"),
    # Messages.
    "no messages": (_without("messages"), "messages"),
    "messages null": (_with(messages=None), "messages"),
    "messages empty": (_with(messages=[]), "messages"),
    "messages text": (_with(messages=EASY), "messages"),
    "messages object": (_with(messages={"role": "user", "content": EASY}), "messages"),
    "message null": (_messages(None), "messages.0"),
    "message text": (_messages(EASY), "messages.0"),
    "message list": (_messages([]), "messages.0"),
    "message empty": (_messages({}), "messages.0"),
    "second message wrong": (
        _messages({"role": "user", "content": EASY}, {"role": "user"}),
        "messages.1.content",
    ),
    "no role": (_messages({"content": EASY}), "messages.0"),
    "role unknown": (_message(role="bot"), "messages.0"),
    "role function": (_message(role="function"), "messages.0"),
    "role number": (_message(role=1), "messages.0"),
    "role of another case": (_message(role="User"), "messages.0"),
    "no content": (_messages({"role": "user"}), "messages.0.content"),
    "content null": (_message(content=None), "messages.0.content"),
    "content number": (_message(content=1), "messages.0.content"),
    "content object": (_message(content={"text": EASY}), "messages.0.content"),
    "content list of texts": (_parts(EASY), "messages.0.content"),
    "name number": (_message(name=1), "messages.0.name"),
    "field unknown in message": (_message(contents=EASY), "messages.0.contents"),
    "part empty": (_parts({}), "messages.0.content"),
    "part without text": (_parts({"type": "text"}), "messages.0.content"),
    "part's text number": (_parts({"type": "text", "text": 1}), "messages.0.content"),
    "part unknown": (_parts({"type": "video", "video": "x"}), "messages.0.content"),
    "audio": (
        _parts({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        "messages.0.content",
    ),
    "image without address": (_parts({"type": "image_url", "image_url": {}}), "messages.0.content"),
    "image's address text": (_parts({"type": "image_url", "image_url": "https://a"}), "messages.0.content"),
    "image of a file": (
        _parts({"type": "image_url", "image_url": {"url": "file:///a"}}),
        "messages.0.content",
    ),
    "image's detail unknown": (
        _parts({"type": "image_url", "image_url": {"url": "https://a", "detail": "most"}}),
        "messages.0.content",
    ),
    "image in system message": (
        _messages({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "https://a"}}]}),
        "messages.0.content",
    ),
    "tool message without call": (_messages({"role": "tool", "content": "1"}), "messages.0.tool_call_id"),
    "tool calls of a user": (_message(tool_calls=[_CALL]), "messages.0.tool_calls"),
    "tool call without function": (
        _message(role="assistant", tool_calls=[{"id": "1", "type": "function"}]),
        "messages.0.tool_calls.0.function",
    ),
    # Options.
    "n 0": (_with(n=0), "n"),
    "n 2": (_with(n=2), "n"),
    "n true": (_with(n=True), "n"),
    "n text": (_with(n="1"), "n"),
    "stream text": (_with(stream="true"), "stream"),
    "stream number": (_with(stream=1), "stream"),
    "stream options list": (_with(stream=True, stream_options=[]), "stream_options"),
    "stream option unknown": (_with(stream=True, stream_options={"usage": True}), "stream_options.usage"),
    "user number": (_with(user=1), "user"),
    "metadata text": (_with(metadata="a"), "metadata"),
    "field unknown": (_with(modle="bot"), "modle"),
    "field unknown with a strange name": (_with(**{"a\nb": 1}), '"a\\nb"'),
    "field unknown of another case": (_with(Model="bot"), "Model"),
    "alpha not calibrated": (_with(cfc={"alpha": "0.3"}), "cfc.alpha"),
    "alpha 0": (_with(cfc={"alpha": 0}), "cfc.alpha"),
    "alpha 1": (_with(cfc={"alpha": 1}), "cfc.alpha"),
    "alpha negative": (_with(cfc={"alpha": -0.1}), "cfc.alpha"),
    "alpha words": (_with(cfc={"alpha": "one tenth"}), "cfc.alpha"),
    "alpha empty": (_with(cfc={"alpha": ""}), "cfc.alpha"),
    "alpha of a million decimals": (_with(cfc={"alpha": "1e-1000000"}), "cfc.alpha"),
    "alpha true": (_with(cfc={"alpha": True}), "cfc.alpha"),
    "alpha list": (_with(cfc={"alpha": ["0.1"]}), "cfc.alpha"),
    "alpha outside cfc": (_with(alpha="0.1"), "alpha"),
    "cfc text": (_with(cfc="0.1"), "cfc"),
    "cfc option unknown": (_with(cfc={"level": "0.1"}), "cfc.level"),
}


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

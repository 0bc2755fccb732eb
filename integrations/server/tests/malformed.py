"""Requests to `/v1/chat/completions` that no server should answer, each of another kind."""

from __future__ import annotations

import gzip
import json
from typing import Any

from integrations.server.tests.bots import EASY
from integrations.server.tests.parts import make_request

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

"""A server on this machine that speaks enough of the OpenAI chat-completions API to replay recorded answers.

It is real HTTP on a real socket: what a client library makes of statuses, broken bodies and closed
connections is what users will see.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langchain_cfc import PromptRecord

# In place of a completion: a status, a body that is not JSON, half a body, no answer at all, or a completion
# without choices.
FAULTS = ("status 500", "status 401", "malformed", "truncated", "dropped", "no choices")
TOKENS_IN, TOKENS_OUT = 11, 2


@dataclass
class Script:
    """What the server answers, and what it was asked.

    Attributes:
        answers: For every prompt, its texts with their sequence log-probabilities, one after the other.
        model: What the server calls its model.
        logprobs: Whether it returns log-probabilities to those who ask.
        fault: One of `FAULTS`, or None.
        faulty: Which requests the fault strikes, counted from 0; all if left out.
        requests: The bodies of all requests so far.
    """

    answers: Mapping[str, list[tuple[str, float]]]
    model: str = "recorded"
    logprobs: bool = True
    fault: str | None = None
    faulty: frozenset[int] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _served: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def of(cls, records: Iterable[PromptRecord]) -> Script:
        """The answers of some records that hold the log-probabilities they were drawn with."""
        answers = {
            str(record.input): [
                (str(one.text), (one.scores or {})["sequence_logprob"]) for one in record.candidates
            ]
            for record in records
        }
        return cls(answers)

    def taken(self, body: dict[str, Any]) -> tuple[str | None, str, float]:
        """The fault that strikes this request, and its answer with the log-probability."""
        prompt = body["messages"][-1]["content"]
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            answers = self.answers[prompt]
            text, logprob = answers[self._served[prompt] % len(answers)]
            self._served[prompt] += 1
        struck = self.fault if self.faulty is None or number in self.faulty else None
        return struck, text, logprob


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The default of 5 makes concurrent clients wait a second for their next attempt to connect.
    request_queue_size = 128

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script


class _Handler(BaseHTTPRequestHandler):
    # HTTP/1.0: every connection is closed after its response, so that none outlives a test's event loop.
    protocol_version = "HTTP/1.0"
    server: _Server

    def log_message(self, *args: Any) -> None:
        """Say nothing; the script holds the requests."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script = self.server.script
        fault, text, logprob = script.taken(body)
        if fault == "dropped":
            self.connection.close()
            return
        if fault is not None and fault.startswith("status"):
            status = int(fault.removeprefix("status "))
            self._send(json.dumps({"error": {"message": "out of order", "type": "server"}}), status=status)
            return
        asked = script.logprobs and body.get("logprobs")
        tokens = _tokens(text, logprob) if asked else None
        if body.get("stream"):
            self._send("".join(_events(script, text, tokens)), kind="text/event-stream")
            return
        completion = json.dumps(_completion(script, text, tokens, choices=fault != "no choices"))
        if fault == "malformed":
            completion = completion.replace(":", "=")
        cut = len(completion) // 2 if fault == "truncated" else None
        self._send(completion, cut=cut)

    def _send(
        self, text: str, *, status: int = 200, kind: str = "application/json", cut: int | None = None
    ) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])


def _tokens(text: str, logprob: float) -> list[dict[str, Any]]:
    """Two tokens whose log-probabilities add up to that of the text."""
    half = len(text) // 2
    return [
        {"token": part, "bytes": list(part.encode()), "logprob": of, "top_logprobs": []}
        for part, of in ((text[:half], 0.25 * logprob), (text[half:], 0.75 * logprob))
    ]


def _completion(
    script: Script, text: str, tokens: list[dict[str, Any]] | None, *, choices: bool
) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": None if tokens is None else {"content": tokens, "refusal": None},
        "finish_reason": "stop",
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": script.model,
        "choices": [choice] if choices else [],
        "usage": {
            "prompt_tokens": TOKENS_IN,
            "completion_tokens": TOKENS_OUT,
            "total_tokens": TOKENS_IN + TOKENS_OUT,
        },
    }


def _events(script: Script, text: str, tokens: list[dict[str, Any]] | None) -> Iterator[str]:
    """The same as server-sent events, one per token."""
    parts = [token["token"] for token in tokens] if tokens is not None else [text]
    for position, part in enumerate(parts):
        logprobs = {"content": [tokens[position]], "refusal": None} if tokens is not None else None
        choice = {"index": 0, "delta": {"content": part}, "logprobs": logprobs, "finish_reason": None}
        yield _event(script, [choice])
    yield _event(script, [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}])
    yield "data: [DONE]\n\n"


def _event(script: Script, choices: list[dict[str, Any]]) -> str:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": script.model,
        "choices": choices,
    }
    return f"data: {json.dumps(chunk)}\n\n"


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Serve a script on a free port of this machine.

    Yields:
        The base URL for clients.
    """
    server = _Server(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

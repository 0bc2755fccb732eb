"""A server on this machine with the batch and live interfaces of OpenAI and Anthropic.

It is real HTTP on a real socket, spoken to by the official clients. It counts what it charges for: answered
lines of batches, and answered live requests.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKENS_IN, TOKENS_OUT = 12, 3
Json = dict[str, Any]


@dataclass(frozen=True)
class Faults:
    """Faults of the server, as shares of the requests that they may affect.

    Attributes:
        errors: Lines of a batch that end with status 400 or 500.
        missing: Lines that are in no file of results.
        repeated: Lines that are there twice.
        expired: Lines that are not processed when their batch expires; it expires if there are any.
        live: Live requests that end with status 500.
        slow: Live requests that are answered half a second later.
        refused: Control calls that end with status 500 and do nothing.
        dropped: Control calls that are carried out, and whose connection breaks before the answer.
        invalid: Why batches are refused by validation; empty if they are not.
        cancelled: Whether batches are cancelled halfway, by another process.
    """

    errors: float = 0.0
    missing: float = 0.0
    repeated: float = 0.0
    expired: float = 0.0
    live: float = 0.0
    slow: float = 0.0
    refused: float = 0.0
    dropped: float = 0.0
    invalid: str = ""
    cancelled: bool = False


@dataclass
class Log:
    """What the server was asked, and charged for.

    Attributes:
        lines: Charged lines of batches, by prompt.
        live: Charged live requests, by prompt.
        control: Control calls, by what they do.
        struck: How often which fault struck.
        submitted: Number of requests of each batch.
    """

    lines: Counter[str] = field(default_factory=Counter)
    live: Counter[str] = field(default_factory=Counter)
    control: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    submitted: list[int] = field(default_factory=list)


@dataclass
class Batch:
    """A batch; its results are determined when it is created, and served when it has ended."""

    id: str
    created_at: float
    size: int
    ends_at: float
    metadata: Json
    endpoint: str = ""
    file: str = ""
    status: str = "completed"
    output: list[Json] = field(default_factory=list)
    errors: list[Json] = field(default_factory=list)


def write_line(content: Json) -> bytes:
    """One line of a file of results."""
    return json.dumps(content).encode() + b"\n"


@dataclass
class Provider:
    """The state of the server.

    Attributes:
        seconds: How long a batch takes.
        faults: What goes wrong.
        log: What happened.
        write: Writes the answered lines of a batch as a file.
        replies: What is replied in place of the next replies to control calls, by what they do.
    """

    seconds: float = 0.0
    faults: Faults = field(default_factory=Faults)
    log: Log = field(default_factory=Log)
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    drawn: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(3))  # noqa: S311 - as below
    luck: dict[str, random.Random] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    write: Callable[[list[Json]], bytes] = lambda lines: b"".join(map(write_line, lines))
    replies: dict[str, list[Json | bytes]] = field(default_factory=dict)

    def strikes(self, kind: str) -> bool:
        """Draw whether a fault of this kind happens now."""
        # Each kind has its own luck: how often a batch is asked for depends on the machine.
        luck = self.luck.setdefault(kind, random.Random(f"3/{kind}"))  # noqa: S311 - faults, no secrets
        struck: bool = luck.random() < getattr(self.faults, kind)
        self.log.struck[kind] += struck
        return struck

    def answer(self, body: Json) -> tuple[str, str]:
        """The prompt of a request, and the next answer to it."""
        content = body["messages"][-1]["content"]
        prompt = content if isinstance(content, str) else "".join(one["text"] for one in content)
        if "<answer>" in prompt:
            judged = prompt.partition("<answer>\n")[2].partition("\n</answer>")[0]
            return "judge", f"Percent: {90 if judged.endswith(' 0') else 20}"
        number = self.drawn[prompt]
        self.drawn[prompt] += 1
        return prompt, f"{prompt.replace('question', 'answer')} {number}"

    def chat(self, body: Json, text: str) -> Json:
        tokens = [{"token": text, "logprob": -0.1, "bytes": None, "top_logprobs": []}]
        return {
            "id": f"chatcmpl-{self.chance.getrandbits(40)}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": {"content": tokens, "refusal": None} if body.get("logprobs") else None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": TOKENS_IN,
                "completion_tokens": TOKENS_OUT,
                "total_tokens": TOKENS_IN + TOKENS_OUT,
            },
        }

    def message(self, body: Json, text: str) -> Json:
        return {
            "id": f"msg_{self.chance.getrandbits(40)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            # Tokens from a cache are not among the others.
            "usage": {
                "input_tokens": TOKENS_IN - 2,
                "cache_read_input_tokens": 2,
                "cache_creation_input_tokens": 0,
                "output_tokens": TOKENS_OUT,
            },
        }

    def create(self, requests: list[tuple[str, Json]], metadata: Json, *, is_openai: bool) -> Batch:
        """Create a batch and determine its results."""
        now = time.time()
        batch = Batch(f"batch_{len(self.batches)}", now, len(requests), now + self.seconds, metadata)
        self.batches[batch.id] = batch
        self.log.submitted.append(len(requests))
        if self.faults.invalid:
            batch.status = "failed"
            return batch
        if self.faults.cancelled:
            batch.status = "cancelled"
            requests, left = requests[: len(requests) // 2], requests[len(requests) // 2 :]
            if not is_openai:
                batch.output += [{"custom_id": one, "result": {"type": "canceled"}} for one, _ in left]
        for custom_id, body in requests:
            self._process(batch, custom_id, body, is_openai=is_openai)
        self.chance.shuffle(batch.output)
        return batch

    def _process(self, batch: Batch, custom_id: str, body: Json, *, is_openai: bool) -> None:
        if self.strikes("errors"):
            batch.errors.append(_openai_error(custom_id, self.chance.choice([400, 429, 500])))
            batch.output += [] if is_openai else [_anthropic_error(custom_id, "errored")]
        elif self.strikes("expired"):
            batch.status = "expired"
            batch.errors.append(_openai_expired(custom_id))
            batch.output += [] if is_openai else [_anthropic_error(custom_id, "expired")]
        else:
            prompt, text = self.answer(body)
            self.log.lines[prompt] += 1
            made = self.chat(body, text) if is_openai else self.message(body, text)
            line = (
                {"id": "b", "custom_id": custom_id, "error": None}
                | {"response": {"status_code": 200, "request_id": "r", "body": made}}
                if is_openai
                else {"custom_id": custom_id, "result": {"type": "succeeded", "message": made}}
            )
            if not self.strikes("missing"):
                batch.output += [line] * (1 + self.strikes("repeated"))


def _openai_error(custom_id: str, status: int) -> Json:
    body = {"error": {"message": "out of order", "type": "server_error"}}
    return {"custom_id": custom_id, "response": {"status_code": status, "body": body}, "error": None}


def _openai_expired(custom_id: str) -> Json:
    return {"custom_id": custom_id, "response": None, "error": {"code": "batch_expired", "message": "late"}}


def _anthropic_error(custom_id: str, kind: str) -> Json:
    error = {"type": "error", "error": {"type": "api_error", "message": "out of order"}}
    return {
        "custom_id": custom_id,
        "result": {"type": kind, **({"error": error} if kind == "errored" else {})},
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    provider: Provider

    def log_message(self, *details: object) -> None:
        """Log nothing, to keep standard error for the test."""

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, content: bytes) -> None:
        url = urlsplit(self.path)
        parts = url.path.removeprefix("/v1/").split("/")
        with self.provider.lock:
            is_live = parts in (["chat", "completions"], ["messages"])
            if not is_live and self.provider.strikes("refused"):
                return self._reply(500, {"error": {"message": "down"}})
            if is_live:
                reply = self._live(parts, json.loads(content))
            else:
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                reply = self._control(parts, content, query)
                if self.provider.strikes("dropped"):
                    self.close_connection = True
                    return None
            seconds = 0.5 if is_live and self.provider.strikes("slow") else 0.0
        time.sleep(seconds)
        return self._reply(*reply)

    def _reply(self, status: int, content: Json | bytes) -> None:
        written = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def _live(self, parts: list[str], body: Json) -> tuple[int, Json | bytes]:
        provider = self.provider
        if provider.strikes("live"):
            return 500, {"error": {"message": "down", "type": "api_error"}}
        prompt, text = provider.answer(body)
        provider.log.live[prompt] += 1
        return 200, provider.message(body, text) if parts == ["messages"] else provider.chat(body, text)

    def _control(
        self, parts: list[str], content: bytes, query: Mapping[str, str]
    ) -> tuple[int, Json | bytes]:
        provider = self.provider
        provider.log.control[f"{self.command} {'/'.join(parts[:2])}"] += 1
        answer = self._openai_control if parts[0] != "messages" else self._anthropic_control
        found = answer(parts, content, query)
        if replies := provider.replies.get(f"{self.command} {'/'.join(parts)}"):
            found = replies.pop()
        return (404, {"error": {"message": f"nothing is at {self.path}"}}) if found is None else (200, found)

    def _openai_control(
        self, parts: list[str], content: bytes, query: Mapping[str, str]
    ) -> Json | bytes | None:
        provider, is_post = self.provider, self.command == "POST"
        if parts == ["files"]:
            name = f"file-{len(provider.files)}"
            boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
            section = next(one for one in content.split(b"--" + boundary) if b'name="file"' in one)
            provider.files[name] = section.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            file = {"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "f"}
            return {**file, "purpose": "batch", "status": "processed"}
        if parts[0] == "files":
            return provider.files[parts[1]]
        if parts == ["batches"]:
            if is_post:
                return self._create_openai(json.loads(content))
            return self._page([self._openai(one) for one in self._latest()], query.get("after"), query)
        return self._openai(provider.batches[parts[1]]) if parts[0] == "batches" else None

    def _anthropic_control(
        self, parts: list[str], content: bytes, query: Mapping[str, str]
    ) -> Json | bytes | None:
        if parts == ["messages", "batches"]:
            if self.command == "POST":
                requests = [(one["custom_id"], one["params"]) for one in json.loads(content)["requests"]]
                return self._anthropic(self.provider.create(requests, {}, is_openai=False))
            found = [self._anthropic(one) for one in self._latest()]
            return self._page(found, query.get("after_id"), query)
        batch = self.provider.batches[parts[2]]
        if parts[-1] == "results":
            return self.provider.write(batch.output)
        return self._anthropic(batch)

    def _latest(self) -> list[Batch]:
        return [*self.provider.batches.values()][::-1]

    @staticmethod
    def _page(found: list[Json], after: str | None, query: Mapping[str, str]) -> Json:
        ids = [one["id"] for one in found]
        start, limit = (ids.index(after) + 1 if after else 0), int(query.get("limit", 20))
        page = found[start : start + limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        more = len(found) > start + limit
        return {"object": "list", "data": page, "has_more": more, "first_id": first, "last_id": last}

    def _create_openai(self, given: Json) -> Json:
        lines = [json.loads(one) for one in self.provider.files[given["input_file_id"]].splitlines()]
        assert len({one["body"]["model"] for one in lines}) == 1
        assert {one["url"] for one in lines} == {given["endpoint"]}
        requests = [(one["custom_id"], one["body"]) for one in lines]
        batch = self.provider.create(requests, given.get("metadata") or {}, is_openai=True)
        batch.endpoint, batch.file = given["endpoint"], given["input_file_id"]
        for name, content in (("output", batch.output), ("errors", batch.errors)):
            self.provider.files[f"{batch.id}-{name}"] = self.provider.write(content)
        return self._openai(batch)

    def _openai(self, batch: Batch) -> Json:
        ended = time.time() >= batch.ends_at
        failed = ended and batch.status == "failed"
        reasons = [{"code": "invalid", "message": self.provider.faults.invalid, "line": 1, "param": None}]
        done = len(batch.output) if ended else 0
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "input_file_id": batch.file,
            "completion_window": "24h",
            "status": batch.status if ended else "in_progress",
            "created_at": int(batch.created_at),
            "metadata": batch.metadata,
            "output_file_id": f"{batch.id}-output" if ended and batch.output else None,
            "error_file_id": f"{batch.id}-errors" if ended and batch.errors else None,
            "errors": {"object": "list", "data": reasons} if failed else None,
            "request_counts": {"total": batch.size, "completed": done, "failed": 0},
        }

    def _anthropic(self, batch: Batch) -> Json:
        ended = time.time() >= batch.ends_at
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        when = datetime.fromtimestamp(batch.created_at, tz=timezone.utc).isoformat()
        base = f"http://127.0.0.1:{self.headers['Host'].rpartition(':')[2]}"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": {**counts, "succeeded" if ended else "processing": batch.size},
            "created_at": when,
            "expires_at": when,
            "cancel_initiated_at": when if batch.status == "cancelled" else None,
            "results_url": f"{base}/v1/messages/batches/{batch.id}/results" if ended else None,
        }


@contextmanager
def serve(provider: Provider) -> Iterator[str]:
    """Serve in threads of this process, and yield the address."""
    handler = type("Handler", (_Handler,), {"provider": provider})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *details: object) -> None:
            """Ignore errors of clients that disconnect."""

    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _serve_alone(seconds: float, faults: Faults, parent: Connection) -> None:
    provider = Provider(seconds, faults)
    with serve(provider) as url:
        parent.send(url)
        parent.poll(None)
        parent.send(provider.log)


@contextmanager
def serve_in_process(seconds: float, faults: Faults, log: Log) -> Iterator[str]:
    """Serve in another process, which survives killed clients; fill the log at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_alone, args=(seconds, faults, theirs), daemon=True)
    process.start()
    theirs.close()
    with ours:
        url: str = ours.recv()
        try:
            yield url
        finally:
            ours.send("enough")
            vars(log).update(vars(ours.recv()))
            process.join()

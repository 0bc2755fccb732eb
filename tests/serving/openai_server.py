"""A server on this machine that speaks enough of the OpenAI API to replay recorded answers.

It is real HTTP on a real socket: what a client library makes of statuses, broken bodies and closed
connections is what users will see.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from multiprocessing.connection import Connection

from langchain_cfc import PromptRecord

from . import openai_bodies as bodies
from .openai_bodies import Answer, Json, RefusedError

# In place of a completion: a status, a body that is not JSON, half a body, no answer at all, or a completion
# without choices. Any other status from 400 on is as good.
FAULTS = (
    "status 500",
    "status 401",
    "status 429",
    "malformed",
    "truncated",
    "dropped",
    "no choices",
)
# Completions that clients can read, but did not ask for: choices without content, one choice whatever n is,
# one fewer than asked, one more.
ODDITIES = ("no content", "one choice", "fewer choices", "more choices")
OF_COMPLETIONS = {"no choices", *ODDITIES}


@dataclass(frozen=True)
class Fault:
    """A fault, and the requests that it affects.

    Attributes:
        kind: One of `FAULTS`, one of `ODDITIES`, or "slow".
        on: Request numbers, counted from 0 over all endpoints; or the share of requests, drawn at random; or
            all.
        seconds: What a status sends as `Retry-After`, if not 0; how long a slow response takes, which may
            be several times for as many requests, over and over.
    """

    kind: str
    on: AbstractSet[int] | float | None = None
    seconds: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        if self.kind not in (*FAULTS, *ODDITIES, "slow") and not 400 <= self.status < 600:
            text = f"no fault is called {self.kind!r}"
            raise ValueError(text)
        if not (self.on is None or isinstance(self.on, AbstractSet) or 0.0 <= self.on <= 1.0):
            text = f"{self.on} is no share of requests"
            raise ValueError(text)

    @property
    def status(self) -> int:
        """The status sent in place of an answer, 0 if none is."""
        word, _, code = self.kind.partition(" ")
        return int(code) if word == "status" else 0

    def strikes(self, number: int, draw: float) -> bool:
        """Whether it strikes a request.

        Args:
            number: The request's number.
            draw: A number between 0 and 1, which is the request's luck.
        """
        if self.on is None:
            return True
        return number in self.on if isinstance(self.on, AbstractSet) else draw < self.on

    def delay(self, number: int) -> float:
        """The seconds for a request."""
        return self.seconds[number % len(self.seconds)] if isinstance(self.seconds, tuple) else self.seconds


@dataclass
class Reply:
    """A reply as it is sent.

    Attributes:
        status: The HTTP status.
        parts: The body, in one part or in events.
        headers: Headers beyond the usual.
        events: Whether the parts are server-sent events.
        broken: The fault that strikes the body, if any.
        after: Seconds to wait before anything is sent.
    """

    status: int
    parts: list[str]
    headers: dict[str, str] = field(default_factory=dict)
    events: bool = False
    broken: str | None = None
    after: float = 0.0


@dataclass
class Script:
    """What the server answers, and what it was asked.

    Faults strike in company: a request waits for every slow one that strikes it and suffers all oddities, but
    of those that replace the response the first listed alone. An answer counts as given only when it was
    delivered whole, so that retries get the very answers that a faultless server gives.

    Attributes:
        answers: For every prompt, its answers, one after the other and over again.
        model: What the server calls its model; the name that it is asked for if left out.
        logprobs: Whether it returns log-probabilities to those who ask.
        faults: What goes wrong.
        seed: Settles, together with the numbers of requests and nothing else, what strikes at random.
        requests: The bodies of all requests so far, in the order of their numbers.
        struck: How many requests each kind of fault has struck.
        connections: How many connections clients have opened.
    """

    answers: Mapping[str, Sequence[Answer]]
    model: str | None = None
    logprobs: bool = True
    faults: Sequence[Fault] = ()
    seed: int = 0
    requests: list[Json] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    connections: int = 0

    _served: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def of(cls, records: Iterable[PromptRecord]) -> Script:
        """The answers of some records that hold the log-probabilities they were drawn with."""
        answers = {
            str(record.input): [
                Answer(str(one.text), (one.scores or {})["sequence_logprob"]) for one in record.candidates
            ]
            for record in records
        }
        return cls(answers)

    def reply(self, path: str, body: Json) -> Reply:
        """Answer a request, or let faults have it."""
        number = len(self.requests)
        self.requests.append(body)
        faults = self._striking(number, completion=path == "/v1/chat/completions")
        slow = [fault for fault in faults if fault.kind == "slow"]
        broken = next((fault for fault in faults if fault.kind in FAULTS or fault.status), None)
        odd = [fault for fault in faults if fault.kind in ODDITIES and broken is None]
        self.struck.update(fault.kind for fault in (*slow, *odd, *([broken] if broken else [])))
        reply = self._suffered(number, path, body, broken, {fault.kind for fault in odd})
        reply.after = sum(fault.delay(number) for fault in slow)
        return reply

    def _striking(self, number: int, *, completion: bool) -> list[Fault]:
        return [
            fault
            for position, fault in enumerate(self.faults)
            if (completion or fault.kind not in OF_COMPLETIONS)
            and fault.strikes(number, _draw(self.seed, position, number))
        ]

    def _suffered(self, number: int, path: str, body: Json, broken: Fault | None, odd: set[str]) -> Reply:
        if broken is not None and broken.status:
            delay = broken.delay(number)
            headers = {"Retry-After": f"{delay:g}"} if delay else {}
            return _error(broken.status, "out of order", headers)
        try:
            reply = self._whole(number, path, body, odd | ({broken.kind} if broken else set()))
        except RefusedError as refused:
            return _error(refused.status, str(refused))
        reply.broken = broken.kind if broken else None
        if reply.broken == "malformed":
            reply.parts = [part.replace(":", "=") for part in reply.parts]
        return reply

    def _name(self, body: Json) -> str:
        """What the server calls the model that a request asks for."""
        return self.model or str(body.get("model", "recorded"))

    def _whole(self, number: int, path: str, body: Json, odd: set[str]) -> Reply:
        if path == "/v1/chat/completions":
            return self._completion(number, body, odd)
        raise RefusedError(404, f"nothing is served at {path}")

    def _completion(self, number: int, body: Json, odd: set[str]) -> Reply:
        if body.get("top_logprobs") and not body.get("logprobs"):
            raise RefusedError(400, "top_logprobs needs logprobs")
        answers = [] if "no choices" in odd else self._next(body, odd)
        chosen = bodies.choices(body, answers, number, logprobs=self.logprobs)
        if "no content" in odd:
            for choice in chosen:
                # A model that thinks until its tokens run out ends like this.
                choice["message"] = {"role": "assistant", "content": None, "refusal": None}
                choice["logprobs"], choice["finish_reason"] = None, "length"
        used = bodies.usage(answers)
        if not body.get("stream"):
            return Reply(200, [json.dumps(bodies.completion(self._name(body), number, chosen, used))])
        asked = (body.get("stream_options") or {}).get("include_usage")
        chunks = bodies.chunks(self._name(body), number, chosen, used if asked else None)
        return Reply(200, [*map(json.dumps, chunks), "[DONE]"], events=True)

    def _next(self, body: Json, odd: set[str]) -> list[Answer]:
        prompt = bodies.prompt_of(body)
        try:
            answers = self.answers[prompt]
        except KeyError:
            raise RefusedError(404, f"no answer is recorded for {prompt!r}") from None
        count = int(body.get("n") or 1)
        if "one choice" in odd:
            count = 1
        count += ("more choices" in odd) - ("fewer choices" in odd)
        served = self._served[prompt]
        if not odd.intersection(FAULTS):
            self._served[prompt] += count
        return [answers[(served + position) % len(answers)] for position in range(count)]


def _draw(seed: int, position: int, number: int) -> float:
    """The luck of a request with a fault, uniform in [0, 1)."""
    digest = hashlib.blake2b(f"{seed}/{position}/{number}".encode(), digest_size=6).digest()
    return float(int.from_bytes(digest, "big") / 2**48)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, [json.dumps({"error": {"message": message, "type": "server"}})], headers or {})


async def _converse(
    script: Script, keep_alive: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection."""
    script.connections += 1
    try:
        while True:
            reply = script.reply(*await _request(reader))
            if reply.after:
                await asyncio.sleep(reply.after)
            going_on = keep_alive and reply.broken not in {"dropped", "truncated"}
            if reply.broken != "dropped":
                writer.write(_wire(reply, going_on))
                await writer.drain()
            if not going_on:
                break
    except (ConnectionError, asyncio.IncompleteReadError):
        # The client has left.
        pass
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, Json]:
    """The path and the body of the next request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(":") for line in lines)}
    content = await reader.readexactly(int(fields["content-length"]))
    return first.split(" ")[1], json.loads(content)


def _wire(reply: Reply, keep_alive: bool) -> bytes:
    """A response as it goes over the wire."""
    fields = {
        "Content-Type": "text/event-stream" if reply.events else "application/json",
        "Connection": "keep-alive" if keep_alive else "close",
        **reply.headers,
    }
    if reply.events:
        fields["Transfer-Encoding"] = "chunked"
        events = [f"data: {part}\n\n".encode() for part in reply.parts]
        content = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    else:
        content = reply.parts[0].encode()
        fields["Content-Length"] = str(len(content))
    if reply.broken == "truncated":
        content = content[: len(content) // 2]
    first = f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"
    lines = [first, *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + content


async def _serve(
    script: Script, keep_alive: bool, ready: Callable[[int], object], wait: Callable[[], object]
) -> None:
    """Serve until a blocking call returns."""
    conversations: set[asyncio.Task[None]] = set()

    def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_converse(script, keep_alive, reader, writer))
        conversations.add(task)
        task.add_done_callback(conversations.discard)

    # A short queue makes concurrent clients wait a second for their next attempt to connect.
    server = await asyncio.start_server(converse, "127.0.0.1", 0, backlog=1024)
    ready(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(wait)
    server.close()
    for task in conversations:
        task.cancel()
    await asyncio.gather(*conversations, return_exceptions=True)


# What a server in a process of its own sends back.
_LOG = ("requests", "struck", "connections", "_served")


def _serve_alone(script: Script, keep_alive: bool, parent: Connection) -> None:
    def wait() -> None:
        # Whether the parent says something or dies, serving is over.
        parent.poll(None)

    asyncio.run(_serve(script, keep_alive, parent.send, wait))
    with suppress(BrokenPipeError):
        parent.send({name: getattr(script, name) for name in _LOG})


@contextmanager
def _in_process(script: Script, keep_alive: bool) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_alone, args=(script, keep_alive, theirs), daemon=True)
    process.start()
    # So that a child that dies is the end of the pipe.
    theirs.close()
    with ours:
        port = ours.recv()
        try:
            yield port
        finally:
            ours.send("enough")
            vars(script).update(ours.recv())
            process.join()


@contextmanager
def _in_thread(script: Script, keep_alive: bool) -> Iterator[int]:
    port: Future[int] = Future()
    stopped = threading.Event()

    def run() -> None:
        try:
            asyncio.run(_serve(script, keep_alive, port.set_result, stopped.wait))
        except OSError as error:
            port.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield port.result()
    finally:
        stopped.set()
        thread.join()


@contextmanager
def serving(script: Script, *, keep_alive: bool = False, own_process: bool = False) -> Iterator[str]:
    """Serve a script on a free port of this machine.

    Args:
        script: What to answer. Tests may change it while it is served, unless by a process of its own.
        keep_alive: Whether connections stay open for further requests. If not, none outlives a test's event
            loop.
        own_process: Whether the server runs beside this process, so that the two do not wait for each other.
            What it was asked is then in the script when the block ends. A process is spawned: scripts must
            pickle, and programs that serve them guard what they do by `if __name__ == "__main__"`.

    Yields:
        The base URL for clients.
    """
    with (_in_process if own_process else _in_thread)(script, keep_alive) as port:
        yield f"http://127.0.0.1:{port}/v1"

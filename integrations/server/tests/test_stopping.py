"""A server that receives a signal to stop: it answers what it has accepted, also under load, and ends.

A request is *accepted* when all of its bytes were sent, on a connection that was established, a moment before
the server closed the socket that it listens on: clients look whether its process still has it open. Each of
these must get a whole response. In the moment itself the system may still make connections that no process
can know of, and drops them with the socket. What is sent later may be refused, or be closed without a byte of
an answer; no client gets half of one.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from langchain_cfc_server.schema import DecidedResponse, ErrorResponse
from langchain_core.runnables import Runnable, RunnableLambda

from integrations.server.tests import bots
from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.loading import Connection, LostError, Reply, encode_post
from integrations.server.tests.parts import HEADERS, Server, asking, make_request, run_server, wait_for_value

LISTENS = "0A"  # in the system's table
PATIENCE = 30.0
MOMENT = 0.005  # seconds
APART = 0.0007  # seconds between those who ask at the last moment


def models() -> dict[str, Runnable[Any, Any]]:
    """A bot that answers at once and one that takes its time, on models in memory."""
    at_once: dict[str, Any] = {"generator": RunnableLambda(lambda _: bots.GOOD)}
    return {"quick": bots.chain(**at_once), "slow": bots.chain(**at_once, verifier=bots.slow_judge)}


@dataclass(frozen=True)
class Sent:
    """A request.

    Attributes:
        who: What kind of client sent it.
        accepted: Whether the server still listened a moment after all of it was sent.
        late: Whether it was sent after the signal.
        outcome: What became of it: a decision, the code of an error, or how it was lost.
        whole: Whether a whole response came.
    """

    who: str
    accepted: bool
    late: bool
    outcome: str
    whole: bool


@dataclass
class Stop:
    """The outcome of stopping a server.

    Attributes:
        sent: All requests.
        refused: How many connections were refused.
        signalled: Whether and when the server got the signal.
        code: Exit code of its process.
        seconds: From the signal to its end.
    """

    sent: list[Sent] = field(default_factory=list)
    refused: int = 0
    signalled: float = math.inf
    code: int | None = None
    seconds: float = 0.0

    @property
    def accepted(self) -> list[Sent]:
        """Requests that were sent while it listened."""
        return [one for one in self.sent if one.accepted]

    @property
    def lost(self) -> list[Sent]:
        """Accepted requests without a whole decision, and any with half a response."""
        broken = [one for one in self.accepted if one.outcome != "decision"]
        return broken + [
            one for one in self.sent if not (one.accepted or one.whole or one.outcome == "nothing")
        ]


class Listening:
    """Whether a server listens: whether its process still has the socket open that it listened on.

    Args:
        server: The server, while it listens.
    """

    def __init__(self, server: Server) -> None:
        sockets = {f"socket:[{inode}]" for inode in _list_listeners(server.port)}
        found = {path: _read_link(path) for path in Path(f"/proc/{server.process.pid}/fd").iterdir()}
        self._open = {path: target for path, target in found.items() if target in sockets}
        assert self._open

    def __call__(self) -> bool:
        return any(_read_link(path) == target for path, target in self._open.items())


def _read_link(path: Path) -> str | None:
    """Return the target of an open file, or None if it was closed meanwhile."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return None


def _list_listeners(port: int) -> Iterator[str]:
    """The sockets that listen on a port, by the system's table."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


class Clients:
    """Clients of all kinds, who ask on and on until they are refused.

    Args:
        server: The server.
        seed: Settles their pauses.
    """

    def __init__(self, server: Server, seed: int) -> None:
        self.found = Stop()
        self._server = server
        self._listens = Listening(server)
        self._luck = random.Random(seed)  # noqa: S311 - load, not cryptography

    async def run(self, after: float, again: float | None = None) -> Stop:
        """Ask, tell the server to stop after some seconds, perhaps again, and wait for everybody."""
        server = self._server
        kinds = {"kept": 10, "rare": 8, "new": 8, "slow": 4, "stream": 4, "in parts": 4}
        asking_ = [
            asyncio.ensure_future(self._client(who)) for who, count in kinds.items() for _ in range(count)
        ]
        await asyncio.sleep(after)
        self.found.signalled = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        if again is not None:
            await asyncio.sleep(again)
            server.process.send_signal(signal.SIGTERM)
        _, pending = await asyncio.wait(asking_, timeout=PATIENCE)
        for one in asking_:
            one.cancel() if one in pending else one.result()
        self.found.code = await asyncio.to_thread(server.process.wait, PATIENCE)
        self.found.seconds = time.perf_counter() - self.found.signalled
        return self.found

    async def _client(self, who: str) -> None:
        connection = Connection(self._server.port)
        pause = 1.0 if who == "rare" else 0.05
        while True:
            await asyncio.sleep(self._luck.uniform(0, pause))
            if who == "new":
                connection.close()
            request = encode_post(
                make_request(bots.EASY, "slow" if who == "slow" else "quick", stream=who == "stream")
            )
            try:
                writer = await connection.open()
            except OSError:
                self.found.refused += 1
                return
            if who == "in parts":
                writer.write(request[:-30])
                await asyncio.sleep(self._luck.uniform(0, 0.05))
                request = request[-30:]
            writer.write(request)
            late = time.perf_counter() > self.found.signalled
            await asyncio.sleep(MOMENT)
            accepted = self._listens()
            try:
                outcome, whole = read_answer(await connection.reply()), True
            except LostError as error:
                # Of what was lost nothing came, or something.
                outcome, whole = ("nothing" if str(error).endswith("after 0 bytes") else str(error)), False
            self.found.sent.append(Sent(who, accepted, late, outcome, whole))
            if not whole:
                return


def read_answer(reply: Reply) -> str:
    """Return the kind of a response: a decision, an error's code, or something else."""
    try:
        if reply.status != 200:
            return ErrorResponse.model_validate_json(reply.body).error.code
        if b"text/event-stream" in reply.head:
            return "decision" if reply.body.endswith(b"data: [DONE]\n\n") else "half a stream"
        DecidedResponse.model_validate_json(reply.body)
    except ValueError as error:
        return f"neither decision nor error: {error}"
    return "decision"


def send_before_the_stop(server: Server, count: int, *, new: bool) -> Stop:
    """Tell an idle server to stop, and let one client after the other ask while it does.

    Args:
        server: The server.
        count: Number of clients, a millisecond apart or a few.
        new: Whether they connect only then; else each has a connection that was used before.
    """
    request = encode_post(make_request(bots.EASY, "quick"))
    kept = [] if new else [_open_used_connection(server, request) for _ in range(count)]
    # Requests on connections that it has are read at once, and must not come faster than it answers.
    apart = APART if new else 4 * APART
    found, asked, listens = Stop(), [], Listening(server)
    closed = math.inf
    found.signalled = time.perf_counter()
    server.process.send_signal(signal.SIGTERM)
    for number in range(count):
        while time.perf_counter() < found.signalled + number * apart:
            time.sleep(apart / 5)
        try:
            one = socket.create_connection(("127.0.0.1", server.port)) if new else kept[number]
            one.sendall(request)
        except ConnectionRefusedError:
            found.refused += 1
        except OSError:
            found.sent.append(Sent("", accepted=False, late=True, outcome="nothing", whole=False))
        else:
            asked.append((one, time.perf_counter()))
        if closed == math.inf and not listens():
            closed = time.perf_counter()
    found.sent += [_read_outcome(one, sent + MOMENT < closed) for one, sent in asked]
    found.code = server.process.wait(PATIENCE)
    found.seconds = time.perf_counter() - found.signalled
    return found


def _open_used_connection(server: Server, request: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(request)
    assert read_reply(connection).status == 200
    return connection


def read_reply(connection: socket.socket) -> Reply:
    """A whole response.

    Raises:
        EOFError: If it does not come, with as many bytes as came.
    """
    connection.settimeout(PATIENCE)
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        if end and b"content-length: " not in head.lower():
            return Reply(head + end, body)  # none of ours
        if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return Reply(head + end, body)
        part = b""
        with suppress(ConnectionError):
            part = connection.recv(65536)
        if not part:
            raise EOFError(len(received))
        received += part


def _read_outcome(connection: socket.socket, accepted: bool) -> Sent:
    with connection:
        try:
            outcome, whole = read_answer(read_reply(connection)), True
        except EOFError as error:
            (count,) = error.args
            outcome, whole = f"{count} bytes" if count else "nothing", False
    return Sent("", accepted, late=True, outcome=outcome, whole=whole)


def test_stopping_server_answers_requests_in_flight(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with run_server({**bots, "BOTS_GATE": str(gate)}) as server:
        with asking(server, gate, make_request(EASY, "slow")) as asked:
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(lambda: any(line["message"] == "draining" for line in server.log))
        assert server.process.wait(timeout=60) == 0
        assert asked[0].result().json()["choices"][0]["message"]["content"] == GOOD


@pytest.mark.long
def test_draining_server_answers_new_requests(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        run_server({**bots, "BOTS_GATE": str(gate)}, "--drain", "5") as server,
        httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False) as kept,
    ):
        assert "connection" not in kept.post("/v1/chat/completions", json=make_request(EASY)).headers
        with asking(server, gate, make_request(EASY, "slow")) as asked:
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(lambda: server.get("/health/ready", {}).status_code == 503)
            assert server.get("/health/ready", {}).json() == {"status": "draining"}
            assert server.get("/health/live", {}).status_code == 200
            late = kept.post("/v1/chat/completions", json=make_request(EASY))
            assert (late.status_code, late.headers["connection"]) == (200, "close")
        early = asked[0].result()
        assert early.json()["choices"][0]["message"]["content"] == GOOD
        assert early.headers["connection"] == "close"
        assert server.process.wait(timeout=60) == 0
        assert [line["message"] for line in server.log][-1] == "stopped"
        with pytest.raises(httpx.ConnectError):
            server.get("/health/live")


def test_connection_made_before_the_stop_is_answered(bots: dict[str, str]) -> None:
    with run_server(bots, "--drain", "0") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(lambda: any(line["message"] == "draining" for line in server.log))
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
        assert server.process.wait(timeout=60) == 0


def test_work_beyond_the_grace_period_is_refused(bots: dict[str, str]) -> None:
    with (
        run_server({**bots, "BOTS_SECONDS": "300"}, "--finish", "0.5") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(server.ask, make_request(EASY, "slow"))
        wait_for_value(lambda: server.read_metric("working") == 1)
        assert server.stop() == 0
        refused = asked.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


def test_interrupt_skips_the_drain_period(bots: dict[str, str]) -> None:
    with run_server(bots, "--drain", "300") as server:
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 30


# Under load.

MODELS = "integrations.server.tests.test_stopping:models"
MANY = ["--concurrency", "1000", "--queue", "1000"]
# Stops at each drain, and at the last moment; 38 in all if `CFC_LONG` is set.
STOPS, LAST = (6, 5) if os.environ.get("CFC_LONG") else (2, 2)
# Clients who ask one after the other, for longer than it takes the server to stop listening.
CROWD = 500
BROKEN_SERVER = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]


def stop_under_load(bots: dict[str, str], seed: int, *options: str, again: float | None = None) -> Stop:
    """Stop a server under load, at a time that the seed determines, and return the outcome."""
    after = random.Random(seed).uniform(0.3, 1.0)  # noqa: S311 - load, not cryptography
    with run_server({**bots, "BOTS_SECONDS": "0.5"}, *options, models=MODELS) as server:
        return asyncio.run(Clients(server, seed).run(after, again))


@pytest.mark.long
@pytest.mark.parametrize("drain", ["0", "0.05", "0.3", "1"])
def test_stopping_server_loses_no_accepted_request(bots: dict[str, str], drain: str) -> None:
    found = [stop_under_load(bots, seed, "--drain", drain) for seed in range(STOPS)]
    assert [one.code for one in found] == [0] * STOPS
    assert [one.lost for one in found] == [[]] * STOPS
    # There was something to lose.
    assert all(len(one.accepted) > 50 for one in found)


@pytest.mark.long
@pytest.mark.parametrize("new", [True, False], ids=["new connections", "connections used before"])
def test_requests_just_before_the_stop_are_answered(bots: dict[str, str], new: bool) -> None:
    found = []
    for _ in range(LAST):
        with run_server(bots, "--drain", "0", *MANY, models=MODELS) as server:
            found.append(send_before_the_stop(server, CROWD, new=new))
    assert [one.code for one in found] == [0] * LAST
    assert [one.lost for one in found] == [[]] * LAST
    # The moment was among theirs.
    assert all(one.accepted for one in found)
    assert any(len(one.accepted) < CROWD for one in found)


@pytest.mark.long
def test_second_stop_signal_changes_nothing(bots: dict[str, str]) -> None:
    found = [stop_under_load(bots, seed, "--drain", "0.3", again=0.1 * seed) for seed in range(4)]
    assert [one.code for one in found] == [0] * 4
    assert [one.lost for one in found] == [[]] * 4


@pytest.mark.long
def test_killed_server_loses_requests(bots: dict[str, str]) -> None:
    with (
        run_server({**bots, "BOTS_SECONDS": "2"}, models=MODELS) as server,
        mock.patch.object(signal, "SIGTERM", signal.SIGKILL),
    ):
        found = asyncio.run(Clients(server, 1).run(0.5))
    assert found.code == -signal.SIGKILL
    assert {"slow"} <= {one.who for one in found.lost}


@pytest.mark.long
def test_uvicorn_without_graceful_shutdown_loses_requests(bots: dict[str, str]) -> None:
    env = {**bots, "BOTS_SECONDS": "2", "BROKEN": "waits for nothing"}
    with run_server(env, models=MODELS, command=BROKEN_SERVER) as server:
        found = asyncio.run(Clients(server, 1).run(0.5))
    assert {"slow"} <= {one.who for one in found.lost}

"""Admission and health checks do not wait for the chains' CPU time."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from unittest import mock

import pytest
from langchain_cfc_server import Settings, server
from langchain_cfc_server.chain_thread import ChainThread
from langchain_cfc_server.traffic import Traffic

from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.burst_bots import calibrated, script
from integrations.server.tests.bursts import burst
from integrations.server.tests.loading import posted
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, Server, asking, running, until
from langchain_cfc.errors import InputError
from tests.serving.openai_server import serving

MODELS = "integrations.server.tests.burst_bots:models"
ONE_LOOP = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def serving_ten(
    folder: Path, *options: str, own_process: bool = True, command: Sequence[str] = ()
) -> Iterator[Server]:
    """A server of a chain that draws ten candidates by `ChatOpenAI`."""
    calibrated().save(folder / "artifact.json")
    with serving(script(), keep_alive=True, own_process=own_process) as upstream:
        env = {"BOTS_ARTIFACT": str(folder / "artifact.json"), "BOTS_UPSTREAM": upstream}
        with running(env, *options, models=MODELS, command=command) as found:
            assert found.ask(asking(EASY)).status_code == 200
            yield found


def test_a_burst_is_answered_or_refused(tmp_path: Path) -> None:
    with serving_ten(tmp_path, "--concurrency", "8", "--queue", "8", own_process=False) as found:
        # 16 are let in, and perhaps some more once these are answered.
        seen = burst(found.port, 60, EASY, seconds=0.1)
    assert set(seen.counts) == {200, 429}
    assert seen.failed == 0


@pytest.mark.long
def test_a_burst_of_120_is_refused_before_the_rest_is_answered(tmp_path: Path) -> None:
    with serving_ten(tmp_path, "--concurrency", "8", "--queue", "8", own_process=False) as found:
        seen = burst(found.port, 120, EASY, seconds=0.1)
    print(seen.row())  # noqa: T201 - figures to report
    assert set(seen.counts) == {200, 429}
    assert seen.counts[429] >= 60
    # Chains spend their CPU time after that, not before. Measured without a thread of their own and with one:
    # .65 and .19 of the slowest answer's time for a refusal, .60 and .12 for a health check.
    assert seen.slowest(429) < seen.slowest(200) / 2
    assert max(seen.live) < seen.slowest(200) / 2
    assert seen.failed == 0


@pytest.mark.long
def test_a_burst_of_600_connections(tmp_path: Path) -> None:
    with serving_ten(tmp_path) as found:
        few = burst(found.port, 20, EASY, seconds=0.0)
        many = burst(found.port, 600, EASY)
    with (
        mock.patch.dict(os.environ, BROKEN="has one loop"),
        serving_ten(tmp_path, command=ONE_LOOP) as found,
    ):
        one_loop = burst(found.port, 600, EASY)
    for name, seen in (("20", few), ("600", many), ("600, chains on the server's loop", one_loop)):
        print(name, seen.row())  # noqa: T201 - figures to report
    assert set(few.counts) == {200}
    assert set(many.counts) <= {200, 429, 504}
    # 64 worked on and 128 waiting; a few more are let in as those are answered.
    assert many.counts[429] >= 350
    assert many.slowest(429) <= 3 * few.slowest(200)
    assert many.failed == 0
    assert max(many.live) <= 1.0
    assert max(many.live) <= 2 * max(one_loop.live)


def test_others_are_refused_while_a_chain_blocks_its_loop(bots: dict[str, str]) -> None:
    options = ["--concurrency", "1", "--queue", "0"]
    with running({**bots, "BOTS_SECONDS": "2"}, *options) as found, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(found.ask, asking(EASY, "blocking"))
        until(lambda: "cfc_server_working 1.0" in found.get("/metrics").text)
        assert found.ask(asking(EASY)).status_code == 429
        assert not asked.done()
        assert asked.result().status_code == 200


@pytest.mark.long
def test_a_chain_that_blocks_its_loop_delays_no_refusal(bots: dict[str, str]) -> None:
    options = ["--concurrency", "1", "--queue", "0", "--time-limit", "1"]
    with running({**bots, "BOTS_SECONDS": "4"}, *options) as found, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        asked = pool.submit(found.ask, asking(EASY, "blocking"))
        until(lambda: "cfc_server_working 1.0" in found.get("/metrics").text)
        assert found.get("/health/live", {}).json() == {"status": "live"}
        assert found.ask(asking(EASY)).status_code == 429
        assert asked.result().status_code == 504
        # All of that while the chain slept. It has blocked the others for longer than a request may take.
        stalled = until(lambda: (one := found.get("/health/live", {})).status_code == 503 and one)
        assert stalled.json() == {"status": "stalled"}
        assert time.monotonic() - began < 4
        until(lambda: found.get("/health/live", {}).status_code == 200)
        assert found.ask(asking(EASY)).json()["choices"][0]["message"]["content"] == GOOD


def test_one_token_leaves_some_to_the_others(bots: dict[str, str]) -> None:
    other = {"Authorization": f"Bearer {OTHER_TOKEN}"}
    options = ["--concurrency", "2", "--queue", "0", "--per-token", "1"]
    with running({**bots, "BOTS_SECONDS": "2"}, *options) as found, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(found.ask, asking(EASY, "slow"))
        until(lambda: "cfc_server_working 1.0" in found.get("/metrics").text)
        refused = found.ask(asking(EASY))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests_of_token")
        assert refused.headers["retry-after"] == "1"
        assert found.ask(asking(EASY), other).status_code == 200
        assert asked.result().status_code == 200
        assert found.ask(asking(EASY), HEADERS).status_code == 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"authentication": False, "per_token": 1}, "authentication is off"),
        ({"tokens": ("t" * 16,), "per_token": 0}, "per_token is 0"),
        ({"authentication": False, "connections": 0}, "connections is 0"),
    ],
)
def test_limits_that_cannot_be_used_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Settings(**settings)  # type: ignore[arg-type]


@pytest.fixture
def connect() -> Iterator[Callable[[Server], socket.socket]]:
    """Opens connections, which are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda found: stack.enter_context(
            socket.create_connection(("127.0.0.1", found.port), timeout=5)
        )


def said(connection: socket.socket, content: bytes = b"") -> bytes:
    """Send something, and return the response, which is JSON; nothing if the connection is closed."""
    received = b""
    with suppress(ConnectionError):
        connection.sendall(content)
        while not received.endswith(b"}") and (more := connection.recv(65536)):
            received += more
    return received


def test_connections_beyond_the_limit_are_refused(
    bots: dict[str, str], connect: Callable[[Server], socket.socket]
) -> None:
    with running(bots, "--connections", "2") as found:
        silent = [connect(found) for _ in range(2)]
        extra = said(connect(found), posted(asking(EASY)))
        assert extra.startswith(b"HTTP/1.1 429 ")
        assert b"too_many_connections" in extra
        # Orchestrators learn that the server is up all the same, on a connection that ends with it.
        checking = connect(found)
        assert said(checking, LIVE).startswith(b"HTTP/1.1 200 ")
        assert said(checking) == b""
        # Beyond the limit, a head has a second to come.
        assert said(connect(found), LIVE[:30]) == b""
        # One that is idle makes way for a new one; one that is silent or at work does not.
        assert said(silent[0], LIVE).startswith(b"HTTP/1.1 200 ")
        newest = connect(found)
        assert said(newest, posted(asking(EASY))).startswith(b"HTTP/1.1 200 ")
        assert said(silent[0]) == b""
        assert said(silent[1], LIVE).startswith(b"HTTP/1.1 200 ")
        figures = found.get("/metrics").text
        assert "cfc_server_connections_refused 1.0" in figures
        # Those that come when many are about to be refused are closed at once.
        held = [connect(found) for _ in range(2 + 64)]
        assert said(held[-1]) == b""
        assert said(held[0], LIVE).startswith(b"HTTP/1.1 200 ")


def test_connections_are_as_many_as_the_process_may_open_files() -> None:
    traffic = Traffic(1, 1024)
    limits = {"getrlimit": (256, 512), "setrlimit": None}
    with (
        mock.patch.object(resource, "getrlimit", return_value=limits["getrlimit"]),
        mock.patch.object(resource, "setrlimit") as raised,
    ):
        server._raise_file_limit(traffic)
    raised.assert_called_once_with(resource.RLIMIT_NOFILE, (512, 512))
    assert traffic.connections.most == 256


VALUE: ContextVar[str] = ContextVar("VALUE")


def test_a_chain_thread_returns_raises_and_keeps_context() -> None:
    thread = ChainThread()

    async def name() -> tuple[str, str]:
        return threading.current_thread().name, VALUE.get()

    async def fail() -> None:
        raise KeyError(1)

    async def ask() -> None:
        VALUE.set("mine")
        assert await thread.run(name) == ("chains", "mine")
        with pytest.raises(KeyError):
            await thread.run(fail)

    asyncio.run(ask())
    # It serves several loops, one after the other.
    asyncio.run(ask())
    thread.stop()
    assert "chains" not in {one.name for one in threading.enumerate()}


def test_a_caller_that_is_cancelled_waits_for_the_end() -> None:
    thread = ChainThread()
    seen: list[str] = []
    begun = threading.Event()

    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.1)
            seen.append("ended")

    async def ask() -> None:
        task = asyncio.ensure_future(thread.run(slow))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["ended"]

    asyncio.run(ask())
    thread.stop()


def test_stopping_ends_what_still_runs() -> None:
    thread = ChainThread()

    async def ask() -> None:
        task = asyncio.ensure_future(thread.run(lambda: asyncio.sleep(30)))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(thread.stop)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())

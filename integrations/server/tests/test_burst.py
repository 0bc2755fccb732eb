"""Load: admission and health checks do not wait for the chains' CPU time, and clients that measure it."""

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
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import pytest
from langchain_cfc_server import server
from langchain_cfc_server.chain_thread import ChainThread
from langchain_cfc_server.traffic import Traffic
from langchain_core.runnables import Runnable

from integrations.server.benchmarks.load import DELAY, draw_arrivals, measure, run_open_loop
from integrations.server.tests.bots import EASY, GOOD, chain
from integrations.server.tests.loading import encode_post, send_burst
from integrations.server.tests.parts import (
    OTHER_HEADERS,
    Server,
    asking,
    make_request,
    run_server,
    wait_for_value,
)
from integrations.tests.planted import make_planted_artifact
from langchain_cfc import CalibrationArtifact
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving

N = 10


def make_script() -> Script:
    """Ten different candidates, which the model takes 50 ms to draw."""
    answers = [Answer(f"answer {number}", -float(number + 1)) for number in range(N)]
    return Script({EASY: answers}, faults=(Fault("slow", seconds=0.05),))


def make_artifact() -> CalibrationArtifact:
    return make_planted_artifact({"id": "planted"}, "judge", kinds=["easy"], n=N, alpha=0.2, features="1")


def burst_models() -> dict[str, Runnable[Any, Any]]:
    """A chain around a real client, which spends CPU time on every candidate."""
    return {"bot": chain(metadata=None)}


MODELS = "integrations.server.tests.test_burst:burst_models"
ONE_LOOP = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def run_server_with_ten_tokens(
    folder: Path, *options: str, own_process: bool = True, command: Sequence[str] = ()
) -> Iterator[Server]:
    """A server of a chain that draws ten candidates by `ChatOpenAI`."""
    make_artifact().save(folder / "artifact.json")
    with serving(make_script(), keep_alive=True, own_process=own_process) as upstream:
        env = {"BOTS_ARTIFACT": str(folder / "artifact.json"), "BOTS_UPSTREAM": upstream}
        with run_server(env, *options, models=MODELS, command=command) as found:
            assert found.ask(make_request(EASY)).status_code == 200
            yield found


def test_burst_is_answered_or_refused_in_time(tmp_path: Path) -> None:
    with run_server_with_ten_tokens(
        tmp_path, "--concurrency", "8", "--queue", "8", own_process=False
    ) as found:
        # 16 are let in, and perhaps some more once these are answered.
        seen = send_burst(found.port, 60, EASY, seconds=0.1)
    assert set(seen.counts) == {200, 429}
    assert seen.failed == 0


@pytest.mark.long
def test_burst_of_600_connections_is_answered_or_refused(tmp_path: Path) -> None:
    with run_server_with_ten_tokens(tmp_path) as found:
        few = send_burst(found.port, 20, EASY, seconds=0.0)
        many = send_burst(found.port, 600, EASY)
    with (
        mock.patch.dict(os.environ, BROKEN="has one loop"),
        run_server_with_ten_tokens(tmp_path, command=ONE_LOOP) as found,
    ):
        one_loop = send_burst(found.port, 600, EASY)
    assert set(few.counts) == {200}
    assert set(many.counts) <= {200, 429, 504}
    # One of two tokens gets half of the 64 + 128 places; a few more are let in as requests are answered.
    assert many.counts[429] >= 350
    assert many.slowest(429) <= 3 * few.slowest(200)
    assert many.failed == 0
    assert 5 * median(many.live) <= median(one_loop.live)
    assert max(many.live) <= 2 * max(one_loop.live)


def test_blocking_chain_delays_no_refusal(bots: dict[str, str]) -> None:
    options = ["--concurrency", "1", "--queue", "0", "--time-limit", "1"]
    with run_server({**bots, "BOTS_SECONDS": "4"}, *options) as found, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        asked = pool.submit(found.ask, make_request(EASY, "blocking"))
        wait_for_value(lambda: found.read_metric("working") == 1)
        assert found.get("/health/live", {}).json() == {"status": "live"}
        assert found.ask(make_request(EASY)).status_code == 429
        assert asked.result().status_code == 504
        # All of that while the chain slept. It has blocked the others for longer than a request may take.
        stalled = wait_for_value(lambda: (one := found.get("/health/live", {})).status_code == 503 and one)
        assert stalled.json() == {"status": "stalled"}
        assert time.monotonic() - began < 4
        wait_for_value(lambda: found.get("/health/live", {}).status_code == 200)
        assert found.ask(make_request(EASY)).json()["choices"][0]["message"]["content"] == GOOD


def test_one_client_cannot_take_all_places(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    options = ["--concurrency", "2", "--queue", "0", "--per-token", "1"]
    with run_server({**bots, "BOTS_GATE": str(gate)}, *options) as found:
        with asking(found, gate, make_request(EASY, "slow")):
            refused = found.ask(make_request(EASY))
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (429, "too_many_requests_of_token")
            assert refused.headers["retry-after"] == "1"
            assert found.ask(make_request(EASY), OTHER_HEADERS).status_code == 200
        assert found.ask(make_request(EASY)).status_code == 200


@pytest.fixture
def connect() -> Iterator[Callable[[Server], socket.socket]]:
    """Opens connections, which are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda found: stack.enter_context(
            socket.create_connection(("127.0.0.1", found.port), timeout=5)
        )


def exchange(connection: socket.socket, content: bytes = b"") -> bytes:
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
    with run_server(bots, "--connections", "2") as found:
        silent = [connect(found) for _ in range(2)]
        extra = exchange(connect(found), encode_post(make_request(EASY)))
        assert extra.startswith(b"HTTP/1.1 429 ")
        assert b"too_many_connections" in extra
        # Orchestrators learn that the server is up all the same, on a connection that ends with it.
        checking = connect(found)
        assert exchange(checking, LIVE).startswith(b"HTTP/1.1 200 ")
        assert exchange(checking) == b""
        assert exchange(connect(found), LIVE.replace(b"GET", b"HEAD")).startswith(b"HTTP/1.1 200 ")
        # Beyond the limit, a head has a second to come.
        assert exchange(connect(found), LIVE[:30]) == b""
        # One that is idle makes way for a new one; one that is silent or at work does not.
        assert exchange(silent[0], LIVE).startswith(b"HTTP/1.1 200 ")
        newest = connect(found)
        assert exchange(newest, encode_post(make_request(EASY))).startswith(b"HTTP/1.1 200 ")
        assert exchange(silent[0]) == b""
        assert exchange(silent[1], LIVE).startswith(b"HTTP/1.1 200 ")
        figures = found.get("/metrics").text
        assert "cfc_server_connections_refused 1.0" in figures
        # Those that come when many are about to be refused are closed at once.
        held = [connect(found) for _ in range(2 + 64)]
        assert exchange(held[-1]) == b""
        assert exchange(held[0], LIVE).startswith(b"HTTP/1.1 200 ")


def test_connection_limit_is_the_open_file_limit() -> None:
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


def test_chain_thread_returns_raises_and_keeps_context() -> None:
    others, thread = set(threading.enumerate()), ChainThread()

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
    assert "chains" not in {one.name for one in set(threading.enumerate()) - others}


def test_cancelled_caller_of_chain_thread_waits_for_its_end() -> None:
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


STALL = 0.3
SECONDS = 0.8


def test_draw_arrivals_follows_a_poisson_process() -> None:
    due = draw_arrivals(100.0, 100.0, 50, seed=1)
    assert due == draw_arrivals(100.0, 100.0, 50, seed=1) != draw_arrivals(100.0, 100.0, 50, seed=2)
    count = sum(map(len, due))
    # Poisson with mean 10,000: five standard deviations, which one in a million exceeds.
    assert abs(count - 10_000) < 500
    merged = sorted(time for times in due for time in times)
    gaps = [after - before for before, after in pairwise(merged)]
    # Exponential: the median gap is log 2 of the mean, 6.93 ms, within five of its standard errors of 0.1 ms.
    assert abs(median(gaps) - 0.00693) < 0.0005
    # Anybody's: 200 each, within five standard deviations.
    assert all(130 < len(times) < 270 for times in due)


def test_open_loop_counts_waiting_behind_a_stall() -> None:
    from_sent: list[float] = []

    async def ask(_: int, which: int) -> None:
        began = time.perf_counter()
        await asyncio.sleep(STALL if which == 0 else 0.0)
        from_sent.append(time.perf_counter() - began)

    from_due = asyncio.run(run_open_loop([[0.01 * number for number in range(40)]], ask))
    # Some thirty were due while the first stalled: half of them waited for more than half of it.
    assert sum(taken > STALL / 2 for taken in from_due) >= 12
    # Who counts from when they were sent sees one slow request.
    assert sum(taken > STALL / 2 for taken in from_sent) == 1


@pytest.mark.long
def test_load_report_names_a_slower_server() -> None:
    load = measure(rounds=6, seconds=SECONDS, saturated=1.0)
    # All were asked at the same times, half as often as the server could answer.
    asked = [[len(one) for one in rounds] for rounds in load.rounds.values()]
    assert asked == [asked[0]] * 4
    for count, most in zip(asked[0], load.saturation["server"], strict=True):
        # Poisson, within five standard deviations.
        assert abs(count - SECONDS * most / 2) < 5 * (SECONDS * most / 2) ** 0.5
    # Whatever else runs here makes requests slower and none faster, so the fastest is what it costs: twenty
    # milliseconds in the one; HTTP, checks and JSON in the other; and nothing costs next to nothing.
    fastest = {side: min(map(min, rounds)) for side, rounds in load.rounds.items()}
    assert fastest["nothing"] < fastest["chain"] < fastest["server"] < fastest["delayed"]
    assert fastest["delayed"] > DELAY
    assert min(load.saturation["chain"]) > 0.0

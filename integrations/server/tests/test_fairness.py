"""One client's slow requests do not keep another client, or another model, from being served."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from langchain_cfc_server.call_threads import OWNER, CallThreads

from integrations.server.tests.bots import EASY, HARD
from integrations.server.tests.parts import OTHER_HEADERS, Server, make_request, run_server, wait_for_value

# Half of the places for one client of two: to be worked on, and to wait.
WORKING, PLACES = 32, 96


@contextmanager
def occupy(server: Server, model: str, requests: int) -> Iterator[Counter[int]]:
    """Keep requests of one client in progress, whose calls block their threads; count those refused."""
    statuses: Counter[int] = Counter()

    def ask() -> None:
        with suppress(httpx.TransportError):  # in the end, the server is killed
            statuses[server.ask(make_request(HARD, model), OTHER_HEADERS, 300).status_code] += 1

    with ThreadPoolExecutor(requests) as pool:
        for _ in range(requests):
            pool.submit(ask)
        wait_for_value(lambda: f"cfc_server_working {WORKING}.0" in server.get("/metrics").text, 60)
        wait_for_value(lambda: statuses[429] == requests - PLACES, 60)
        try:
            yield statuses
        finally:
            server.process.kill()


@pytest.mark.parametrize("model", ["sync/generator", "sync/verifier"])
def test_slow_client_leaves_places_and_threads_to_others(bots: dict[str, str], model: str) -> None:
    with (
        run_server({**bots, "BOTS_SECONDS": "300"}, "--time-limit", "300", "--finish", "0.1") as server,
        occupy(server, model, PLACES + 4) as statuses,
    ):
        for other in ("bot", model):
            asked = [server.ask(make_request(EASY, other)).status_code for _ in range(20)]
            assert asked == [200] * 20
        # Its own requests wait for its own, also those to another model.
        assert server.ask(make_request(EASY), OTHER_HEADERS).status_code == 429
        assert statuses == {429: 4}
        # Calls that block do not keep the server from ending.
        assert server.stop() == 0


def test_calls_of_one_owner_wait_for_its_own_threads_only() -> None:
    threads, may_end = CallThreads(), threading.Event()

    def submit(owner: str, call: Callable[[], Any]) -> Future[Any]:
        context = copy_context()
        context.run(OWNER.set, owner)
        return context.run(threads.submit, call)

    blocked = [submit("one", may_end.wait) for _ in range(100)]
    waiting, given_up = submit("one", lambda: "late"), submit("one", lambda: "never")
    assert given_up.cancel()
    assert submit("other", lambda: "at once").result(20) == "at once"
    assert isinstance(submit("other", lambda: 1 / 0).exception(20), ZeroDivisionError)
    assert sum(one.running() for one in blocked) < len(blocked)
    assert not waiting.done()
    may_end.set()
    assert waiting.result(20) == "late"
    assert all(one.result(20) for one in blocked)

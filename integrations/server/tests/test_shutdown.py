"""A server that is told to stop under load loses no request."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from unittest import mock

import pytest

from integrations.server.tests.parts import run_server
from integrations.server.tests.stopping import Clients, Stop, send_before_the_stop

MODELS = "integrations.server.tests.stopping:models"
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
        found = asyncio.run(Clients(server, seed).run(after, again))
    print(seed, *options, *found.rows())  # noqa: T201 - figures to report
    return found


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
        print(*found[-1].rows())  # noqa: T201 - figures to report
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
    print(*found.rows())  # noqa: T201 - figures to report
    assert found.code == -signal.SIGKILL
    assert {"slow"} <= {one.who for one in found.lost}


@pytest.mark.long
def test_uvicorn_without_graceful_shutdown_loses_requests(bots: dict[str, str]) -> None:
    env = {**bots, "BOTS_SECONDS": "2", "BROKEN": "waits for nothing"}
    with run_server(env, models=MODELS, command=BROKEN_SERVER) as server:
        found = asyncio.run(Clients(server, 1).run(0.5))
    print(*found.rows())  # noqa: T201 - figures to report
    assert {"slow"} <= {one.who for one in found.lost}

"""Tokens replaced under load: no request is lost, no revoked token let in, no valid one refused.

Requests come at Poisson times, each on a new connection, one in four with a token that is unknown, replaced,
or valid later. A request is lost if it gets no whole response; wrongly let in if it gets anything but a 401
although its token was replaced before it was sent, or valid only after its answer; and wrongly refused if it
gets a 401 although its token was valid all the time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest

from integrations.server.tests.bots import EASY
from integrations.server.tests.loading import Connection, LostError, draw_arrivals, encode_post
from integrations.server.tests.parts import COMMAND, Server, make_request, run_server, wait_for_value

BROKEN_SERVER = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]


@dataclass
class Validity:
    """When a token is valid; each change takes from just before to just after the file is replaced."""

    begins: tuple[float, float] = (inf, inf)
    ends: tuple[float, float] = (inf, inf)


@dataclass
class Tally:
    """What became of the requests."""

    counts: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    let_in: int = 0
    kept_out: int = 0

    def add(self, status: int, validity: Validity, began: float, ended: float) -> None:
        self.counts[status] += 1
        is_invalid = ended < validity.begins[0] or began > validity.ends[1]
        is_valid = validity.begins[1] < began and ended < validity.ends[0]
        self.let_in += is_invalid and status != 401
        self.kept_out += is_valid and status == 401


class Tokens:
    """A file of tokens that is replaced over and over, and when each token is valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: dict[str, Validity] = {}
        self._now, self._later = self._make(), self._make()
        self._all[self._now].begins = (-inf, -inf)
        self._replace(f"{self._now} name=app\n")

    def choose(self, number: int) -> tuple[str, Validity]:
        """Choose the token of a request: the valid one, and one time in four another."""
        if number % 4:
            return self._now, self._all[self._now]
        known = list(self._all)
        token = (secrets.token_hex(16), self._later, known[number % len(known)])[number // 4 % 3]
        return token, self._all.get(token, Validity())

    def rotate(self) -> None:
        """Replace the valid token by the next one."""
        before = time.perf_counter()
        self._replace(f"{self._later} name=app\n")
        change = before, time.perf_counter()
        self._all[self._now].ends = self._all[self._later].begins = change
        self._now, self._later = self._later, self._make()

    def spoil(self) -> None:
        """Put a file in place that cannot be used, though it names tokens; those before stay valid."""
        self._replace(f"{self._later} only=everything\n{self._now[:5]}\n")

    def _make(self) -> str:
        token = secrets.token_hex(16)
        self._all[token] = Validity()
        return token

    def _replace(self, text: str) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self._path)


async def rotate(server: Server, tokens: Tokens, seconds: float) -> None:
    """Replace tokens five times a second, one file in four malformed, with signals that ask to read them."""
    end = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < end:
        is_spoilt = number % 4 == 3
        # The file before one that cannot be used stays valid, so all workers should have read it.
        await asyncio.sleep(0.5 if is_spoilt else 0.1)
        (tokens.spoil if is_spoilt else tokens.rotate)()
        if number % 2:
            server.process.send_signal(signal.SIGHUP)
        number += 1
    # Workers that are replaced need a file that can be used.
    tokens.rotate()


async def replace_workers(server: Server, seconds: float) -> None:
    """Stop two workers in turn; their supervisor replaces them."""
    for number in range(2):
        await asyncio.sleep(seconds / 3)
        os.kill(await asyncio.to_thread(wait_for_worker, server, number), signal.SIGTERM)


def wait_for_worker(server: Server, number: int) -> int:
    """Wait until both workers serve, those in place of stopped ones included; return one by its order."""

    def find() -> int | None:
        started = [line["pid"] for line in server.log if line["message"] == "serving"]
        return started[number] if len(started) >= 2 + number else None

    found: int = wait_for_value(find, 120)
    return found


async def send_requests(port: int, tokens: Tokens, seconds: float) -> Tally:
    tally, start = Tally(), time.perf_counter()

    async def ask(number: int, due: float) -> None:
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        token, validity = tokens.choose(number)
        connection = Connection(port)
        began = time.perf_counter()
        try:
            reply = await asyncio.wait_for(
                connection.ask(encode_post(make_request(EASY), token=token)), timeout=60
            )
        except (LostError, OSError, asyncio.TimeoutError) as error:
            tally.lost.append(f"{type(error).__name__}: {error}")
        else:
            tally.add(reply.status, validity, began, time.perf_counter())
        finally:
            connection.close()

    [due] = draw_arrivals(40.0, seconds, 1, seed=29)
    await asyncio.gather(*(ask(number, at) for number, at in enumerate(due)))
    return tally


def measure(
    bots: dict[str, str], path: Path, seconds: float, workers: int = 1, command: Sequence[str] = COMMAND
) -> Tally:
    tokens = Tokens(path)
    options = ("--token-file", str(path), "--workers", str(workers))

    async def send(server: Server) -> Tally:
        others: list[Awaitable[None]] = [rotate(server, tokens, seconds)]
        if workers > 1:
            others.append(replace_workers(server, seconds))
        sending = asyncio.ensure_future(send_requests(server.port, tokens, seconds))
        await asyncio.gather(sending, *others)
        return sending.result()

    with run_server(bots, *options, tokens=None, command=command) as server:
        return asyncio.run(send(server))


@pytest.mark.long
@pytest.mark.parametrize(("workers", "seconds"), [(1, 8.0), (2, 16.0)])
def test_token_rotation_loses_no_request_and_admits_no_revoked_token(
    bots: dict[str, str], tmp_path: Path, workers: int, seconds: float
) -> None:
    tally = measure(bots, tmp_path / "tokens", seconds, workers)
    assert (tally.lost, tally.let_in, tally.kept_out) == ([], 0, 0)
    assert min(tally.counts[200], tally.counts[401]) > 0


@pytest.mark.long
def test_server_that_keeps_revoked_tokens_is_found(bots: dict[str, str], tmp_path: Path) -> None:
    tally = measure({**bots, "BROKEN": "keeps tokens"}, tmp_path / "tokens", 3.0, command=BROKEN_SERVER)
    assert min(tally.let_in, tally.kept_out) > 0

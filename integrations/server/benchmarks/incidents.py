"""What becomes of requests in a burst, among slow clients, without upstream, and while tokens change.

    python integrations/server/benchmarks/incidents.py

The server runs as users start it, in front of a model behind a real client. Requests come at Poisson times,
each on a new connection, some with tokens that are not valid: unknown, no longer or not yet. A request is
lost if it gets no whole response. It is wrongly let in if it got anything but a 401 and its token had been
replaced before it was sent, or was not valid until it was answered; and wrongly refused if it got a 401 and
its token was valid all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # a script finds only modules of its own folder
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from integrations.server.tests.parts import Server

# Every request comes on a new connection; one in four with a token that is unknown, replaced, or valid later.
NOTE = (
    "Lost: no whole response. Let in: anything but a 401, although the token was replaced before the request "
    "was sent, or valid only after its answer. Kept out: a 401, although the token was valid all the time. "
    "Seconds: of answers with status 200."
)
SEED = 29
_PATIENCE = 120.0
_UNAUTHORIZED = 401
_OK = 200


@dataclass
class Validity:
    """When a token is valid; each change takes from just before to just after the file is replaced."""

    begins: tuple[float, float] = (inf, inf)
    ends: tuple[float, float] = (inf, inf)


@dataclass
class Tally:
    """Counts what became of the requests sent.

    Attributes:
        seconds: For every status, how long each response took.
        lost: Why each lost request was lost.
        let_in: How many were wrongly let in.
        kept_out: How many were wrongly refused.
        answered_at: When each answer with status 200 came.
    """

    seconds: dict[int, list[float]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    let_in: int = 0
    kept_out: int = 0
    answered_at: list[float] = field(default_factory=list)

    def add(self, status: int, validity: Validity, began: float, ended: float) -> None:
        """Count a response to a request that was sent and answered at these times."""
        self.seconds.setdefault(status, []).append(ended - began)
        if status == _OK:
            self.answered_at.append(ended)
        is_invalid = ended < validity.begins[0] or began > validity.ends[1]
        is_valid = validity.begins[1] < began and ended < validity.ends[0]
        self.let_in += is_invalid and status != _UNAUTHORIZED
        self.kept_out += is_valid and status == _UNAUTHORIZED

    @property
    def counts(self) -> Counter[int]:
        """How many requests got each status."""
        return Counter({status: len(seconds) for status, seconds in self.seconds.items()})

    def make_row(self, name: str) -> tuple[str, ...]:
        """Make the row of a table."""
        statuses = ", ".join(f"{count} × {status}" for status, count in sorted(self.counts.items()))
        answered = self.seconds.get(_OK, [inf])
        return (
            name,
            str(sum(self.counts.values()) + len(self.lost)),
            statuses,
            f"{median(answered):.2f} and {max(answered):.2f}",
            str(len(self.lost)),
            str(self.let_in),
            str(self.kept_out),
        )


class Tokens:
    """A file of tokens that is replaced over and over, and when each token is valid.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: dict[str, Validity] = {}
        self.slow = secrets.token_hex(16)
        self._now = self._make()
        self._later = self._make()
        self._replace(self._text(self._now))
        self._all[self._now].begins = (-inf, -inf)

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
        self._replace(self._text(self._later))
        change = before, time.perf_counter()
        self._all[self._now].ends = change
        self._all[self._later].begins = change
        self._now, self._later = self._later, self._make()

    def spoil(self) -> None:
        """Put a file in place that cannot be used, though it names tokens; those before stay valid."""
        self._replace(f"{self._later} only=everything\n{self._now[:5]}\n")

    def _make(self) -> str:
        token = secrets.token_hex(16)
        self._all[token] = Validity()
        return token

    def _text(self, token: str) -> str:
        return f"{token} name=app\n{self.slow} name=slow concurrent=8\n"

    def _replace(self, text: str) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self._path)


class Relay:
    """A way to the upstream that can be closed, as when the upstream is dead, and opened again.

    Args:
        port: Of the upstream.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Listen, on the same port every time."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Listen no longer, and drop what is open."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._open |= {writer, upstream}
        try:
            with suppress(OSError):
                await asyncio.gather(_copy(reader, upstream), _copy(there, writer))
        finally:
            self._open -= {writer, upstream}
            writer.close()
            upstream.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()


async def send_requests(
    port: int, rate: float, seconds: float, choose: Callable[[int], tuple[str, Validity]]
) -> Tally:
    """Send requests at Poisson times, each on a new connection.

    Args:
        port: Of the server.
        rate: Requests a second.
        seconds: How long.
        choose: Chooses the token of a request by its number, when it is sent.

    Returns:
        What became of them.
    """
    from integrations.server.tests.bots import EASY
    from integrations.server.tests.loading import Connection, LostError, draw_arrivals, encode_post
    from integrations.server.tests.parts import make_request

    tally = Tally()
    start = time.perf_counter()

    async def ask(number: int, due: float) -> None:
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        token, validity = choose(number)
        connection = Connection(port)
        began = time.perf_counter()
        try:
            reply = await asyncio.wait_for(
                connection.ask(encode_post(make_request(EASY), token=token)), _PATIENCE
            )
        except (LostError, OSError, asyncio.TimeoutError) as error:
            tally.lost.append(f"{type(error).__name__}: {error}")
        else:
            tally.add(reply.status, validity, began, time.perf_counter())
        finally:
            connection.close()

    [due] = draw_arrivals(rate, seconds, 1, SEED)
    await asyncio.gather(*(ask(number, at) for number, at in enumerate(due)))
    return tally


@dataclass
class Setting:
    """A server with what belongs to it: the file of its tokens, and the way to its upstream."""

    server: Server
    tokens: Tokens
    relay: Relay

    async def send(self, rate: float, seconds: float, *others: Awaitable[None]) -> Tally:
        """Send requests while something else happens."""
        sending = asyncio.ensure_future(send_requests(self.server.port, rate, seconds, self.tokens.choose))
        await asyncio.gather(sending, *others)
        return sending.result()


@contextmanager
def upstream() -> Iterator[tuple[int, dict[str, str]]]:
    """Start the model behind the server; yield its port, and the environment of the server."""
    from integrations.server.tests.bots import make_artifact, make_script
    from tests.serving.openai_server import serving

    with tempfile.TemporaryDirectory() as folder, serving(make_script(), own_process=True) as url:
        path = Path(folder) / "artifact.json"
        make_artifact().save(path)
        port = int(url.rpartition(":")[2].partition("/")[0])
        yield port, {"BOTS_ARTIFACT": str(path), "BOTS_TOKENS": f"{folder}/tokens"}


@asynccontextmanager
async def make_setting(behind: tuple[int, dict[str, str]], *options: str) -> AsyncIterator[Setting]:
    """Start a server."""
    from integrations.server.tests.parts import COMMAND, run_server

    port, env = behind
    relay = Relay(port)
    await relay.open()
    tokens = Tokens(Path(env["BOTS_TOKENS"]))
    env = {**env, "BOTS_UPSTREAM": f"http://127.0.0.1:{relay.port}/v1"}
    options = ("--token-file", env["BOTS_TOKENS"], *options)
    started = run_server(env, *options, tokens=None, command=COMMAND)
    with ExitStack() as stack:
        # Starting waits, and so does ending; the relay must go on meanwhile.
        server = await asyncio.to_thread(stack.enter_context, started)
        setting = Setting(server, tokens, relay)
        await send_requests(server.port, 5.0, 1.0, setting.tokens.choose)  # imports and caches
        yield setting
        relay.close()


async def send_burst(setting: Setting, seconds: float) -> Tally:
    """Send a minute's requests in a third of a second."""
    return await setting.send(200.0 * seconds, 0.3)


async def send_among_slow_clients(setting: Setting, seconds: float) -> Tally:
    """Send requests while others send a byte now and then, or read nothing."""
    from integrations.server.tests.bots import EASY
    from integrations.server.tests.loading import encode_post
    from integrations.server.tests.parts import make_request

    request = encode_post(make_request(EASY), token=setting.tokens.slow)
    end = time.perf_counter() + seconds

    async def dawdle(number: int) -> None:
        # In the head, in the body, or in taking the answer.
        sent = (20, len(request) - 20, len(request))[number % 3]
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", setting.server.port, limit=1)
            writer.write(request[:sent])
            for byte in range(sent, len(request)):
                if time.perf_counter() > end:
                    break
                await asyncio.sleep(0.5)
                writer.write(request[byte : byte + 1])
                await writer.drain()
            await asyncio.sleep(max(0.0, end - time.perf_counter()))
            writer.close()

    return await setting.send(30.0, seconds, *map(dawdle, range(150)))


async def send_to_dead_upstream(setting: Setting, seconds: float) -> Tally:
    """Send requests while the upstream is dead for a while."""

    async def kill() -> None:
        await asyncio.sleep(seconds / 4)
        setting.relay.close()
        await asyncio.sleep(seconds / 4)
        await setting.relay.open()

    return await setting.send(30.0, seconds, kill())


async def send_during_rotation(setting: Setting, seconds: float) -> Tally:
    """Send requests while tokens are replaced, some files are malformed, and signals ask to read them."""

    async def rotate() -> None:
        end = time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < end:
            is_spoilt = number % 4 == 3  # noqa: PLR2004 - one in four
            # The file before one that cannot be used stays valid, so all workers should have read it.
            await asyncio.sleep(0.5 if is_spoilt else 0.1)
            (setting.tokens.spoil if is_spoilt else setting.tokens.rotate)()
            if number % 2:
                setting.server.process.send_signal(signal.SIGHUP)
            number += 1
        # Workers that are replaced need a file that can be used.
        setting.tokens.rotate()

    return await setting.send(40.0, seconds, rotate())


async def send_during_reload(setting: Setting, seconds: float) -> Tally:
    """Do the same for twice as long with two workers, which are stopped in turn and replaced."""

    async def restart() -> None:
        for number in range(2):
            await asyncio.sleep(seconds / 6)
            # Both serve, the one in place of that stopped before included.
            while len(pids := _list_pids(setting.server)) < 2 + number:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)
            os.kill(pids[number], signal.SIGTERM)

    tally, _ = await asyncio.gather(send_during_rotation(setting, 2 * seconds), restart())
    return tally


def _list_pids(server: Server) -> list[int]:
    """Return the processes that have begun to serve, in order."""
    return [line["pid"] for line in server.log if line["message"] == "serving"]


# Name, what happens, and options of the server.
INCIDENTS: dict[str, tuple[Callable[[Setting, float], Awaitable[Tally]], tuple[str, ...]]] = {
    "a burst, of which 48 find a place": (send_burst, ("--concurrency", "16", "--queue", "32")),
    "slow clients beside, 150 of them": (send_among_slow_clients, ()),
    "no upstream for a quarter of the time": (
        send_to_dead_upstream,
        ("--cooldown-after", "5", "--cooldown", "1"),
    ),
    "tokens that change 5 times a second, one file in four malformed": (send_during_rotation, ()),
    "the same, two workers stopped and replaced in turn": (send_during_reload, ("--workers", "2")),
}


def measure(seconds: float) -> dict[str, Tally]:
    """Let all of it happen, each for some seconds."""

    async def run(behind: tuple[int, dict[str, str]]) -> dict[str, Tally]:
        found = {}
        for name, (happen, options) in INCIDENTS.items():
            async with make_setting(behind, *options) as setting:
                found[name] = await happen(setting, seconds)
        return found

    with upstream() as behind:
        return asyncio.run(run(behind))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table; exit with 1 if a request was lost or let in."""
    from benchmarks.lib.measuring import print_table

    parser = argparse.ArgumentParser(description="What becomes of requests when something goes wrong.")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each of them takes")
    options = parser.parse_args(arguments)
    found = measure(options.seconds)
    headings = ("what happens", "requests", "statuses", "seconds, median and slowest", "lost")
    rows = [tally.make_row(name) for name, tally in found.items()]
    print_table("Incidents", (*headings, "let in", "kept out"), rows, NOTE)
    for name, tally in found.items():
        for reason in tally.lost:
            print(f"lost: {name}: {reason}", file=sys.stderr)
    sys.exit(any(tally.lost or tally.let_in for tally in found.values()))


if __name__ == "__main__":
    main()

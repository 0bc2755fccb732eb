"""Load in an open loop, and what the benchmark reports of slow servers."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median

import pytest

from integrations.server.benchmarks.load import Plan, measure
from integrations.server.benchmarks.load_results import Load, Round, Saturation
from integrations.server.benchmarks.load_tables import MEDIAN, TAIL, print_tables
from integrations.server.tests.loading import Connection, draw_arrivals, run_closed_loop, run_open_loop

STALL = 0.3
SECONDS = 0.8


def test_draw_arrivals_follows_a_poisson_process() -> None:
    due = draw_arrivals(100.0, 100.0, 50, seed=1)
    assert due == draw_arrivals(100.0, 100.0, 50, seed=1) != draw_arrivals(100.0, 100.0, 50, seed=2)
    assert all(times == sorted(times) for times in due)
    count = sum(map(len, due))
    # Poisson with mean 10,000: five standard deviations, which one in a million exceeds.
    assert abs(count - 10_000) < 500
    merged = sorted(time for times in due for time in times)
    gaps = [after - before for before, after in pairwise(merged)]
    # Exponential: the median gap is log 2 of the mean, 6.93 ms, within five of its standard errors of 0.1 ms.
    assert abs(median(gaps) - 0.00693) < 0.0005
    # Anybody's: 200 each, within five standard deviations.
    assert all(130 < len(times) < 270 for times in due)


def measure_stall() -> tuple[list[float], list[float]]:
    """Latencies from due, and from sent, where the first of forty requests of one client stalls."""
    sent: list[float] = []

    async def ask(_: int, which: int) -> None:
        began = time.perf_counter()
        await asyncio.sleep(STALL if which == 0 else 0.0)
        sent.append(time.perf_counter() - began)

    due = [[0.01 * number for number in range(40)]]
    return asyncio.run(run_open_loop(due, ask)), sent


def test_open_loop_counts_waiting_behind_a_stall() -> None:
    from_due, from_sent = measure_stall()
    # Some thirty were due while the first stalled: half of them waited for more than half of it.
    assert sum(taken > STALL / 2 for taken in from_due) >= 12
    # Who counts from when they were sent sees one slow request.
    assert sum(taken > STALL / 2 for taken in from_sent) == 1


def test_connection_after_timeout_reads_no_earlier_reply() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(line), line))
        writer.close()

    async def asked() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        connections = [Connection(server.sockets[0].getsockname()[1]) for _ in range(5)]

        async def ask(client: int, which: int) -> None:
            request = f"{client} {which} {time.perf_counter()}\n".encode()
            reply = await connections[client].ask(request)
            assert reply.body == request

        # All leave while they wait for an answer, which no one reads any longer.
        leaving = [asyncio.ensure_future(ask(client, -1)) for client in range(5)]
        await asyncio.sleep(0.01)
        assert {one.cancel() for one in leaving} == {True}
        await asyncio.wait(leaving)
        await run_open_loop(draw_arrivals(100.0, 0.5, 5, seed=1), ask)
        for one in connections:
            one.close()
        await asyncio.sleep(0.05)  # until the server has noticed
        server.close()
        await server.wait_closed()

    asyncio.run(asked())


def test_closed_loop_ends_when_all_requests_are_answered() -> None:
    asked, answered = 0, 0

    async def ask(_: int, which: int) -> None:
        nonlocal asked, answered
        asked += 1
        await asyncio.sleep(0.02 if which else 0.5)
        answered += 1

    rate = asyncio.run(run_closed_loop(5, 0.3, ask))
    # What is answered after the end is waited for, so that the next to ask finds no client at work; it is no
    # part of the rate.
    assert (asked, answered) == (5, 5)
    assert rate == 0.0


def test_closed_loop_rate_counts_replies_in_its_time() -> None:
    async def ask(_: int, __: int) -> None:
        await asyncio.sleep(0.02)

    assert 50 < asyncio.run(run_closed_loop(5, 0.5, ask)) <= 250


def make_load(seconds: dict[str, list[list[float]]]) -> Load:
    rounds = {
        name: tuple(Round(seconds=tuple(one), own=0.5, others=0.0, load=1.0) for one in taken)
        for name, taken in seconds.items()
    }
    return Load(
        seconds=1.0,
        saturation=Saturation(server=(90.0, 100.0, 110.0), chain=(200.0, 210.0, 220.0)),
        rounds=rounds,
    )


@pytest.mark.long
def test_added_latency_is_the_difference_of_quantiles(capsys: pytest.CaptureFixture[str]) -> None:
    base = [[0.001 * (1 + number / 100) for number in range(100)] for _ in range(6)]
    slower = [[taken + 0.004 for taken in one] for one in base]
    much = [[taken + 0.03 for taken in one] for one in base]
    load = make_load({"chain": base, "server": slower, "delayed": much, "nothing": base})
    for share in (MEDIAN, TAIL):
        added = load.compare_quantiles("server", share)
        assert added.low == pytest.approx(added.value) == pytest.approx(added.high) == pytest.approx(0.004)
    print_tables(load)
    printed = capsys.readouterr().out
    assert "4.00 ms (4.00 to 4.00)" in printed
    assert "90 to 110" in printed


def test_one_slow_round_widens_the_interval() -> None:
    base = [[0.001] * 100 for _ in range(6)]
    bad = [[0.002] * 100 for _ in range(5)] + [[0.5] * 100]
    load = make_load({"chain": base, "server": bad, "delayed": bad, "nothing": base})
    tail = load.compare_quantiles("server", TAIL)
    assert (tail.low, tail.high) == pytest.approx((0.001, 0.499))
    assert load.compare_quantiles("server", MEDIAN).value == pytest.approx(0.001)


@pytest.mark.long
def test_load_report_names_a_slower_server() -> None:
    load = measure(Plan(rounds=6, seconds=SECONDS, saturated=1.0))
    # All were asked at the same times, half as often as the server could answer.
    asked = [[len(one.seconds) for one in rounds] for rounds in load.rounds.values()]
    assert asked == [asked[0]] * 4
    for count, most in zip(asked[0], load.saturation.server, strict=True):
        # Poisson, within five standard deviations.
        assert abs(count - SECONDS * most / 2) < 5 * (SECONDS * most / 2) ** 0.5
    # Whatever else runs here makes requests slower and none faster, so the fastest is what it costs: twenty
    # milliseconds in the one; HTTP, checks and JSON in the other; and nothing costs next to nothing.
    fastest = {name: min(min(one.seconds) for one in rounds) for name, rounds in load.rounds.items()}
    assert fastest["nothing"] < fastest["chain"] < fastest["server"] < fastest["delayed"]
    assert fastest["delayed"] > 0.02
    assert min(load.saturation.chain) > 0.0

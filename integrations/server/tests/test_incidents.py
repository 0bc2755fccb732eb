"""The benchmark of incidents: what it counts as lost or wrongly admitted, and that the server has neither."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from unittest import mock

import pytest
from langchain_cfc_server.tokens import ClientTokens

from integrations.server.benchmarks import incidents
from integrations.server.benchmarks.incidents import Tally, Tokens, Validity, send_requests
from integrations.server.tests import parts

SERVER_KEEPING_TOKENS = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]
VALID = Validity(begins=(2.0, 3.0), ends=(8.0, 9.0))


@pytest.mark.parametrize(
    ("began", "ended", "status", "let_in", "kept_out"),
    [
        (0.0, 1.0, 401, 0, 0),
        (0.0, 1.0, 200, 1, 0),
        (0.0, 1.0, 429, 1, 0),
        (4.0, 5.0, 200, 0, 0),
        (4.0, 5.0, 401, 0, 1),
        (10.0, 11.0, 200, 1, 0),
        (10.0, 11.0, 401, 0, 0),
        # Over a change both are right.
        (1.0, 2.5, 200, 0, 0),
        (1.0, 2.5, 401, 0, 0),
        (7.0, 8.5, 200, 0, 0),
        (7.0, 8.5, 401, 0, 0),
        (7.0, 20.0, 200, 0, 0),
    ],
)
def test_incident_figures_count_faults(
    began: float, ended: float, status: int, let_in: int, kept_out: int
) -> None:
    tally = Tally()
    tally.add(status, VALID, began, ended)
    assert (tally.let_in, tally.kept_out) == (let_in, kept_out)
    unknown = Tally()
    unknown.add(200, Validity(), began, ended)
    assert unknown.let_in == 1


def test_server_that_drops_connections_loses_requests() -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        writer.close()

    async def ask() -> Tally:
        server = await asyncio.start_server(drop, "127.0.0.1", 0)
        async with server:
            return await send_requests(
                server.sockets[0].getsockname()[1], 100.0, 0.3, lambda _: ("none", Validity())
            )

    tally = asyncio.run(ask())
    assert len(tally.lost) > 10
    assert not tally.counts


def test_token_files_are_replaced_while_a_server_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = Tokens(path)
    read = ClientTokens(path=path)
    for _ in range(3):
        token, validity = tokens.choose(1)
        assert read.find_client(token.encode()) is not None
        assert validity.begins[1] < validity.ends[0]
        tokens.spoil()
        assert read.find_client(token.encode()) is not None
        tokens.rotate()
        assert read.find_client(token.encode()) is None
        assert validity.ends[1] < float("inf")
    chosen = [tokens.choose(number) for number in range(100)]
    assert {read.find_client(token.encode()) is None for token, _ in chosen} == {True, False}


@pytest.mark.long
def test_incidents_lose_no_request_and_admit_no_revoked_token() -> None:
    for name, tally in incidents.measure(8.0).items():
        print(tally.make_row(name))  # noqa: T201 - figures to report
        assert not tally.lost, name
        assert not tally.let_in, name
        assert tally.counts[200] > 0
        assert tally.counts[401] > 0


@pytest.mark.long
def test_incidents_find_server_that_keeps_revoked_tokens() -> None:
    only = {name: found for name, found in incidents.INCIDENTS.items() if "malformed" in name}
    with (
        mock.patch.object(incidents, "INCIDENTS", only),
        mock.patch.object(parts, "COMMAND", SERVER_KEEPING_TOKENS),
        mock.patch.dict(os.environ, BROKEN="keeps tokens"),
    ):
        [tally] = incidents.measure(3.0).values()
    assert tally.let_in > 0
    assert tally.kept_out > 0

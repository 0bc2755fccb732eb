"""The file of tokens: whose they are, and what happens when it changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_cfc_server import Settings
from langchain_cfc_server.limits import RateLimiter
from langchain_cfc_server.tokens import Client, ClientTokens

from integrations.server.tests.bots import EASY
from integrations.server.tests.parts import Server, asking, running, until
from langchain_cfc.errors import InputError

OLD, NEW, METRICS = (f"{name}-token-of-the-tests" for name in ("old", "new", "metrics"))


def hashed(token: str) -> str:
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def by(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def replace(path: Path, text: str) -> None:
    """Put another file in its place, as operators should."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def find(tokens: ClientTokens, token: str) -> Client | None:
    return tokens.find_client(token.encode())


@contextmanager
def served(bots: dict[str, str], path: Path, *options: str) -> Iterator[Server]:
    with running(bots, "--token-file", str(path), *options, tokens=None) as server:
        yield server


def test_lines_say_whose_a_token_is(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"# the app\n{hashed(OLD)} name=app concurrent=8 per_minute=600\n\n{NEW} per_minute=600 name=app "
        f"concurrent=8 # to replace it\n{METRICS} only=metrics\n"
    )
    tokens = ClientTokens(path=path)
    assert find(tokens, OLD) == find(tokens, NEW) == Client("app", 8, 600)
    assert find(tokens, METRICS) == Client("token-5", only_metrics=True)
    assert tokens.has_metrics_token
    # Its digest is no token.
    assert find(tokens, hashed(OLD)) is None
    assert find(tokens, hashed(OLD).removeprefix("sha256:")) is None


MALFORMED = {
    "": "holds no tokens for clients",
    f"{METRICS} only=metrics": "holds no tokens for clients",
    "short": "line 1: a token has at least 16",
    f"{OLD}\nname {NEW}": "line 2: a token has at least 16",
    f"{OLD} {NEW}": "line 1: expected",
    f"{OLD} unknown=1": "line 1: expected",
    f"{OLD} concurrent=0": "line 1: expected",
    f"{OLD} concurrent=-1": "line 1: expected",
    f"{OLD} per_minute=1.5": "line 1: expected",
    f"{OLD} name=": "line 1: expected",
    f"{OLD} name=a name=b": "line 1: expected",
    f"{OLD} only=all": "line 1: expected",
    f"{OLD}\n{hashed(OLD)}": "line 2: this token is on another line",
    f"{OLD} name=a\n{NEW} name=a per_minute=1": "line 2: another line with the name a has other limits",
    "sha256:abc": "line 1: expected 64 digits",
    hashed(OLD).upper(): "line 1: a token has",
    hashed(OLD)[:-1]: "line 1: expected 64 digits",
    f"{OLD}é": "line 1: a token has",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_file_is_refused_without_quoting_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=MALFORMED[text]) as caught:
        ClientTokens(path=path)
    assert OLD not in str(caught.value)
    assert NEW not in str(caught.value)
    # In place of one that is in order, it changes nothing and lets in no token that was not valid.
    replace(path, OLD)
    tokens = ClientTokens(path=path)
    replace(path, text)
    assert find(tokens, OLD) == Client("token-1")
    assert find(tokens, NEW) is find(tokens, METRICS) is None
    assert (tokens.is_stale, tokens.refused, tokens.replaced) == (True, 1, 0)
    replace(path, NEW)
    assert find(tokens, NEW) == Client("token-1")
    assert find(tokens, OLD) is None
    assert (tokens.is_stale, tokens.refused, tokens.replaced) == (False, 1, 1)


def test_a_file_that_vanishes_or_is_no_text_leaves_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    tokens = ClientTokens(path=path)
    path.unlink()
    assert find(tokens, OLD) is not None
    assert find(tokens, OLD) is not None
    assert (tokens.is_stale, tokens.refused) == (True, 1)
    path.write_bytes(b"\xff" * 20)
    assert find(tokens, OLD) is not None
    assert (tokens.is_stale, tokens.refused) == (True, 2)
    # The same file as before, which is none the less in order again.
    path.write_text(OLD)
    assert find(tokens, OLD) is not None
    assert not tokens.is_stale


def test_two_changes_at_the_same_time_of_the_clock_are_both_seen(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    tokens = ClientTokens(path=path)
    before = path.stat()
    # In place, of the same length and with the same time.
    path.write_text(NEW)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(OLD) == len(NEW)
    assert find(tokens, OLD) is None
    assert find(tokens, NEW) is not None


def test_settings_take_tokens_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="remove one of the two"):
        Settings(tokens=(OLD,), token_file=tmp_path)
    with pytest.raises(InputError, match="authentication is off"):
        Settings(token_file=tmp_path, authentication=False)


@given(st.integers(1, 500), st.lists(st.floats(0, 20), max_size=200))
def test_a_client_makes_as_many_requests_as_its_rate_allows(rate: int, gaps: list[float]) -> None:
    limiter, client = RateLimiter(), Client("app", per_minute=rate)
    taken: list[float] = []
    now = 1e6
    for gap in (0.0, *gaps):
        now += gap
        wait = limiter.take(client, now)
        if wait:
            # Not later than it says.
            assert limiter.take(client, now + wait * 1.001 + 1e-6) == 0.0
            now += wait * 1.001 + 1e-6
        taken.append(now)
    for begin, first in enumerate(taken):
        # At once as many as in a minute, and then one for each part of a minute.
        for count, last in enumerate(taken[begin:], 1):
            assert count <= rate + (last - first) * rate / 60 + 1e-3
    # Another client is not held up.
    assert limiter.take(Client("other", per_minute=1), now) == 0.0


def test_old_tokens_die_and_new_ones_live_at_once(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD} name=app\n{METRICS} only=metrics name=prometheus\n")
    with served(bots, path) as server, ThreadPoolExecutor(1) as pool:
        assert server.ask(asking(EASY), by(OLD)).status_code == 200
        assert server.ask(asking(EASY), by(NEW)).status_code == 401
        under_way = pool.submit(server.ask, asking(EASY, "slow"), by(OLD))
        until(lambda: "cfc_server_working 1.0" in server.get("/metrics", by(METRICS)).text)
        replace(path, f"{hashed(NEW)} name=app\n{METRICS} only=metrics name=prometheus\n")
        assert server.ask(asking(EASY), by(OLD)).status_code == 401
        assert server.ask(asking(EASY), by(NEW)).status_code == 200
        # What was let in is answered.
        assert under_way.result().status_code == 200
        replace(path, f"{OLD} {NEW}\n")
        assert server.ask(asking(EASY), by(OLD)).status_code == 401
        assert server.ask(asking(EASY), by(NEW)).status_code == 200
        figures = server.get("/metrics", by(METRICS)).text
        for line in ("_stale 1.0", "_replaced 1.0", "_refused 1.0", " 2.0"):
            assert f"cfc_server_client_tokens{line}\n" in figures
        assert 'cfc_server_client_requests_total{client="app",status="200"} 4.0' in figures
        [refused] = [line for line in server.log if line["message"].startswith("tokens not replaced")]
        assert refused["level"] == "error"
        assert "line 1: expected" in refused["problem"]
        log = server.log_path.read_text(encoding="utf-8")
        assert OLD not in log
        assert NEW not in log
        assert {line.get("client") for line in server.log if line["message"] == "request"} == {
            "app",
            "prometheus",
            None,
        }


def test_a_signal_reads_the_file(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(OLD)
    with served(bots, path) as server:
        replace(path, NEW)
        server.process.send_signal(signal.SIGHUP)
        line = until(lambda: next((one for one in server.log if one["message"] == "tokens replaced"), None))
        assert (line["tokens"], line["added"], line["removed"]) == (1, 1, 1)
        assert server.get("/v1/models", by(NEW)).status_code == 200
    with running(bots, tokens=OLD) as server:
        # Without a file there is nothing to read, and the signal ends nothing.
        server.process.send_signal(signal.SIGHUP)
        assert server.get("/v1/models", by(OLD)).status_code == 200


def test_each_client_has_limits_of_its_own(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(
        f"{OLD} name=app per_minute=3\n{NEW} name=app per_minute=3\n{METRICS} name=b concurrent=1"
    )
    with served(bots, path, "--per-token", "5") as server, ThreadPoolExecutor(1) as pool:
        said = [server.ask(asking(EASY), by(token)).status_code for token in (OLD, NEW, OLD)]
        assert said == [200, 200, 200]
        refused = server.ask(asking(EASY), by(NEW))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests_a_minute")
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        # Only work counts.
        assert server.get("/v1/models", by(NEW)).status_code == 200
        under_way = pool.submit(server.ask, asking(EASY, "slow"), by(METRICS))
        until(lambda: "cfc_server_working 1.0" in server.get("/metrics", by(METRICS)).text)
        refused = server.ask(asking(EASY), by(METRICS))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests_of_token")
        assert under_way.result().status_code == 200


def test_the_metrics_have_a_token_of_their_own(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD} name=app\n{METRICS} only=metrics\n")
    with served(bots, path) as server:
        assert server.get("/metrics", by(METRICS)).status_code == 200
        refused = server.get("/metrics", by(OLD))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "token_not_for_this")
        assert refused.json()["error"]["type"] == "permission_error"
        for path_ in ("/v1/models", "/openapi.json", "/metrics/", "/nothing"):
            assert server.get(path_, by(METRICS)).status_code == 403
        assert server.ask(asking(EASY), by(METRICS)).status_code == 403
        assert server.get("/metrics", by(NEW)).status_code == 401
        # Without one, every token reads them.
        replace(path, f"{OLD}\n")
        assert server.get("/metrics", by(OLD)).status_code == 200
        assert server.get("/metrics", by(METRICS)).status_code == 401

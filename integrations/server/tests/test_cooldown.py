"""`Cooldown`: a model whose upstream keeps failing gets no requests for a while."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from langchain_cfc_server.cooldown import Cooldown
from langchain_cfc_server.errors import RefusedError

from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.parts import make_request, run_server, wait_for_value
from langchain_cfc.errors import DrawError, InputError, VerifierError
from tests.serving.openai_server import Fault, Script


class _StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status_code = status


def end_request(cooldown: Cooldown, error: BaseException | None = None, *, overdue: bool = False) -> str:
    """End a request with an answer or an error, and return its outcome."""
    given = () if error is None else (type(error),)
    try:
        with suppress(*given), cooldown.watch(lambda: overdue):
            raise_if_given(error)
    except RefusedError as refused:
        return f"{refused.status} {refused.headers['Retry-After']}"
    return "let through"


def raise_if_given(error: BaseException | None) -> None:
    if error is not None:
        raise error


def make_draw_error(status: int) -> DrawError:
    error = DrawError("it failed")
    error.__cause__ = _StatusError(status)
    return error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("langchain_cfc_server.cooldown.time.monotonic", lambda: now[0])
    return now


def test_cooldown_begins_after_failures_and_ends_with_an_answer(clock: list[float]) -> None:
    cooldown = Cooldown("bot", 3, 10.0)
    for _ in range(3):
        for _ in range(2):
            assert end_request(cooldown, DrawError("it failed")) == "let through"
        assert end_request(cooldown) == "let through"
    for error in (DrawError("it failed"), VerifierError("it failed"), make_draw_error(503)):
        assert not cooldown.is_active
        assert end_request(cooldown, error) == "let through"
    assert cooldown.is_active
    assert end_request(cooldown) == "503 10"
    clock[0] += 7.5
    assert end_request(cooldown) == "503 3"
    clock[0] += 2.5
    # One to probe, which fails, so that the time begins again; and another one, which is answered.
    assert end_request(cooldown, DrawError("it failed")) == "let through"
    assert end_request(cooldown) == "503 10"
    clock[0] += 10
    assert end_request(cooldown) == "let through"
    assert not cooldown.is_active
    assert cooldown.times == 2
    # It takes as many failures as before.
    assert end_request(cooldown, DrawError("it failed")) == "let through"
    assert not cooldown.is_active


def test_cooldown_lets_one_probe_through_at_a_time(clock: list[float]) -> None:
    cooldown = Cooldown("bot", 1, 10.0)
    end_request(cooldown, DrawError("it failed"))
    clock[0] += 11
    with cooldown.watch(lambda: False):
        assert end_request(cooldown) == "503 1"
    assert end_request(cooldown) == "let through"


@pytest.mark.parametrize(
    "how", [asyncio.CancelledError(), InputError("no"), make_draw_error(400), RuntimeError()]
)
def test_inconclusive_probe_leaves_the_next_request_to_probe(how: BaseException, clock: list[float]) -> None:
    cooldown = Cooldown("bot", 1, 10.0)
    end_request(cooldown, DrawError("it failed"))
    clock[0] += 11
    assert end_request(cooldown, how) == "let through"
    assert cooldown.is_active
    assert end_request(cooldown) == "let through"
    assert not cooldown.is_active


@pytest.mark.parametrize(
    ("error", "overdue", "counts"),
    [
        (make_draw_error(400), False, False),
        (make_draw_error(413), False, False),
        (make_draw_error(401), False, True),
        (make_draw_error(429), False, True),
        (make_draw_error(500), False, True),
        (asyncio.CancelledError(), False, False),
        (asyncio.CancelledError(), True, True),
        (RuntimeError("a defect"), False, False),
    ],
)
def test_cooldown_counts_only_failures_of_the_upstream(
    error: BaseException, overdue: bool, counts: bool
) -> None:
    cooldown = Cooldown("bot", 1, 10.0)
    end_request(cooldown, error, overdue=overdue)
    assert cooldown.is_active is counts
    never = Cooldown("bot", 0, 10.0)
    for _ in range(20):
        end_request(never, error, overdue=overdue)
    assert not never.is_active


def test_cooldown_spares_dead_upstream_and_ends_after_recovery(
    bots: dict[str, str], upstream: tuple[str, Script]
) -> None:
    planted = upstream[1]
    with run_server(bots, "--cooldown-after", "3", "--cooldown", "0.5") as server:
        try:
            # A request that the provider refuses says nothing about the provider, and starts no cooldown.
            planted.faults = [Fault("status 400")]
            assert {server.ask(make_request(EASY)).status_code for _ in range(5)} == {502}
            planted.faults = [Fault("dropped")]
            assert [server.ask(make_request(EASY)).status_code for _ in range(3)] == [502] * 3
            asked = len(planted.requests)
            refused = server.ask(make_request(EASY, stream=True))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "upstream_cooling_down")
            assert refused.headers["retry-after"] == "1"
            assert len(planted.requests) == asked
            assert 'cfc_server_cooling_down{model="bot"} 1.0' in server.get("/metrics").text
            # Other models, and what needs none, go on.
            assert server.ask(make_request(EASY, "unscored")).status_code == 502
            assert server.get("/v1/models").status_code == 200
        finally:
            planted.faults = ()
        answer: Any = wait_for_value(
            lambda: (one := server.ask(make_request(EASY))).status_code == 200 and one
        )
        assert answer.json()["cfc"]["best"] == GOOD
        figures = server.get("/metrics").text
        assert 'cfc_server_cooling_down{model="bot"} 0.0' in figures
        assert 'cfc_server_cooldowns{model="bot"} 1.0' in figures
        said = [line["message"] for line in server.log if line.get("model") == "bot" and "status" not in line]
        assert said == ["cooldown of a failing upstream", "upstream answers again"]

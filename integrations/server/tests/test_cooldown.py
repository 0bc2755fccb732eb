"""`Cooldown`: an upstream that keeps failing gets no requests; no client can cause that for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx
import pytest
from langchain_cfc_server import Settings, create_app
from langchain_cfc_server.cooldown import Cooldown
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.models import make_served_models
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from starlette.testclient import TestClient

from integrations.server.tests.bots import EASY, GOOD, chain, judge
from integrations.server.tests.parts import OTHER_TOKEN, TOKEN, make_request, run_server, wait_for_value
from langchain_cfc.errors import DrawError, InputError, ServingTimeoutError, VerifierError
from langchain_cfc.verifiers import ModelJudge
from tests.serving.openai_server import Fault, Script

HTTP_OK = 200


class _StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status_code = status


def end_request(cooldown: Cooldown, error: BaseException | None = None, *, client: str = "ana") -> str:
    """End a request with an answer or an error, and return its outcome."""
    given = () if error is None else (type(error),)
    try:
        with suppress(*given), cooldown.watch(client):
            if error is not None:
                raise error
    except RefusedError as refused:
        return f"{refused.status} {refused.headers['Retry-After']}"
    return "let through"


def make_draw_error(cause: int | Exception = 503, kind: type[Exception] = DrawError) -> Exception:
    error = kind("it failed")
    error.__cause__ = _StatusError(cause) if isinstance(cause, int) else cause
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
            assert end_request(cooldown, make_draw_error()) == "let through"
        assert end_request(cooldown) == "let through"
    for error in (make_draw_error(), make_draw_error(kind=VerifierError), make_draw_error(401)):
        assert not cooldown.is_active
        assert end_request(cooldown, error) == "let through"
    assert cooldown.is_active
    assert end_request(cooldown) == "503 10"
    clock[0] += 7.5
    assert end_request(cooldown) == "503 3"
    clock[0] += 2.5
    # One to probe, which fails, so that the time begins again; and another one, which is answered.
    assert end_request(cooldown, make_draw_error()) == "let through"
    assert end_request(cooldown) == "503 10"
    clock[0] += 10
    assert end_request(cooldown) == "let through"
    assert not cooldown.is_active
    assert cooldown.times == 2
    # It takes as many failures as before.
    assert end_request(cooldown, make_draw_error()) == "let through"
    assert not cooldown.is_active


def test_cooldown_lets_one_probe_through_at_a_time(clock: list[float]) -> None:
    cooldown = Cooldown("bot", 1, 10.0)
    end_request(cooldown, make_draw_error())
    clock[0] += 11
    with cooldown.watch("ana"):
        assert end_request(cooldown) == "503 1"
    assert end_request(cooldown) == "let through"


@pytest.mark.parametrize(
    "how", [asyncio.CancelledError(), InputError("no"), make_draw_error(400), RuntimeError()]
)
def test_inconclusive_probe_leaves_the_next_request_to_probe(how: BaseException, clock: list[float]) -> None:
    cooldown = Cooldown("bot", 1, 10.0)
    end_request(cooldown, make_draw_error())
    clock[0] += 11
    assert end_request(cooldown, how) == "let through"
    assert cooldown.is_active
    assert end_request(cooldown) == "let through"
    assert not cooldown.is_active


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        *((make_draw_error(status), True) for status in (401, 402, 429, 500, 502, 503, 529)),
        *((make_draw_error(status), False) for status in (400, 403, 404, 408, 413, 422, 504, 524)),
        (make_draw_error(ConnectionRefusedError()), True),
        (make_draw_error(httpx.ConnectError("no")), True),
        (make_draw_error(httpx.ConnectTimeout("no")), True),
        (make_draw_error(httpx.ReadTimeout("a long answer")), False),
        (make_draw_error(ValueError("no choices")), False),
        (DrawError("one candidate of three"), False),
        (VerifierError("a verdict that cannot be read"), False),
        (ServingTimeoutError("too late"), False),
        (asyncio.CancelledError(), False),
        (RuntimeError("a defect"), False),
    ],
    ids=repr,
)
def test_cooldown_counts_only_failures_of_the_upstream(error: BaseException, counts: bool) -> None:
    cooldown = Cooldown("bot", 1, 10.0)
    end_request(cooldown, error)
    assert cooldown.is_active is counts
    never = Cooldown("bot", 0, 10.0)
    for _ in range(20):
        end_request(never, error)
    assert not never.is_active


@pytest.mark.usefixtures("clock")
def test_cooldown_of_one_client_lets_others_through() -> None:
    cooldown = Cooldown("bot", 3, 10.0)
    for _ in range(3):
        end_request(cooldown, make_draw_error(), client="eve")
    assert end_request(cooldown, client="eve") == "503 10"
    assert cooldown.is_active
    assert end_request(cooldown, client="ana") == "let through"
    # The upstream answers, so it is up for all.
    assert not cooldown.is_active
    assert end_request(cooldown, client="eve") == "let through"


ODD = "easy: Write a poem"


def make_answer(prompt: Any, how: str) -> Any:
    """Answer, unless the prompt is the odd one, which makes the model or verifier fail."""
    if ODD not in repr(prompt):
        return AIMessage(GOOD)
    if how == "slow":
        time.sleep(1.2)
    elif how == "status 500":
        raise _StatusError(500)
    elif how == "error":
        raise ValueError
    return AIMessage("Sure, here is a poem.")


def make_failing_parts(part: str, how: str) -> dict[str, Any]:
    model = RunnableLambda(lambda prompt: make_answer(prompt, how))
    if part == "generator":
        return {"generator": model}
    planted: RunnableLambda[Any, Any] = RunnableLambda(lambda _: AIMessage(GOOD))
    if how == "poem":
        return {"generator": planted, "verifier": ModelJudge(model, mode="line")}

    def score(prompt: Any, candidates: Sequence[Any]) -> list[float]:
        make_answer(prompt, how)
        return judge(prompt, candidates)

    return {"generator": planted, "verifier": score}


def serve_victim(attacker: str, parts: Mapping[str, Any], rounds: int) -> tuple[float, set[int]]:
    """Return the share of one client's requests that are served under attack, and the attacker's statuses."""
    settings = Settings(tokens=(TOKEN, OTHER_TOKEN), cooldown_after=3, cooldown=60)
    app = create_app({"bot": chain(timeout=1.0, **parts)}, settings)
    with TestClient(app, raise_server_exceptions=False) as client:

        def ask(question: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            sent = client.post("/v1/chat/completions", json=make_request(question), headers=headers)
            return int(sent.status_code)

        served, statuses = 0, set()
        for _ in range(rounds):
            statuses |= {ask(ODD, attacker) for _ in range(4)}
            served += ask(EASY, TOKEN) == HTTP_OK
    return served / rounds, statuses


@pytest.mark.parametrize("part", ["generator", "verifier"])
@pytest.mark.parametrize("how", ["error", "poem", "slow", "status 500"])
@pytest.mark.usefixtures("bots_here")
def test_one_client_cannot_stop_another(part: str, how: str) -> None:
    parts, rounds = make_failing_parts(part, how), 1 if how == "slow" else 5
    served, statuses = serve_victim(OTHER_TOKEN, parts, rounds)
    assert served == 1.0
    # The attack takes effect: its requests fail, or at least get other verdicts.
    assert how == "poem" or max(statuses) >= 500
    # With the attacker's own token, only what the upstream says about itself stops a client: the control.
    served, _ = serve_victim(TOKEN, parts, rounds)
    assert served == (0.0 if how == "status 500" else 1.0)


@pytest.mark.usefixtures("bots_here")
def test_models_with_one_address_and_model_share_their_upstream() -> None:

    def make(model: str = "planted", port: int = 9) -> Any:
        made = ChatOpenAI(model=model, base_url=f"http://127.0.0.1:{port}/v1", api_key="none")  # type: ignore[arg-type]
        return chain(generator=made, alpha="0.1" if port == 9 else "0.2")

    one = chain(generator=RunnableLambda(lambda _: GOOD))
    chains = {"a": make(), "b": make(), "other model": make("large"), "other port": make(port=10)}
    served = make_served_models({name.replace(" ", "-"): made for name, made in chains.items()}, "no")
    assert served["a"].upstream == served["b"].upstream
    assert len({model.upstream for model in served.values()}) == 3
    unknown = make_served_models({"c": one, "d": one}, "no")
    assert unknown["c"].upstream != unknown["d"].upstream


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
            # Another model of this upstream is spared as well; what needs no model goes on.
            assert server.ask(make_request(EASY, "unscored")).status_code == 503
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

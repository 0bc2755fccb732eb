"""`RewardModel`: rewards over real HTTP, as scores."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from pydantic import SecretStr

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.support.serialization import compute_sha256
from langchain_cfc.verifiers.reward_model import RewardModel, _logistic
from tests.calls import Invoke, copies_of, invoke_sync
from tests.factories import verifier_input
from tests.serving.openai_server import Fault, Script, serving

REWARDS = {"capital?": {"Lima": 2.5, "Quito": -1.5, "": 0.0}, "sure?": {"yes": 0.75, "no": 0.0}}
SECRET = "sk-a-very-secret-key"  # noqa: S105 - of nothing


CAPITAL = verifier_input("capital?", "Lima", "Quito", "Lima", "")


@pytest.fixture
def script() -> Script:
    return Script({}, rewards=REWARDS)


@pytest.fixture
def base_url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url


def test_reward_model_scales_unbounded_rewards(invoke: Invoke, base_url: str, script: Script) -> None:
    found = invoke(RewardModel(base_url, "judge", scale=1.0), CAPITAL)
    expected = [1 / (1 + math.exp(reward)) for reward in (2.5, -1.5, 2.5, 0.0)]
    assert found == pytest.approx(expected, rel=1e-15)
    # One request for all, and each text once.
    assert script.requests == [{"model": "judge", "text_1": "capital?", "text_2": ["Lima", "Quito", ""]}]
    halved = invoke(RewardModel(base_url, "judge", scale=2.0), CAPITAL)
    assert halved[0] == pytest.approx(1 / (1 + math.exp(1.25)), rel=1e-15)


def test_reward_model_without_scale_requires_rewards_in_0_1(invoke: Invoke, base_url: str) -> None:
    assert invoke(RewardModel(base_url, "judge"), verifier_input("sure?", "yes", "no")) == [0.25, 1.0]
    with pytest.raises(VerifierError, match=r"gave a reward of 2.5, outside \[0, 1\]: pass scale="):
        invoke(RewardModel(base_url, "judge"), CAPITAL)


def test_reward_model_takes_urls_with_and_without_version(invoke: Invoke, base_url: str) -> None:
    for url in (base_url.removesuffix("/v1"), base_url.removesuffix("v1"), base_url + "/"):
        assert invoke(RewardModel(url, "judge"), verifier_input("sure?", "yes")) == [0.25]


@pytest.mark.parametrize("question", [lambda prompt: prompt["q"], RunnableLambda(lambda prompt: prompt["q"])])
def test_reward_model_uses_the_question_function_or_the_prompt(
    invoke: Invoke, base_url: str, question: Any
) -> None:
    verifier = RewardModel(base_url, "judge", question=question)
    assert invoke(verifier, verifier_input({"q": "sure?", "context": "..."}, "yes")) == [0.25]
    plain = RewardModel(base_url, "judge")
    assert invoke(plain, verifier_input([HumanMessage("sure?")], "yes")) == [0.25]
    with pytest.raises(
        VerifierError, match="the prompt is a mapping, but a reward model reads text only: pass question="
    ):
        invoke(plain, verifier_input({"q": "sure?"}, "yes"))
    number: Any = RewardModel(base_url, "judge", question=RunnableLambda(lambda _: 7))
    with pytest.raises(VerifierError, match="question= returned a int; expected text"):
        invoke(number, verifier_input("sure?", "yes"))


@pytest.mark.parametrize(("places", "batches"), [(1, 3), (3, 1)])
def test_reward_requests_keep_the_concurrency_limit(
    script: Script, base_url: str, places: int, batches: int
) -> None:
    script.faults = [Fault("slow", seconds=0.2)]
    verifier = RewardModel(base_url, "judge")
    asked = verifier_input("sure?", "yes")

    async def three() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.gather(*(verifier.ainvoke(asked) for _ in range(3)))
        return loop.time() - start

    with apply_limits(CallLimits(ConcurrencyLimiter(places))):
        took = asyncio.run(three())
    assert took >= 0.2 * batches
    # One after the other they take three times as long; the rest is slack for a busy machine.
    assert batches > 1 or took < 0.2 * 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("status 500", r"answered with status 500: .*out of order"),
        ("status 429", "answered with status 429"),
        ("status 401", "answered with status 401"),
        ("malformed", "did not answer with JSON: "),
        ("truncated", "failed .IncompleteRead"),
        ("dropped", "failed .RemoteDisconnected"),
    ],
)
def test_reward_model_raises_verifier_error_for_faults_of_the_server(
    invoke: Invoke, base_url: str, script: Script, fault: str, message: str
) -> None:
    script.faults = [Fault(fault, on={0})]
    verifier = RewardModel(base_url, "judge")
    with pytest.raises(VerifierError, match=message) as failure:
        invoke(verifier, verifier_input("sure?", "yes"))
    assert f"{base_url}/score" in str(failure.value)
    # The next request finds the server well.
    assert invoke(verifier, verifier_input("sure?", "yes")) == [0.25]


def test_reward_model_times_out(invoke: Invoke, base_url: str, script: Script) -> None:
    script.faults = [Fault("slow", seconds=3.0)]
    with pytest.raises(VerifierError, match=r"did not answer within 0\.1 seconds"):
        invoke(RewardModel(base_url, "judge", timeout=0.1), verifier_input("sure?", "yes"))


def test_reward_model_raises_verifier_error_without_a_server(invoke: Invoke) -> None:
    with socket.socket() as taken:
        # Bound and not listening: no other process gets the port meanwhile.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(VerifierError, match=r"failed \(ConnectionRefusedError"):
            invoke(RewardModel(url, "judge"), verifier_input("sure?", "yes"))


@dataclass
class ScriptedServer:
    """A server that answers whatever it is told, and keeps the headers it was sent."""

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    seen: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                scripted.seen.append({"path": self.path, **dict(self.headers.items())})
                self.send_response(scripted.status)
                for name, value in scripted.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(scripted.body)))
                self.end_headers()
                self.wfile.write(scripted.body)

            do_GET = do_POST  # noqa: N815 - http.server's name

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        return Handler


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    told = ScriptedServer()
    with ThreadingHTTPServer(("127.0.0.1", 0), told.handler()) as server:
        told.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield told
        server.shutdown()
        thread.join()


TWO_CANDIDATES = verifier_input("?", "a", "b")


def test_reward_model_orders_rewards_by_index(invoke: Invoke, scripted: ScriptedServer) -> None:
    scripted.body = b'{"data": [{"index": 1, "score": 0.25}, {"index": 0, "score": 1}]}'
    assert invoke(RewardModel(scripted.url, "judge"), TWO_CANDIDATES) == [0.0, 0.75]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[0.5, 0.5]",
        b"null",
        b'{"data": "ab"}',
        b'{"data": [0.5, 0.5]}',
        b'{"data": [{"index": 0, "score": 0.5}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 0, "score": 0.5}]}',
        b'{"data": [{"index": 1, "score": 0.5}, {"index": 2, "score": 0.5}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": "0.5"}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": true}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": NaN}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 1e999}]}',
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 1' + b"0" * 400 + b"}]}",
        b'{"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.5}, {"index": 2, "score": 0.5}]}',
    ],
)
def test_reward_model_refuses_invalid_responses(
    invoke: Invoke, scripted: ScriptedServer, body: bytes
) -> None:
    scripted.body = body
    with pytest.raises(VerifierError, match=r"answered for 2 texts with .*; expected 'data'") as failure:
        invoke(RewardModel(scripted.url, "judge", scale=1.0), TWO_CANDIDATES)
    assert len(str(failure.value)) < 450


def test_reward_model_sends_its_key_and_never_shows_it(invoke: Invoke, scripted: ScriptedServer) -> None:
    scripted.status, scripted.body = (
        401,
        b'{"error": "' + b"wrong key " + SECRET.encode() + b"y" * 5000 + b'"}',
    )
    for key in (SECRET, SecretStr(SECRET)):
        verifier = RewardModel(scripted.url, "judge", api_key=key)
        with pytest.raises(VerifierError, match=r"status 401: .*wrong key \*\*\*") as failure:
            invoke(verifier, TWO_CANDIDATES)
        assert SECRET not in "".join(traceback.format_exception(failure.value))
        assert SECRET not in repr(verifier) + repr(vars(verifier)) + str(verifier.fingerprint)
        assert len(str(failure.value)) < 450
    assert [one["Authorization"] for one in scripted.seen] == [f"Bearer {SECRET}"] * 2
    with pytest.raises(VerifierError):
        invoke(RewardModel(scripted.url, "judge"), TWO_CANDIDATES)
    assert "Authorization" not in scripted.seen[-1]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_reward_model_does_not_follow_redirects(
    invoke: Invoke, scripted: ScriptedServer, status: int
) -> None:
    # The key would go wherever the server points.
    scripted.status, scripted.headers = status, {"Location": f"{scripted.url}/elsewhere"}
    with pytest.raises(VerifierError, match=f"status {status}"):
        invoke(RewardModel(scripted.url, "judge", api_key=SECRET), TWO_CANDIDATES)
    assert [one["path"] for one in scripted.seen] == ["/score"]


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_logistic_is_monotone_within_the_unit_interval(one: float, other: float) -> None:
    low, high = sorted([one, other])
    assert 0.0 <= _logistic(low) <= _logistic(high) <= 1.0
    assert _logistic(-one) == pytest.approx(1.0 - _logistic(one), abs=1e-15)


def test_logistic_distinguishes_the_best_rewards() -> None:
    assert 0.0 < _logistic(-101.0) < _logistic(-100.0)
    assert _logistic(100.0) == _logistic(101.0) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "localhost:8000"}, "must start with http"),
        ({"base_url": "file:///etc/passwd"}, "must start with http"),
        ({"base_url": "http://"}, "must start with http"),
        ({"base_url": "http://host:99999"}, "must start with http"),
        ({"base_url": f"http://user:{SECRET}@host"}, "neither a password nor a query"),
        ({"base_url": f"http://host/?key={SECRET}"}, "neither a password nor a query"),
        ({"api_key": SECRET + "\n"}, "visible ASCII"),
        ({"api_key": ""}, "visible ASCII"),
        ({"scale": 0.0}, "scale must be"),
        ({"scale": math.nan}, "scale must be"),
        ({"scale": math.inf}, "scale must be"),
        ({"timeout": 0.0}, "timeout must be"),
        ({"timeout": math.nan}, "timeout must be"),
    ],
)
def test_reward_model_refuses_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as failure:
        RewardModel(**{"base_url": "http://host", "model": "judge", **arguments})
    assert SECRET not in str(failure.value)


def test_reward_model_fingerprint_names_model_and_scale() -> None:
    verifier = RewardModel("http://host:8000/v1/", "judge", scale=2)
    assert compute_fingerprint(verifier) == {
        "class": "langchain_cfc.RewardModel",
        "id": "reward-model",
        "reward_model": "judge",
        "reward_model.address": compute_sha256("http://host:8000/v1/score?[]"),
        "score": "1 / (1 + exp(reward / 2.0))",
        "question": "of the prompt",
    }
    assert repr(verifier) == "RewardModel('judge' at http://host:8000/v1/score)"
    # Another address may serve the same model; nothing can tell.
    elsewhere = compute_fingerprint(RewardModel("https://other", "judge", scale=2.0, api_key=SECRET))
    assert compare_fingerprints("verifier", compute_fingerprint(verifier), elsewhere) == "unverified"
    for other in (RewardModel("http://host", "other", scale=2.0), RewardModel("http://host", "judge")):
        with pytest.raises(Exception, match="not the one that the artifact was calibrated for"):
            compare_fingerprints("verifier", compute_fingerprint(verifier), compute_fingerprint(other))
    assert "id" not in compute_fingerprint(RewardModel("http://host", "judge", question=lambda given: given))


def test_copied_reward_models_score_alike(base_url: str) -> None:
    verifier = RewardModel(base_url, "judge", api_key=SECRET, scale=3.0)
    for copied in copies_of(verifier):
        assert invoke_sync(copied, CAPITAL) == invoke_sync(verifier, CAPITAL)

"""A soak: many kinds of clients, round after round, at a server whose model fails in many ways.

Each kind of fault strikes two in a hundred of the model's requests. Each response is a decision that meets
the schema and says one of the few accepted texts, or an error with a code that this manner of asking can lead
to. No byte of a response or of the log holds a rejected candidate or a token. The server's counters are what
the clients saw, except of those who left.

After each round nothing is at work, garbage is collected, and the server's process writes down what it holds.
Growth is the slope of Theil and Sen over the last two thirds of the rounds, times their requests. The
resident set moves by some megabytes of its own accord and must not grow by more than 16 MiB, which shows
kept bodies only if there are several times as many bytes of them. Tasks, threads and open files must be no
more at the end than at most in the first third, or than the two event loops and their pool have threads.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_server.schema import DecidedResponse, ErrorResponse
from langchain_core.runnables import Runnable
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from prometheus_client.parser import text_string_to_metric_families

from integrations.server.tests import bots as planted
from integrations.server.tests.loading import (
    COMPLETIONS,
    Connection,
    LostError,
    Reply,
    encode_get,
    encode_post,
)
from integrations.server.tests.parts import COMMAND, OTHER_TOKEN, TOKEN, Server, make_request, run_server
from integrations.server.tests.test_refusals import BODIES
from integrations.tests.planted import make_model
from langchain_cfc.verifiers import SequenceProbability
from tests.conformance.soaking import slope
from tests.serving.openai_server import FAULTS, Fault, serving

BROKEN_SERVER = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]
WRONG_TOKEN = "a-token-that-was-never-issued"  # noqa: S105 - not a real one
LARGEST, CLIENTS, MOST_GROWTH = 300_000, 24, 16 * 2**20
QUESTIONS = (planted.EASY, planted.EASY, planted.UNSURE, planted.HARD, planted.TOOL, planted.EMOJI)
SAID = {planted.GOOD, planted.FALLBACK, "I do not know.", "una «llama» 🦙\r\n\r\ndata: [DONE]\n\n", None}
HIDDEN = (planted.MARK, planted.HIDDEN_TEXT)
BUSY = {"too_many_requests"}
DECIDED = {"decision", "draw_failed", "verifier_failed", "timeout"} | BUSY
REFUSED = {"invalid_json", "invalid_request", "unsupported_parameter", "level_not_calibrated"} | BUSY


@dataclass(frozen=True)
class Plan:
    rounds: int = 6
    requests: int = 120  # of a round
    pause: float = 0.15  # mean seconds that a client waits between requests
    padding: int = 8_000  # most bytes beyond the usual in a body


@dataclass
class Soak:
    plan: Plan
    server: Server
    weights: Path
    broken: Counter[str] = field(default_factory=Counter)
    outcomes: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)  # of completions
    held: list[dict[str, int]] = field(default_factory=list)
    left: int = 0
    requests: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(8))  # noqa: S311 - load, not cryptography

    def make_manners(self) -> dict[str, tuple[int, Callable[[], bytes], set[str]]]:
        """Return, for each manner of asking, its weight, what makes its request, and what it may lead to."""
        rng = self.rng

        def ask(model: str = "bot", token: str | None = TOKEN, **more: Any) -> bytes:
            user = "u" * rng.randrange(self.plan.padding + 1)
            return encode_post(make_request(rng.choice(QUESTIONS), model, user=user, **more), token=token)

        def pick() -> str:
            return rng.choice(["bot", "helped", "together"])

        return {
            "plain": (10, lambda: ask(pick()), DECIDED),
            "stream": (6, lambda: ask(pick(), stream=True), DECIDED),
            "level": (3, lambda: ask("careful/bot", cfc={"alpha": "0.1"}), DECIDED),
            "other level": (1, lambda: ask("careful/bot", cfc={"alpha": "0.3"}), REFUSED),
            "no log-probabilities": (2, lambda: ask("unsure"), DECIDED),
            "broken": (1, lambda: ask("broken"), {"internal_error"} | BUSY),
            "wrong token": (3, lambda: ask(token=rng.choice([WRONG_TOKEN, None])), {"invalid_api_key"}),
            "malformed": (
                6,
                lambda: encode_post(rng.choice(list(BODIES.values()))[0]),
                REFUSED | {"model_not_found", "request_too_large"},
            ),
            "oversized": (2, lambda: encode_post(b" " * (LARGEST + 1)), {"request_too_large"} | BUSY),
            "unknown model": (2, lambda: ask(f"bot-{rng.random()}"), {"model_not_found"} | BUSY),
            "body without end": (1, lambda: ask()[:-20], {"request_timeout"} | BUSY),
            "leaves": (4, lambda: ask()[: rng.choice([None, -20])], {"left"}),
        }

    async def run(self) -> None:
        for _ in range(self.plan.rounds):
            end = self.requests + self.plan.requests
            await asyncio.gather(*(self._ask_on(end) for _ in range(CLIENTS)))
            counted = await self._rest()
            await self._weigh()
        for status, count in self.statuses.items():
            if counted[status] < count:
                self.broken[f"{count} answers of status {status} were seen, {counted[status]} counted"] += 1
        if sum(counted.values()) - sum(self.statuses.values()) != self.left:
            self.broken[f"{self.left} left; counted {counted}, seen {self.statuses}"] += 1

    async def _ask_on(self, end: int) -> None:
        connection, manners = Connection(self.server.port), self.make_manners()
        shares = [weight for weight, *_ in manners.values()]
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / self.plan.pause))
            if self.requests >= end:
                break
            [name] = self.rng.choices(list(manners), shares)
            _, make, allowed = manners[name]
            self.requests += 1
            try:
                if name == "leaves":
                    (await connection.open()).write(make())
                    await asyncio.sleep(self.rng.uniform(0.0, 0.2))
                    connection.close()
                    self.left += 1
                    outcome = "left"
                else:
                    outcome = self._judge(await connection.ask(make()))
                    if name == "body without end":
                        connection.close()  # or the next request would be its rest
            except (LostError, OSError) as error:
                outcome = f"no response ({type(error).__name__}: {error})"
                self.left += 1
                connection.close()
            self.outcomes.add(outcome)
            if outcome not in allowed:
                self.broken[f"{name}: {outcome}"] += 1
        connection.close()

    def _judge(self, reply: Reply) -> str:
        self.statuses[str(reply.status)] += 1
        whole = (reply.head + reply.body).decode()
        try:
            if reply.status != 200:
                code = ErrorResponse.model_validate_json(reply.body).error.code
                return "a hidden text is shown" if any(text in whole for text in HIDDEN) else code
            if b"text/event-stream" in reply.head:
                *events, done, rest = reply.body.decode().split("\n\n")
                chunks = [
                    ChatCompletionChunk.model_validate_json(one.removeprefix("data: ")) for one in events
                ]
                said = "".join(part.delta.content or "" for one in chunks for part in one.choices) or None
                is_whole = (done, rest) == ("data: [DONE]", "") and any(
                    "cfc" in (one.model_extra or ()) for one in chunks
                )
            else:
                DecidedResponse.model_validate_json(reply.body)
                said = ChatCompletion.model_validate_json(reply.body).choices[0].message.content
                is_whole = True
        except ValueError as error:
            return f"not as described: {error}"
        # A set is never empty, so the best of three rejected candidates may be the answer; no other is shown.
        if any(text in whole.replace(said or "-", "") for text in HIDDEN):
            return "a rejected candidate is shown"
        is_known = (said or None) in SAID or planted.MARK in str(said)
        return "decision" if is_whole and is_known else f"it said {said!r}"

    async def _rest(self) -> Counter[str]:
        """Wait until nothing is at work; return how many completions the server counted by status."""
        for _ in range(200):
            connection = Connection(self.server.port)
            reply = await connection.ask(encode_get("/metrics"))
            connection.close()
            families = list(text_string_to_metric_families(reply.body.decode()))
            samples = [sample for family in families for sample in family.samples]
            if not any(
                one.value for one in samples if one.name in {"cfc_server_working", "cfc_server_waiting"}
            ):
                break
            await asyncio.sleep(0.05)
        else:
            self.broken["work did not end"] += 1
        counted: Counter[str] = Counter()
        for one in samples:
            if one.name == "cfc_server_requests_total" and one.labels["route"] == COMPLETIONS:
                counted[one.labels["status"]] += int(one.value)
        return counted

    async def _weigh(self) -> None:
        await asyncio.sleep(0.2)  # connections that were closed are gone after a moment
        self.server.process.send_signal(signal.SIGUSR1)
        for _ in range(500):
            lines = self.weights.read_text().splitlines() if self.weights.exists() else []
            if len(lines) > len(self.held) and lines[-1].endswith("}"):
                self.held.append({**json.loads(lines[-1]), "requests": self.requests})
                return
            await asyncio.sleep(0.02)
        self.broken["the server did not say what it holds"] += 1

    def judge_rest(self) -> None:
        """Judge what grew, and what must not be in the log."""
        first, late = self.held[: len(self.held) // 3], self.held[len(self.held) // 3 :]
        grown = slope([(one["requests"], one["resident"]) for one in late])
        grown *= late[-1]["requests"] - late[0]["requests"]
        if grown > MOST_GROWTH:
            self.broken[f"memory grew by {grown / 2**20:.1f} MiB"] += 1
        pool = {"threads": 2 + min(32, (os.cpu_count() or 1) + 4)}
        for name in ("tasks", "threads", "files"):
            most = max(pool.get(name, 0), *(one[name] for one in first))
            if self.held[-1][name] > most:
                self.broken[f"{name} grew from {most} to {self.held[-1][name]}"] += 1
        log = self.server.log_path.read_text(encoding="utf-8")
        for text in (*HIDDEN, TOKEN, OTHER_TOKEN, WRONG_TOKEN, planted.EASY, planted.GOOD):
            if text in log:
                self.broken[f"the log holds {text!r}"] += 1


def run_soak(plan: Plan, bots: dict[str, str], folder: Path, command: Sequence[str] = COMMAND) -> Soak:
    faults = [
        *(Fault(kind, on=0.02) for kind in (*FAULTS, "no content", "fewer choices")),
        Fault("slow", on=0.02, seconds=(0.05, 0.3, 4.0)),
    ]
    script = replace(planted.make_script(), faults=faults, seed=8)
    silent = replace(script, logprobs=False, requests=[])
    limits = {"concurrency": 6, "queue": 6, "body-limit": LARGEST, "time-limit": 1.5, "cooldown-after": 0}
    limits["per-token"] = 12  # all clients but one use the same token
    options = [word for name, value in limits.items() for word in (f"--{name}", str(value))]
    with serving(script, own_process=True) as upstream, serving(silent, own_process=True) as without:
        weights = folder / "weights"
        env = {"BOTS_UPSTREAM": upstream, "SOAK_WITHOUT_LOGPROBS": without, "SOAK_WEIGHTS": str(weights)}
        models = "integrations.server.tests.test_soak:soak_models"
        with run_server({**bots, **env}, *options, models=models, command=command) as server:
            soak = Soak(plan, server, weights)
            asyncio.run(soak.run())
            if code := server.stop():
                soak.broken[f"the server ended with {code}"] += 1
            soak.judge_rest()
    return soak


@pytest.mark.long
def test_soak_finds_no_fault(bots: dict[str, str], tmp_path: Path) -> None:
    plan = Plan(rounds=30, requests=900, pause=0.5) if os.environ.get("CFC_LONG") else Plan()
    soak = run_soak(plan, bots, tmp_path)
    assert not soak.broken
    # Decisions and failures were both seen, else it would show less than it says.
    assert {"decision", "draw_failed", "verifier_failed", "request_timeout", "left"} <= soak.outcomes


# So many bytes that a server that keeps them is noticed: of the last two thirds some 70 MiB.
@pytest.mark.long
@pytest.mark.parametrize("command", [COMMAND, BROKEN_SERVER])
def test_soak_finds_only_a_server_that_keeps_bodies(
    bots: dict[str, str], tmp_path: Path, command: list[str]
) -> None:
    plan = Plan(requests=400, pause=0.1, padding=250_000)
    soak = run_soak(plan, {**bots, "BROKEN": "keeps bodies"}, tmp_path, command)
    grew = any(said.startswith("memory grew by") for said in soak.broken)
    assert grew == (command is BROKEN_SERVER)


def soak_models() -> dict[str, Runnable[Any, Any]]:
    """Bots by name; at SIGUSR1 the process writes down what it holds."""
    signal.signal(signal.SIGUSR1, _weigh)
    without_logprobs = make_model(os.environ["SOAK_WITHOUT_LOGPROBS"], logprobs=True)
    chosen = planted.models()
    return {
        **{name: chosen[name] for name in ("bot", "careful/bot", "helped", "broken")},
        "together": planted.chain(sampling="single_request"),
        "unsure": planted.chain(generator=without_logprobs, verifier=_confidence),
    }


def _confidence(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """By the log-probabilities of the draws, under the name that the artifact knows."""
    return SequenceProbability().invoke({"prompt": prompt, "candidates": list(candidates)})


def _weigh(*_: Any) -> None:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    held = {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a count, not paths
    }
    with Path(os.environ["SOAK_WEIGHTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(held) + "\n")

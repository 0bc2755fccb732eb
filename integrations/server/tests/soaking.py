"""The soak: many kinds of clients at a server whose model fails in many ways.

`langchain-cfc serve` runs as users start it; its bots draw by `ChatOpenAI` from a stand-in in a process of
its own, of whose requests each kind of fault strikes a few in a hundred. Clients ask plainly, for streams,
at other levels, with wrong tokens, malformed and oversized bodies, for models that are not there; they send
bodies slowly, never finish them, leave in the middle of one or without waiting for their answer.

Of each response: it is a decision that meets the schema, saying one of the few texts that were accepted; or
an error object with a status and a code that this manner of asking can lead to. No byte of it, and no line
of the log, holds a rejected candidate; no line holds a token. Over all: the server's counters are what the
clients saw, where those who left are the only ones that may not have seen what was counted.

Memory: clients come in rounds, after each of which nothing is at work, garbage is collected, and the
server's process writes down what it holds. Growth is the slope of Theil and Sen, the median over all pairs
of rounds, over the last two thirds of the rounds, times the requests of those. The resident set moves by
some megabytes of its own accord and must not grow by more than 16 MiB, which is told from keeping bodies
only if there were several times as many bytes of them: a run states how many. Python's own blocks must not
grow by more than half a block per request, where that is more than 2,000. Tasks, threads and open files
must be no more at the end than they were at most in the first third, or than the event loop's own pool has
threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from langchain_cfc_server.schema import ChatCompletion, ChatCompletionChunk, ErrorResponse
from prometheus_client.parser import text_string_to_metric_families

from integrations.server.tests.bots import (
    EASY,
    EMOJI,
    FALLBACK,
    GOOD,
    HARD,
    HIDDEN_TEXT,
    MARK,
    TOOL,
    UNSURE,
    make_script,
)
from integrations.server.tests.loading import (
    COMPLETIONS,
    Connection,
    LostError,
    Reply,
    encode_get,
    encode_post,
)
from integrations.server.tests.malformed import BODIES
from integrations.server.tests.parts import COMMAND, OTHER_TOKEN, TOKEN, Server, make_request, run_server
from tests.conformance.soaking import slope
from tests.serving.openai_server import Fault, serving

WRONG_TOKEN = "a-token-that-was-never-issued"  # noqa: S105 - not a real one
LARGEST = 300_000
TIME_LIMIT = 1.5
# All manners in which the model fails, each of this share of its requests.
SHARE = 0.02
FAULTS = (
    Fault("status 500", on=SHARE),
    Fault("status 429", on=SHARE),
    Fault("malformed", on=SHARE),
    Fault("truncated", on=SHARE),
    Fault("dropped", on=SHARE),
    Fault("no choices", on=SHARE),
    Fault("no content", on=SHARE),
    Fault("fewer choices", on=SHARE),
    Fault("slow", on=SHARE, seconds=(0.05, 0.3, 4.0)),
)
ALLOWED_ANSWERS = {GOOD, FALLBACK, "I do not know.", "una «llama» 🦙\r\n\r\ndata: [DONE]\n\n", "", None}
RESTLESS_BYTES = 16 * 2**20
RESTLESS_BLOCKS = 2_000
BLOCKS = 0.5

# What a question may lead to, beside a decision: the model fails, time is over, too many ask.
BUSY = {(429, "too_many_requests")}
FAILED = {(502, "draw_failed"), (502, "verifier_failed"), (504, "timeout"), *BUSY}
REFUSED = {
    (400, "invalid_json"),
    (400, "invalid_request"),
    (400, "unsupported_parameter"),
    (400, "level_not_calibrated"),
    (404, "model_not_found"),
    *BUSY,
}
ROUTES = ("/v1/models", "/metrics", "/health/live", "/health/ready", "/openapi.json")


@dataclass(frozen=True)
class Plan:
    """How much there is.

    Attributes:
        rounds: Rounds that clients come in.
        seconds: Of a round.
        clients: Number of clients.
        pause: Mean seconds that a client waits between requests.
        padding: Most bytes beyond the usual in a body, where a body is taken.
        seed: Settles who asks what, and what strikes.
    """

    rounds: int
    seconds: float
    clients: int = 24
    pause: float = 0.5
    padding: int = 8_000
    seed: int = 8


@dataclass(frozen=True)
class Weight:
    """What the server's process holds between rounds.

    Attributes:
        requests: Answered or left until then.
        sent: Bytes of bodies until then.
        resident: Bytes in memory.
        blocks: Of Python's own memory.
        tasks: Of its event loop.
        threads: Of the process.
        files: Open ones.
    """

    requests: int
    sent: int
    resident: int
    blocks: int
    tasks: int
    threads: int
    files: int


@dataclass
class Found:
    """The findings of a soak.

    Attributes:
        broken: What was violated, with how often.
        outcomes: How often each manner of asking ended in which way.
        weights: What the server held after each round.
        counts: Figures of the whole.
        seconds: Wall time.
    """

    broken: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    weights: list[Weight] = field(default_factory=list)
    counts: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return [f"{what} ({count} times)" for what, count in self.broken.items()]

    def rows(self) -> Iterator[tuple[str, str]]:
        """The findings as rows of a table."""
        for manner in sorted({manner for manner, _ in self.outcomes}):
            ended = {end: count for (one, end), count in self.outcomes.items() if one == manner}
            yield manner, ", ".join(f"{count} {end}" for end, count in sorted(ended.items()))
        yield from self.counts.items()
        yield "violated", "; ".join(self.violations) or "nothing"
        yield "wall time", f"{self.seconds:.0f} s"


class Clients:
    """Clients of all manners.

    Args:
        plan: How much there is.
        port: Of the server.
    """

    def __init__(self, plan: Plan, port: int) -> None:
        self.found = Found()
        # What was seen, by path, status and outcome; decisions by model and reason.
        self.seen: Counter[tuple[str, ...]] = Counter()
        self.decided: Counter[tuple[str, ...]] = Counter()
        self.left = self.requests = self.sent = 0
        self._plan, self._port = plan, port
        self._luck = random.Random(plan.seed)  # noqa: S311 - load, not cryptography
        self._manners: dict[Callable[[Connection], Awaitable[None]], int] = {
            self._plain: 10,
            self._stream: 6,
            self._level: 3,
            self._unsure: 2,
            self._broken: 1,
            self._wrong_token: 3,
            self._malformed: 6,
            self._oversized: 2,
            self._unknown: 2,
            self._elsewhere: 3,
            self._no_http: 1,
            self._slowly: 2,
            self._never: 1,
            self._leaves_early: 2,
            self._leaves: 2,
        }

    async def round(self) -> None:
        """All clients, for a round, until none of them waits for anything."""
        end = time.monotonic() + self._plan.seconds
        await asyncio.gather(*(self._client(end) for _ in range(self._plan.clients)))

    async def _client(self, end: float) -> None:
        connection = Connection(self._port)
        manners, shares = list(self._manners), list(self._manners.values())
        while True:
            await asyncio.sleep(self._luck.expovariate(1 / self._plan.pause))
            if time.monotonic() > end:
                break
            (manner,) = self._luck.choices(manners, shares)
            self.requests += 1
            try:
                await manner(connection)
            except (LostError, OSError) as error:
                name = manner.__name__.strip("_")
                self.found.broken[f"{name}: no response ({type(error).__name__}: {error})"] += 1
                self.left += 1
                connection.close()
        connection.close()

    # Manners of asking.

    async def _plain(self, connection: Connection) -> None:
        model = self._luck.choice(["bot", "helped", "together"])
        self._note("plain", model, await self._ask(connection, self._asking(model)), FAILED)

    async def _stream(self, connection: Connection) -> None:
        model = self._luck.choice(["bot", "helped", "together"])
        body = self._asking(model, stream=True, stream_options={"include_usage": True})
        self._note("stream", model, await self._ask(connection, body), FAILED)

    async def _level(self, connection: Connection) -> None:
        level = self._luck.choice(["0.1", "0.2", "0.3", None])
        body = self._asking("careful/bot", cfc={"alpha": level})
        known = level in {"0.1", "0.2"}
        allowed = FAILED if known else {(400, "level_not_calibrated"), *BUSY}
        said = "a level" if known else "no level"
        self._note(said, "careful/bot", await self._ask(connection, body), allowed, decisions=known)

    async def _unsure(self, connection: Connection) -> None:
        reply = await self._ask(connection, self._asking("unsure"))
        self._note("no log-probabilities", "unsure", reply, FAILED, decisions=False)

    async def _broken(self, connection: Connection) -> None:
        reply = await self._ask(connection, self._asking("broken"))
        self._note("broken", "broken", reply, {(500, "internal_error"), *BUSY}, decisions=False)

    async def _wrong_token(self, connection: Connection) -> None:
        token = self._luck.choice([WRONG_TOKEN, TOKEN[:-1], None])
        reply = await self._ask(connection, self._asking("bot"), token=token)
        self._note("wrong token", "bot", reply, {(401, "invalid_api_key")}, decisions=False)

    async def _malformed(self, connection: Connection) -> None:
        body, _ = self._luck.choice(list(BODIES.values()))
        allowed = {(413, "request_too_large"), *BUSY} if len(body) > LARGEST else REFUSED
        self._note("malformed", "bot", await self._ask(connection, body), allowed, decisions=False)

    async def _oversized(self, connection: Connection) -> None:
        reply = await self._ask(connection, b" " * (LARGEST + self._luck.randrange(1, 200_000)))
        self._note("oversized", "bot", reply, {(413, "request_too_large"), *BUSY}, decisions=False)

    async def _unknown(self, connection: Connection) -> None:
        reply = await self._ask(connection, self._asking(f"bot-{self._luck.random()}"))
        self._note("unknown model", "", reply, {(404, "model_not_found"), *BUSY}, decisions=False)

    async def _elsewhere(self, connection: Connection) -> None:
        path = self._luck.choice([*ROUTES, f"/nothing/{self._luck.random()}"])
        reply = await connection.ask(encode_get(path))
        ok = path in ROUTES
        self._looked_at(reply, "elsewhere")
        outcome = "ok" if ok else self._code(reply, "elsewhere", {(404, "not_found")})
        if ok and reply.status != 200:
            self.found.broken[f"elsewhere: {reply.status} at {path}"] += 1
        self._saw(path if ok else "other", reply.status, outcome, "elsewhere")

    async def _no_http(self, connection: Connection) -> None:
        del connection
        fresh = Connection(self._port)
        reply = await fresh.ask(b"WHAT IS THE CAPITAL OF PERU?\r\n\r\n")
        fresh.close()
        self._looked_at(reply, "no HTTP")
        self.found.outcomes["no HTTP", self._code(reply, "no HTTP", {(400, "invalid_http")})] += 1

    async def _slowly(self, connection: Connection) -> None:
        request = encode_post(self._asking("bot"))
        middle = len(request) - self._luck.randrange(1, 50)
        (await connection.open()).write(request[:middle])
        await asyncio.sleep(self._luck.uniform(0.1, 0.6))
        self.sent += len(request)
        self._note("slow body", "bot", await connection.ask(request[middle:]), FAILED)

    async def _never(self, connection: Connection) -> None:
        reply = await connection.ask(encode_post(self._asking("bot"))[:-20])
        allowed = {(408, "request_timeout"), *BUSY}
        self._note("body without end", "bot", reply, allowed, decisions=False)
        connection.close()

    async def _leaves_early(self, connection: Connection) -> None:
        (await connection.open()).write(encode_post(self._asking("bot"))[:-20])
        await asyncio.sleep(self._luck.uniform(0.0, 0.3))
        connection.close()
        self.left += 1
        self.found.outcomes["left in the middle of its body", "left"] += 1

    async def _leaves(self, connection: Connection) -> None:
        (await connection.open()).write(encode_post(self._asking("bot", stream=True)))
        await asyncio.sleep(self._luck.uniform(0.0, 0.1))
        connection.close()
        self.left += 1
        self.found.outcomes["left before its answer", "left"] += 1

    # What comes of it.

    def _asking(self, model: str, **more: Any) -> dict[str, Any]:
        question = self._luck.choice([EASY, EASY, UNSURE, HARD, TOOL, EMOJI])
        return make_request(question, model, user="u" * self._luck.randrange(self._plan.padding + 1), **more)

    async def _ask(self, connection: Connection, body: Any, token: str | None = TOKEN) -> Reply:
        request = encode_post(body, token=token)
        self.sent += len(request)
        return await connection.ask(request)

    def _note(
        self,
        manner: str,
        model: str,
        reply: Reply,
        allowed: set[tuple[int, str]],
        *,
        decisions: bool = True,
    ) -> None:
        """Look at what came of a question, and forget it."""
        self._looked_at(reply, manner)
        if reply.status != 200:
            outcome = self._code(reply, manner, allowed)
        else:
            if not decisions:
                self.found.broken[f"{manner}: a decision"] += 1
            outcome = self._decision(reply, manner)
            self.decided[model, outcome] += 1
        self._saw(COMPLETIONS, reply.status, outcome, manner)

    def _saw(self, route: str, status: int, outcome: str, manner: str) -> None:
        self.seen[route, str(status), outcome] += 1
        self.found.outcomes[manner, outcome] += 1

    def _looked_at(self, reply: Reply, manner: str) -> None:
        whole = reply.head + reply.body
        for hidden in (MARK, HIDDEN_TEXT):
            if hidden.encode() in whole:
                self.found.broken[f"{manner}: {hidden!r} was shown"] += 1

    def _code(self, reply: Reply, manner: str, allowed: set[tuple[int, str]]) -> str:
        try:
            code = ErrorResponse.model_validate_json(reply.body).error.code
        except ValueError:
            self.found.broken[f"{manner}: an error that is no error object: {reply.body[:200]!r}"] += 1
            return "?"
        if (reply.status, code) not in allowed:
            self.found.broken[f"{manner}: unexpected {reply.status} {code}"] += 1
        return code

    def _decision(self, reply: Reply, manner: str) -> str:
        try:
            said, cfc = _read_stream(reply) if b"text/event-stream" in reply.head else _read_completion(reply)
        except (ValueError, IndexError) as error:
            self.found.broken[f"{manner}: not as described: {str(error)[:300]}"] += 1
            return "?"
        if said not in ALLOWED_ANSWERS:
            self.found.broken[f"{manner}: it said {said!r}"] += 1
        return str(cfc.get("reason", "fallback"))


def _read_completion(reply: Reply) -> tuple[str | None, dict[str, Any]]:
    """The text and the decision of a completion.

    Raises:
        ValueError: If it is none.
    """
    read = ChatCompletion.model_validate_json(reply.body)
    cfc: dict[str, Any] = json.loads(reply.body)["cfc"]
    return read.choices[0].message.content, cfc


def _read_stream(reply: Reply) -> tuple[str | None, dict[str, Any]]:
    """The same of a stream."""
    *events, done, rest = reply.body.decode().split("\n\n")
    if (done, rest) != ("data: [DONE]", ""):
        msg = f"a stream that ends with {done!r}"
        raise ValueError(msg)
    texts, decision = [], None
    for event in events:
        data = event.removeprefix("data: ")
        chunk = ChatCompletionChunk.model_validate_json(data)
        texts += [one.delta.content or "" for one in chunk.choices]
        decision = json.loads(data).get("cfc") or decision
    if decision is None:
        msg = "a stream without a decision"
        raise ValueError(msg)
    return "".join(texts) or None, decision


class Soak:
    """Serves a plan.

    Args:
        plan: How much there is.
        server: The server.
        weights: The file that its process writes what it holds into.
    """

    def __init__(self, plan: Plan, server: Server, weights: Path) -> None:
        self._plan, self._server, self._weights = plan, server, weights
        self.clients = Clients(plan, server.port)
        self.found = self.clients.found

    async def run(self) -> None:
        """All rounds, then what they come to."""
        for _ in range(self._plan.rounds):
            await self.clients.round()
            await self._rest()
            if self._server.process.poll() is not None:
                self.found.broken["the server has ended"] += 1
                return
            await self._weigh()
        self._reconcile(await self._metrics())

    async def _metrics(self) -> dict[tuple[str, ...], float]:
        connection = Connection(self._server.port)
        reply = await connection.ask(encode_get("/metrics"))
        connection.close()
        self.clients._saw("/metrics", reply.status, "ok", "elsewhere")
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(reply.body.decode())
            for sample in family.samples
        }

    async def _rest(self) -> None:
        """Wait until nothing is at work: who left may be heard of late."""
        for _ in range(200):
            now = await self._metrics()
            if now["cfc_server_working",] == now["cfc_server_waiting",] == 0:
                return
            await asyncio.sleep(0.05)
        self.found.broken["work did not end"] += 1

    async def _weigh(self) -> None:
        before = len(self.found.weights)
        # Connections that were closed are gone after a moment.
        await asyncio.sleep(0.2)
        self._server.process.send_signal(signal.SIGUSR1)
        for _ in range(200):
            lines = self._weights.read_text(encoding="utf-8").splitlines() if self._weights.exists() else []
            if len(lines) > before and lines[before].endswith("}"):
                held = json.loads(lines[before])
                one = Weight(requests=self.clients.requests, sent=self.clients.sent, **held)
                self.found.weights.append(one)
                return
            await asyncio.sleep(0.02)
        self.found.broken["the server did not say what it holds"] += 1

    def _reconcile(self, counted: Mapping[tuple[str, ...], float]) -> None:
        """Compare what the server counted with what clients saw."""
        # Labels by their names: outcome, route, status; model, reason.
        requests: Counter[tuple[str, ...]] = Counter(
            {
                (key[2], key[3], key[1]): int(value)
                for key, value in counted.items()
                if key[0] == "cfc_server_requests_total"
            }
        )
        decisions: Counter[tuple[str, ...]] = Counter(
            {key[1:]: int(value) for key, value in counted.items() if key[0] == "cfc_server_decisions_total"}
        )
        # The request for the counters is not among them yet.
        self.clients.seen["/metrics", "200", "ok"] -= 1
        for what, servers, ours in (
            ("requests", requests, self.clients.seen),
            ("decisions", decisions, self.clients.decided),
        ):
            if ours - servers:
                self.found.broken[f"{what} that were not counted: {dict(ours - servers)}"] += 1
            unseen = servers - ours
            elsewhere = {key for key in unseen if what == "requests" and key[0] != COMPLETIONS}
            if elsewhere or unseen.total() > self.clients.left:
                self.found.broken[f"{what} that no client made: {dict(unseen)}"] += 1
            if what == "requests" and unseen.total() != self.clients.left:
                self.found.broken[f"{self.clients.left} left, and {unseen.total()} were counted"] += 1
            self.found.counts[f"{what}, clients and server"] = (
                f"{sum(ours.values())} seen and {sum(servers.values())} counted; beyond: {dict(unseen)}"
            )

    def judge_log(self) -> None:
        """Judge the log: what must not be in it."""
        text = self._server.log_path.read_text(encoding="utf-8")
        hidden = {
            "a rejected candidate": MARK,
            "an error's text": HIDDEN_TEXT,
            "a token": TOKEN,
            "the other token": OTHER_TOKEN,
            "a wrong token": WRONG_TOKEN,
            "a question": EASY,
            "an answer": GOOD,
        }
        for what, one in hidden.items():
            if one in text:
                self.found.broken[f"the log holds {what}"] += 1
        lines = self._server.log
        kinds = Counter((line["level"], line.get("outcome", line["message"])) for line in lines)
        for (level, outcome), count in kinds.items():
            if level != "info" and outcome not in {"internal_error", "Invalid HTTP request received."}:
                self.found.broken[f"the log has {count} lines of level {level}: {outcome}"] += 1
        self.found.counts["lines of the log"] = f"{len(lines):,}, {len(text):,} characters"

    def judge_memory(self) -> None:
        """Judge what grew, and whether that is too much."""
        weights = self.found.weights
        if len(weights) < 6:
            self.found.counts["memory"] = f"not judged: {len(weights)} rounds"
            return
        late = weights[len(weights) // 3 :]
        requests, sent = (
            late[-1].requests - late[0].requests,
            late[-1].sent - late[0].sent,
        )
        bytes_ = requests * slope([(one.requests, one.resident) for one in late])
        blocks = slope([(one.requests, one.blocks) for one in late])
        begun, third, ended = (f"{one.resident / 2**20:.1f}" for one in (weights[0], late[0], late[-1]))
        self.found.counts["resident set, MiB"] = (
            f"{begun} after the first round, {third} after a third, {ended} at the end; slope of the last "
            f"two thirds {bytes_ / 2**20:+.2f} in {requests:,} requests, which sent {sent / 2**20:.0f} "
            f"(at most {RESTLESS_BYTES / 2**20:g})"
        )
        judged = BLOCKS * requests > RESTLESS_BLOCKS
        self.found.counts["blocks per request"] = (
            f"{blocks:+.3f} (at most {BLOCKS:g})"
            if judged
            else f"{blocks:+.3f} (not judged: too few requests)"
        )
        if bytes_ > RESTLESS_BYTES:
            self.found.broken[f"memory grew by {bytes_ / 2**20:.1f} MiB"] += 1
        if judged and blocks > BLOCKS:
            self.found.broken[f"memory grew by {blocks:.2f} blocks per request"] += 1
        first = weights[: max(1, len(weights) // 3)]
        # The event loop's own pool of threads fills as it is needed.
        pool = 1 + min(32, (os.cpu_count() or 1) + 4)
        for name, least in (("tasks", 0), ("threads", pool), ("files", 0)):
            held: list[int] = [getattr(one, name) for one in weights]
            most = max(least, *(getattr(one, name) for one in first))
            self.found.counts[name] = (
                f"{held[0]} after the first round, {held[-1]} at the end, at most {max(held)}"
            )
            if held[-1] > most:
                self.found.broken[f"{name} grew from {most} to {held[-1]}"] += 1


def run_soak(plan: Plan, bots: Mapping[str, str], command: Sequence[str] = COMMAND) -> Found:
    """Serve a plan and check what came of it.

    Args:
        plan: How much there is.
        bots: The environment in which a server finds its bots.
        command: The program that serves.
    """
    began = time.monotonic()
    planted = replace(make_script(), faults=FAULTS, seed=plan.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(planted, own_process=True) as upstream,
        serving(replace(planted, logprobs=False, requests=[]), own_process=True) as silent,
    ):
        weights = Path(folder) / "weights"
        env = {
            **bots,
            "BOTS_UPSTREAM": upstream,
            "SOAK_WITHOUT_LOGPROBS": silent,
            "SOAK_WEIGHTS": str(weights),
        }
        limits = {"concurrency": "6", "queue": "6", "body-limit": str(LARGEST), "time-limit": str(TIME_LIMIT)}
        options = [part for name, value in limits.items() for part in (f"--{name}", value)]
        with run_server(
            env, *options, models="integrations.server.tests.soak_bots:models", command=command
        ) as server:
            soaked = Soak(plan, server, weights)
            asyncio.run(soaked.run())
            code = server.stop()
            if code:
                soaked.found.broken[f"the server ended with {code}"] += 1
            soaked.judge_log()
            soaked.judge_memory()
    found = soaked.found
    found.counts["faults of the model"] = ", ".join(
        f"{count} {kind}" for kind, count in planted.struck.items()
    )
    for fault in FAULTS:
        if not planted.struck[fault.kind]:
            found.broken[f"{fault.kind} never struck"] += 1
    found.seconds = time.monotonic() - began
    return found

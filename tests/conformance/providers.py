"""What answers: a chat model in memory, a server on this machine, and a real model behind one.

All of them count what they are asked and what it costs, and fail or dawdle when told to. The first two follow
the same scripts.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import httpx
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI

from tests.fakes import TEXTS, answer_of, score_of
from tests.serving.openai_bodies import Answer, Json
from tests.serving.openai_server import Fault, Reply, Script, serving

COMPLETIONS = "/v1/chat/completions"
MODEL = "recorded"


class Provider(Protocol):
    """The model that answers.

    Attributes:
        scripted: Whether the answers to a prompt are always the same ones, in the same order.
        over_http: Whether there is a server with a network before it.
        prompt: What it can be asked.
    """

    scripted: bool
    over_http: bool
    prompt: str

    def model(self, **settings: Any) -> BaseChatModel:
        """A client, which does not try again by itself unless told otherwise."""

    def fail(self, on: AbstractSet[int] | None = None) -> None:
        """Let requests fail from now on: those of these numbers, counted from here, or all."""

    def slow(self, seconds: float) -> None:
        """Let requests take this long from now on."""

    def reset(self) -> None:
        """Forget what was asked, and work faultlessly."""

    @property
    def requests(self) -> int:
        """The number of requests so far."""

    @property
    def most_at_once(self) -> int:
        """The largest number of concurrent requests."""

    @property
    def usage(self) -> tuple[int, int]:
        """Tokens read and written for whole responses."""

    def read(self, text: str) -> str:
        """The answer in a candidate's text."""

    def scores(self, texts: Sequence[str]) -> list[float]:
        """Scores of which some lie above the threshold 0.75, and some below."""


class Everything(dict[str, list[Answer]]):
    """The same answers to every prompt."""

    def __missing__(self, prompt: str) -> list[Answer]:
        return [Answer(text, -1.0) for text in TEXTS]


@dataclass
class Watched(Script):
    """A script that notes when requests came, until when they certainly stayed, and what they cost."""

    stays: list[tuple[float, float]] = field(default_factory=list)
    tokens_in: int = 0
    tokens_out: int = 0

    def reply(self, path: str, body: Json) -> Reply:
        reply = super().reply(path, body)
        now = time.monotonic()
        self.stays.append((now, now + reply.after))
        if reply.status == httpx.codes.OK and reply.broken is None:
            used = json.loads(reply.parts[0])["usage"]
            self.tokens_in += used["prompt_tokens"]
            self.tokens_out += used["completion_tokens"]
        return reply


class Scripted:
    """The common part of both scripted providers."""

    scripted = True
    prompt = "Capital?"

    def __init__(self) -> None:
        self.script = Watched(Everything())

    def fail(self, on: AbstractSet[int] | None = None) -> None:
        self.strike(Fault("status 500", on=on))

    def slow(self, seconds: float) -> None:
        self.script.faults = [*self.script.faults, Fault("slow", seconds=seconds)]

    def strike(self, *faults: Fault) -> None:
        """Let faults strike; their numbers count from here."""
        asked = self.requests
        self.script.faults = [
            Fault(one.kind, {asked + number for number in one.on}, one.seconds)
            if isinstance(one.on, AbstractSet)
            else one
            for one in faults
        ]

    def reset(self) -> None:
        script = self.script
        script.faults, script.tokens_in, script.tokens_out = (), 0, 0
        script.requests.clear()
        script.stays.clear()

    @property
    def requests(self) -> int:
        return len(self.script.requests)

    @property
    def most_at_once(self) -> int:
        # A lower bound, for a request may stay longer than it has to: never one more than there were.
        stays = self.script.stays
        return max(sum(came <= now < left for came, left in stays) for now, _ in stays)

    @property
    def usage(self) -> tuple[int, int]:
        return self.script.tokens_in, self.script.tokens_out

    def read(self, text: str) -> str:
        return answer_of(text)

    def scores(self, texts: Sequence[str]) -> list[float]:
        return [score_of(text) for text in texts]


class ScriptedChat(BaseChatModel):
    """A chat model in memory that follows a script, offers choices, and streams wherever it is let.

    Args:
        script: What it answers.
    """

    script: Any

    # Of all models together, for a lock of one's own cannot be copied.
    _asking: ClassVar[threading.Lock] = threading.Lock()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _reply(self, messages: list[BaseMessage], asked: dict[str, Any]) -> Reply:
        body = {"messages": [{"role": "user", "content": str(messages[-1].text)}], **asked}
        with self._asking:
            reply: Reply = self.script.reply(COMPLETIONS, body)
        return reply

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager
        reply = self._reply(messages, kwargs)
        time.sleep(reply.after)
        return _result(reply)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager
        reply = self._reply(messages, kwargs)
        await asyncio.sleep(reply.after)
        return _result(reply)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for generation in self._generate(messages, stop, None, **kwargs).generations:
            for character in str(generation.message.text):
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=character))
                if run_manager is not None:
                    run_manager.on_llm_new_token(character, chunk=chunk)
                yield chunk


def _result(reply: Reply) -> ChatResult:
    """A response as clients read it: each choice bears the usage of the whole request."""
    if reply.status != httpx.codes.OK or reply.broken not in {None, "no choices"}:
        msg = f"status {reply.status}, {reply.broken}"
        raise ConnectionError(msg)
    body = json.loads(reply.parts[0])
    used = body["usage"]
    usage = UsageMetadata(
        input_tokens=used["prompt_tokens"],
        output_tokens=used["completion_tokens"],
        total_tokens=used["total_tokens"],
    )
    generations = [
        ChatGeneration(message=AIMessage(choice["message"]["content"] or "", usage_metadata=usage))
        for choice in body["choices"]
    ]
    return ChatResult(generations=generations, llm_output={"model_name": body["model"]})


class InMemory(Scripted):
    """A chat model in this process."""

    over_http = False

    def model(self, **settings: Any) -> BaseChatModel:
        return ScriptedChat(script=self.script, **settings)


class OverHTTP(Scripted):
    """`ChatOpenAI` before a server on this machine.

    Args:
        url: Where the server is found; it follows `script`.
    """

    over_http = True

    def __init__(self, script: Watched, url: str) -> None:
        self.script = script
        self._url = url

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[OverHTTP]:
        """With its server, for as long as the block runs."""
        script = Watched(Everything())
        with serving(script) as url:
            yield cls(script, url)

    def model(self, **settings: Any) -> BaseChatModel:
        client: dict[str, Any] = {"model": MODEL, "base_url": self._url, "api_key": "none", "max_retries": 0}
        return ChatOpenAI(**{**client, **settings})


class Live:
    """`ChatOpenAI` before a real model; what it is asked is seen in the client's requests, on the wire.

    Args:
        url: Where the model is served.
        name: What it is called there.
    """

    scripted = False
    over_http = True
    prompt = "Tell me something surprising about"

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._lock = threading.Lock()
        # No connection outlives its event loop.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(
            limits=limits, timeout=120, event_hooks={"request": [self._sent], "response": [self._came]}
        )
        self._aclient = httpx.AsyncClient(
            limits=limits, timeout=120, event_hooks={"request": [self._asent], "response": [self._acame]}
        )
        self.reset()

    def model(self, **settings: Any) -> BaseChatModel:
        # An answer that is cut off is none: the grammar ends each long before the limit.
        sampling: dict[str, Any] = {
            "temperature": 1.2,
            "max_completion_tokens": 64,
            "extra_body": {"grammar": "root ::= [A-Z] [a-z ]{8,40}"},
        }
        client: dict[str, Any] = {
            "model": self._name,
            "base_url": self._url,
            "api_key": "none",
            "max_retries": 0,
            "http_client": self._client,
            "http_async_client": self._aclient,
        }
        return ChatOpenAI(**{**client, **sampling, **settings})

    def fail(self, on: AbstractSet[int] | None = None) -> None:
        first = self.requests
        self._failing = None if on is None else {first + number for number in on}
        self._fails = True

    def slow(self, seconds: float) -> None:
        self._seconds = seconds

    def reset(self) -> None:
        self._fails, self._failing, self._seconds = False, None, 0.0
        self._asked = self._now = self._most = self._in = self._out = 0

    @property
    def requests(self) -> int:
        return self._asked

    @property
    def most_at_once(self) -> int:
        return self._most

    @property
    def usage(self) -> tuple[int, int]:
        return self._in, self._out

    def read(self, text: str) -> str:
        return text.strip()

    def scores(self, texts: Sequence[str]) -> list[float]:
        # By slot: what a real model says is not known.
        return [0.1 if slot == 0 else 0.9 for slot in range(len(texts))]

    def _enter(self, request: httpx.Request) -> float:
        with self._lock:
            number, self._asked = self._asked, self._asked + 1
            if self._fails and (self._failing is None or number in self._failing):
                msg = "the line is dead"
                raise httpx.ConnectError(msg, request=request)
            self._now += 1
            self._most = max(self._most, self._now)
            return self._seconds

    def _leave(self, response: httpx.Response) -> None:
        used = response.json().get("usage") or {}
        with self._lock:
            self._now -= 1
            self._in += used.get("prompt_tokens", 0)
            self._out += used.get("completion_tokens", 0)

    def _sent(self, request: httpx.Request) -> None:
        time.sleep(self._enter(request))

    async def _asent(self, request: httpx.Request) -> None:
        await asyncio.sleep(self._enter(request))

    def _came(self, response: httpx.Response) -> None:
        response.read()
        self._leave(response)

    async def _acame(self, response: httpx.Response) -> None:
        await response.aread()
        self._leave(response)

    def close(self) -> None:
        """Let go of the clients."""
        self._client.close()
        asyncio.run(self._aclient.aclose())

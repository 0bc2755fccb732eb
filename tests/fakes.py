"""Chat models, a retriever, verifiers and handlers that stand in for real ones.

A candidate's text is `answer|score`: the verifier reads the score, the extractor the answer. So a test that
scripts the texts knows what must be decided.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import (
    BaseCallbackHandler,
    CallbackManagerForLLMRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr

from langchain_cfc.sampling import DrawnCandidate

N = 4


# Half of the candidates lie below the threshold 0.75 of the artifacts below.
TEXTS = ("lima|0.3", "quito|0.9", "lima|0.1", "bogota|0.8")


class ScriptedModel(BaseChatModel):
    """Draws the text scripted for a request slot, whatever thread or order the requests come in.

    Args:
        texts: By slot; if left out, made from the prompt and the slot.
        failing: Slots whose requests fail.
        failures: How often they fail; always if left out.
        drawn: The prompts it was asked, for tests to count.
    """

    texts: Sequence[str] | None = None
    failing: frozenset[int] = frozenset()
    failures: int | None = None
    usage: UsageMetadata | None = None
    drawn: list[str] = Field(default_factory=list)

    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)
    _failed: Counter[int] = PrivateAttr(default_factory=Counter)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _message(
        self, messages: list[BaseMessage], run_manager: CallbackManagerForLLMRun | None
    ) -> AIMessage:
        prompt = str(messages[-1].text)
        with self._lock:
            count = len(self.drawn)
            self.drawn.append(prompt)
        slot = slot_of(run_manager.tags if run_manager else [], count % N)
        self._failed[slot] += slot in self.failing
        if slot in self.failing and (self.failures is None or self._failed[slot] <= self.failures):
            msg = f"no answer in slot {slot}"
            raise RuntimeError(msg)
        text = self.texts[slot] if self.texts is not None else text_from_hash(prompt, slot)
        return AIMessage(text, usage_metadata=self.usage)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, kwargs
        return ChatResult(generations=[ChatGeneration(message=self._message(messages, run_manager))])


class StreamingModel(ScriptedModel):
    """A `ScriptedModel` that streams by the character wherever LangChain lets it."""

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        del stop, kwargs
        message = self._message(messages, run_manager)
        for character in str(message.text):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=character))
            if run_manager is not None:
                run_manager.on_llm_new_token(character, chunk=chunk)
            yield chunk


def slot_of(tags: list[str] | None, otherwise: int) -> int:
    """The request slot that a run's tags name, the last of them where one chain draws from another."""
    found = [tag.rpartition(":")[2] for tag in tags or [] if tag.startswith("cfc:candidate:")]
    return int(found[-1]) if found else otherwise


def text_from_hash(prompt: str, slot: int) -> str:
    """A text whose score and answer depend on the prompt and the slot, the same in every process."""
    # A prompt is easy or hard as a whole, so that some have all their scores above a threshold.
    hardness, luck = (zlib.crc32(text.encode()) % 101 for text in (prompt, f"{prompt}/{slot}"))
    return f"answer {luck % 3}|{(80 * hardness + 20 * luck) / 10_000}"


def score_of(text: str) -> float:
    """The score that a text states."""
    return float(text.rpartition("|")[2])


def answer_of(text: str) -> str:
    """The answer that a text states."""
    return text.partition("|")[0]


def verify(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    """The verifier: each candidate's score as it states it."""
    del prompt
    return [score_of(candidate.text) for candidate in candidates]


async def averify(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    """The same verifier, async."""
    return verify(prompt, candidates)


def topic_of(prompt: Any) -> dict[str, str]:
    """The metadata function: the last word of the prompt is its topic."""
    return {"topic": str(prompt).rpartition(" ")[2]}


TOKENS_IN, TOKENS_OUT = 10, 2


class NumberedModel(BaseChatModel):
    """Numbers its answers, and gives as many at once as it is asked for, unless told otherwise.

    Args:
        called: What it says that its name is.
        n: Choices per request where the request does not say.
        echoing: Whether answers are the prompt instead.
        failing: Numbers of the requests that fail, counted from 0.
        requests: What was asked, for tests to look at.
    """

    called: str = "numbered-1"
    n: int | None = None
    seed: int | None = None
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    extra_body: dict[str, Any] | None = None
    echoing: bool = False
    failing: frozenset[int] = frozenset()
    requests: list[dict[str, Any]] = Field(default_factory=list)

    _answers: list[str] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @property
    def _llm_type(self) -> str:
        return "numbered"

    def answered(self, messages: list[BaseMessage], asked: dict[str, Any]) -> list[str]:
        """The answers to one request."""
        prompt = str(messages[-1].text)
        body = {**self.model_kwargs, **(self.extra_body or {}), **asked}
        count = int(body.get("n") or self.n or 1)
        with self._lock:
            number = len(self.requests)
            self.requests.append({"prompt": prompt, **asked})
            if number in self.failing:
                msg = f"request {number} failed"
                raise ConnectionError(msg)
            start = len(self._answers)
            self._answers.extend(prompt if self.echoing else f"answer {start + one}" for one in range(count))
            return self._answers[start:]

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del run_manager
        texts = self.answered(messages, {**kwargs, **({} if stop is None else {"stop": stop})})
        tokens = TOKENS_OUT * len(texts)
        # As clients do: each choice bears the usage of the whole request, and none says who made it.
        usage = UsageMetadata(input_tokens=TOKENS_IN, output_tokens=tokens, total_tokens=TOKENS_IN + tokens)
        generations = [ChatGeneration(message=AIMessage(text, usage_metadata=usage)) for text in texts]
        return ChatResult(generations=generations, llm_output={"model_name": self.called})


class NumberedStreamingModel(NumberedModel):
    """A `NumberedModel` that streams by the character; several choices alternate, as over the wire."""

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        del stop
        for together in zip(*self.answered(messages, kwargs), strict=True):
            for character in together:
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=character))
                if run_manager is not None:
                    run_manager.on_llm_new_token(character, chunk=chunk)
                yield chunk


class CountingRetriever(BaseRetriever):
    """Finds one document for every question, and counts the questions."""

    asked: list[str] = Field(default_factory=list)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager
        self.asked.append(query)
        return [Document(page_content=f"about {query}")]


class RunRecorder(BaseCallbackHandler):
    """The runs that were started, each as its kind, its name and its tags."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, str, frozenset[str]]] = []

    def _see(self, kind: str, tags: list[str] | None, kwargs: dict[str, Any]) -> None:
        self.runs.append((kind, str(kwargs.get("name")), frozenset(tags or [])))

    def on_chain_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        del args
        self._see("chain", tags, kwargs)

    def on_chat_model_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        del args
        self._see("model", tags, kwargs)

    def on_retriever_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        del args
        self._see("retriever", tags, kwargs)

    def of(self, kind: str) -> list[tuple[str, frozenset[str]]]:
        """Names and tags of the runs of one kind."""
        return [(name, tags) for one, name, tags in self.runs if one == kind]


@contextmanager
def global_cache() -> Iterator[InMemoryCache]:
    """LangChain's cache for all models, set for a while."""
    before, cache = get_llm_cache(), InMemoryCache()
    set_llm_cache(cache)
    try:
        yield cache
    finally:
        set_llm_cache(before)

"""Models whose answers are numbered, a retriever that counts, and candidates drawn from them both ways."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
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
from langchain_core.runnables import RunnableConfig
from pydantic import Field, PrivateAttr

from langchain_cfc.sampling import DrawnCandidate, Sampler, SamplingName, resolve_generator

PROMPT = "where?"
TOKENS_IN, TOKENS_OUT = 10, 2

Drawing: TypeAlias = Callable[..., list[DrawnCandidate]]


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


class StreamedModel(NumberedModel):
    """The same, by the character; several choices come in turns, as they do over the wire."""

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


class Library(BaseRetriever):
    """Finds one document for every question, and counts the questions."""

    asked: list[str] = Field(default_factory=list)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        del run_manager
        self.asked.append(query)
        return [Document(page_content=f"about {query}")]


class Seen(BaseCallbackHandler):
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


def drawn(
    generator: Any,
    n: int = 3,
    sampling: SamplingName = "requests",
    *,
    prompt: Any = PROMPT,
    config: RunnableConfig | None = None,
) -> list[DrawnCandidate]:
    """Candidates by the sync path."""
    return Sampler(resolve_generator(generator), sampling).draw(prompt, n, config)


def adrawn(
    generator: Any,
    n: int = 3,
    sampling: SamplingName = "requests",
    *,
    prompt: Any = PROMPT,
    config: RunnableConfig | None = None,
) -> list[DrawnCandidate]:
    """Candidates by the async path."""
    return asyncio.run(Sampler(resolve_generator(generator), sampling).adraw(prompt, n, config))


def texts(draws: list[DrawnCandidate]) -> list[str]:
    """Their texts in a fixed order: requests at the same time are numbered in any order."""
    return sorted(one.text for one in draws)


def numbered(count: int) -> list[str]:
    """The first answers of a model that numbers them."""
    return [f"answer {number}" for number in range(count)]


@contextmanager
def global_cache() -> Iterator[InMemoryCache]:
    """LangChain's cache for all models, set for a while."""
    before, cache = get_llm_cache(), InMemoryCache()
    set_llm_cache(cache)
    try:
        yield cache
    finally:
        set_llm_cache(before)


both_ways = pytest.mark.parametrize("draw", [drawn, adrawn])
both_strategies = pytest.mark.parametrize("sampling", ["requests", "single_request"])

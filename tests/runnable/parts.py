"""Parts for chains whose every number can be read off their texts, and records for their artifacts.

A candidate's text is `answer|score`: the verifier reads the score, the extractor the answer. So a test that
scripts the texts knows what must be decided.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field, PrivateAttr

from langchain_cfc import (
    CalibrationArtifact,
    Candidate,
    CFCResult,
    CFCRunnable,
    FeatureMap,
    PromptRecord,
    calibrate,
)
from langchain_cfc.candidates import CandidateBatch, PromptKind
from langchain_cfc.sampling import DrawnCandidate

N = 4
# Half of the candidates lie below the threshold 0.75 of the artifacts below.
TEXTS = ("lima|0.3", "quito|0.9", "lima|0.1", "bogota|0.8")

Serve: TypeAlias = Callable[..., CFCResult]


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
        text = self.texts[slot] if self.texts is not None else made_up(prompt, slot)
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
    """The same, streamed by the character wherever LangChain lets it."""

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


class Runs(BaseCallbackHandler):
    """Every run that was started: its kind, its name and its tags."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None, list[str]]] = []

    def on_chain_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        del args
        self.seen.append(("chain", kwargs.get("name"), tags or []))

    def on_chat_model_start(self, *args: Any, tags: list[str] | None = None, **kwargs: Any) -> None:
        del args
        self.seen.append(("model", kwargs.get("name"), tags or []))


def slot_of(tags: list[str] | None, otherwise: int) -> int:
    """The request slot that a run's tags name, the last of them where one chain draws from another."""
    found = [tag.rpartition(":")[2] for tag in tags or [] if tag.startswith("cfc:candidate:")]
    return int(found[-1]) if found else otherwise


def made_up(prompt: str, slot: int) -> str:
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


def records(topic: str = "easy", size: int = 39, *, extracted: bool = False) -> list[PromptRecord]:
    """Prompts whose success scores split [0, 1] evenly: at alpha = 0.25 the 30th of 39 is 0.75."""
    return [
        PromptRecord(
            id=f"{topic}-{rank}",
            input=f"prompt {rank} {topic}",
            metadata={"topic": topic},
            candidates=tuple(
                Candidate(
                    text=f"a{slot}",
                    score=rank / (size + 1) if slot == 0 else 1.0,
                    correct=slot == 0,
                    answer=f"a{slot}" if extracted else None,
                )
                for slot in range(N)
            ),
        )
        for rank in range(1, size + 1)
    ]


def hopeless_records(topic: str = "hopeless", size: int = 39) -> list[PromptRecord]:
    """Prompts none of which has a correct candidate."""
    return [
        record.model_copy(
            update={
                "candidates": tuple(one.model_copy(update={"correct": False}) for one in record.candidates)
            }
        )
        for record in records(topic, size)
    ]


def by_topic(*topics: str) -> FeatureMap:
    """`group(topic)`, fitted on prompts of these topics."""
    draws = CandidateBatch.of([[0.5] * N] * len(topics), metadata=[{"topic": topic} for topic in topics])
    return FeatureMap.parse("group(topic)").fit(draws)


def plain_artifact(*, extracted: bool = False, **settings: Any) -> CalibrationArtifact:
    """One threshold for all prompts; at alpha = 0.25 it is 0.75. Sets may be empty unless settings differ."""
    return calibrate(
        records(extracted=extracted), **{"alpha": 0.25, "features": "1", "never_empty": False, **settings}
    )


def taking(artifact: CalibrationArtifact, kind: PromptKind) -> CalibrationArtifact:
    """The artifact as if its calibration prompts had been of this kind."""
    facts = artifact.calibration.model_copy(update={"prompt_kinds": [kind]})
    return artifact.model_copy(update={"calibration": facts})


def chain_of(artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    """A chain of scripted parts; any of them may be given instead."""
    return CFCRunnable(
        **{"generator": ScriptedModel(texts=TEXTS), "verifier": verify, "artifact": artifact, **fields}
    )


def invoked(chain: CFCRunnable, prompt: Any, **kwargs: Any) -> CFCResult:
    """The result by the sync path."""
    return chain.invoke(prompt, **kwargs)


def ainvoked(chain: CFCRunnable, prompt: Any, **kwargs: Any) -> CFCResult:
    """The result by the async path."""
    return asyncio.run(chain.ainvoke(prompt, **kwargs))


both_ways = pytest.mark.parametrize("serve", [invoked, ainvoked])

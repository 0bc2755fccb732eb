"""Judging models for tests: one in memory, and answers for the server by the candidate that is judged."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import ConfigDict, PrivateAttr

from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import VerifierInput
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving


def llama_input(*texts: str, prompt: Any = "Where do llamas live?") -> VerifierInput:
    return VerifierInput(prompt=prompt, candidates=[DrawnCandidate(text) for text in texts])


def candidate_of(request: str) -> str:
    """The candidate that a request is about."""
    found = re.findall(r"<answer>\n(.*?)\n</answer>", request, re.DOTALL)
    return str(found[-1])


class Judgements(Mapping[str, Sequence[Answer]]):
    """What the server answers: looked up by the candidate in a request."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def __getitem__(self, request: str) -> Sequence[Answer]:
        return [self._answers[candidate_of(request)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)


@contextmanager
def judging(
    answers: Mapping[str, Answer], **facts: Any
) -> Iterator[tuple[Script, Callable[..., ChatOpenAI]]]:
    """A server that judges, and a function that makes clients of it."""
    script = Script(Judgements(answers), **facts)
    with serving(script) as url:

        def make(**settings: Any) -> ChatOpenAI:
            client = {
                "base_url": url,
                "api_key": "none",
                "max_retries": 0,
                "model": "judge",
                "temperature": 0.0,
            }
            return ChatOpenAI(**{**client, **settings})

        yield script, make


def token(text: str, logprob: Any, alternatives: Mapping[str, Any]) -> dict[str, Any]:
    """A token with its alternatives, in the shape that ChatOpenAI returns."""
    listed = [{"token": one, "logprob": value, "bytes": None} for one, value in alternatives.items()]
    return {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": listed}


def make_reply(*tokens: dict[str, Any], text: str | None = None) -> AIMessage:
    words = "".join(one["token"] for one in tokens) if text is None else text
    return AIMessage(words, response_metadata={"logprobs": {"content": list(tokens), "refusal": None}})


class Meeting:
    """A barrier for groups of calls, which records the largest number that waited at once."""

    def __init__(self, size: int) -> None:
        self.most = 0
        self._here = 0
        self._barrier = threading.Barrier(size, timeout=30.0)
        self._lock = threading.Lock()

    def attend(self) -> None:
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
        self._barrier.wait()
        with self._lock:
            self._here -= 1


class InMemory(BaseChatModel):
    """Replies by the candidate that is judged, and notes what it was asked."""

    replies: dict[str, AIMessage]
    meeting: Meeting | None = None

    _asked: list[tuple[list[BaseMessage], dict[str, Any]]] = PrivateAttr(default_factory=list)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @property
    def _llm_type(self) -> str:
        return "in-memory"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager
        self._asked.append((messages, kwargs))
        if self.meeting is not None:
            self.meeting.attend()
        reply = self.replies[candidate_of(str(messages[-1].text))]
        return ChatResult(generations=[ChatGeneration(message=reply)])


class LogprobModel(InMemory):
    """The same, with the settings by which a model that returns log-probabilities is known."""

    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_tokens: int | None = None

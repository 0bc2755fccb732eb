"""Facades to test, ways to call them, and a listener to their runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from langchain_cfc import CalibrationArtifact, CFCChatModel
from tests.calls import invoke_async, invoke_sync
from tests.factories import make_artifact, make_chain, with_prompt_kind

# All are blank.
HOPELESS = (" ",) * 4


@cache
def messages_artifact() -> CalibrationArtifact:
    """For n = 4, calibrated on messages; the threshold is 0.75 for every prompt."""
    return with_prompt_kind(make_artifact(), "messages")


def make_facade(artifact: CalibrationArtifact | None = None, **fields: Any) -> CFCChatModel:
    """A facade over a chain of scripted parts; any of them may be given instead."""
    return CFCChatModel(chain=make_chain(artifact or messages_artifact(), **fields))


def make_client(url: str, **settings: Any) -> ChatOpenAI:
    """The model that a server on this machine plays."""
    given = {"model": "gpt-4o-mini", "api_key": "none", "max_retries": 0, "base_url": url, **settings}
    return ChatOpenAI(**given)


def accept_all(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """The verifier that believes every candidate."""
    del prompt
    return [0.1] * len(candidates)


def reject_all(prompt: Any, candidates: Sequence[Any]) -> list[None]:
    """The verifier that believes none."""
    del prompt
    return [None] * len(candidates)


@tool
def look_up(town: str) -> str:
    """Look a town up."""
    return f"{town} is a town."


def invoke_streaming(model: Runnable[Any, Any], prompt: Any, config: Any = None, **kwargs: Any) -> Any:
    (chunk,) = model.stream(prompt, config, **kwargs)
    return chunk


def invoke_streaming_async(model: Runnable[Any, Any], prompt: Any, config: Any = None, **kwargs: Any) -> Any:
    async def chunks() -> list[Any]:
        return [chunk async for chunk in model.astream(prompt, config, **kwargs)]

    (chunk,) = asyncio.run(chunks())
    return chunk


every_way = pytest.mark.parametrize(
    "ask", [invoke_sync, invoke_async, invoke_streaming, invoke_streaming_async]
)


class RunWatcher(BaseCallbackHandler):
    """Every run that was started, by its id, and every token."""

    def __init__(self) -> None:
        self.kinds: dict[UUID, str] = {}
        self.parents: dict[UUID, UUID | None] = {}
        self.tags: dict[UUID, list[str]] = {}
        self.metadata: dict[UUID, dict[str, Any]] = {}
        self.options: list[dict[str, Any]] = []
        self.params: list[dict[str, Any]] = []
        self.tokens: list[tuple[UUID, Any]] = []

    def on_chain_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        del args
        self._started("chain", run_id, kwargs)

    def on_chat_model_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        del args
        self.options.append(kwargs["options"])
        self.params.append(kwargs["invocation_params"])
        self._started("model", run_id, kwargs)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        self.tokens.append((run_id, token))

    def _started(self, kind: str, run_id: UUID, told: dict[str, Any]) -> None:
        self.kinds[run_id] = kind
        self.parents[run_id] = told.get("parent_run_id")
        self.tags[run_id] = list(told.get("tags") or [])
        self.metadata[run_id] = dict(told.get("metadata") or {})

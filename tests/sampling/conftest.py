"""Ways to draw, and a server on this machine with four answers to one question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langchain_cfc.sampling import SamplingName
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

from .drawing import PROMPT, Draw, draw_async, draw_sync


@pytest.fixture(params=[draw_sync, draw_async], ids=["sync", "async"])
def draw(request: pytest.FixtureRequest) -> Draw:
    """A function that draws candidates: tests that take it run once by sync and once by async calls."""
    way: Draw = request.param
    return way


@pytest.fixture(params=["requests", "single_request"])
def sampling(request: pytest.FixtureRequest) -> SamplingName:
    """How candidates are drawn: tests that take it run once for each strategy."""
    name: SamplingName = request.param
    return name


@pytest.fixture
def script() -> Script:
    """What the server answers; tests add faults to it."""
    return Script({PROMPT: [Answer(text, -1.0) for text in ("lima", "quito", "bogota", "la paz")]})


@pytest.fixture
def base_url(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the server, which is also where a client without one of its own turns to."""
    with serving(script) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield url


@pytest.fixture
def chat_model(base_url: str) -> Callable[..., ChatOpenAI]:
    """A function that makes a client of the server."""

    def make(**settings: Any) -> ChatOpenAI:
        return ChatOpenAI(**{"model": "recorded", "base_url": base_url, "max_retries": 0, **settings})

    return make

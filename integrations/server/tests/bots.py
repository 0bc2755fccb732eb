"""What servers in tests serve: a bot whose rejected candidates cannot be mistaken, and broken ones."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from langchain_cfc_monitor import CFCMonitor
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI

from integrations.tests.planted import make_model, make_planted_artifact
from langchain_cfc import CalibrationArtifact, CFCRunnable
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script

N = 3
MARK = "REJECTED"
GOOD, FALLBACK = "Lima", "Ask a person."
EASY, SURE, UNSURE, HARD, TOOL, EMOJI = (
    "easy: What is the capital of Peru?",
    "easy: What is Peru's capital?",
    "easy: What is the capital of Atlantis?",
    "hard: What is the capital of Mu?",
    "easy: What is the weather in Lima?",
    "easy: What is 🦙 in Spanish?",
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
HIDDEN_TEXT = "what no client and no log must see"


def make_script() -> Script:
    """What the model behind the server answers."""
    bad = [Answer(f"{MARK}-{name}-{MARK}", -3.0) for name in ("cusco", "quito", "sucre")]
    calls = [Answer(tools=(("weather", {"city": "Lima"}),)) for _ in range(N)]
    return Script(
        {
            EASY: [Answer(GOOD, -0.1), *bad[:2]],
            SURE: [Answer(GOOD, -0.1)],
            UNSURE: [Answer(f"<think>{one.text}</think>", -3.0) for one in bad],
            HARD: bad,
            TOOL: calls,
            EMOJI: [Answer("una «llama» 🦙\r\n\r\ndata: [DONE]\n\n", -0.1), *bad[:2]],
        }
    )


def make_artifact(**options: Any) -> CalibrationArtifact:
    """Easy prompts with one right answer each, and hard ones without any."""
    return make_planted_artifact({"id": "planted"}, "judge", **options)


def topic(prompt: Any) -> dict[str, str]:
    return {"topic": "hard" if "hard" in repr(prompt) else "easy"}


def judge(_: Any, candidates: Sequence[Any]) -> list[float]:
    return [0.95 if MARK in candidate.text else 0.05 for candidate in candidates]


def list_waits() -> Iterator[float]:
    """Yield for how long slow parts sleep: until the file that a test names exists, or some seconds."""
    gate = os.environ.get("BOTS_GATE")
    if gate is None:
        yield float(os.environ.get("BOTS_SECONDS", "0.5"))
    while gate is not None and not Path(gate).exists():
        yield 0.01


async def slow_judge(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """Takes its time, and says when it begins, and where it is cancelled."""
    _note("begun")
    try:
        for seconds in list_waits():
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _note("cancelled")
        raise
    return judge(prompt, candidates)


def occupy_thread(prompt: Any) -> None:
    """Block a thread if the question is a hard one, as a sync model or verifier does that waits."""
    if "hard" in repr(prompt):
        any(map(time.sleep, list_waits()))


def draw_in_thread(prompt: Any) -> str:
    occupy_thread(prompt)
    return GOOD


def judge_in_thread(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    occupy_thread(prompt)
    return judge(prompt, candidates)


async def blocking_judge(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """Blocks the event loop that it runs on, as code does that is async by name only."""
    any(map(time.sleep, list_waits()))
    return judge(prompt, candidates)


def _note(what: str) -> None:
    if "BOTS_NOTES" in os.environ:
        with Path(os.environ["BOTS_NOTES"]).open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")


def model() -> ChatOpenAI:
    return make_model(os.environ["BOTS_UPSTREAM"])


def chain(**changes: Any) -> CFCRunnable:
    """The bot, on the artifact and the model that the environment names."""
    parts = {
        "generator": model(),
        "verifier": judge,
        "artifact": CalibrationArtifact.load(os.environ["BOTS_ARTIFACT"]),
        "metadata": topic,
        "alpha": "0.2",
        "generator_id": "planted",
        "verifier_id": "judge",
    }
    return CFCRunnable(**{**parts, **changes})


def _fail(_: Any) -> Any:
    raise RuntimeError(HIDDEN_TEXT)


def watched() -> Runnable[Any, Any]:
    """The bot with a monitor, whose store the environment names."""
    made = chain()
    return made.with_config(callbacks=[CFCMonitor(made.artifact, os.environ["CFC_MONITOR_STORE"])])


def anything() -> CFCRunnable:
    """A bot that has an answer to everything."""
    return chain(generator=RunnableLambda(lambda _: GOOD))


def unverified() -> CFCRunnable:
    """A chain whose model has no known settings."""
    return chain(generator=RunnableLambda(lambda _: GOOD), generator_id=None)


def broken() -> Runnable[Any, Any]:
    """A chain that fails with an unexpected error."""
    return RunnableLambda(_fail)


def models() -> dict[str, Runnable[Any, Any]]:
    return {
        "bot": chain(),
        "careful/bot": chain(alpha=None),
        "helped": chain().or_else(lambda _: FALLBACK),
        "raising": chain(on_abstain="raise"),
        "stopping": chain(artifact=make_artifact(draws="below(0.1, at_most=3)")),
        "slow": chain(verifier=slow_judge),
        "blocking": chain(verifier=blocking_judge),
        "sync/generator": chain(generator=RunnableLambda(draw_in_thread)),
        "sync/verifier": chain(generator=RunnableLambda(lambda _: GOOD), verifier=judge_in_thread),
        "timed": chain(verifier=slow_judge, timeout=0.05),
        "broken": broken(),
        "unscored": chain(verifier=lambda _, drawn: [float("nan")] * len(drawn)),
        "undescribed": chain(metadata=_fail),
        "calling": chain(generator=model().bind_tools([WEATHER], tool_choice="weather")),
        "offering": chain(generator=model().bind_tools([WEATHER])),
        "formatted": chain(generator=model().bind(response_format=FORMAT)),
        "new": chain(metadata=lambda _: {"theme": HIDDEN_TEXT}),
    }

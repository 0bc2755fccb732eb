"""An agent before a real server whose every answer is known, and a chain that tells right from wrong.

The server plants what no one may see: the answer that the agent's own model would give, which is thrown away,
and candidates that the chain rejects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_cfc_agents import GuardedAnswer
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from integrations.tests.graphs import run_ainvoke, run_invoke, url
from integrations.tests.planted import make_model, make_planted_artifact
from langchain_cfc import CalibrationArtifact, CFCRunnable
from tests.factories import reload_artifact
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script

N = 3
SYSTEM = "Answer in one word."
# Answered at once, with the help of one tool, of two at a time, and not at all.
PLAIN, LOOKED_UP, COMPARED = "Which town is it?", "What do the notes say?", "Which of the two is it?"
HOPELESS, NOTED = "Which town is lost?", "The notes say: a town by the sea."
RIGHT, DISCARDED, REJECTED = "Lima", "Zebra-discarded", ("Okapi-rejected", "Quagga-rejected")
HIDDEN = (DISCARDED, *REJECTED)
CALLED = {"generator_id": "clerk", "verifier_id": "judge"}
ABSTAINED = "I do not know."

Agent: TypeAlias = Any
Way: TypeAlias = Callable[..., dict[str, Any]]
Change: TypeAlias = Callable[[Any], Any]


@tool
def look_up(topic: str) -> str:
    """Look a topic up in the notes."""
    del topic
    return NOTED


@tool(return_direct=True)
def direct(topic: str) -> str:
    """Answer at once."""
    return topic


@tool
def measure(town: str) -> str:
    """Measure a town."""
    if town == "nowhere":
        msg = "there is no such town"
        raise ValueError(msg)
    return NOTED


def script() -> Script:
    """What the server answers: the first to each prompt is for the agent, the next n are for the chain."""
    answered = [Answer(DISCARDED), Answer(REJECTED[0]), Answer(RIGHT), Answer(REJECTED[1])]
    # No answers, so that the guard abstains.
    thought = [Answer(f"<think>{one}</think>") for one in (*REJECTED, REJECTED[0])]
    calls = (("look_up", {"topic": "towns"}), ("measure", {"town": "Lima"}))
    return Script(
        {
            PLAIN: answered,
            LOOKED_UP: [Answer(tools=calls[:1])],
            COMPARED: [Answer(tools=calls)],
            NOTED: answered,
            HOPELESS: [Answer(DISCARDED), *thought],
        }
    )


def judge(_: Any, candidates: Sequence[Any]) -> list[float]:
    return [0.05 if candidate.text == RIGHT else 0.95 for candidate in candidates]


def model_at(url: str, **settings: Any) -> ChatOpenAI:
    return make_model(url, model="recorded", **settings)


def chain_at(url: str, artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
    given: dict[str, Any] = {"generator": model_at(url), "verifier": judge, **CALLED}
    return CFCRunnable(artifact=artifact, **{**given, **fields})


def agent_of(model: Any, middleware: Sequence[AgentMiddleware[Any, Any, Any]], **settings: Any) -> Agent:
    """An agent with two tools, as LangChain makes it."""
    given: dict[str, Any] = {"tools": [look_up, measure], "system_prompt": SYSTEM}
    return create_agent(model, middleware=middleware, **{**given, **settings})


def asked(question: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}]}


def ask(agent: Agent, question: str, config: RunnableConfig | None = None) -> Any:
    return run_invoke(agent, asked(question), config)


def aask(agent: Agent, question: str, config: RunnableConfig | None = None) -> Any:
    return run_ainvoke(agent, asked(question), config)


both_ways = pytest.mark.parametrize("way", [ask, aask])


def last(state: dict[str, Any]) -> AIMessage:
    """The last message of a state, which is a model's."""
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return message


class Wrapping(AgentMiddleware[Any, Any, Any]):
    """Changes what a model is asked, asks it so often, and chooses or changes what it answered."""

    def __init__(
        self, change: Change = lambda one: one, choose: Change = lambda responses: responses[0], asks: int = 1
    ) -> None:
        self.change, self.choose, self.asks = change, choose, asks

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self.choose([handler(self.change(request)) for _ in range(self.asks)])

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self.choose([await handler(self.change(request)) for _ in range(self.asks)])


def parts_of(*texts: str) -> Iterator[str]:
    """Texts, and the pieces in which the server streams them."""
    for text in texts:
        half = (len(text) + 1) // 2
        yield from (text, text[:half], text[half:])


def sent(requests: Sequence[dict[str, Any]]) -> list[str]:
    """Return the messages of each request, as JSON."""
    return [json.dumps(request["messages"], sort_keys=True) for request in requests]


__all__ = ["artifact", "guarded", "served", "url"]


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """Read from a file; of easy prompts alone."""
    named = {"id": "clerk", "model": "recorded"}
    return reload_artifact(make_planted_artifact(named, "judge", kinds=["easy"], alpha=0.1, features="1"))


@pytest.fixture
def served() -> Script:
    return script()


@pytest.fixture
def guarded(url: str, artifact: CalibrationArtifact) -> Callable[..., Agent]:
    """A function that makes the guarded agent, with other middleware outside and inside the guard."""

    def make(*, outside: Any = (), inside: Any = (), strict: bool = True, **settings: Any) -> Agent:
        guard = GuardedAnswer(chain_at(url, artifact), strict=strict)
        return agent_of(model_at(url), [*outside, guard, *inside], **settings)

    return make

"""An agent whose model draws at random, and whose every action is known to be right or wrong.

A task is a list of steps. At each step the model calls the step's tools with the right day with the step's
probability, and otherwise with a wrong one; after the last step it says that it is done.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_cfc_agents import GuardedActions, RecordActions, RecordedRun, Turn
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from pydantic import Field, PrivateAttr

from langchain_cfc.records import Example
from langchain_cfc.verifiers import SelfConsistency

RIGHT = "friday"


class Clerk(BaseChatModel):
    """Draws calls at random; the same seeds and states give the same draws."""

    seed: int = 0
    broken: float = 0.0  # share of requests that fail
    call_id: str | None = None  # the id of all calls, if they have none of their own
    drawn: list[str] = Field(default_factory=list)
    counts: dict[str, int] = Field(default_factory=dict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @property
    def _llm_type(self) -> str:
        return "clerk"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[one.name if isinstance(one, BaseTool) else one for one in tools], **kwargs)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        task = json.loads(str(next(one for one in messages if one.type == "human").content))
        turn = sum(isinstance(one, AIMessage) for one in messages)
        state = f"{self.seed}:{task['name']}:{turn}"
        with self._lock:
            count = self.counts[state] = self.counts.get(state, -1) + 1
        name = f"{state}:{count}"
        chance = random.Random(name)  # noqa: S311 - no secret
        if chance.random() < self.broken:
            msg = "the line is dead"
            raise ConnectionError(msg)
        if turn >= len(task["steps"]):
            message = AIMessage("done", id=name)
        else:
            step = task["steps"][turn]
            day = RIGHT if chance.random() < step["right"] else f"day {chance.randrange(1000)}"
            calls = [
                {"name": tool, "args": {"day": day}, "id": self.call_id or f"{name}:{place}"}
                for place, tool in enumerate(step["tools"])
            ]
            chance.shuffle(calls)
            message = AIMessage("", tool_calls=calls, id=name)
        self.drawn.append(day if message.tool_calls else "done")
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


class Desk:
    """The tools, and what they did."""

    def __init__(self) -> None:
        self.booked: list[str] = []
        self.read: list[str] = []

        @tool
        def book(day: str, room: str = "small") -> str:
            """Book a room."""
            self.booked.append(day)
            return f"The {room} room is booked."

        @tool
        def look_up(day: str) -> str:
            """Look up a day."""
            self.read.append(day)
            return "It is free."

        self.tools = [book, look_up]


def task(name: str, *rights: float, tools: Sequence[str] = ("book",), **fields: Any) -> Example:
    """A task whose steps succeed with these probabilities, each with these calls at once."""
    steps = [{"tools": tools, "right": right} for right in rights]
    return Example(id=name, input=json.dumps({"name": name, "steps": steps}), **fields)


def asked(example: Example) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": example.input}]}


def agent_at(desk: Desk, model: Clerk, *middleware: Any, **settings: Any) -> Any:
    """The agent, as LangChain makes it."""
    return create_agent(model, desk.tools, middleware=middleware, **settings)


def recording(**given: Any) -> RecordActions:
    return RecordActions(
        SelfConsistency(), **{"n": 5, "unguarded": ["look_up"], "agent_id": "clerk", **given}
    )


def guarding(artifact: Any, **given: Any) -> GuardedActions:
    return GuardedActions(
        artifact, SelfConsistency(), **{"unguarded": ["look_up"], "agent_id": "clerk", **given}
    )


def is_right(run: RecordedRun) -> list[bool]:
    """The label of each action that ran."""
    return [turn.calls[0]["args"]["day"] == RIGHT for turn in run.executed]


def make_runs(setup: Any, cut: float = 0.4, **fields: Any) -> list[RecordedRun]:
    """Made-up runs of two turns: all with scores below the cut are right, all others are wrong."""
    call = {"name": "book", "args": {"day": RIGHT, "room": "small"}}
    scores = [(place % 10) / 10 for place in range(400)]
    return [
        RecordedRun(
            id=f"run {place}",
            prompt=[{"role": "user", "content": f"task {place}"}],
            turns=tuple(
                Turn(place=at, score=one, calls=(call,), guarded=True) for at, one in enumerate((0.0, score))
            ),
            right=[True, score <= cut],
            setup=setup,
            **fields,
        )
        for place, score in enumerate(scores)
    ]

"""One turn of a conversation, in a process of its own: `python -m ... DATABASE URL ARTIFACT WAY QUESTION`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from langchain_cfc_agents import GuardedAnswer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from integrations.agents.tests.parts import agent_of, asked, chain_at, model_at
from langchain_cfc import CalibrationArtifact

CONFIG: Any = {"configurable": {"thread_id": "one"}}


def turn(database: str, url: str, artifact: str, question: str) -> dict[str, Any]:
    """Go on with the conversation."""
    guard = GuardedAnswer(chain_at(url, CalibrationArtifact.load(Path(artifact))))
    with SqliteSaver.from_conn_string(database) as memory:
        state: dict[str, Any] = agent_of(model_at(url), [guard], checkpointer=memory).invoke(
            asked(question), CONFIG
        )
    return state


async def aturn(database: str, url: str, artifact: str, question: str) -> dict[str, Any]:
    """Asynchronous counterpart of the function above."""
    guard = GuardedAnswer(chain_at(url, CalibrationArtifact.load(Path(artifact))))
    async with AsyncSqliteSaver.from_conn_string(database) as memory:
        agent = agent_of(model_at(url), [guard], checkpointer=memory)
        state: dict[str, Any] = await agent.ainvoke(asked(question), CONFIG)
    return state


def main(database: str, url: str, artifact: str, way: str, question: str) -> None:
    """Go on, and print what every message says."""
    given = (database, url, artifact, question)
    state = asyncio.run(aturn(*given)) if way == "async" else turn(*given)
    messages = [
        [message.type, message.text, message.response_metadata.get("cfc")] for message in state["messages"]
    ]
    print(json.dumps(messages))  # noqa: T201 - read by the process that started this one


if __name__ == "__main__":
    main(*sys.argv[1:])

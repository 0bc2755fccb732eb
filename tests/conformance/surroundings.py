"""What a runnable is put into: a graph with a memory, a pipeline with a retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from langchain_cfc import CFCResult
from tests.fakes import CountingRetriever

MODES = ("messages", "updates", "values", "custom")


class State(TypedDict, total=False):
    """A graph's state."""

    question: str
    answer: str
    result: dict[str, Any]
    messages: list[BaseMessage]


def graph_of(runnable: Runnable[Any, Any], memory: InMemorySaver | None = None) -> Any:
    """A graph whose one node answers, and which remembers if there is something to do it with."""

    def answer(state: State, config: RunnableConfig) -> State:
        return _as_state(runnable.invoke(state["question"], config))

    async def aanswer(state: State, config: RunnableConfig) -> State:
        return _as_state(await runnable.ainvoke(state["question"], config))

    return _of_one_node(answer, aanswer, memory)


def conversation(runnable: Runnable[Any, Any], memory: InMemorySaver | None = None) -> Any:
    """Return a graph with memory whose node answers by a message."""

    def answer(state: State, config: RunnableConfig) -> State:
        return {"messages": [runnable.invoke(state["question"], config)]}

    async def aanswer(state: State, config: RunnableConfig) -> State:
        return {"messages": [await runnable.ainvoke(state["question"], config)]}

    return _of_one_node(answer, aanswer, memory)


def _of_one_node(
    answer: Callable[..., State], aanswer: Callable[..., Awaitable[State]], memory: InMemorySaver | None
) -> Any:
    graph = StateGraph(State)
    graph.add_node("answer", RunnableLambda(answer, aanswer))
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=memory)


def _as_state(said: Any) -> State:
    """Return a runnable's result as plain data."""
    if isinstance(said, CFCResult):
        return {"answer": str(said.best), "result": said.model_dump(mode="json")}
    return {"answer": str(getattr(said, "text", said))}


def run(graph: Any, prompt: str, modes: Any, config: RunnableConfig) -> list[Any]:
    """All that a graph streams."""
    return list(graph.stream({"question": prompt}, config, stream_mode=modes))


def arun(graph: Any, prompt: str, modes: Any, config: RunnableConfig) -> list[Any]:
    """Asynchronous counterpart of the function above."""

    async def collected() -> list[Any]:
        given = {"question": prompt}
        return [piece async for piece in graph.astream(given, config, stream_mode=modes)]

    return asyncio.run(collected())


RUNS: tuple[Callable[..., list[Any]], ...] = (run, arun)


def pipeline(library: CountingRetriever, answering: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """Question to documents to prompt to the model."""
    context: Runnable[Any, str] = library | RunnableLambda(_joined)
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("{context}\n\n{question}")
    return {"context": context, "question": RunnablePassthrough()} | template | answering


def _joined(found: list[Document]) -> str:
    return "\n".join(one.page_content for one in found)


async def events_of(runnable: Runnable[Any, Any], prompt: Any, config: RunnableConfig) -> list[Any]:
    """All events of a stream of them."""
    return [event async for event in runnable.astream_events(prompt, config, version="v2")]


def tokens(events: list[Any]) -> list[Any]:
    """The pieces of what models said among events."""
    return [event for event in events if event["event"] in {"on_chat_model_stream", "on_llm_stream"}]


def shown_events(events: list[Any]) -> str:
    """Everything among events that is there to be shown, not for the record."""
    return repr([event for event in events if event["event"].endswith("_stream")])

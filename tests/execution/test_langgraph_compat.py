"""Every private name of LangChain and LangGraph that the package relies on, as their releases have it.

`CHECKED` names the oldest and the newest releases with which these tests passed; `.ci/run` runs them with the
oldest ones, and with the newest that the registry has.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from packaging.version import Version

from langchain_cfc.execution import langgraph_compat
from langchain_cfc.execution.langgraph_compat import (
    NOSTREAM,
    detach_from_graph,
    get_tracing_params,
    is_made_at_each_call,
    make_message_id,
)
from langchain_cfc.runnable.redraws import DrawRegister

ROOT = Path(__file__).parents[2]
CHECKED = {
    "langchain-core": ("1.2.5", "1.8.3"),
    "langchain": ("1.2.10", "1.5.2"),
    "langgraph": ("1.0.10", "1.2.24"),
}


class State(TypedDict, total=False):
    """State of the graph: the question, and what its only node answers."""

    question: str
    answer: str


def find_node_config(stream_mode: Any = "messages") -> RunnableConfig:
    """Return the config that LangGraph hands to a node of a graph that streams and checkpoints."""
    seen: list[RunnableConfig] = []

    def node(state: State, config: RunnableConfig) -> State:
        seen.append(config)
        return {"answer": state["question"]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "1", "own": "setting"}}
    assert list(graph.stream({"question": "?"}, thread, stream_mode=stream_mode)) is not None
    return seen[0]


def find_handlers(config: RunnableConfig) -> list[Any]:
    """Return the handlers of a config, without those that are added to every outermost call."""
    callbacks: Any = config["callbacks"]
    return [one for one in callbacks.handlers if not isinstance(one, (LangChainTracer, DrawRegister))]


def test_checked_releases_match_ci_and_pyproject() -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8").split()
        if "==" in line
    )
    for name, (oldest, newest) in CHECKED.items():
        assert pinned[name] == oldest
        assert Version(oldest) <= Version(version(name))
        assert Version(oldest) < Version(newest)
    dependencies = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'"langchain-core>=([\d.]+),<2"', dependencies) == [CHECKED["langchain-core"][0]]


def test_graph_hands_its_stream_and_checkpointer_to_nodes() -> None:
    config = find_node_config()
    assert "checkpoint_ns" in config["configurable"]
    assert any(name.startswith("__pregel_") for name in config["configurable"])
    streams = [one for one in find_handlers(config) if type(one).__module__.startswith("langgraph.")]
    assert len(streams) == 1


def test_detached_from_graph_keeps_runtime_and_own_settings() -> None:
    config = find_node_config()
    detached = detach_from_graph(config)
    # LangGraph's store and context, which code inside may ask for, and what the caller configured.
    assert set(detached["configurable"]) == {"__pregel_runtime", "thread_id", "own"}
    assert not find_handlers(detached)
    assert find_handlers(config), "the config of the node itself stays as it is"


@pytest.mark.parametrize("tags", [[NOSTREAM], []])
def test_nostream_tag_keeps_models_out_of_graph_streams(tags: list[str]) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("yes indeed")]))

    def node(state: State, config: RunnableConfig) -> State:
        return {"answer": model.invoke(state["question"], {**config, "tags": tags}).text}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    streamed = list(graph.stream({"question": "?"}, stream_mode="messages"))
    assert bool(streamed) is not bool(tags)


def test_models_of_init_chat_model_that_are_made_at_each_call_are_recognised() -> None:
    assert is_made_at_each_call(init_chat_model("openai:gpt-4o", configurable_fields=["temperature"]))
    assert not is_made_at_each_call(GenericFakeChatModel(messages=iter([])))


def test_models_state_tracing_params() -> None:
    assert get_tracing_params(GenericFakeChatModel(messages=iter([])))["ls_model_type"] == "chat"


def test_make_message_id_equals_the_id_of_a_message() -> None:
    run_id = uuid4()
    model = GenericFakeChatModel(messages=iter([AIMessage("yes")]))
    assert model.invoke("?", {"run_id": run_id}).id == f"{make_message_id(run_id)}-0"


PRIVATE = re.compile(
    r"__pregel_|\blanggraph\.[a-z]|_default_config|checkpoint_ns|\._(get_ls_params|llm_type)\b"
)


def uses_private_name(path: Path) -> bool:
    code = re.sub(r"(?m)^\s*(from|import) langgraph.*$|#.*$", "", path.read_text(encoding="utf-8"))
    return PRIVATE.search(code) is not None


def test_only_langgraph_compat_uses_private_names() -> None:
    folders = [ROOT / "langchain_cfc", *ROOT.glob("integrations/*/src")]
    using = [path for folder in folders for path in folder.rglob("*.py") if uses_private_name(path)]
    assert using == [Path(langgraph_compat.__file__)]

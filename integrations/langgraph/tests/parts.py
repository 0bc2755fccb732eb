"""A bot whose rejected candidates cannot be mistaken, and everything that a graph shows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

from langchain_cfc_langgraph import CFCState
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import StreamMode
from typing_extensions import TypedDict

from langchain_cfc import CalibrationArtifact, Candidate, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.records import Provenance
from langchain_cfc.verifiers import SequenceProbability
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script

N = 3
BOT = "planted-bot"
# Each half of a rejected text holds it, for texts come in two tokens.
MARK = "REJECTED"
GOOD = "Lima"
EASY, UNSURE, HARD = "easy: Peru?", "easy: Chile?", "hard: Atlantis?"
QUESTIONS = {"answered": EASY, "abstained": UNSURE, "not_certifiable": HARD}


def script() -> Script:
    """What the server answers: a good answer scores 0.05, a rejected one 0.95."""
    bad = [f"{MARK}-{name}-{MARK}" for name in ("quito", "cusco", "sucre")]
    return Script(
        {
            EASY: [Answer(GOOD, -0.05), *(Answer(text, -3.0) for text in bad[:2])],
            UNSURE: [Answer(f"<think>{text}</think>", -3.0) for text in bad],
            # Prompts of a kind that had no correct candidate are flagged, however sure the model is.
            HARD: [Answer(text, -0.05) for text in bad],
        }
    )


def topic(prompt: Any) -> dict[str, str]:
    """The metadata of a prompt, be it text or messages."""
    return {"topic": "hard" if "hard" in repr(prompt) else "easy"}


def make_artifact() -> CalibrationArtifact:
    """Easy prompts whose right answers score up to 0.3, at any place, and hard ones without any."""
    records = [
        PromptRecord(
            id=f"{kind}{number}",
            input=f"{kind} {number}",
            metadata={"topic": kind},
            candidates=tuple(
                Candidate(text="right", score=0.03 * (number % 10 + 1), correct=kind == "easy")
                if slot == number % N
                else Candidate(text=f"wrong {slot}", score=0.9, correct=False)
                for slot in range(N)
            ),
        )
        for kind in ("easy", "hard")
        for number in range(120)
    ]
    named = Provenance(n=N, generator={"id": BOT}, verifier={"id": "sequence-probability"})
    return calibrate(
        records, alpha=[0.1, 0.2], features="group(topic)", provenance=named, allow_unattainable=True
    )


def make_chain(path: Path | str, url: str, **fields: Any) -> CFCRunnable:
    """The bot on an artifact that was saved; its model streams wherever it is let."""
    model = ChatOpenAI(
        model="planted",
        base_url=url,
        api_key="none",  # type: ignore[arg-type]  # it takes text
        max_retries=0,
        logprobs=True,
        streaming=True,
    )
    parts: dict[str, Any] = {
        "generator": model,
        "generator_id": BOT,
        "verifier": SequenceProbability(),
        "artifact": CalibrationArtifact.load(path),
        "metadata": topic,
        "alpha": "0.1",
    }
    return CFCRunnable(**{**parts, **fields})


class Talk(CFCState, MessagesState):
    """A state that holds a conversation as well."""


def read_last_text(state: Any) -> str:
    """The question of a conversation."""
    return str(state["messages"][-1].text)


def thread(name: str = "1") -> RunnableConfig:
    """The config of a thread."""
    return {"configurable": {"thread_id": name}}


def one_node_graph(node: Any, state: Any, checkpointer: Any = None) -> Any:
    """A graph of a single node, which may be a graph itself."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    graph.add_edge("only", END)
    return graph.compile(checkpointer=checkpointer)


class Naive(TypedDict, total=False):
    """A naive state that stores all candidates, rejected ones included."""

    question: str
    candidates: list[str]
    answer: str


def naive_graph(model: ChatOpenAI, checkpointer: Any = None) -> Any:
    """The negative control: a node that draws on its own, streams what it drew and keeps all of it."""

    def draw(state: Naive, config: RunnableConfig) -> Naive:
        texts = [str(model.invoke(state["question"], config).text) for _ in range(N)]
        get_stream_writer()({"drawn": texts})
        return {"candidates": texts, "answer": texts[0]}

    return one_node_graph(draw, Naive, checkpointer)


# All that is shown

MODES: tuple[str, ...] = get_args(StreamMode)
Watch: TypeAlias = Callable[[Any, Any, RunnableConfig], list[Any]]


def streamed(modes: Any, **options: Any) -> Watch:
    """Return what a graph and its subgraphs stream in one mode, or in several."""
    return lambda graph, given, config: list(
        graph.stream(given, config, stream_mode=modes, subgraphs=True, **options)
    )


def astreamed(modes: Any) -> Watch:
    """Asynchronous counterpart of the function above."""
    return lambda graph, given, config: _collect(
        graph.astream(given, config, stream_mode=modes, subgraphs=True)
    )


def _collect(stream: AsyncIterator[Any]) -> list[Any]:
    async def collect() -> list[Any]:
        return [one async for one in stream]

    return asyncio.run(collect())


def events(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """All events but those of runs that are tagged as trace data."""
    return _collect(graph.astream_events(given, config, version="v2", exclude_tags=["nostream"]))


def tokens(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """The tokens of all models, whatever their tags."""
    found = _collect(graph.astream_events(given, config, version="v2"))
    return [event["data"] for event in found if event["event"] == "on_chat_model_stream"]


WATCHES: dict[str, Watch] = {
    **{f"{mode}, sync": streamed(mode) for mode in MODES},
    **{f"{mode}, async": astreamed(mode) for mode in MODES},
    "all at once": streamed(list(MODES)),
    "all at once, async": astreamed(list(MODES)),
    "in parts": streamed(list(MODES), version="v2"),
    "events": events,
    "events of version 3": lambda graph, given, config: list(
        graph.stream_events(given, config, version="v3")
    ),
    "tokens": tokens,
}


def stored(folder: Path) -> str:
    """All bytes of a database, its log included."""
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in sorted(folder.iterdir()))

"""A bot whose rejected candidates cannot be mistaken, and everything that a graph shows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from langchain_cfc_langgraph import CFCState
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
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
EASY, UNSURE, HARD, MANY = "easy: Peru?", "easy: Chile?", "hard: Atlantis?", "easy: which?"
QUESTIONS = {"answered": EASY, "abstained": UNSURE, "not_certifiable": HARD}


def planted(name: str, logprob: float = -3.0) -> Answer:
    """An answer that must not be seen."""
    return Answer(f"{MARK}-{name}-{MARK}", logprob)


def script() -> Script:
    """What the server answers: a good answer scores 0.05, a rejected one 0.95."""
    bad = [planted("quito"), planted("cusco"), planted("sucre")]
    accepted = [Answer(GOOD, -0.05), *bad[:2]]
    thought = [Answer(f"<think>{one.text}</think>", -3.0) for one in bad]
    several = [Answer(f"city {number}", -0.05) for number in range(N)]
    # Prompts of a kind that had no correct candidate are flagged, however sure the model is.
    sure = [planted("ys", -0.05), planted("lyonesse", -0.06), planted("mu", -0.07)]
    return Script({EASY: accepted, UNSURE: thought, HARD: sure, MANY: several})


def topic(prompt: Any) -> dict[str, str]:
    """The metadata of a prompt, be it text or messages."""
    return {"topic": "hard" if "hard" in repr(prompt) else "easy"}


def make_artifact(size: int = 120, worst: float = 0.3, **options: Any) -> CalibrationArtifact:
    """Easy prompts whose right answers score up to a number, at any place, and hard ones without any."""
    records = [
        PromptRecord(
            id=f"{kind}{number}",
            input=f"{kind} {number}",
            metadata={"topic": kind},
            candidates=tuple(
                Candidate(text="right", score=worst * (number % 10 + 1) / 10, correct=kind == "easy")
                if slot == number % N
                else Candidate(text=f"wrong {slot}", score=0.9, correct=False)
                for slot in range(N)
            ),
        )
        for kind in ("easy", "hard")
        for number in range(size)
    ]
    named = Provenance(n=N, generator={"id": BOT}, verifier={"id": "sequence-probability"})
    given = {"alpha": [0.1, 0.2], "features": "group(topic)"}
    return calibrate(records, provenance=named, allow_unattainable=True, **{**given, **options})


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


def thread(name: str = "1", **more: Any) -> RunnableConfig:
    """The config of a thread."""
    return {"configurable": {"thread_id": name, **more}}


# A graph that leaks


class Naive(TypedDict, total=False):
    """A naive state that stores all candidates, rejected ones included."""

    question: str
    candidates: list[str]
    answer: str


def naive_graph(model: ChatOpenAI, checkpointer: Any = None) -> Any:
    """The negative control: a node that draws on its own, says how far it is and keeps all it drew."""

    def told(messages: Sequence[BaseMessage]) -> Naive:
        texts = [str(message.text) for message in messages]
        get_stream_writer()({"drawn": texts})
        return {"candidates": texts, "answer": texts[0]}

    def draw(state: Naive, config: RunnableConfig) -> Naive:
        return told([model.invoke(state["question"], config) for _ in range(N)])

    async def adraw(state: Naive, config: RunnableConfig) -> Naive:
        return told([await model.ainvoke(state["question"], config) for _ in range(N)])

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Naive)
    graph.add_node("draw", RunnableLambda(draw, adraw))
    graph.add_edge(START, "draw")
    graph.add_edge("draw", END)
    return graph.compile(checkpointer=checkpointer)


def inside(graph: Any, state: Any, checkpointer: Any = None) -> Any:
    """A graph as the one node of another."""
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    outer.add_node("inner", graph)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)
    return outer.compile(checkpointer=checkpointer)


# All that is shown

MODES: tuple[str, ...] = get_args(StreamMode)
Watch = Callable[[Any, Any, RunnableConfig], list[Any]]


def streamed(modes: Any, **options: Any) -> Watch:
    """Return what a graph and its subgraphs stream in one mode, or in several."""
    given_options = {"stream_mode": modes, "subgraphs": True, **options}
    return lambda graph, given, config: list(graph.stream(given, config, **given_options))


def astreamed(modes: Any) -> Watch:
    """Asynchronous counterpart of the function above."""

    def watch(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
        async def collected() -> list[Any]:
            found = graph.astream(given, config, stream_mode=modes, subgraphs=True)
            return [one async for one in found]

        return asyncio.run(collected())

    return watch


def events(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """All events but those of runs that are tagged as trace data."""

    async def collected() -> list[Any]:
        found = graph.astream_events(given, config, version="v2", exclude_tags=["nostream"])
        return [event async for event in found]

    return asyncio.run(collected())


def tokens(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """The tokens of all models, whatever their tags."""

    async def collected() -> list[Any]:
        found = graph.astream_events(given, config, version="v2")
        return [event["data"] async for event in found if event["event"] == "on_chat_model_stream"]

    return asyncio.run(collected())


def stream_v3_events(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """The typed events of the newest interface, told apart by what they hold."""
    return list(graph.stream_events(given, config, version="v3"))


WATCHES: dict[str, Watch] = {
    **{f"{mode}, sync": streamed(mode) for mode in MODES},
    **{f"{mode}, async": astreamed(mode) for mode in MODES},
    "all at once": streamed(list(MODES)),
    "all at once, async": astreamed(list(MODES)),
    "in parts": streamed(list(MODES), version="v2"),
    "events": events,
    "events of the third kind": stream_v3_events,
    "tokens": tokens,
}


def stored(folder: Path) -> str:
    """All bytes of a database, its log included."""
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in sorted(folder.iterdir()))

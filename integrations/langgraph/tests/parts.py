"""A bot whose rejected candidates cannot be mistaken, and a graph that shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import CFCState
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.config import get_stream_writer
from langgraph.graph import MessagesState
from typing_extensions import TypedDict

from integrations.tests.graphs import make_one_node_graph, url
from integrations.tests.planted import make_model, make_planted_artifact
from langchain_cfc import CalibrationArtifact, CFCRunnable
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


def make_chain(path: Path | str, url: str, **fields: Any) -> CFCRunnable:
    """The bot on an artifact that was saved; its model streams wherever it is let."""
    parts: dict[str, Any] = {
        "generator": make_model(url, logprobs=True, streaming=True),
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
    return str(state["messages"][-1].text)


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

    return make_one_node_graph(draw, Naive, checkpointer)


__all__ = ["artifact_path", "chain", "served", "url"]


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    make_planted_artifact({"id": BOT}, "sequence-probability").save(path)
    return path


@pytest.fixture
def served() -> Script:
    """What the server answers; tests add faults to it."""
    return script()


@pytest.fixture
def chain(artifact_path: Path, url: str) -> CFCRunnable:
    return make_chain(artifact_path, url)

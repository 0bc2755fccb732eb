"""Parts of the collections in these tests, and records of their calls."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from langchain_cfc_collect.executor import Components
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from ray.cluster_utils import Cluster

from integrations.collect.tests.claiming import find_lines
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.support.units import Unit

N = 3
# Seconds that a call takes.
CALL = 0.03


def examples(size: int) -> list[Example]:
    """Prompts 0, 1, ... with the answer to each."""
    return [
        Example(id=f"p{number}", input=f"question {number}", reference=f"answer {number}")
        for number in range(size)
    ]


def add_node(cluster: Cluster, **resources: float) -> Any:
    """Add a node with two processors and the given resources."""
    # Outcomes are small, so little memory is set aside for them.
    return cluster.add_node(num_cpus=2, resources=resources, object_store_memory=80 * 2**20)


def quiet(notice: str) -> None:
    """Most candidates are the same here, as those who watch would say."""
    del notice


# Without a network, noted in a file that all processes of this machine append to


@dataclass(frozen=True)
class Call:
    """A call, as noted when it began and when it ended."""

    prompt: str
    process: int
    node: str
    at: float
    ended: bool


class NotingModel(BaseChatModel):
    """A chat model that knows the answers, and notes its calls.

    Attributes:
        log: Where.
        seconds: How long a call takes.
    """

    log: Path
    seconds: float = CALL

    @property
    def _llm_type(self) -> str:
        return "noting"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        prompt = messages[-1].text
        self._note(prompt, ended=False)
        await asyncio.sleep(self.seconds)
        self._note(prompt, ended=True)
        said = {"model_name": "noting"}
        answer = prompt.replace("question", "answer")
        message = AIMessage(answer, response_metadata=said)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _note(self, prompt: str, *, ended: bool) -> None:
        node = ray.get_runtime_context().get_node_id()
        line = json.dumps([prompt, os.getpid(), node, time.time(), ended])
        with self.log.open("a") as file:
            file.write(f"{line}\n")


def make_noting_parts(log: Path, seconds: float = CALL) -> Components:

    def verifier(_: Any, candidates: Sequence[Any]) -> list[float]:
        return [(slot + 1) / 8 for slot in range(len(candidates))]

    return Components(NotingModel(log=log, seconds=seconds), verifier, NormalisedMatch(), N)


def make_unclear_parts(unit: Unit) -> Components:
    """Parts that refuse, have no verdict on, or cannot label some of what is drawn."""

    def generate(question: str) -> str:
        number = int(question.rsplit(maxsplit=1)[-1])
        lines = [f"answer {number}", "no verdict", "no label", "answer 3"]
        return "\n".join(lines[: number % 5]) if unit == "claims" else [*lines, " "][number % 5]

    def verify(_: Any, candidates: Sequence[Any]) -> list[float | None]:
        return [None if "verdict" in one.text else len(one.text) / 20 for one in candidates]

    def label(_: Any, reference: Any, candidates: Sequence[Any]) -> list[bool | None]:
        return [None if "label" in one.text else one.text == reference for one in candidates]

    splitter = find_lines if unit == "claims" else None
    return Components(generate, verify, label, N, unit, splitter, generator_id="planted")


def read_calls(log: Path) -> list[Call]:
    """All notes, in the order in which they were made."""
    lines = log.read_text().splitlines() if log.exists() else []
    return sorted((Call(*json.loads(line)) for line in lines), key=lambda call: call.at)


def count_begun(log: Path) -> Counter[str]:
    """Return the number of calls that began for each prompt."""
    return Counter(call.prompt for call in read_calls(log) if not call.ended)


def count_in_flight(calls: Sequence[Call]) -> dict[int, int]:
    """Return the number of running calls of each process."""
    found: Counter[int] = Counter()
    for call in calls:
        found[call.process] += -1 if call.ended else 1
    return dict(found)

"""Small collections: prompts, a scripted executor, and a function that runs both."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.costs import Budget, ModelCalls, Usage
from langchain_cfc_collect.run import CollectionOptions, Run
from langchain_cfc_collect.stages import Journal, Labels, Outcome, StoredPrompt
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store import Store

from integrations.collect.tests.sharing import make_numbered_examples
from langchain_cfc.errors import CFCError, StoreError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import VerifierScores

N = 3
MODEL = "model-1"


def is_free(store: Store) -> bool:
    """Whether no run is at work on a store."""
    try:
        with store.lock():
            return True
    except StoreError:
        return False


def make_usage(tokens: int, model: str = MODEL, *, drew: bool = True) -> Usage:
    """One request that took so many tokens, half of them for the answer."""
    calls = ModelCalls(model, drew, tokens - tokens // 2, tokens // 2, 1)
    return Usage((calls,))


@dataclass
class FakeExecutor:
    """An executor with scripted draws, scores and labels that counts its calls.

    Attributes:
        texts: The n candidates of a prompt.
        scores: Their scores.
        correct: Their labels.
        extracted: The answers that an extractor finds in them, if there is one.
        costs: What the draws of a prompt take.
        fails: Which stages of which prompts fail, as (stage, id), and with what.
        done: How often each was done, as (stage, id).
        seconds: How long each takes.
        labeler: What the labeler states about itself.
    """

    texts: Callable[[str], Sequence[str]] = lambda name: [f"{name} {slot}" for slot in range(N)]
    scores: Callable[[str], Sequence[float]] = lambda name: [0.25] * N  # noqa: ARG005 - whatever it is
    correct: Callable[[str], Sequence[bool]] = lambda name: [True] + [False] * (N - 1)  # noqa: ARG005 - as above
    extracted: Sequence[str] | None = None
    costs: Callable[[str], Usage] = lambda name: make_usage(10)  # noqa: ARG005 - as above
    fails: dict[tuple[str, str], CFCError] = field(default_factory=dict)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    under_way: int = 0
    labeler: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> Mapping[str, Any]:
        return {
            "n": N,
            "generator": {"id": "given"},
            "verifier": {"id": "scripted"},
            "labeler": self.labeler,
            "answer": None,
            "sampling": "single_request",
        }

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        return await self._did(
            "draw", journal, example, [DrawnCandidate(one) for one in self.texts(example.id)]
        )

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        del answer, journal
        raise AssertionError

    async def score(self, prompt: StoredPrompt, journal: Journal) -> Outcome:
        name = prompt.example.id
        assert [one.text for one in prompt.candidates] == list(self.texts(name))
        return await self._did("score", journal, prompt.example, VerifierScores(self.scores(name)))

    async def label(self, prompt: StoredPrompt, journal: Journal) -> Outcome:
        name = prompt.example.id
        assert [one.text for one in prompt.candidates] == list(self.texts(name))
        return await self._did("label", journal, prompt.example, Labels(self.correct(name), self.extracted))

    async def _did(self, stage: str, journal: Journal, example: Example, result: Any) -> Outcome:
        await journal.flush()  # as before every call
        self.done[stage, example.id] += 1
        await asyncio.sleep(self.seconds)
        taken = self.costs(example.id) if stage == "draw" else Usage()
        return Outcome(self.fails.get((stage, example.id), result), taken)

    def count(self, stage: str) -> int:
        """How often a stage was done for all prompts together."""
        return sum(count for (one, _), count in self.done.items() if one == stage)


class Ran(NamedTuple):
    """How a run ended: whether every prompt was begun, its status, and what was reported."""

    complete: bool
    status: CollectionStatus
    notices: list[str]


def run(
    path: Path,
    executor: Any,
    size: int = 0,
    *,
    at_once: int = 4,
    budget: Budget | None = None,
    begun: Callable[[Run], None] = lambda run: None,  # noqa: ARG005 - the default ignores it
    progress: Callable[[CollectionStatus], None] = lambda standing: None,  # noqa: ARG005 - as above
) -> Ran:
    """Run a collection on the prompts of a store and on `size` prompts that are added."""
    notices: list[str] = []

    async def worked() -> Ran:
        with Store(path, create=True) as store, store.lock():
            store.add(make_numbered_examples(size))
            options = CollectionOptions(budget=budget or Budget(), on_notice=notices.append)
            with mock.patch.object(CallPolicy, "prompts_at_once", at_once):
                going = Run(store, executor, options, progress)
            begun(going)
            complete = await going.run()
        return Ran(complete, going.status, notices)

    return asyncio.run(worked())

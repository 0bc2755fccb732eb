"""`Ledger`: what a listener learns of a served prompt, what was drawn and what was decided."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult

from langchain_cfc import CFCResult

CANDIDATE = "cfc:candidate"


@dataclass
class Run:
    """One run as its callbacks reported it."""

    kind: str
    name: str
    tags: list[str]
    metadata: dict[str, Any]
    parent: UUID | None
    texts: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def draws(self) -> bool:
        """Whether it is a model that draws candidates."""
        return self.kind == "model" and CANDIDATE in self.tags

    @property
    def slot(self) -> int | None:
        """The slot that it draws for; None where it draws for all."""
        found = [tag.rpartition(":")[2] for tag in self.tags if tag.startswith(f"{CANDIDATE}:")]
        return int(found[0]) if found else None


class Ledger(BaseCallbackHandler):
    """Every run of a prompt, what the draws said and what came of them."""

    run_inline = True

    def __init__(self) -> None:
        self.runs: dict[UUID, Run] = {}
        self.results: list[CFCResult] = []
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    def _start(self, kind: str, kwargs: dict[str, Any]) -> None:
        with self._lock:
            self.runs[kwargs["run_id"]] = Run(
                kind=kind,
                name=str(kwargs.get("name")),
                tags=list(kwargs.get("tags") or []),
                metadata=dict(kwargs.get("metadata") or {}),
                parent=kwargs.get("parent_run_id"),
            )

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        del args
        self._start("chain", kwargs)

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        del args
        self._start("model", kwargs)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        with self._lock:
            run = self.runs[kwargs["run_id"]]
            run.ended = True
            run.texts = [
                str(one.message.text)
                for batch in response.generations
                for one in batch
                if isinstance(one, ChatGeneration)
            ]

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        with self._lock:
            self.runs[kwargs["run_id"]].ended = True
            if isinstance(outputs, CFCResult) and outputs not in self.results:
                self.results.append(outputs)

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        del kwargs
        self.errors.append(error)

    def of(self, wanted: Callable[[Run], bool]) -> list[Run]:
        """The runs that are wanted, in the order in which they started."""
        return [run for run in self.runs.values() if wanted(run)]

    def drawn(self) -> list[str]:
        """The texts of the draws, accepted or not."""
        return [text for run in self.of(lambda run: run.draws) for text in run.texts]

    def by_slot(self, n: int) -> list[str]:
        """The text of each slot, as the tags of the draws state it."""
        said: dict[int, str] = {}
        for run in self.of(lambda run: run.draws and run.ended):
            texts = run.texts if run.slot is None else run.texts[:1]
            said.update(enumerate(texts, run.slot or 0))
        return [said[slot] for slot in range(n)]

    def rejected(self, read: Callable[[str], str]) -> set[str]:
        """The answers that were drawn and that no result lets anyone see."""
        shown = {read(one.text) for result in self.results for one in result.candidates if one.text}
        return {read(text) for text in self.drawn()} - shown - {""}

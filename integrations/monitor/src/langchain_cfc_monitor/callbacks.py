"""`ResultCallback`: a LangChain callback that receives every served result once."""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langchain_cfc.errors import AbstentionError, CFCError
from langchain_cfc.runnable import BatchResult, CFCResult

# Most unfinished runs to track; beyond that the oldest is dropped. Abandoned streams never report their end.
_MAX_RUNS = 100_000


class ResultCallback(BaseCallbackHandler):
    """Base class of callbacks that receive each `CFCResult` of a chain, and each `CFCError`, exactly once.

    Enclosing chains end with the same object as the one that served. Objects are compared instead of run ids,
    because LangChain's `with_fallbacks` does not report a run's parent. A raised abstention is a result.
    """

    # Async chains call it inline as well: a thread for each event would take longer than the event.
    run_inline = True
    # Events of models, tools and retrievers are not needed, and there are many for each result.
    ignore_llm = True
    ignore_chat_model = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def __init__(self) -> None:
        self._runs: dict[UUID, tuple[Any, float]] = {}
        self._recent: weakref.WeakValueDictionary[int, CFCResult | BatchResult | CFCError] = (
            weakref.WeakValueDictionary()
        )

    def receive_result(self, result: CFCResult, run_id: UUID, prompt: Any, seconds: float) -> None:
        """Receive a result, with the id, the input and the duration of its run."""

    def receive_batch(self, batch: BatchResult, run_id: UUID) -> None:
        """Receive the results of `answer_batch`, with the id of its run."""

    def receive_failure(self, error: CFCError) -> None:
        """Receive the error of a prompt that could not be served."""

    def on_chain_start(self, serialized: dict[str, Any], inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the start of a run; a run whose input is a result is skipped, as it may copy it."""
        del serialized, kwargs
        if isinstance(inputs, CFCResult):
            return
        if len(self._runs) >= _MAX_RUNS:
            with suppress(RuntimeError, StopIteration):  # another thread changed it
                self._runs.pop(next(iter(self._runs)), None)
        self._runs[run_id] = inputs, time.perf_counter()

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Pass on the results of a run, unless another run has ended with the same object."""
        del kwargs
        started = self._runs.pop(run_id, None)
        if not isinstance(outputs, CFCResult | BatchResult) or not self._is_new(outputs) or started is None:
            return
        prompt, began = started
        if isinstance(outputs, BatchResult):
            self.receive_batch(outputs, run_id)
        else:
            self.receive_result(outputs, run_id, prompt, time.perf_counter() - began)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Pass on the error of a run, or the result of a raised abstention."""
        if isinstance(error, AbstentionError):
            self.on_chain_end(error.result, run_id=run_id, **kwargs)
            return
        started = self._runs.pop(run_id, None)
        if isinstance(error, CFCError) and self._is_new(error) and started is not None:
            self.receive_failure(error)

    def _is_new(self, one: CFCResult | BatchResult | CFCError) -> bool:
        if self._recent.get(id(one)) is one:
            return False
        self._recent[id(one)] = one
        return True

"""`FlowRunner`: run the flows of a runnable within its limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig

from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, Steps, apply_limits, arun_flow, run_flow
from langchain_cfc.execution.langgraph_compat import NOSTREAM, detach_from_graph
from langchain_cfc.execution.limits import (
    RunManager,
    arun_with_timeout,
    find_limiter,
    make_child_config,
    run_with_timeout,
    set_context_variable,
)
from langchain_cfc.runnable.redraws import detach_register
from langchain_cfc.sampling.usage import REQUEST
from langchain_cfc.support.text import withhold_quotes

T = TypeVar("T")
# Makes a flow that runs under a config.
Flow: TypeAlias = Callable[[RunnableConfig], Steps[T]]


@dataclass(frozen=True)
class FlowRunner:
    """Runs flows within a runnable's limits.

    Attributes:
        limiter: Limits the calls of all flows together; None if only the config of a call does.
        timeout: Time limit of a flow in seconds, or None.
        show_rejected: Whether errors may quote candidates, and what others say about them.
    """

    limiter: ConcurrencyLimiter | None
    timeout: float | None
    show_rejected: bool

    def run(self, flow: Flow[T], run_manager: RunManager, config: RunnableConfig) -> T:
        """Return the result of a flow; raise a `ServingTimeoutError` if it takes longer than `timeout`."""
        with self._apply(run_manager, config) as child:
            return run_with_timeout(partial(run_flow, flow(child)), self.timeout)

    async def arun(self, flow: Flow[T], run_manager: RunManager, config: RunnableConfig) -> T:
        """Return the result of a flow that runs on the event loop; see `run`."""
        with self._apply(run_manager, config) as child:
            return await arun_with_timeout(arun_flow(flow(child)), self.timeout)

    @contextmanager
    def _apply(self, run_manager: RunManager, config: RunnableConfig) -> Iterator[RunnableConfig]:
        child = detach_register(detach_from_graph(make_child_config(config, run_manager, NOSTREAM)))
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        limits = CallLimits(self.limiter or find_limiter(config), deadline)
        quotes = nullcontext() if self.show_rejected else withhold_quotes()
        with apply_limits(limits, child), quotes, set_context_variable(REQUEST, None):
            yield child

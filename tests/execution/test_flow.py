"""Flows as parts of larger ones: they have their own run if a handler listens, and none otherwise."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.context import register_configure_hook

from langchain_cfc.execution import FlowRunnable, Steps, call_each
from langchain_cfc.sampling import UsageRecorder
from tests.execution.flows import Run


def _double(value: int) -> int:
    return 2 * value


class Doubling(FlowRunnable[int, int]):
    """Calls a runnable, which is heard as a run."""

    def flow(self, given: int, config: RunnableConfig) -> Steps[int]:
        inner: RunnableLambda[int, int] = RunnableLambda(_double, name="inner")
        (found,) = yield call_each(
            lambda value: inner.invoke(value, config), lambda value: inner.ainvoke(value, config), [given]
        )
        return int(found)


class ChainRecorder(BaseCallbackHandler):
    """The names of chains, with whether they are parts of another."""

    def __init__(self) -> None:
        self.chains: list[tuple[str, bool]] = []

    def on_chain_start(self, *args: Any, parent_run_id: Any = None, **kwargs: Any) -> None:
        del args
        self.chains.append((kwargs["name"], parent_run_id is not None))


IN_A_RUN = [("Doubling", False), ("inner", True)]


def test_flow_with_a_chain_handler_is_a_run(run: Run) -> None:
    heard = ChainRecorder()
    assert run(Doubling().steps(4, {"callbacks": [UsageRecorder(), heard]})) == 8
    assert heard.chains == IN_A_RUN


@pytest.mark.parametrize("callbacks", [None, [], [UsageRecorder()]])
def test_flow_without_a_chain_handler_is_no_run(
    run: Run, callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("invoke", "ainvoke"):
        monkeypatch.setattr(Doubling, name, None)
    assert run(Doubling().steps(4, {"callbacks": callbacks})) == 8


_TRACER: ContextVar[BaseCallbackHandler | None] = ContextVar("tests_tracer", default=None)
register_configure_hook(_TRACER, inheritable=True)


def test_flow_with_a_global_tracer_is_a_run(run: Run) -> None:
    heard = ChainRecorder()
    token = _TRACER.set(heard)
    try:
        assert run(Doubling().steps(4, {"callbacks": [UsageRecorder()]})) == 8
    finally:
        _TRACER.reset(token)
    assert heard.chains == IN_A_RUN

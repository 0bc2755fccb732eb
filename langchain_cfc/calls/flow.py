"""Runnables that are written as one flow for the sync and the async path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManager,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import Input, Output

from langchain_cfc.calls.bounds import bounded_by, child_of
from langchain_cfc.calls.steps import Step, Steps, acomplete, complete


class FlowRunnable(Runnable[Input, Output], ABC):
    """A Runnable that is written as a flow.

    What the flow calls takes its places within the bounds of the prompt that is served, call by call.
    """

    @abstractmethod
    def flow(self, given: Input, config: RunnableConfig) -> Steps[Output]:
        """What is done.

        Args:
            given: What it is invoked with.
            config: Config for whatever is called.

        Returns:
            What it is invoked for.
        """

    def steps(self, given: Input, config: RunnableConfig) -> Steps[Output]:
        """The same as a part of something larger: in a run of its own, where anybody hears of it."""
        if not _heard(config):
            return (yield from self.flow(given, config))
        found: Output = yield Step(lambda: self.invoke(given, config), lambda: self.ainvoke(given, config))
        return found

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """Carry the flow out."""
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """The same as `invoke`, asynchronously."""
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(self, given: Input, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> Output:
        child = child_of(config, run_manager)
        with bounded_by(config, child):
            return complete(self.flow(given, child))

    async def _arun(
        self, given: Input, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Output:
        child = child_of(config, run_manager)
        with bounded_by(config, child):
            return await acomplete(self.flow(given, child))


def _heard(config: RunnableConfig) -> bool:
    """Whether anybody would hear of a run; to tell nobody costs more than many a flow."""
    callbacks = config.get("callbacks")
    if callbacks is None:
        return False
    # Whom the environment asks for, such as tracers, is only known once LangChain has made a manager.
    return any(not handler.ignore_chain for handler in CallbackManager.configure(callbacks).handlers)

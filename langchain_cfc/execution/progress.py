"""`Progress`: events for whoever watches a prompt being served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManagerForChainRun,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.runnables import RunnableConfig

from langchain_cfc.execution.steps import Step


class Progress:
    """Tells the handlers of a run how far it has come; costs nothing where there are none.

    Args:
        run_manager: Of the run that the events belong to; None where there is no run.
    """

    def __init__(
        self, run_manager: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun | None = None
    ) -> None:
        handlers = [] if run_manager is None else run_manager.handlers
        self._watched = any(not handler.ignore_custom_event for handler in handlers)
        self._config = RunnableConfig()
        if run_manager is not None and self._watched:
            self._config["callbacks"] = run_manager.get_child()

    def tell(self, name: str, data: Mapping[str, Any]) -> None:
        """Dispatch a custom event, such as `cfc:drawn`."""
        if self._watched:
            dispatch_custom_event(name, dict(data), config=self._config)

    async def atell(self, name: str, data: Mapping[str, Any]) -> None:
        """The same, asynchronously."""
        if self._watched:
            await adispatch_custom_event(name, dict(data), config=self._config)

    def step(self, name: str, data: Mapping[str, Any]) -> Step:
        """The same as a step of a flow."""
        return Step(lambda: self.tell(name, data), lambda: self.atell(name, data))

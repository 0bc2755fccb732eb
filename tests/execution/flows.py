"""Running flows by sync and by async calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from langchain_cfc.execution import Step, Steps, arun_flow, run_flow

T = TypeVar("T")
Run: TypeAlias = Callable[[Steps[Any]], Any]


def run_sync(steps: Steps[Any]) -> Any:
    """Return the result of a flow by sync calls."""
    return run_flow(steps)


def run_async(steps: Steps[Any]) -> Any:
    """Return the result of a flow by async calls."""
    return asyncio.run(arun_flow(steps))


def one_step(step: Step) -> Steps[Any]:
    """The flow of a single step."""
    return (yield step)

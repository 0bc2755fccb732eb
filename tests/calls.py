"""Ways to call a Runnable in tests: by sync calls, by async calls, and through copies of it."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import pytest
from langchain_core.runnables import Runnable

from langchain_cfc.labelers import BaseLabeler
from tests.factories import labeler_input

T = TypeVar("T")
Invoke: TypeAlias = Callable[..., Any]


def invoke_sync(runnable: Runnable[Any, Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `invoke` returns."""
    return runnable.invoke(*args, **kwargs)


def invoke_async(runnable: Runnable[Any, Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `ainvoke` returns, on an event loop of its own."""
    return asyncio.run(runnable.ainvoke(*args, **kwargs))


def copies_of(thing: T) -> tuple[T, T]:
    """Return a deep copy and a copy through pickle, in which parts may behave differently."""
    return copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own bytes


def is_correct(labeler: BaseLabeler, reference: Any, text: str) -> bool:
    """Return how one candidate is labelled."""
    [label] = labeler.invoke(labeler_input(reference, text))
    return bool(label)


@pytest.fixture(params=[invoke_sync, invoke_async], ids=["sync", "async"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """A function that calls a Runnable: tests that take it run once by sync and once by async calls."""
    way: Invoke = request.param
    return way

"""How many calls may run at once, and until when: one bound for everything that a prompt sets off.

LangChain's `max_concurrency` holds for one `batch` at a time. Where batches nest, as n draws do inside a
batch of prompts, the numbers multiply: 8 prompts of 8 draws are 64 requests in flight. Here draws and
verification of all prompts acquire permits from the same `ConcurrencyLimiter`, in threads or on an event
loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    ContextThreadPoolExecutor,
    get_config_list,
    var_child_runnable_config,
)

from langchain_cfc.errors import InputError, ServingTimeoutError

T = TypeVar("T")

RunManager: TypeAlias = CallbackManagerForChainRun | AsyncCallbackManagerForChainRun

# Where a config carries the limit that the prompts of a batch share. The runnable takes it out again.
_SHARED = "__cfc_limit"
# What names a run and not its children.
_OF_ONE_RUN = {"run_name", "run_id"}
_TOO_LATE = "the time for this prompt was over before a call could start"


class ConcurrencyLimiter:
    """At most `size` calls at once, first come first served, for threads and event loops alike.

    Args:
        size: Number of places, at least 1.

    Raises:
        InputError: If it is no whole number of at least 1.
    """

    def __init__(self, size: int) -> None:
        # Of no place at all, or of half a place, one would wait for ever.
        if not isinstance(size, int) or size < 1:  # type: ignore[redundant-expr]  # configs hold anything
            msg = f"max_concurrency is {size!r}: expected a whole number of at least 1, or None for no limit"
            raise InputError(msg)
        self.size = size
        self._free = size
        self._waiting: deque[_Waiter] = deque()
        # Re-entrant: a task that is never resumed gives its place back when it is collected, and that may
        # happen anywhere, in here too.
        self._lock = threading.RLock()

    def take(self, deadline: float | None = None) -> None:
        """Take a place; whoever has one gives it back.

        Args:
            deadline: When to stop waiting for one, in `time.monotonic()` seconds; None waits for ever.

        Raises:
            ServingTimeoutError: If none became free in time.
        """
        gate = threading.Lock()
        gate.acquire()
        waiter = _Waiter(gate.release)
        try:
            came = self._taken(waiter) or gate.acquire(timeout=_patience(deadline))
        except BaseException:
            self._withdraw(waiter)
            raise
        if not came:
            self._withdraw(waiter)
            raise ServingTimeoutError(_TOO_LATE)

    async def atake(self) -> None:
        """The same on an event loop, where waiting ends by cancellation."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiter = _Waiter(partial(_wake, loop, woken))
        try:
            if not self._taken(waiter):
                await woken
        except BaseException:
            self._withdraw(waiter)
            raise

    def give_back(self) -> None:
        """Give a place to the next who waits, or leave it free."""
        with self._lock:
            while self._waiting:
                if self._waiting.popleft().given():
                    return
            self._free += 1

    def _taken(self, waiter: _Waiter) -> bool:
        """Whether a place was free and is taken now; otherwise the waiter stands in line."""
        with self._lock:
            if self._free:
                self._free -= 1
                waiter.has_place = True
            else:
                self._waiting.append(waiter)
            return waiter.has_place

    def _withdraw(self, waiter: _Waiter) -> None:
        """Stop waiting; a place that was given meanwhile goes to the next."""
        with self._lock:
            if waiter.has_place:
                self.give_back()
                return
            with suppress(ValueError):  # of a closed loop, and passed over already
                self._waiting.remove(waiter)


class _Waiter:
    """Someone who waits for a place.

    Args:
        wake: How to wake it; raises a RuntimeError if its event loop is closed.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self.has_place = False
        self._wake = wake

    def given(self) -> bool:
        """Give it a place; False if nobody is there any more to take it."""
        try:
            self._wake()
        except RuntimeError:
            return False
        self.has_place = True
        return True


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        # From another thread it takes a turn of the loop, and a byte through a socket to set it off.
        _resolve(woken)
    else:
        loop.call_soon_threadsafe(_resolve, woken)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _patience(deadline: float | None) -> float:
    """Seconds until then, as locks want them."""
    return -1 if deadline is None else min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)


class RetryingCaller(Protocol):
    """How calls are made where one that fails may be made again: offline, where nobody waits."""

    async def aoutcome(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call as often as need be, each time in a place within the bounds.

        Returns:
            What was returned, or the exception of the last call.
        """


@dataclass(frozen=True)
class CallLimits:
    """What calls must keep to.

    Attributes:
        limit: Where they take their places; None where there is no limit.
        deadline: When none may start any more, in `time.monotonic()` seconds.
        occupied: Limits of which the calls around hold a place.
        attempts: How calls are made on an event loop that may be made again; None where each is made once,
            as it is in threads. What goes on inside a call is repeated with it, not by itself.
    """

    limit: ConcurrencyLimiter | None = None
    deadline: float | None = None
    occupied: frozenset[ConcurrencyLimiter] = frozenset()
    attempts: RetryingCaller | None = None

    @property
    def free(self) -> bool:
        """Whether there is nothing to keep to."""
        return self.limit is None and self.deadline is None

    def held(self) -> AbstractContextManager[None]:
        """Hold a place, within the deadline: `with bounds().held():`.

        Raises:
            ServingTimeoutError: If none became free in time.
        """
        self.check()
        if self.limit is None:
            return nullcontext()
        self.limit.take(self.deadline)
        return _Held(self, self.limit)

    async def aheld(self) -> AbstractContextManager[None]:
        """The same on an event loop: `with await bounds().aheld():`."""
        # No `async with`: as an async generator it would not hear that its task is never resumed, and
        # would keep the place for good.
        self.check()
        if self.limit is None:
            return nullcontext()
        await self.limit.atake()
        return _Held(self, self.limit)

    def check(self) -> None:
        """Refuse to start anything after the deadline.

        Raises:
            ServingTimeoutError: If it has passed.
        """
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise ServingTimeoutError(_TOO_LATE)

    def within(self, around: CallLimits) -> CallLimits:
        """The same for a prompt that is served inside a call of another.

        Of a limit that the calls around hold a place of, no further one is taken: all may be held like that.
        """
        limit = around.limit if self.limit in around.occupied else self.limit
        deadlines = [one for one in (self.deadline, around.deadline) if one is not None]
        return CallLimits(
            limit, min(deadlines, default=None), around.occupied, self.attempts or around.attempts
        )


class _Held(AbstractContextManager[None]):
    """A place that is held; what goes on inside a call does so one after the other, in that place.

    To take further places while holding one would stand still as soon as all are held like that.
    """

    # No generator: one is held for every call.
    def __init__(self, around: CallLimits, limit: ConcurrencyLimiter) -> None:
        self._around = around
        self._limit = limit
        self._token: Token[CallLimits] | None = None

    def __enter__(self) -> None:
        around, limit = self._around, self._limit
        try:
            around.check()
        except BaseException:
            limit.give_back()
            raise
        self._token = _BOUNDS.set(
            CallLimits(ConcurrencyLimiter(1), around.deadline, around.occupied | {limit})
        )

    def __exit__(self, *exception: object) -> None:
        try:
            _reset(_BOUNDS, self._token)
        finally:
            self._limit.give_back()


_NONE = CallLimits()
_BOUNDS: ContextVar[CallLimits] = ContextVar("langchain_cfc_bounds", default=_NONE)


def current_limits() -> CallLimits:
    """The bounds of the prompt that is being served here."""
    return _BOUNDS.get()


@contextmanager
def apply_limits(by: CallLimits, config: RunnableConfig | None = None) -> Iterator[None]:
    """Serve under bounds, handed on to threads and tasks that are started meanwhile.

    Args:
        by: The bounds.
        config: Of the runs that are started meanwhile, which LangChain merges into the config of each; by
            default the one that it has now.
    """
    inherited = var_child_runnable_config.get() if config is None else config
    shared = None if inherited is None else _without_shared(inherited)
    with (
        set_context_variable(_BOUNDS, by.within(current_limits())),
        set_context_variable(var_child_runnable_config, shared),
    ):
        yield


@contextmanager
def set_context_variable(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        _reset(variable, token)


def _reset(variable: ContextVar[T], token: Token[T] | None) -> None:
    # A task that is never resumed ends where it is collected, and that is another context.
    if token is not None:
        with suppress(ValueError):
            variable.reset(token)


def share_limiter(
    config: RunnableConfig | Sequence[RunnableConfig] | None, size: int
) -> list[RunnableConfig]:
    """The configs of a batch, whose prompts share one limit where the batch has a `max_concurrency`.

    Args:
        config: Config of the batch, or one per prompt.
        size: Number of prompts.

    Returns:
        One config per prompt.
    """
    configs = get_config_list(config, size)
    most = configs[0].get("max_concurrency") if configs else None
    if most is None:
        return configs
    limit = ConcurrencyLimiter(most)
    return [{**one, "configurable": {**(one.get("configurable") or {}), _SHARED: limit}} for one in configs]


@contextmanager
def apply_config_limits(config: RunnableConfig, child: RunnableConfig | None = None) -> Iterator[None]:
    """Keep to a config's `max_concurrency` where no limit holds yet; `child` is for the runs inside."""
    with apply_limits(CallLimits(find_limiter(config)), child or config):
        yield


def make_child_config(config: RunnableConfig, run_manager: RunManager, *tags: str) -> RunnableConfig:
    """The config of child runs.

    Args:
        config: Config of the run.
        run_manager: Of the run.
        *tags: What the child runs are tagged with on top.

    Returns:
        The config. Where nobody listens it hands on no callbacks, for to tell each child whom to tell, and of
        which run, costs more than all else here; the flow must then run under it (`bounded`), or LangChain
        adds them again.
    """
    heard = run_manager.get_child() if run_manager.handlers else None
    # What is empty is left out: LangChain copies it at every turn.
    rest = {key: value for key, value in _without_shared(config).items() if value and key not in _OF_ONE_RUN}
    return add_tags(RunnableConfig(**{**rest, "callbacks": heard}), *tags)  # type: ignore[typeddict-item]


def add_tags(config: RunnableConfig, *tags: str) -> RunnableConfig:
    """A config with further tags.

    LangChain's `merge_configs` would take in again what the surrounding run was configured with.
    """
    return {**config, "tags": [*(config.get("tags") or []), *tags]}


def find_limiter(config: RunnableConfig) -> ConcurrencyLimiter | None:
    """The limit that a config sets.

    Args:
        config: Config of one prompt.

    Returns:
        Inside a call of another prompt that one's, for its `max_concurrency` was inherited from there; that
        of the batch; else one of this prompt's own.
    """
    return current_limits().limit or _limit_in(config)


def _limit_in(config: RunnableConfig) -> ConcurrencyLimiter | None:
    shared: ConcurrencyLimiter | None = (config.get("configurable") or {}).get(_SHARED)
    most = config.get("max_concurrency")
    return shared or (None if most is None else ConcurrencyLimiter(most))


def _without_shared(config: RunnableConfig) -> RunnableConfig:
    configurable = config.get("configurable") or {}
    if _SHARED not in configurable:
        return config
    return {**config, "configurable": {key: value for key, value in configurable.items() if key != _SHARED}}


def run_with_timeout(run: Callable[[], T], seconds: float) -> T:
    """Call in another thread, and stop waiting for it after some time.

    A thread cannot be stopped: what it is at then goes on to its end, but the bounds let no further call
    of it start.

    Args:
        run: What to call.
        seconds: How long to wait, above 0.

    Returns:
        What it returned.

    Raises:
        ServingTimeoutError: If it took longer.
    """
    executor = ContextThreadPoolExecutor(1)
    try:
        future = executor.submit(run)
        # Waited for first, for a TimeoutError of its own says nothing of this one's time.
        if not wait([future], min(seconds, threading.TIMEOUT_MAX)).done:
            raise _timed_out(seconds)
        return future.result()
    finally:
        executor.shutdown(wait=False)


async def arun_with_timeout(awaited: Awaitable[T], seconds: float | None) -> T:
    """Await, and cancel it after some time; None waits for ever."""
    if seconds is None:
        return await awaited
    task = asyncio.ensure_future(awaited)
    try:
        return await asyncio.wait_for(task, seconds)
    except asyncio.TimeoutError:
        if not task.cancelled():  # its own
            raise
        raise _timed_out(seconds) from None


def _timed_out(seconds: float) -> ServingTimeoutError:
    return ServingTimeoutError(f"the prompt was not decided within {seconds:g} seconds; nothing was answered")

"""Limits on how many calls run at once and until when, shared by everything that a prompt sets off.

LangChain's `max_concurrency` holds for one `batch` at a time. Where batches nest, as n draws do inside a
batch of prompts, the numbers multiply: 8 prompts of 8 draws are 64 requests in flight. Here the draws and the
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

# Where a config carries the limiter that the prompts of a batch share. The runnable takes it out again.
_SHARED = "__cfc_limit"
# Keys of a config that name one run, not its children.
_OF_ONE_RUN = {"run_name", "run_id"}
_TOO_LATE = "the time for this prompt was over before a call could start"


class ConcurrencyLimiter:
    """Grants at most `size` permits at once, first come first served, to threads and event loops alike.

    Args:
        size: Number of permits, at least 1.

    Raises:
        InputError: If it is no whole number of at least 1.
    """

    def __init__(self, size: int) -> None:
        # With no permit at all, or half a permit, callers would wait for ever.
        if not isinstance(size, int) or size < 1:  # type: ignore[redundant-expr]  # configs hold anything
            msg = f"max_concurrency is {size!r}: expected a whole number of at least 1, or None for no limit"
            raise InputError(msg)
        self.size = size
        self._free = size
        self._waiting: deque[_Waiter] = deque()
        # Re-entrant: a task that is never resumed releases its permit when it is garbage-collected, which may
        # happen anywhere, also while this lock is held.
        self._lock = threading.RLock()

    def acquire(self, deadline: float | None = None) -> None:
        """Acquire a permit; pair with `release()`.

        Args:
            deadline: When to stop waiting, in `time.monotonic()` seconds; None waits for ever.

        Raises:
            ServingTimeoutError: If no permit became free in time.
        """
        gate = threading.Lock()
        gate.acquire()
        waiter = _Waiter(gate.release)
        left = -1 if deadline is None else min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
        try:
            granted = self._acquire_or_enqueue(waiter) or gate.acquire(timeout=left)
        except BaseException:
            self._withdraw(waiter)
            raise
        if not granted:
            self._withdraw(waiter)
            raise ServingTimeoutError(_TOO_LATE)

    async def aacquire(self) -> None:
        """Acquire a permit on an event loop, where waiting ends by cancellation."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiter = _Waiter(partial(_wake, loop, woken))
        try:
            if not self._acquire_or_enqueue(waiter):
                await woken
        except BaseException:
            self._withdraw(waiter)
            raise

    def release(self) -> None:
        """Hand a permit to the next waiter, or leave it free."""
        with self._lock:
            while self._waiting:
                if self._waiting.popleft().grant():
                    return
            self._free += 1

    def _acquire_or_enqueue(self, waiter: _Waiter) -> bool:
        """Take a free permit and return True, or put the waiter in line."""
        with self._lock:
            if self._free:
                self._free -= 1
                waiter.has_permit = True
            else:
                self._waiting.append(waiter)
            return waiter.has_permit

    def _withdraw(self, waiter: _Waiter) -> None:
        """Stop waiting; a permit that was granted meanwhile goes to the next waiter."""
        with self._lock:
            if waiter.has_permit:
                self.release()
                return
            with suppress(ValueError):  # its loop is closed, and it was passed over already
                self._waiting.remove(waiter)


class _Waiter:
    """A caller that waits for a permit; `wake` raises a RuntimeError if its event loop is closed."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.has_permit = False
        self._wake = wake

    def grant(self) -> bool:
        """Grant it the permit; return False if its event loop is closed."""
        try:
            self._wake()
        except RuntimeError:
            return False
        self.has_permit = True
        return True


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    try:
        is_same_loop = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_same_loop = False
    if is_same_loop:
        # From another thread this takes a turn of the loop, and a byte through a socket to start it.
        _resolve(woken)
    else:
        loop.call_soon_threadsafe(_resolve, woken)


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class RetryingCaller(Protocol):
    """Makes calls that may be repeated after failures: offline, where no user waits."""

    async def aoutcome(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call until it succeeds or attempts run out, each time with a permit.

        Returns the result, or the exception of the last call.
        """


@dataclass(frozen=True)
class CallLimits:
    """The limits that calls must keep to.

    Attributes:
        limiter: Where calls acquire their permits; None where there is no limit.
        deadline: When no call may start any more, in `time.monotonic()` seconds.
        occupied: Limiters of which the enclosing calls hold a permit.
        attempts: How calls on an event loop are repeated; None where each is made once, as it is in threads.
            Calls made inside a call are repeated with it, not by themselves.
    """

    limiter: ConcurrencyLimiter | None = None
    deadline: float | None = None
    occupied: frozenset[ConcurrencyLimiter] = frozenset()
    attempts: RetryingCaller | None = None

    def permit(self) -> AbstractContextManager[None]:
        """Acquire a permit for a block: `with current_limits().permit():`.

        Raises:
            ServingTimeoutError: If none became free before the deadline.
        """
        self.check_deadline()
        if self.limiter is None:
            return nullcontext()
        self.limiter.acquire(self.deadline)
        return _Permit(self, self.limiter)

    async def apermit(self) -> AbstractContextManager[None]:
        """Acquire a permit on an event loop: `with await current_limits().apermit():`."""
        # No `async with`: as an async generator it would not notice that its task is never resumed, and would
        # keep the permit for good.
        self.check_deadline()
        if self.limiter is None:
            return nullcontext()
        await self.limiter.aacquire()
        return _Permit(self, self.limiter)

    def check_deadline(self) -> None:
        """Raise a `ServingTimeoutError` if the deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise ServingTimeoutError(_TOO_LATE)

    def nest_in(self, outer: CallLimits) -> CallLimits:
        """Return these limits for a prompt that is served inside a call of another prompt.

        A limiter of which the outer calls hold a permit grants no further one: all permits may be held so.
        """
        limiter = outer.limiter if self.limiter in outer.occupied else self.limiter
        deadlines = [one for one in (self.deadline, outer.deadline) if one is not None]
        return CallLimits(
            limiter, min(deadlines, default=None), outer.occupied, self.attempts or outer.attempts
        )


class _Permit(AbstractContextManager[None]):
    """An acquired permit; calls made inside the block run one after the other under it.

    Acquiring further permits while holding one would deadlock as soon as all are held like that.
    """

    # No generator: one is made for every call.
    def __init__(self, limits: CallLimits, limiter: ConcurrencyLimiter) -> None:
        self._limits = limits
        self._limiter = limiter
        self._token: Token[CallLimits] | None = None

    def __enter__(self) -> None:
        limits, limiter = self._limits, self._limiter
        try:
            limits.check_deadline()
        except BaseException:
            limiter.release()
            raise
        self._token = _LIMITS.set(
            CallLimits(ConcurrencyLimiter(1), limits.deadline, limits.occupied | {limiter})
        )

    def __exit__(self, *exception: object) -> None:
        try:
            if self._token is not None:
                with suppress(ValueError):  # as in `set_context_variable`
                    _LIMITS.reset(self._token)
        finally:
            self._limiter.release()


_NO_LIMITS = CallLimits()
_LIMITS: ContextVar[CallLimits] = ContextVar("langchain_cfc_bounds", default=_NO_LIMITS)


def current_limits() -> CallLimits:
    """Return the limits of the prompt that is being served here."""
    return _LIMITS.get()


@contextmanager
def apply_limits(limits: CallLimits, config: RunnableConfig | None = None) -> Iterator[None]:
    """Serve under limits, which threads and tasks started meanwhile inherit.

    LangChain merges `config` into the config of runs started meanwhile; by default the one that it has now.
    """
    inherited = var_child_runnable_config.get() if config is None else config
    shared = None if inherited is None else _without_shared(inherited)
    outer = _LIMITS.set(limits.nest_in(_LIMITS.get()))
    outer_config = var_child_runnable_config.set(shared)
    try:
        yield
    finally:
        with suppress(ValueError):  # as in `set_context_variable`
            var_child_runnable_config.reset(outer_config)
            _LIMITS.reset(outer)


@contextmanager
def set_context_variable(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable for the duration of a block."""
    token = variable.set(value)
    try:
        yield
    finally:
        # A task that is never resumed ends where it is garbage-collected, and that is another context.
        with suppress(ValueError):
            variable.reset(token)


def share_limiter(
    config: RunnableConfig | Sequence[RunnableConfig] | None, size: int
) -> list[RunnableConfig]:
    """Return one config per prompt of a batch; with `max_concurrency`, they share one limiter."""
    configs = get_config_list(config, size)
    most = configs[0].get("max_concurrency") if configs else None
    if most is None:
        return configs
    limiter = ConcurrencyLimiter(most)
    return [{**one, "configurable": {**(one.get("configurable") or {}), _SHARED: limiter}} for one in configs]


def apply_config_limits(
    config: RunnableConfig, child: RunnableConfig | None = None
) -> AbstractContextManager[None]:
    """Apply a config's `max_concurrency` where no limiter holds yet; `child` is for the runs inside."""
    return apply_limits(CallLimits(find_limiter(config)), child or config)


def make_child_config(config: RunnableConfig, run_manager: RunManager, *tags: str) -> RunnableConfig:
    """Return the config of child runs, with further tags.

    Without handlers it hands on no callbacks, because managing them for each child costs more than all else
    here; the flow must then run under it (`apply_limits`), or LangChain adds them again.
    """
    callbacks = run_manager.get_child() if run_manager.handlers else None
    # Empty values are left out, because LangChain copies them at every turn.
    rest = {key: value for key, value in _without_shared(config).items() if value and key not in _OF_ONE_RUN}
    return add_tags(RunnableConfig(**{**rest, "callbacks": callbacks}), *tags)  # type: ignore[typeddict-item]


def add_tags(config: RunnableConfig, *tags: str) -> RunnableConfig:
    """Return a config with further tags.

    LangChain's `merge_configs` would take in again what the surrounding run was configured with.
    """
    return {**config, "tags": [*(config.get("tags") or []), *tags]}


def find_limiter(config: RunnableConfig) -> ConcurrencyLimiter | None:
    """Return the limiter that holds for one prompt's config.

    Inside a call of another prompt it is that prompt's, because `max_concurrency` was inherited from there;
    then that of the batch; else a limiter of this prompt's own.
    """
    shared: ConcurrencyLimiter | None = (config.get("configurable") or {}).get(_SHARED)
    most = config.get("max_concurrency")
    return _LIMITS.get().limiter or shared or (None if most is None else ConcurrencyLimiter(most))


def _without_shared(config: RunnableConfig) -> RunnableConfig:
    configurable = config.get("configurable") or {}
    if _SHARED not in configurable:
        return config
    return {**config, "configurable": {key: value for key, value in configurable.items() if key != _SHARED}}


def run_with_timeout(run: Callable[[], T], seconds: float) -> T:
    """Call in another thread and return the result, or raise a `ServingTimeoutError` after some seconds.

    A thread cannot be stopped: its current call goes on to its end, but the limits let no further one start.
    """
    executor = ContextThreadPoolExecutor(1)
    try:
        future = executor.submit(run)
        # Waited for first, because a TimeoutError raised by the call itself says nothing about this timeout.
        if not wait([future], min(seconds, threading.TIMEOUT_MAX)).done:
            raise _timeout_error(seconds)
        return future.result()
    finally:
        executor.shutdown(wait=False)


async def arun_with_timeout(awaitable: Awaitable[T], seconds: float | None) -> T:
    """Await, and cancel it with a `ServingTimeoutError` after some seconds; None waits for ever."""
    if seconds is None:
        return await awaitable
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.wait_for(task, seconds)
    except asyncio.TimeoutError:
        if not task.cancelled():  # the task's own error
            raise
        raise _timeout_error(seconds) from None


def _timeout_error(seconds: float) -> ServingTimeoutError:
    return ServingTimeoutError(f"the prompt was not decided within {seconds:g} seconds; nothing was answered")

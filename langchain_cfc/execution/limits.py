"""Concurrency limits and deadlines, shared by all calls that serve a prompt or a batch.

LangChain's `max_concurrency` applies to each `batch` separately. If batches nest, like n draws inside a batch
of prompts, the limits multiply: 8 prompts with 8 draws each are 64 requests in flight. Here, the draws and
the verification of all prompts acquire permits from one `ConcurrencyLimiter`, in threads or on an event loop.
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
from typing import Any, TypeAlias, TypeVar

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

# Key under which a config carries the limiter of a batch; removed before the config is passed on to children.
_LIMITER = "__cfc_limit"
# Keys of a config that identify a single run, and are not passed on to its children.
_RUN_KEYS = {"run_name", "run_id"}
# How long a call may take to end once it is cancelled.
_CANCELLATION_SECONDS = 0.1
_DEADLINE_PASSED = "the time limit of this prompt passed before a call could start"


class ConcurrencyLimiter:
    """Grants at most `size` permits at a time, first come first served, to threads and event loops alike.

    Args:
        size: Number of permits, at least 1.

    Raises:
        InputError: If it is not a whole number of at least 1.
    """

    def __init__(self, size: int) -> None:
        # With zero permits or half a permit, callers would wait for ever.
        if not isinstance(size, int) or size < 1:  # type: ignore[redundant-expr]  # configs hold anything
            msg = f"max_concurrency is {size!r}: expected a whole number of at least 1, or None for no limit"
            raise InputError(msg)
        self.size = size
        self._free = size
        self._waiting: deque[_Waiter] = deque()
        # Re-entrant: a task that is never resumed releases its permit when it is garbage-collected, which can
        # happen at any time, even while this thread holds the lock.
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
            raise ServingTimeoutError(_DEADLINE_PASSED)

    async def aacquire(self) -> None:
        """Acquire a permit on an event loop; cancel the task to stop waiting."""
        woken = asyncio.Event()
        waiter = _Waiter(partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set))
        try:
            if not self._acquire_or_enqueue(waiter):
                await woken.wait()
        except BaseException:
            self._withdraw(waiter)
            raise

    def release(self) -> None:
        """Return a permit: pass it to the next waiter, or mark it as free."""
        with self._lock:
            while self._waiting:
                if self._waiting.popleft().grant():
                    return
            self._free += 1

    def _acquire_or_enqueue(self, waiter: _Waiter) -> bool:
        """Take a free permit and return True, or enqueue the waiter and return False."""
        with self._lock:
            if self._free:
                self._free -= 1
                waiter.has_permit = True
            else:
                self._waiting.append(waiter)
            return waiter.has_permit

    def _withdraw(self, waiter: _Waiter) -> None:
        """Stop waiting; a permit that was granted in the meantime goes to the next waiter."""
        with self._lock:
            if waiter.has_permit:
                self.release()
                return
            with suppress(ValueError):  # `release` has already dropped it, because its loop is closed
                self._waiting.remove(waiter)


@dataclass(eq=False)
class _Waiter:
    """A caller that waits for a permit; its `wake` raises a RuntimeError if the event loop is closed."""

    wake: Callable[[], object]
    has_permit: bool = False

    def grant(self) -> bool:
        """Wake the caller and mark the permit as granted; return False if its event loop is closed."""
        try:
            self.wake()
        except RuntimeError:
            return False
        self.has_permit = True
        return True


@dataclass(frozen=True)
class CallLimits:
    """The limits under which calls are made.

    Attributes:
        limiter: Grants permits to calls; None if concurrency is not limited.
        deadline: Time after which no call may start, in `time.monotonic()` seconds; None for no deadline.
        occupied: Limiters from which the enclosing calls hold a permit.
        attempts: For offline use, where no user waits: makes a call, given with its item and these limits,
            until it succeeds or attempts run out, each time with a permit, and returns the result or the last
            exception. None to make each call once, as threads always do, and nested calls.
    """

    limiter: ConcurrencyLimiter | None = None
    deadline: float | None = None
    occupied: frozenset[ConcurrencyLimiter] = frozenset()
    attempts: Callable[..., Awaitable[Any]] | None = None

    def acquire_permit(self) -> AbstractContextManager[None]:
        """Acquire a permit for a block: `with get_current_limits().acquire_permit():`.

        Raises:
            ServingTimeoutError: If no permit became free before the deadline.
        """
        self.check_deadline()
        if self.limiter is None:
            return nullcontext()
        self.limiter.acquire(self.deadline)
        return _Permit(self, self.limiter)

    async def aacquire_permit(self) -> AbstractContextManager[None]:
        """Acquire a permit on an event loop: `with await get_current_limits().aacquire_permit():`."""
        # Not an `async with`: an async generator would not notice that its task is never resumed, and would
        # never release the permit.
        self.check_deadline()
        if self.limiter is None:
            return nullcontext()
        await self.limiter.aacquire()
        return _Permit(self, self.limiter)

    def check_deadline(self) -> None:
        """Raise a `ServingTimeoutError` if the deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise ServingTimeoutError(_DEADLINE_PASSED)

    def nest_in(self, outer: CallLimits) -> CallLimits:
        """Return these limits for a prompt that is served inside a call of another prompt.

        If the outer calls hold a permit of this limiter, the outer limiter is used instead: acquiring a
        second permit could deadlock, because all permits may be held by outer calls.
        """
        limiter = outer.limiter if self.limiter in outer.occupied else self.limiter
        deadlines = [one for one in (self.deadline, outer.deadline) if one is not None]
        return CallLimits(
            limiter, min(deadlines, default=None), outer.occupied, self.attempts or outer.attempts
        )


class _Permit(AbstractContextManager[None]):
    """An acquired permit; calls made inside the block share it and run one after the other.

    If they acquired further permits, they would deadlock as soon as all permits are held by outer calls.
    """

    # A class, not a generator, because one is made for every call.
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


def get_current_limits() -> CallLimits:
    """Return the limits of the prompt that is being served in this context."""
    return _LIMITS.get()


@contextmanager
def apply_limits(limits: CallLimits, config: RunnableConfig | None = None) -> Iterator[None]:
    """Apply limits to a block, including the threads and tasks that it starts.

    LangChain merges `config` into the config of runs started in the block; by default its current config.
    """
    inherited = var_child_runnable_config.get() if config is None else config
    shared = None if inherited is None else _remove_limiter(inherited)
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
        # A task that is never resumed ends when it is garbage-collected, in a different context.
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
    return [
        {**one, "configurable": {**(one.get("configurable") or {}), _LIMITER: limiter}} for one in configs
    ]


def apply_config_limits(
    config: RunnableConfig, child: RunnableConfig | None = None
) -> AbstractContextManager[None]:
    """Apply a config's `max_concurrency` unless a limiter already applies; inner runs inherit `child`."""
    return apply_limits(CallLimits(find_limiter(config)), child or config)


def make_child_config(config: RunnableConfig, run_manager: RunManager, *tags: str) -> RunnableConfig:
    """Return the config of child runs, with further tags.

    If there are no handlers, it passes on no callbacks, because a callback manager per child is expensive.
    The flow must then run under this config (`apply_limits`), otherwise LangChain adds the callbacks again.
    """
    callbacks = run_manager.get_child() if run_manager.handlers else None
    # Empty values are left out, because LangChain copies them for every run.
    rest = {key: value for key, value in _remove_limiter(config).items() if value and key not in _RUN_KEYS}
    return add_tags(RunnableConfig(**{**rest, "callbacks": callbacks}), *tags)  # type: ignore[typeddict-item]


def add_tags(config: RunnableConfig, *tags: str) -> RunnableConfig:
    """Return a config with further tags.

    Not by LangChain's `merge_configs`, which would also merge the config of the surrounding run.
    """
    return {**config, "tags": [*(config.get("tags") or []), *tags]}


def find_limiter(config: RunnableConfig) -> ConcurrencyLimiter | None:
    """Return the limiter for a prompt with this config; None if there is no limit.

    Inside a call of another prompt, it is that prompt's limiter, from which `max_concurrency` was inherited.
    Otherwise it is the limiter of the batch, or a new one for this prompt.
    """
    shared: ConcurrencyLimiter | None = (config.get("configurable") or {}).get(_LIMITER)
    most = config.get("max_concurrency")
    return _LIMITS.get().limiter or shared or (None if most is None else ConcurrencyLimiter(most))


def _remove_limiter(config: RunnableConfig) -> RunnableConfig:
    configurable = config.get("configurable") or {}
    if _LIMITER not in configurable:
        return config
    return {**config, "configurable": {key: value for key, value in configurable.items() if key != _LIMITER}}


def run_with_timeout(run: Callable[[], T], seconds: float | None) -> T:
    """Return the result of a call in another thread; raise a `ServingTimeoutError` after `seconds`.

    A thread cannot be stopped: its current call runs to its end, but the limits let no further call start.
    None waits for ever, and needs no thread.
    """
    if seconds is None:
        return run()
    executor = ContextThreadPoolExecutor(1)
    try:
        future = executor.submit(run)
        # Not `result(timeout)`: its TimeoutError could also be one that the call itself raised.
        if not wait([future], min(seconds, threading.TIMEOUT_MAX)).done:
            raise _make_timeout_error(seconds)
        return future.result()
    finally:
        executor.shutdown(wait=False)


async def arun_with_timeout(awaitable: Awaitable[T], seconds: float | None) -> T:
    """Await the result; after `seconds`, cancel it and raise a `ServingTimeoutError`. None waits for ever.

    A call that ignores its cancellation is left to itself, and so is what it returns.
    """
    if seconds is None:
        return await awaitable
    task, deadline = asyncio.ensure_future(awaitable), time.monotonic() + seconds
    try:
        await asyncio.wait({task}, timeout=seconds)
        # One that blocked the event loop may be done, but too late.
        if task.done() and time.monotonic() <= deadline:
            return task.result()
    finally:
        task.add_done_callback(_discard_outcome)
        if task.cancel():
            # Others clean up at once; `asyncio.wait_for` would wait for this one to its end.
            await asyncio.wait({task}, timeout=_CANCELLATION_SECONDS)
    raise _make_timeout_error(seconds)


def _discard_outcome(task: asyncio.Future[Any]) -> None:
    # An error that is never looked at would be logged.
    if not task.cancelled():
        task.exception()


def _make_timeout_error(seconds: float) -> ServingTimeoutError:
    return ServingTimeoutError(f"the prompt was not decided within {seconds:g} seconds; nothing was answered")

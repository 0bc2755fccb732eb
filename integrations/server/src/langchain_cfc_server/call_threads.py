"""`CallThreads`: threads for the sync calls of chains, of which each owner occupies a bounded number.

asyncio runs the sync calls of all chains in one pool of a few threads. Calls of one client that block, such
as those of a sync model that hangs, would occupy all of them, even beyond the time limit of their requests,
because a thread cannot be stopped; and no other client or model would be served.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeAlias

_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]

OWNER: ContextVar[Hashable] = ContextVar("langchain_cfc_server_owner", default=None)
# As many as asyncio's own pool has at most.
_THREADS_PER_OWNER = 32


class CallThreads(ThreadPoolExecutor):
    """An executor in which the calls of one owner, which `OWNER` names, never wait for those of another.

    The threads are daemons that end with their owner's last call: a call that blocks for ever does not keep
    the process from ending.
    """

    # asyncio takes a `ThreadPoolExecutor` only, whose own pool is not used.
    def __init__(self) -> None:
        super().__init__(1)
        self._lock = threading.Lock()
        self._threads_of: Counter[Hashable] = Counter()
        self._waiting: defaultdict[Hashable, deque[_Call]] = defaultdict(deque)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Make a call in a thread of the current owner, as soon as one is free."""
        owner, done = OWNER.get(), Future[Any]()
        with self._lock:
            self._waiting[owner].append((done, lambda: fn(*args, **kwargs)))
            is_new = self._threads_of[owner] < _THREADS_PER_OWNER
            self._threads_of[owner] += is_new
        if is_new:
            threading.Thread(target=self._make_calls, args=(owner,), name="call", daemon=True).start()
        return done

    def _make_calls(self, owner: Hashable) -> None:
        """Make calls of an owner, one after the other, until none waits."""
        while True:
            with self._lock:
                if not self._waiting[owner]:
                    self._threads_of[owner] -= 1
                    if not self._threads_of[owner]:
                        del self._threads_of[owner], self._waiting[owner]
                    return
                done, call = self._waiting[owner].popleft()
            if not done.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the caller gets it, as of any executor
                done.set_exception(error)
            else:
                done.set_result(result)

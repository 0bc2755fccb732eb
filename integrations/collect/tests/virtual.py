"""An event loop with virtual time: the clock jumps to the next timer when nothing is left to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Does not wait for timers: when nothing is left to do, its clock jumps to the next one."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]  # there is no other way in
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]  # as above
        super()._run_once()  # type: ignore[misc]  # as above


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run to the end.

    Returns:
        What was returned, and the virtual seconds that it took. Nothing may wait for another thread.
    """
    loop = VirtualLoop()
    with mock.patch.object(time, "monotonic", loop.time):
        try:
            begun = loop.time()
            return loop.run_until_complete(work), loop.time() - begun
        finally:
            loop.close()

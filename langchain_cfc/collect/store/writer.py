"""`Writer`: many prompts' writes in one transaction, without any of them waiting longer for it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from langchain_cfc.collect.store.store import Store
from langchain_cfc.collect.store.writes import Write, execute, together


class Writer:
    """Writes to a store from one event loop.

    While a transaction is made durable, writes gather for the next one. Each is on disk when its caller goes
    on, and a disk that takes long for that does so for all at once.

    Args:
        store: Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[list[Write], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        # Always the same thread, whose connection the pool then hands out again.
        self._thread = ThreadPoolExecutor(1, "cfc-store")

    async def write(self, writes: list[Write]) -> None:
        """Write, and wait until it is durable.

        Raises:
            StoreError: If it could not be written.
        """
        await self.submit(writes)

    def submit(self, writes: list[Write]) -> asyncio.Future[None]:
        """Write soon, after everything that was submitted before.

        Returns:
            What is done once it is durable. Whoever does not wait for it learns from `flushed` of an error.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(self._note)
        self._last = done
        self._waiting.append((writes, done))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._write_all())
        return done

    async def flushed(self) -> None:
        """Wait until everything that was submitted is durable.

        Raises:
            StoreError: If something could not be written, now or before.
        """
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        if self._error is not None:
            raise self._error

    def _note(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            self._error = done.exception()

    async def close(self) -> None:
        """Wait for whatever is still being written."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def _written(self, writes: list[Write]) -> None:
        loop = asyncio.get_running_loop()
        if not self._store.embedded:
            # Each statement waits for the server.
            await loop.run_in_executor(self._thread, self._store.write, writes)
            return
        with self._store.transaction() as connection:
            execute(connection, writes)
            # Only this waits for the disk; threads that compute would wait for each other.
            await loop.run_in_executor(self._thread, connection.commit)

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # whoever is about to write takes part
            batch, self._waiting = self._waiting, []
            error: Exception | None = None
            try:
                await self._written(together(one for one, _ in batch))
            except Exception as failure:  # noqa: BLE001 - whoever waits is told
                error = failure
            for _, done in batch:
                if done.cancelled():  # nobody waits any more; it is written all the same
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

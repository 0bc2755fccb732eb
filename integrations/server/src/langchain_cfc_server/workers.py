"""`run_workers`: run a server in several processes that share one port.

Each worker is a complete server with its own limits. The operating system assigns every new connection to a
worker by a hash of its addresses, so that workers get about the same number. Metrics are shared through files
in a folder of prometheus_client, so that any worker can report the totals.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from langchain_cfc.errors import CFCError, InputError
from langchain_cfc_server.metrics import SHARED_FOLDER
from langchain_cfc_server.server import open_socket

_LOG = logging.getLogger("langchain_cfc_server")
# The exit code of a worker that cannot serve at all, for example because an artifact is missing.
_UNUSABLE_CODE = 2
# Seconds before a worker that has ended unexpectedly is replaced.
_RESTART_SECONDS = 1.0


def run_workers(count: int, serve: Callable[[int, int], None], *, host: str, port: int) -> None:
    """Serve in several processes until this process is stopped by a signal, which it passes on to them.

    A worker that ends unexpectedly is replaced. When this process ends, so do the workers.

    Args:
        count: Number of workers, at least 1.
        serve: Serves until it is stopped, given the port and the id of this process. It is called in new
            processes, so it must be importable.
        host: Address to listen on.
        port: Port; 0 for a free one.

    Raises:
        InputError: If it cannot listen there, or the system cannot share ports between processes.
        SystemExit: If a worker cannot serve.
    """
    if count < 1:
        msg = f"workers is {count}: expected a whole number of at least 1"
        raise InputError(msg)
    if not hasattr(socket, "SO_REUSEPORT"):
        msg = "this system does not share a port between processes: serve with one worker"
        raise InputError(msg)
    with _reserve_port(host, port) as shared, tempfile.TemporaryDirectory() as folder:
        os.environ[SHARED_FOLDER] = folder
        _Supervisor(count, serve, shared, folder).run()


@contextmanager
def _reserve_port(host: str, port: int) -> Iterator[int]:
    """Reserve a port that no other server uses, without listening on it."""
    # First opened exclusively, because a shared port could be opened even if another server shares it.
    with open_socket(host, port) as alone:
        found: int = alone.getsockname()[1]
    with open_socket(host, found, is_shared=True):
        yield found


class _Supervisor:
    """Starts workers, passes signals on to them, and replaces those that end unexpectedly."""

    def __init__(self, count: int, serve: Callable[[int, int], None], port: int, folder: str) -> None:
        self._count = count
        self._serve = serve
        self._port = port
        self._folder = folder
        self._workers: list[BaseProcess] = []
        self._first_workers: tuple[BaseProcess, ...] = ()
        self._is_stopping = False
        self._exit_code = 0

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_signal_on)
        for _ in range(self._count):
            self._start()
        self._first_workers = tuple(self._workers)
        while self._workers:
            multiprocessing.connection.wait([one.sentinel for one in self._workers])
            for worker in [one for one in self._workers if not one.is_alive()]:
                self._handle_exit(worker)
        if self._exit_code:
            raise SystemExit(self._exit_code)

    def _start(self) -> None:
        worker = multiprocessing.get_context("spawn").Process(
            target=_run_worker, args=(self._serve, self._port, os.getpid())
        )
        # SIGHUP would kill a worker that does not handle it yet, so it stays blocked until the server does.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        worker.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        self._workers.append(worker)
        if self._is_stopping:
            worker.terminate()

    def _handle_exit(self, worker: BaseProcess) -> None:
        self._workers.remove(worker)
        mark_process_dead(worker.pid, self._folder)  # type: ignore[no-untyped-call]
        if self._is_stopping:
            return
        _LOG.error("worker ended", extra={"fields": {"pid": worker.pid, "code": worker.exitcode}})
        # Only for the first workers: later ones may fail for a transient reason while the others serve.
        if worker.exitcode == _UNUSABLE_CODE and worker in self._first_workers:
            self._exit_code = _UNUSABLE_CODE
            self._pass_signal_on(signal.SIGTERM, None)
            return
        time.sleep(_RESTART_SECONDS)
        if not self._is_stopping:
            self._start()

    def _pass_signal_on(self, number: int, _: FrameType | None) -> None:
        self._is_stopping = self._is_stopping or number != signal.SIGHUP
        for worker in self._workers:
            if worker.pid is not None and worker.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, number)


def _run_worker(serve: Callable[[int, int], None], port: int, supervisor: int) -> None:
    # Ctrl-C goes to the whole process group; a worker leaves it, to get the signal only from its supervisor.
    os.setpgrp()
    try:
        serve(port, supervisor)
    except CFCError as error:
        _LOG.error("worker cannot serve", extra={"fields": {"problem": str(error)}})
        raise SystemExit(_UNUSABLE_CODE) from None

"""The server as users start it: in a process of its own, on a real socket."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

ROOT = Path(__file__).parents[3]
TOKEN, OTHER_TOKEN = "first-token-of-the-tests", "second-token-of-the-tests"
COMMAND = [str(Path(sys.executable).parent / "langchain-cfc"), "serve"]
# What a process may take to start on a busy machine.
START_SECONDS = 300.0
BOTS = "integrations.server.tests.bots:models"


def make_headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


HEADERS, OTHER_HEADERS = map(make_headers, (TOKEN, OTHER_TOKEN))


@functools.cache
def _prepare() -> ForkServerContext:
    """Start the process that servers are forked from, which has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["integrations.server.tests.prepared"])
    with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):
        forkserver.ensure_running()
    return context


class ForkedProcess:
    """A process that runs the command after a fork; its methods are those of `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, log_path: Path
    ) -> None:
        self._process = _prepare().Process(
            target=_run_command, args=(arguments, dict(environment), folder, log_path)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code."""
        self._process.join(timeout)
        code = self.poll()
        assert code is not None, "it has not ended"
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self._process.kill()


def _run_command(
    arguments: Sequence[str], environment: Mapping[str, str], folder: str, log_path: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    os.chdir(folder)
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    sys.argv = [*COMMAND, *arguments]
    from langchain_cfc.cli import main

    main()


@dataclass
class Server:
    """A running server.

    Attributes:
        port: Where it listens.
        process: Its process.
        log_path: The file of what it writes on standard error.
    """

    port: int
    process: subprocess.Popen[bytes] | ForkedProcess
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it has logged so far, each line being JSON."""
        return [json.loads(line) for line in self.log_path.read_text(encoding="utf-8").splitlines()]

    def logged(self, request: str) -> dict[str, Any]:
        """The line about a request, which is written when its response has gone out."""
        found: dict[str, Any] = wait_for_value(
            lambda: next((line for line in self.log if line.get("request") == request), None)
        )
        return found

    def get(self, path: str, headers: Mapping[str, str] = HEADERS) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, trust_env=False)

    def read_metric(self, name: str) -> float:
        """Return a metric of the server that has no labels."""
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"cfc_server_{name} "))

    def ask(
        self,
        body: Any,
        headers: Mapping[str, str] = HEADERS,
        timeout: float = 60.0,
        path: str = "/v1/chat/completions",
    ) -> httpx.Response:
        """Ask for a completion, or on another path; a body of bytes is sent as it is."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(
            self.url + path,
            content=content,
            headers={"Content-Type": "application/json", **headers},
            timeout=timeout,
            trust_env=False,
        )

    def say(self, content: bytes, *, wait: float = 30.0) -> bytes:
        """Send bytes as they are, and return all that comes until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            connection.sendall(content)
            received = b""
            try:
                while part := connection.recv(65536):
                    received += part
            except (TimeoutError, ConnectionResetError):
                pass
            return received

    def request(self, method: str, path: str, *, token: str | None = TOKEN) -> bytes:
        """Send a request as it is, which clients would tidy up."""
        by = "" if token is None else f"Authorization: Bearer {token}\r\n"
        return self.say(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{by}\r\n".encode())

    def processor_time(self) -> float:
        """Return the seconds of processor time that its process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        user, system = map(int, fields[11:13])
        return (user + system) / os.sysconf("SC_CLK_TCK")

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to stop, and return its exit code."""
        self.process.send_signal(sig)
        return self.process.wait(timeout=60)


def make_request(question: str, model: str = "bot", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": question}], **more}


def wait_for_value(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return value


@contextmanager
def asking(server: Server, gate: Path, request: Any, count: int = 1) -> Iterator[list[Future[Any]]]:
    """Have requests at work that wait for a file, which the end of the block writes: all must be answered."""
    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(server.ask, request) for _ in range(count)]
        try:
            wait_for_value(lambda: server.read_metric("working") >= 1)
            yield asked
        finally:
            gate.touch()
        assert [one.result().status_code for one in asked] == [200] * count
    gate.unlink()


@contextmanager
def run_server(
    env: Mapping[str, str],
    *options: str,
    models: str | None = BOTS,
    tokens: str | None = f"{TOKEN} {OTHER_TOKEN}",
    command: Sequence[str] = (),
) -> Iterator[Server]:
    """Run a server on a free port, until the block ends.

    Args:
        env: Environment beyond this process's.
        *options: Of the command.
        models: What it serves.
        tokens: Its tokens, by the environment.
        command: A program to run, such as `COMMAND`; without one the command runs after a fork.
    """
    held = {name: value for name, value in os.environ.items() if not name.startswith("LANGCHAIN_CFC")}
    environment = {**held, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1", **env}
    if tokens is not None:
        environment["LANGCHAIN_CFC_SERVER_TOKENS"] = tokens
    arguments = [*([models] if models else []), "--port", "0", "--drain", "0.2", *options]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.touch()
        process: subprocess.Popen[bytes] | ForkedProcess
        if command:
            with path.open("wb") as log:
                process = subprocess.Popen([*command, *arguments], stderr=log, env=environment, cwd=folder)
        else:
            process = ForkedProcess(arguments, environment, folder, path)
        try:
            server = Server(0, process, path)
            server.port = wait_for_value(lambda: _read_port(server), START_SECONDS)
            yield server
        finally:
            process.kill()
            process.wait()


def _read_port(server: Server) -> int:
    assert server.process.poll() is None, server.log_path.read_text(encoding="utf-8")
    text = server.log_path.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return next((int(line["port"]) for line in lines if line["message"] == "serving"), 0)

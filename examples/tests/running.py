"""Run the commands and pages of examples as their READMEs state."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MODEL = Path("~/.cache/langchain-cfc/smollm2-135m-instruct-q4_1.gguf").expanduser()

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or not MODEL.is_file(),
    reason="no local model: pip install xllamacpp && python examples/local_model/local_model.py get",
)


def read_section(name: str) -> str:
    """What `examples/README.md` says about an example."""
    text = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def list_readme_commands(readme: str) -> list[str]:
    """The commands of a README's first block after the one that installs."""
    block: str = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)[0]
    first, *commands = re.sub(r" \\\n +", " ", block).strip().splitlines()
    assert first.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert commands
    return commands


def run_readme_commands(readme: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands of a README's first block, which must succeed, with this Python."""
    shell = "\n".join(list_readme_commands(readme)).replace(".venv/bin/python", sys.executable)
    command = ["bash", "-euo", "pipefail", "-c", shell]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran


@contextmanager
def serve_page(arguments: Sequence[str], **environment: str) -> Iterator[str]:
    """Run `streamlit` with arguments from the repository's folder, and yield the page's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("streamlit"))
    command, *further = arguments
    process = subprocess.Popen(
        [program, command, "--server.port", str(port), "--server.headless", "true", *further],
        cwd=REPOSITORY,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        start_new_session=True,
    )
    try:
        _wait_for_server(f"http://127.0.0.1:{port}/_stcore/health", process)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_server(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "the server has ended"
        assert time.monotonic() < deadline, "the server does not answer"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310
                assert answer.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)

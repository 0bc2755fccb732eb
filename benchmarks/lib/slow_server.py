"""A chat server of fixed latency in its own process: `python -m benchmarks.lib.slow_server DRAW VERIFY N`.

It handles N requests at a time and queues the others; all at once if N is 0. It prints its port, answers
until its input ends, and counts the requests for each model. The model `judge` returns scores after VERIFY
seconds; any other, called `distinct-K`, one of K answers after DRAW seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.lib.measuring import ROOT

JUDGE = "judge"


@dataclass
class Server:
    """The server: seconds to draw and to verify, requests handled at a time, and counts by model."""

    draw: float
    verify: float
    places: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _free: asyncio.Semaphore | None = None

    async def serve(self) -> None:
        """Answer until the input ends."""
        threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
        self._free = asyncio.Semaphore(self.places) if self.places else None
        server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0, backlog=256)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has left
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_read_length(head))
                content = json.dumps(await self._answer(json.loads(body or b"{}"))).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
                )
                await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a completion; for a request without a body the counts, which are then reset."""
        if not request:
            counts, self.counts = self.counts, Counter()
            return dict(counts)
        model = request["model"]
        number = self.counts[model]
        self.counts[model] += 1
        if model == JUDGE:
            text = str(zlib.crc32(request["messages"][-1]["content"].encode()) % 101 / 100)
        else:
            text = f"answer {number % int(model.rpartition('-')[2])}"
        async with self._free or contextlib.nullcontext():
            await asyncio.sleep(self.verify if model == JUDGE else self.draw)
        return _make_completion(model, text)


@contextlib.contextmanager
def run_slow_server(draw: float, verify: float, places: int = 0) -> Iterator[str]:
    """Start a server in its own process, and yield the base URL for clients."""
    command = [sys.executable, "-m", "benchmarks.lib.slow_server", str(draw), str(verify), str(places)]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        port = process.stdout.readline().strip() if process.stdout is not None else ""
        if not port:
            msg = "the server does not start"
            raise RuntimeError(msg)
        yield f"http://127.0.0.1:{port}/v1"
        if process.stdin is not None:
            process.stdin.close()


def count_requests(base_url: str) -> dict[str, int]:
    """Return the number of requests by model since the last call."""
    with urllib.request.urlopen(base_url) as answer:  # noqa: S310 - our own server
        counts: dict[str, int] = json.load(answer)
    return counts


def _read_length(head: bytes) -> int:
    fields = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((int(value) for name, _, value in fields if name.strip().lower() == b"content-length"), 0)


def _make_completion(model: str, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60},
    }


def _exit_at_end_of_input() -> None:
    sys.stdin.read()
    os._exit(0)  # without closing connections, which clients would report as errors


if __name__ == "__main__":
    asyncio.run(Server(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])).serve())

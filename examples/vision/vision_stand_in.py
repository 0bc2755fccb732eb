"""Not a vision model: a server on this machine that answers questions about pixels, wrongly now and then.

    python vision_stand_in.py     until interrupted, at the address that `collect.toml` names

It speaks OpenAI's chat completions over HTTP, decodes the image that it is sent, reads the true answer from
its pixels, and gets it wrong on purpose: more often on some images than on others, and on one in eight every
time. What it shows is that images arrive, and that the rest of the chain works. How good a vision model is,
and how well the method works on images, it cannot show.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import io
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image, UnidentifiedImageError
from vision_questions import COLOURS, TRUTHS

MODEL = "stand-in"
HOPELESS = 1 / 8  # of the images, on which it is always wrong
WORST = 0.7  # how often it errs on the hardest of the others
ALTERNATIVES = {"shape": ("wide", "high", "square"), "colour": COLOURS, "brighter_half": ("upper", "lower")}


class NotAskedWellError(Exception):
    """A request that is no question about one image."""


class StandIn(ThreadingHTTPServer):
    """The server; `received` holds the SHA-256 of every image that has arrived, with how often it did."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.received: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answers(self, messages: list[dict[str, Any]], count: int) -> list[str]:
        """So many answers to a question about an image.

        Args:
            messages: The last one holds an image as a `data:` URL, and a question.
            count: How many answers.

        Returns:
            Answers, the same ones in the same order each time the server is started.

        Raises:
            NotAskedWellError: If there is not one image that can be decoded, or the question is not known.
        """
        image, question, digest = _read(messages)
        with self._lock:
            self.received[digest] += 1
            first = self._asked[digest + question]
            self._asked[digest + question] += count
        hardness = random.Random(digest + question).random()  # noqa: S311 - a play, no secret
        odds = 0.0 if hardness > 1.0 - HOPELESS else 1.0 - WORST * hardness
        truth = TRUTHS[question](image)
        return [
            _err_on_purpose(truth, question, odds, f"{digest}/{question}/{number}")
            for number in range(first, first + count)
        ]


def _read(messages: list[dict[str, Any]]) -> tuple[Image.Image, str, str]:
    """The image, the question, and the SHA-256 of the image's bytes."""
    parts = messages[-1]["content"] if messages else []
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    question = " ".join(part["text"] for part in parts if part["type"] == "text")
    if len(urls) != 1 or not urls[0].startswith("data:image/"):
        msg = f"found {len(urls)} images; expected one, as a data: URL"
        raise NotAskedWellError(msg)
    if question not in TRUTHS:
        msg = f"the stand-in knows four questions, and {question!r} is none of them"
        raise NotAskedWellError(msg)
    try:
        content = base64.b64decode(urls[0].partition(",")[2], validate=True)
        image = Image.open(io.BytesIO(content))
        image.load()
    except (ValueError, OSError, UnidentifiedImageError) as error:
        msg = f"the image cannot be decoded: {error}"
        raise NotAskedWellError(msg) from error
    return image, question, hashlib.sha256(content).hexdigest()


def _err_on_purpose(truth: str, question: str, odds: float, seed: str) -> str:
    """Return the truth with these odds, else a wrong answer of its kind."""
    chance = random.Random(seed)  # noqa: S311 - as above
    if chance.random() < odds:
        return truth
    others = ALTERNATIVES.get(TRUTHS[question].__name__)
    if others is not None:
        return chance.choice([other for other in others if other != truth])
    width, height = map(int, truth.split("x"))
    return f"{width + chance.choice((-16, -8, 8, 16))}x{height}"


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_POST(self) -> None:
        """Answer a request for completions."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or body.get("stream"):
            self._send(404, {"error": {"message": "only chat completions, and no streams"}})
            return
        try:
            answers = self.server.answers(body["messages"], body.get("n") or 1)
        except NotAskedWellError as error:
            self._send(400, {"error": {"message": str(error)}})
            return
        choices = [
            {
                "index": place,
                "message": {"role": "assistant", "content": answer},
                "finish_reason": "stop",
            }
            for place, answer in enumerate(answers)
        ]
        self._send(
            200,
            {
                "id": "stand-in",
                "object": "chat.completion",
                "created": 0,
                "model": MODEL,
                "choices": choices,
            },
        )

    def _send(self, status: int, content: dict[str, Any]) -> None:
        encoded = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def standing_in(port: int = 0) -> Iterator[StandIn]:
    """The server, as long as the block lasts.

    Args:
        port: Of this machine; 0 takes a free one.

    Yields:
        The server; its `url` is what clients want.
    """
    server = StandIn(port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as the stand-in until interrupted."""
    parser = argparse.ArgumentParser(description="Stand in for a vision model.")
    parser.add_argument("--port", type=int, default=8098, help="0 takes a free one (%(default)s)")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt), StandIn(options.port) as server:
        print(f"no vision model, but a stand-in, at {server.url}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

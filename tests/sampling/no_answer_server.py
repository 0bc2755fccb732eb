"""A server with the endpoints of OpenAI (both interfaces) and Anthropic; every tenth reply is odd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI

ANSWER = "Lima"
# Every tenth reply is odd: the fourth, the fourteenth, and so on.
PERIOD, ODD = 10, 3
_LOGPROBS = {"content": [{"token": ANSWER, "logprob": -0.1, "bytes": None, "top_logprobs": []}]}


@dataclass(frozen=True)
class Reply:
    """A reply of a provider's interface, `chat`, `responses` or `messages`."""

    interface: str
    fields: dict[str, Any]


def make_choice(content: str | None, finish: str = "stop", **message: Any) -> Reply:
    """Make a reply of OpenAI's chat completions."""
    said = {"role": "assistant", "content": content, **message}
    logprobs = _LOGPROBS if content else None
    return Reply("chat", {"message": said, "finish_reason": finish, "logprobs": logprobs})


def make_response(*output: dict[str, Any], **fields: Any) -> Reply:
    """Make a reply of OpenAI's Responses."""
    return Reply("responses", {"output": [*output], **fields})


def make_output(*content: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    """Make a message of OpenAI's Responses."""
    parts = [{"annotations": [], **part} if part["type"] == "output_text" else part for part in content]
    return {"type": "message", "id": "msg", "role": "assistant", "status": status, "content": parts}


def make_message(*content: dict[str, Any], stop: str = "end_turn") -> Reply:
    """Make a reply of Anthropic's messages."""
    return Reply("messages", {"content": [*content], "stop_reason": stop})


GOOD = {
    "chat": make_choice(ANSWER),
    "responses": make_response(make_output({"type": "output_text", "text": ANSWER})),
    "messages": make_message({"type": "text", "text": ANSWER}),
}


def _make_body(replies: list[Reply], number: int) -> dict[str, Any]:
    reply = replies[0]
    if reply.interface == "chat":
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        choices = [{"index": index, **one.fields} for index, one in enumerate(replies)]
        body = {"object": "chat.completion", "created": 1, "choices": choices, "usage": usage}
    elif reply.interface == "responses":
        usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
        body = {"object": "response", "created_at": 1, "status": "completed", "usage": usage, **reply.fields}
        body |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    else:
        usage = {"input_tokens": 5, "output_tokens": 3}
        body = {"type": "message", "role": "assistant", "stop_sequence": None, "usage": usage, **reply.fields}
    return {"id": f"reply-{number}", "model": "m", **body}


@contextmanager
def serve_odd_reply(odd: Reply, good: Reply | None = None) -> Iterator[BaseChatModel]:
    """Serve replies, every tenth of which is `odd`, and return a chat model for the interface."""
    numbers = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a body waits 40 ms for the acknowledgement of its headers

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = [next(numbers) for _ in range(asked.get("n") or 1)]
            replies = [odd if one % PERIOD == ODD else good or GOOD[odd.interface] for one in number]
            body = json.dumps(_make_body(replies, number[0])).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    settings: dict[str, Any] = {"model": "m", "api_key": "x", "max_retries": 0}
    try:
        if odd.interface == "messages":
            yield ChatAnthropic(**settings, base_url=url)
        else:
            settings["use_responses_api" if odd.interface == "responses" else "logprobs"] = True
            yield ChatOpenAI(**settings, base_url=f"{url}/v1")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

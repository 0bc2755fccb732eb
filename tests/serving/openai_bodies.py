"""What an OpenAI-compatible server writes into its responses: completions and events.

Plain functions from recorded answers to JSON; they know nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

TOKENS_IN, TOKENS_OUT = 11, 2

Json = dict[str, Any]


class RefusedError(Exception):
    """The request makes no sense to the server, which says so with a status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One recorded answer.

    Attributes:
        text: What the model said; of no account if it called tools.
        logprob: Log-probability of the whole answer.
        tools: Names and arguments of the tools that it called.
        first: What could have been the first token, with log-probabilities, for those who ask for
            `top_logprobs`. If the text starts with one of these, that is its first token.
    """

    text: str = ""
    logprob: float = 0.0
    tools: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    first: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(logprob <= 0.0 for _, logprob in self.tokens()):
            text = f"the answer {self.text!r} cannot be likelier than its first token"
            raise ValueError(text)

    def tokens(self) -> list[tuple[str, float]]:
        """Tokens whose log-probabilities add up to that of the text: two, or one that is all of it."""
        first = max((one for one in self.first if self.text.startswith(one)), key=len, default=None)
        if first is None:
            half = (len(self.text) + 1) // 2
            return [(self.text[:half], 0.25 * self.logprob), (self.text[half:], 0.75 * self.logprob)]
        rest = (self.text[len(first) :], self.logprob - self.first[first])
        return [(first, self.first[first]), rest] if rest[0] or rest[1] else [(first, self.first[first])]


def prompt_of(body: Json) -> str:
    """The text of the last message, by which recorded answers are found; images do not count."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


def choices(body: Json, answers: Sequence[Answer], number: int, *, logprobs: bool) -> list[Json]:
    """One choice per answer, as in a completion that is not streamed.

    Args:
        body: The request.
        answers: What is answered.
        number: The request's number; no two tool calls have one id.
        logprobs: Whether this server returns log-probabilities.
    """
    asked = logprobs and bool(body.get("logprobs"))
    top = int(body.get("top_logprobs") or 0)
    return [
        {
            "index": index,
            "message": _message(answer, f"call_{number}_{index}"),
            # Hosted models say nothing of the tokens of a tool call.
            "logprobs": _logprobs(answer, top) if asked and not answer.tools else None,
            "finish_reason": "tool_calls" if answer.tools else "stop",
        }
        for index, answer in enumerate(answers)
    ]


def _message(answer: Answer, call: str) -> Json:
    if not answer.tools:
        return {"role": "assistant", "content": answer.text, "refusal": None}
    calls = [
        {
            "id": f"{call}_{position}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for position, (name, arguments) in enumerate(answer.tools)
    ]
    return {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls}


def _logprobs(answer: Answer, top: int) -> Json:
    tokens = []
    for position, (token, logprob) in enumerate(answer.tokens()):
        # Where nothing else is recorded, the token itself is the only one known.
        others = answer.first if position == 0 and answer.first else {token: logprob}
        likeliest = sorted(others.items(), key=lambda one: -one[1])[:top]
        tokens.append({**_token(token, logprob), "top_logprobs": [_token(*one) for one in likeliest]})
    return {"content": tokens, "refusal": None}


def _token(token: str, logprob: float) -> Json:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def usage(answers: Sequence[Answer]) -> Json:
    """The prompt is read once, however many choices are drawn from it."""
    drawn = sum(len(answer.tokens()) for answer in answers)
    return {"prompt_tokens": TOKENS_IN, "completion_tokens": drawn, "total_tokens": TOKENS_IN + drawn}


def completion(model: str, number: int, chosen: list[Json], used: Json) -> Json:
    """A completion in one piece."""
    return {**_head(model, number, "chat.completion"), "choices": chosen, "usage": used}


def _head(model: str, number: int, kind: str) -> Json:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1, "model": model}


def chunks(model: str, number: int, chosen: list[Json], used: Json | None) -> Iterator[Json]:
    """Return the choices in pieces, alternating between choices; the usage comes last, if requested."""
    head = _head(model, number, "chat.completion.chunk")
    for turn in zip_longest(*map(_pieces, chosen)):
        for piece in turn:
            if piece is not None:
                yield {**head, "choices": [piece]}
    if used is not None or not chosen:
        yield {**head, "choices": [], "usage": used}


def _pieces(choice: Json) -> Iterator[Json]:
    piece = {"index": choice["index"], "logprobs": None, "finish_reason": None}
    message = choice["message"]
    tokens = (choice["logprobs"] or {}).get("content")
    yield {**piece, "delta": {"role": "assistant", "content": None if message["content"] is None else ""}}
    if tokens is not None:
        for token in tokens:
            logprobs = {"content": [token], "refusal": None}
            yield {**piece, "delta": {"content": token["token"]}, "logprobs": logprobs}
    elif message["content"] is not None:
        yield {**piece, "delta": {"content": message["content"]}}
    for position, call in enumerate(message.get("tool_calls", ())):
        for part in _call_parts(call):
            yield {**piece, "delta": {"tool_calls": [{"index": position, **part}]}}
    yield {**piece, "delta": {}, "finish_reason": choice["finish_reason"]}


def _call_parts(call: Json) -> Iterator[Json]:
    """Name and id come first; the arguments follow in pieces that are not JSON by themselves."""
    arguments = call["function"]["arguments"]
    half = len(arguments) // 2
    yield {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
    for part in (arguments[:half], arguments[half:]):
        yield {"function": {"arguments": part}}

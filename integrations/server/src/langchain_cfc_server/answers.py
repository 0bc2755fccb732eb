"""Write a chain's message as a chat completion, whole or as a stream of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage

from langchain_cfc.set_rules import BestAnswer
from langchain_cfc_server.errors import encode_json

# Headers of an answer, which scripts of web pages may read only if they are named to browsers.
HEADERS = tuple(
    f"x-cfc-{name}"
    for name in (
        *("abstained", "artifact", "ignored", "max-wrong-of-all"),
        *("max-wrong-rate", "reason", "stated-coverage", "unscored"),
    )
)


@dataclass(frozen=True)
class Answer:
    """The response to one prompt, before it is written out.

    Attributes:
        id: Id of the completion.
        created: Unix time of its creation, in seconds.
        model: The model's name in the request.
        message: The best answer or the abstention, with the decision in `response_metadata["cfc"]`.
        ignored: Names of the request's fields that were ignored.
    """

    id: str
    created: int
    model: str
    message: AIMessage
    ignored: Sequence[str] = ()

    @property
    def cfc(self) -> dict[str, Any]:
        """The decision as plain data; for a fallback's answer only `guarantee: None`."""
        found: dict[str, Any] = self.message.response_metadata["cfc"]
        return found

    @property
    def reason(self) -> str:
        """The reason for answering or abstaining, or `fallback`."""
        return str(self.cfc.get("reason", "fallback"))

    @property
    def usage(self) -> dict[str, int] | None:
        """Total number of tokens of all draws; None if no model reports them."""
        used = self.cfc.get("usage")
        if not used:
            return None
        read, written = int(used.get("input_tokens", 0)), int(used.get("output_tokens", 0))
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": int(used.get("total_tokens", read + written)),
        }

    @property
    def promise(self) -> tuple[str, str, float] | None:
        """The kind of the guarantee, its level and the guaranteed share; None without a guarantee."""
        guarantee = self.cfc["guarantee"] or {}
        if (certified := guarantee.get("wrong_answers")) is not None:
            return "right_answers", certified["max_wrong_rate"], 1.0 - float(certified["max_wrong_rate"])
        if (rate := self._rate_of_all) is not None:
            return "all_questions", rate, 1.0 - float(rate)
        stated = guarantee.get("stated_coverage")
        return None if stated is None else ("coverage", str(guarantee["alpha"]), float(stated))

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the decision, for clients that ignore `cfc` in the body; not for a fallback."""
        guarantee = self.cfc["guarantee"]
        ignored = {"x-cfc-ignored": ", ".join(self.ignored)} if self.ignored else {}
        if guarantee is None:
            return ignored
        of_all = self._rate_of_all
        stated = guarantee.get("stated_coverage") if of_all is None else None
        certified = guarantee.get("wrong_answers")
        return ignored | {
            "x-cfc-abstained": str(self.cfc["abstained"]).lower(),
            "x-cfc-reason": self.reason,
            "x-cfc-artifact": guarantee["artifact_digest"],
            **({"x-cfc-unscored": format_counts(unscored)} if (unscored := self.cfc.get("unscored")) else {}),
            **({} if stated is None else {"x-cfc-stated-coverage": f"{stated:.12g}"}),
            **({} if certified is None else {"x-cfc-max-wrong-rate": certified["max_wrong_rate"]}),
            **({} if of_all is None else {"x-cfc-max-wrong-of-all": of_all}),
        }

    @property
    def _rate_of_all(self) -> str | None:
        """The rate of wrong answers among all questions, if that is what is promised."""
        guarantee = self.cfc["guarantee"] or {}
        is_of_all = guarantee.get("wrong_answers") is None and guarantee.get("set_rule") == BestAnswer.text
        return str(guarantee["alpha"]) if is_of_all else None

    def to_completion(self) -> bytes:
        """Return the whole completion as JSON."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", **self._make_content()},
            "logprobs": None,
            "finish_reason": self._finish_reason,
        }
        used = self.usage
        counted = {} if used is None else {"usage": used}
        return encode_json(
            {**self._make_head("chat.completion"), "choices": [choice], "cfc": self.cfc, **counted}
        )

    def to_events(self, *, with_usage: bool) -> bytes:
        """Return server-sent events: role, content, end with the decision, and usage if requested."""
        chunks = self._make_chunks(with_usage=with_usage)
        return b"".join(b"data: %b\n\n" % encode_json(chunk) for chunk in chunks) + b"data: [DONE]\n\n"

    def _make_chunks(self, *, with_usage: bool) -> Iterator[dict[str, Any]]:
        head = self._make_head("chat.completion.chunk")
        content = self._make_content()
        if "tool_calls" in content:
            calls = enumerate(content["tool_calls"])
            content["tool_calls"] = [{"index": index, **call} for index, call in calls]
        for delta in ({"role": "assistant", "content": ""}, content):
            yield {**head, "choices": [_make_choice(delta)]}
        yield {**head, "choices": [_make_choice({}, self._finish_reason)], "cfc": self.cfc}
        if with_usage and self.usage is not None:
            yield {**head, "choices": [], "usage": self.usage}

    def _make_head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    @property
    def _finish_reason(self) -> str:
        return "tool_calls" if self.calls else "stop"

    @property
    def calls(self) -> list[tuple[Any, Any, str]]:
        """Ids, names and arguments of the tool calls; invalid arguments are unchanged text of the model."""
        valid = [
            (call["id"], call["name"], encode_json(call["args"]).decode()) for call in self.message.tool_calls
        ]
        return valid + [
            (call["id"], call["name"], call["args"] or "") for call in self.message.invalid_tool_calls
        ]

    def _make_content(self) -> dict[str, Any]:
        text = str(self.message.text)
        if not self.calls:
            return {"content": text, "refusal": None}
        calls = [
            {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, name, arguments in self.calls
        ]
        return {"content": text or None, "refusal": None, "tool_calls": calls}


def format_counts(counts: Mapping[str, int]) -> str:
    """Return counts by name as the value of a header, such as `cut_off=2, blank=1`."""
    return ", ".join(f"{name}={count}" for name, count in counts.items())


def _make_choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

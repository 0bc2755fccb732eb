"""Forms in which providers state usage: as numbers of tokens, and with anything else beside or instead."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult

from tests.fakes import ScriptedModel

_PLAIN = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
_DEEP: list[Any] = []
for _ in range(900):
    _DEEP = [_DEEP]

# Numbers of tokens are stated, here 3 and 2.
READABLE: dict[str, Any] = {
    "plain": _PLAIN,
    "no total": {"input_tokens": 3, "output_tokens": 2},
    "null total": {**_PLAIN, "total_tokens": None},
    "whole floats": {"input_tokens": 3.0, "output_tokens": 2.0, "total_tokens": 5.0},
    "cost": {**_PLAIN, "total_cost": 0.01},
    "NaN": {**_PLAIN, "total_cost": float("nan")},
    "infinity": {**_PLAIN, "seconds": float("inf")},
    "text": {**_PLAIN, "service_tier": "standard"},
    "truth value": {**_PLAIN, "is_byok": False},
    "null": {**_PLAIN, "cost": None},
    "negative": {**_PLAIN, "discount": -1},
    "list": {**_PLAIN, "prompt_tokens_details": [{"modality": "TEXT", "token_count": 3}]},
    "nested null": {**_PLAIN, "cost_details": {"upstream_inference_cost": None, "tokens": 5}},
    "null detail": {**_PLAIN, "input_token_details": {"cache_read": None}},
    "null details": {**_PLAIN, "input_token_details": None, "output_token_details": None},
    "float detail": {**_PLAIN, "output_token_details": {"reasoning": 1.5, "audio": 2.0}},
    "list of details": {**_PLAIN, "output_token_details": [1, 2]},
    "number for details": {**_PLAIN, "input_token_details": 3},
    "bytes": {**_PLAIN, "signature": b"\x00"},
    "object": {**_PLAIN, "raw": object()},
    "name that is no text": {**_PLAIN, 7: 7, None: 1},
    "lone surrogate": {**_PLAIN, "\ud800": "\udfff"},
    "deep list": {**_PLAIN, "levels": _DEEP},
}
_CYCLE: dict[str, Any] = dict(_PLAIN)
_CYCLE["again"] = _CYCLE
READABLE["cycle"] = _CYCLE

# Numbers of tokens are not stated, or not to be believed.
UNREADABLE: dict[str, Any] = {
    "no usage": None,
    "empty": {},
    "only text": "many",
    "only a list": [3, 2, 5],
    "null tokens": {"input_tokens": None, "output_tokens": 2, "total_tokens": None},
    "text tokens": {"input_tokens": "3", "output_tokens": "2", "total_tokens": "5"},
    "list tokens": {"input_tokens": [3], "output_tokens": {"text": 2}, "total_tokens": 5},
    "true tokens": {"input_tokens": True, "output_tokens": True, "total_tokens": 2},
    "half tokens": {"input_tokens": 3.5, "output_tokens": 2.5, "total_tokens": 6},
    "NaN tokens": {"input_tokens": float("nan"), "output_tokens": float("inf"), "total_tokens": 5},
    "negative tokens": {"input_tokens": -(10**6), "output_tokens": 2, "total_tokens": 5},
    "too many tokens": {"input_tokens": 10**30, "output_tokens": 2, "total_tokens": 1e300},
    "only a total": {"total_tokens": 5},
    # What ChatOpenAI makes of null.
    "0 tokens of the request": {"input_tokens": 0, "output_tokens": 2, "total_tokens": 2},
}
FORMS = {**READABLE, **UNREADABLE}


class FormModel(ScriptedModel):
    """A `ScriptedModel` whose messages state usage in a form of `FORMS`, unchecked as from other clients."""

    form: str = "plain"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, *args, **kwargs)
        for one in result.generations:
            assert isinstance(one.message, AIMessage)
            one.message.usage_metadata = FORMS[self.form]
        return result

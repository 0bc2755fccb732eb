"""Drawing exactly n candidates for a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from langchain_cfc.errors import CFCError, DrawError

# Keeps LangGraph from streaming a run's tokens and messages, rejected candidates' among them.
NOSTREAM = "nostream"
DRAW_TAG = "cfc:candidate"
# How often requests that failed are repeated, where others of the same prompt succeeded.
TOP_UPS = 2


@dataclass(frozen=True)
class Draw:
    """One candidate as it was drawn.

    Attributes:
        text: What a reader sees; JSON for structured output.
        message: The chat message, where the generator returned one.
    """

    text: str
    message: BaseMessage | None = None


def quiet(generator: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A generator fit for drawing: its models neither cache nor stream.

    A cache would return n times the same answer, and a streaming model would show rejected candidates'
    tokens to the user. Models are reached on their own and wherever LangChain keeps them in fields: bindings,
    retries, sequences, maps, fallbacks. Inside a function they stay as they are.

    Args:
        generator: A chat model or chain.

    Returns:
        A copy with quiet models.
    """
    if isinstance(generator, (BaseChatModel, BaseLLM)):
        # `streaming` is the provider's own: left on, ChatOpenAI asks for a stream and cannot read it then.
        off = {"cache": False, "disable_streaming": True, "streaming": False}
        held = type(generator).model_fields
        return generator.model_copy(update={name: value for name, value in off.items() if name in held})
    if isinstance(generator, BaseModel):
        fields = {name: getattr(generator, name) for name in type(generator).model_fields}
        inner = {name: _quieted(value) for name, value in fields.items()}
        changed = {name: value for name, value in inner.items() if value is not fields[name]}
        return generator.model_copy(update=changed)
    return generator


def _quieted(value: Any) -> Any:
    """A field's value with quiet models; the value itself where it holds no Runnable."""
    if isinstance(value, Runnable):
        return quiet(value)
    if isinstance(value, Mapping):
        inner = {key: _quieted(item) for key, item in value.items()}
        return inner if any(inner[key] is not item for key, item in value.items()) else value
    if isinstance(value, (list, tuple)):
        items = type(value)(map(_quieted, value)) if type(value) in (list, tuple) else value
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def draw(generator: Runnable[Any, Any], prompt: Any, configs: Sequence[RunnableConfig]) -> list[Draw]:
    """Draw one candidate per config, in separate requests.

    Requests that fail are repeated for their slots, and what the others returned is kept: it was paid for. If
    none succeeds, none is repeated, for then it is not chance. A failure must not depend on what the answer
    would have been, or the candidates left are no sample of what the model says.

    Args:
        generator: A chat model or chain, made `quiet`.
        prompt: What it is invoked with.
        configs: n configs, one per request slot.

    Returns:
        n candidates in the order of their slots, whenever they were completed.

    Raises:
        DrawError: If fewer than n could be drawn, or one cannot be read as text.
    """
    outputs = generator.batch([prompt] * len(configs), list(configs), return_exceptions=True)
    for _ in range(TOP_UPS):
        if slots := _missing(outputs):
            again = [configs[slot] for slot in slots]
            found = generator.batch([prompt] * len(slots), again, return_exceptions=True)
            outputs = _topped_up(outputs, slots, found)
    return _checked(outputs, len(configs))


async def adraw(generator: Runnable[Any, Any], prompt: Any, configs: Sequence[RunnableConfig]) -> list[Draw]:
    """The same as `draw`, asynchronously."""
    outputs = await generator.abatch([prompt] * len(configs), list(configs), return_exceptions=True)
    for _ in range(TOP_UPS):
        if slots := _missing(outputs):
            again = [configs[slot] for slot in slots]
            found = await generator.abatch([prompt] * len(slots), again, return_exceptions=True)
            outputs = _topped_up(outputs, slots, found)
    return _checked(outputs, len(configs))


def total_usage(draws: Sequence[Draw]) -> UsageMetadata | None:
    """The tokens that the draws cost together; None where no message says."""
    usage: UsageMetadata | None = None
    for one in draws:
        if isinstance(one.message, AIMessage) and one.message.usage_metadata is not None:
            usage = add_usage(usage, one.message.usage_metadata)
    return usage


def _missing(outputs: Sequence[Any]) -> list[int]:
    """Slots to ask again: those that failed, unless all did."""
    slots = [slot for slot, output in enumerate(outputs) if isinstance(output, BaseException)]
    return slots if len(slots) < len(outputs) else []


def _topped_up(outputs: Sequence[Any], slots: Sequence[int], found: Sequence[Any]) -> list[Any]:
    """The outputs with those of some slots in their places."""
    topped = list(outputs)
    for slot, output in zip(slots, found, strict=False):  # one that returns too few keeps its failures
        topped[slot] = output
    return topped


def _checked(outputs: Sequence[Any], n: int) -> list[Draw]:
    failed = [(slot, output) for slot, output in enumerate(outputs) if isinstance(output, BaseException)]
    if failed:
        slot, error = failed[0]
        msg = (
            f"{len(failed)} of {n} candidates could not be drawn, first candidate {slot}: "
            f"{type(error).__name__}: {error}. The guarantee holds for exactly n"
        )
        if not isinstance(error, (CFCError, KeyError, TypeError, ValueError)):
            msg += "; give the generator retries (generator.with_retry()) if this passes"
        raise DrawError(msg) from error
    if len(outputs) != n:
        msg = (
            f"the generator returned {len(outputs)} candidates for {n} requests; the guarantee holds for "
            "exactly n"
        )
        raise DrawError(msg)
    return [_as_draw(slot, output) for slot, output in enumerate(outputs)]


def _as_draw(slot: int, output: Any) -> Draw:
    if isinstance(output, AIMessage) and output.tool_calls:
        # Their text is empty, so that different calls would pass for one answer.
        msg = f"candidate {slot} is a message with tool calls, which cannot be told apart as answers yet"
        raise DrawError(msg)
    if isinstance(output, BaseMessage):
        return Draw(str(output.text), output)
    if isinstance(output, str):
        return Draw(output)
    if output is None:
        msg = f"candidate {slot} is None: the generator returned nothing, as a parser that failed may do"
        raise DrawError(msg)
    if hasattr(output, "model_dump"):
        output = output.model_dump(mode="json")
    try:
        # Written as records write messages, so that answers are told apart and measured alike offline.
        text = json.dumps(output, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Draw(text)
    except (TypeError, ValueError) as error:
        msg = (
            f"candidate {slot} is a {type(output).__name__}, which cannot be read as text: let the "
            "generator return a message, text or plain data"
        )
        raise DrawError(msg) from error

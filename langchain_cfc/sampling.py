"""Drawing exactly n candidates for a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableSequence

from langchain_cfc.errors import DrawError

# `nostream` keeps LangGraph from streaming the draws' tokens, rejected candidates' among them.
DRAW_TAGS = ("nostream", "cfc:candidate")


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
    tokens to the user. Models are reached on their own, in bindings and in sequences; elsewhere they stay as
    they are.

    Args:
        generator: A chat model or chain.

    Returns:
        A copy with quiet models.
    """
    if isinstance(generator, BaseChatModel):
        return generator.model_copy(update={"cache": False, "disable_streaming": True})
    if isinstance(generator, BaseLLM):
        return generator.model_copy(update={"cache": False})
    if isinstance(generator, RunnableBinding):
        return generator.model_copy(update={"bound": quiet(generator.bound)})
    if isinstance(generator, RunnableSequence):
        return RunnableSequence(*(quiet(step) for step in generator.steps), name=generator.name)
    return generator


def draw(generator: Runnable[Any, Any], prompt: Any, configs: Sequence[RunnableConfig]) -> list[Draw]:
    """Draw one candidate per config, in separate requests.

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
    return _checked(outputs)


async def adraw(generator: Runnable[Any, Any], prompt: Any, configs: Sequence[RunnableConfig]) -> list[Draw]:
    """The same as `draw`, asynchronously."""
    outputs = await generator.abatch([prompt] * len(configs), list(configs), return_exceptions=True)
    return _checked(outputs)


def total_usage(draws: Sequence[Draw]) -> UsageMetadata | None:
    """The tokens that the draws cost together; None where no message says."""
    usage: UsageMetadata | None = None
    for one in draws:
        if isinstance(one.message, AIMessage) and one.message.usage_metadata is not None:
            usage = add_usage(usage, one.message.usage_metadata)
    return usage


def _checked(outputs: Sequence[Any]) -> list[Draw]:
    failed = [(slot, output) for slot, output in enumerate(outputs) if isinstance(output, BaseException)]
    if failed:
        slot, error = failed[0]
        msg = (
            f"{len(failed)} of {len(outputs)} candidates could not be drawn, first candidate {slot}: "
            f"{type(error).__name__}: {error}. The "
            "guarantee holds for exactly n; give the generator retries (generator.with_retry()) if this "
            "passes"
        )
        raise DrawError(msg) from error
    return [_as_draw(slot, output) for slot, output in enumerate(outputs)]


def _as_draw(slot: int, output: Any) -> Draw:
    if isinstance(output, BaseMessage):
        return Draw(str(output.text), output)
    if isinstance(output, str):
        return Draw(output)
    if hasattr(output, "model_dump"):
        output = output.model_dump(mode="json")
    try:
        return Draw(json.dumps(output, sort_keys=True, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        msg = (
            f"candidate {slot} is a {type(output).__name__}, which cannot be read as text: let the "
            "generator return a message, text or plain data"
        )
        raise DrawError(msg) from error

"""Read prompts: their kind, and their content as text, messages or JSON.

A prompt may be text, a message, messages in any form that LangChain reads, a prompt value or a mapping. Some
readers take messages with images (judging models), others need to recognise the prompt (replay), and a chain
that was calibrated on texts takes one human message as a text. All of them use this module, so that none
silently drops a part of the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue, StringPromptValue

from langchain_cfc.candidates import PromptKind
from langchain_cfc.errors import CFCError, PromptKindError
from langchain_cfc.support.serialization import canonical_json

__all__ = ["messages_to_text"]


def classify_prompt(prompt: Any) -> PromptKind:
    """Return the kind of a prompt: `text`, `messages` or `object`.

    A message, a prompt value of messages, and any list or tuple are `messages`. A mapping, and anything else
    that is not text, is an `object`.
    """
    if isinstance(prompt, (str, StringPromptValue)):
        return "text"
    if isinstance(prompt, (BaseMessage, PromptValue)):
        return "messages"
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray, Mapping))
    return "messages" if is_list else "object"


def unwrap_prompt(prompt: Any) -> Any:
    """Return the text or the messages of a prompt value; any other prompt as it is."""
    if isinstance(prompt, StringPromptValue):
        return prompt.text
    return prompt.to_messages() if isinstance(prompt, PromptValue) else prompt


def convert_to_calibrated_kind(prompt: Any, calibrated: Collection[str] | None) -> Any:
    """Return a prompt in a kind that the generator was calibrated on, or raise an error.

    A prompt template for texts would write the `repr` of messages into the prompt. A chain that was
    calibrated on texts, but not on messages, therefore gets the text of one human message, if the prompt
    holds no more. `calibrated` are the kinds of the calibration prompts; None if they are unknown.

    Raises:
        PromptKindError: If its kind is not among them, and it cannot be converted without loss.
    """
    kind = classify_prompt(prompt)
    if calibrated is None or kind in calibrated:
        return prompt.text if isinstance(prompt, StringPromptValue) else prompt
    if kind == "messages" and "text" in calibrated:
        return messages_to_text(prompt)
    msg = (
        f"the prompt is of the kind {kind} (a {type(prompt).__name__}), but the artifact was calibrated on "
        f"prompts of the kind {' or '.join(sorted(calibrated))}. Pass prompts as the records have them, or "
        "collect and calibrate with prompts of this kind"
    )
    raise PromptKindError(msg)


def messages_to_text(prompt: Any) -> str:
    """Return the text of a prompt that consists of one human message with text only.

    `CFCRunnable` calls this if it gets messages, but the calibration prompts were texts. In your own chain:
    `RunnableLambda(messages_to_text) | chain`.

    Args:
        prompt: Text, a message, messages in any form that LangChain reads, or a prompt value.

    Returns:
        The text of the message; a text prompt unchanged.

    Raises:
        PromptKindError: If a text would not hold all of it: a system prompt, earlier turns, images or other
            content, tool calls and tool messages, or the name of a speaker.

    Examples:
        >>> messages_to_text([HumanMessage("What is the capital of Peru?")])
        'What is the capital of Peru?'
    """
    content = read_prompt(prompt, "pass text or one human message", PromptKindError)
    if isinstance(content, str) and not isinstance(prompt, Mapping):
        return content
    kinds = ["an object"]
    if not isinstance(content, str):
        kinds = [f"a {'named ' * bool(one.name)}message of type {one.type}" for one in content]
    msg = (
        f"the prompt is more than the text of one human message: it is {', '.join(kinds)}. "
        "For images, other content and further messages, collect and calibrate with messages"
    )
    raise PromptKindError(msg)


def read_prompt(prompt: Any, hint: str, failure: type[CFCError]) -> str | list[BaseMessage]:
    """Read a prompt without dropping any part of it.

    Returns:
        The text of a text, and of a single human message that holds nothing but text, not even the name of
            its speaker; canonical JSON of a mapping; any other messages as they are.

    Raises:
        CFCError: Of the type `failure`, if the prompt is of no known kind, holds no messages, or is a mapping
            that is not JSON; the message ends with the `hint`.
    """
    if isinstance(prompt, (str, StringPromptValue)):
        return str(unwrap_prompt(prompt))
    if isinstance(prompt, Mapping):
        try:
            return canonical_json(prompt)
        except (TypeError, ValueError) as error:
            keys = ", ".join(map(str, prompt))
            msg = f"the prompt, a mapping with the keys {keys}, is not JSON ({error}): {hint}"
            raise failure(msg) from error
    messages = _read_messages(prompt, hint, failure)
    first = messages[0]
    if len(messages) == 1 and isinstance(first, HumanMessage) and not first.name:
        blocks = [first.content] if isinstance(first.content, str) else first.content
        if all(isinstance(one, str) or one.get("type") == "text" for one in blocks):
            return str(first.text)
    return messages


def _read_messages(prompt: Any, hint: str, failure: type[CFCError]) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    if isinstance(prompt, (BaseMessage, PromptValue, list, tuple)):
        try:
            listed = unwrap_prompt(prompt)
            messages = convert_to_messages([listed] if isinstance(listed, BaseMessage) else listed)
        except Exception as error:
            msg = f"the prompt is a {type(prompt).__name__} that does not hold messages ({error}): {hint}"
            raise failure(msg) from error
    if not messages:
        msg = f"the prompt is a {type(prompt).__name__}, which cannot be read as text or messages: {hint}"
        raise failure(msg)
    return messages

"""The kind of a prompt, and messages as text where nothing is lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue, StringPromptValue

from langchain_cfc.draws import PromptKind
from langchain_cfc.errors import PromptKindError

__all__ = ["as_calibrated", "messages_to_text", "prompt_kind"]


def prompt_kind(prompt: Any) -> PromptKind:
    """Return the kind of a prompt: `text`, `messages` or `object`.

    Args:
        prompt: Whatever a generator is invoked with.

    Returns:
        `messages` for a message, a prompt value of messages and any list or tuple; `object` for a mapping and
            anything else that is no text.
    """
    if isinstance(prompt, (str, StringPromptValue)):
        return "text"
    if isinstance(prompt, (BaseMessage, PromptValue)):
        return "messages"
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray, Mapping))
    return "messages" if is_list else "object"


def as_calibrated(prompt: Any, calibrated: Collection[str] | None) -> Any:
    """Return a prompt as the generator was calibrated to take it, or refuse one of another kind.

    A prompt template that takes a text would write the `repr` of messages into the prompt. A chain that was
    calibrated on texts alone therefore gets the text of one human message, if that is all that there is.

    Args:
        prompt: Whatever the generator is to be invoked with.
        calibrated: The kinds of the calibration prompts; None where they are unknown.

    Returns:
        The prompt; what is no more than a text as that text, where the calibration prompts were texts.

    Raises:
        PromptKindError: If its kind is not among them, or a text would not hold all of its messages.
    """
    kind = prompt_kind(prompt)
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
    """Return the text of a prompt that is one human message of text alone.

    `CFCRunnable` calls it where the calibration prompts were texts and it is given messages. In a chain of
    your own: `RunnableLambda(messages_to_text) | chain`.

    Args:
        prompt: Text, a message, messages in any form that LangChain reads, or a prompt value.

    Returns:
        The text of the message; a text as it is.

    Raises:
        PromptKindError: If a text would not hold all of it: a system prompt, earlier turns, images or other
            content, tool calls and tool messages, or the name of a speaker.

    >>> messages_to_text([HumanMessage("What is the capital of Peru?")])
    'What is the capital of Peru?'
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, PromptValue):
        messages = prompt.to_messages()
    else:
        try:
            if isinstance(prompt, Mapping):
                raise TypeError  # noqa: TRY301 - LangChain would read its keys as messages
            messages = convert_to_messages([prompt] if isinstance(prompt, BaseMessage) else prompt)
        except Exception as error:
            msg = f"a {type(prompt).__name__} does not hold messages; pass text or one human message"
            raise PromptKindError(msg) from error
    lost = _lost_as_text(messages)
    if lost:
        msg = (
            f"the messages hold more than one text: {', '.join(lost)} would be lost. A chain that was "
            "calibrated on texts takes one human message; for more, collect and calibrate with messages"
        )
        raise PromptKindError(msg)
    return str(messages[0].text)


def _lost_as_text(messages: Sequence[BaseMessage]) -> list[str]:
    """What of messages is lost where only the text of one human message is kept."""
    if not messages:
        return ["an empty list, without any message,"]
    others = [
        f"a message of type {message.type}" for message in messages if not isinstance(message, HumanMessage)
    ]
    lost = list(dict.fromkeys(others))
    if len(messages) - len(others) > 1:
        lost.append(f"all but one of {len(messages) - len(others)} human messages")
    if not lost:
        kinds = {block["type"] for block in messages[0].content_blocks} - {"text"}
        lost += [f"content of type {kind}" for kind in sorted(kinds)]
        lost += ["the name of the speaker"] if messages[0].name else []
    return lost

"""The one reader of prompts: what a chain is invoked with, as text, messages or JSON.

A prompt may be text, a message, messages in any form that LangChain reads, a prompt value or a mapping. Some
readers can use its text only (reward models, embeddings), others take messages with images (judging models),
others need to recognise the prompt (replay). All of them start here, so that none silently drops what another
one keeps: `PromptContent.other_parts` lists what the text does not say, and `only_text` raises if there is
any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    convert_to_messages,
    get_buffer_string,
)
from langchain_core.prompt_values import PromptValue, StringPromptValue

from langchain_cfc.errors import CFCError

# Where blocks of one kind go by a provider's name.
_KINDS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "input_file": "file"}
# Blocks that repeat `AIMessage.tool_calls`, which transcripts show.
_TOOL_CALL_BLOCKS = {"tool_call", "tool_use", "function_call"}


@dataclass(frozen=True)
class PromptContent:
    """What a prompt holds.

    Attributes:
        kind: `text` for a text and for a single human message that holds nothing but text; `messages` for any
            other message or messages; `object` for a mapping.
        text: The text; of messages their transcript, with every part that is not text named in brackets where
            it stands, such as `[image]`; of a mapping its canonical JSON.
        messages: The messages; empty unless `kind` is `messages`.
        other_parts: The parts that `text` only names, such as `image in message 0`.
    """

    kind: Literal["text", "messages", "object"]
    text: str
    messages: tuple[BaseMessage, ...] = ()
    other_parts: tuple[str, ...] = ()

    def only_text(self, reader: str, hint: str, failure: type[CFCError]) -> str:
        """Return the text of a prompt that holds nothing else.

        Args:
            reader: What reads text only, for the message.
            hint: What the user can do about other prompts, for the message.
            failure: The error to raise.

        Returns:
            The text; of several messages their transcript.

        Raises:
            CFCError: Of the type given, if the prompt is a mapping or holds a part that is not text.
        """
        if self.kind == "object":
            msg = f"the prompt is a mapping, and {reader} reads text only: {hint}"
            raise failure(msg)
        if self.other_parts:
            listed = ", ".join(self.other_parts)
            msg = f"the prompt holds more than text ({listed}), and {reader} reads text only: {hint}"
            raise failure(msg)
        return self.text


def read_prompt(prompt: Any, hint: str, failure: type[CFCError]) -> PromptContent:
    """Read a prompt without dropping any part of it.

    Args:
        prompt: Text, a message, messages in any form that LangChain reads, a prompt value, or a mapping.
        hint: What the user can do about a prompt of another kind, for the message.
        failure: The error to raise.

    Returns:
        What the prompt holds.

    Raises:
        CFCError: Of the type given, if the prompt is of another kind, holds no messages, or is a mapping that
            is not JSON.
    """
    if isinstance(prompt, StringPromptValue):
        prompt = prompt.text
    if isinstance(prompt, str):
        return PromptContent("text", prompt)
    if isinstance(prompt, Mapping):
        return PromptContent("object", _canonical_json(prompt, hint, failure))
    messages = _messages(prompt, hint, failure)
    texts, other_parts = [], []
    for position, message in enumerate(messages):
        text, kinds = _text_and_other_kinds(message)
        texts.append(text)
        other_parts += [f"{kind} in message {position}" for kind in kinds]
    if len(messages) == 1 and isinstance(messages[0], HumanMessage) and not other_parts:
        return PromptContent("text", texts[0])
    try:
        transcript = get_buffer_string(
            [
                message.model_copy(update={"content": text})
                for message, text in zip(messages, texts, strict=True)
            ]
        )
    except ValueError as error:
        msg = f"the prompt holds a message without a transcript ({error}): {hint}"
        raise failure(msg) from error
    return PromptContent("messages", transcript, tuple(messages), tuple(other_parts))


def _canonical_json(prompt: Mapping[Any, Any], hint: str, failure: type[CFCError]) -> str:
    try:
        return json.dumps(prompt, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        keys = ", ".join(map(str, prompt))
        msg = f"the prompt, an object of {keys}, is not JSON ({error}): {hint}"
        raise failure(msg) from error


def _messages(prompt: Any, hint: str, failure: type[CFCError]) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    if isinstance(prompt, BaseMessage):
        messages = [prompt]
    elif isinstance(prompt, (PromptValue, list, tuple)):
        try:
            messages = convert_to_messages(prompt)
        except Exception as error:
            msg = f"the prompt is a {type(prompt).__name__} that does not hold messages ({error}): {hint}"
            raise failure(msg) from error
    if not messages:
        msg = f"the prompt is a {type(prompt).__name__}, which cannot be read as text or messages: {hint}"
        raise failure(msg)
    return messages


def _text_and_other_kinds(message: BaseMessage) -> tuple[str, list[str]]:
    """Return a message's text, with other parts named in brackets, and the kinds of these parts."""
    texts: list[str] = []
    kinds: list[str] = []
    blocks = [message.content] if isinstance(message.content, str) else message.content
    for block in blocks:
        if isinstance(block, str):
            texts.append(block)
        elif block.get("type") == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif not (block.get("type") in _TOOL_CALL_BLOCKS and getattr(message, "tool_calls", None)):
            stated = str(block.get("type", "untyped part"))
            kinds.append(_KINDS.get(stated, stated))
            texts.append(f"[{kinds[-1]}]")
    if isinstance(message, AIMessage) and message.invalid_tool_calls:
        kinds.append("invalid tool call")
        texts.append("[invalid tool call]")
    return "".join(texts), kinds

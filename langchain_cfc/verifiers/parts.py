"""What verifiers made of several parts share: one fingerprint for all, and the words of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages, get_buffer_string
from langchain_core.prompt_values import PromptValue

from langchain_cfc.errors import VerifierError
from langchain_cfc.fingerprints import fingerprint


def together(method: str, settings: Mapping[str, Any], parts: Mapping[str, object]) -> dict[str, Any]:
    """What a verifier says of itself, its settings and its parts.

    Args:
        method: What the verifier is called.
        settings: Whatever changes its scores, each as one plain value.
        parts: By role, what the user gave it.

    Returns:
        The fingerprint. The method is its `id` only if every part says who it is, since an id vouches for all
        of them.
    """
    said = {role: fingerprint(part) for role, part in parts.items()}
    known = all("id" in one or "model" in one for one in said.values())
    flat = {f"{role}.{key}": value for role, one in said.items() for key, value in one.items()}
    return {"id" if known else "method": method, **settings, **flat}


def plain(value: Any) -> Any:
    """A number or boolean of NumPy, Torch and the like as Python's own; anything else as it is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):
        # More than one number, or none.
        return value


def prompt_text(prompt: Any, hint: str) -> str:
    """The text of a prompt.

    Args:
        prompt: Text, a message, messages or a prompt value.
        hint: What to do about a prompt of another kind, for the message.

    Returns:
        The text; that of several messages is their transcript.

    Raises:
        VerifierError: If it is of another kind, or holds no messages.
    """
    if isinstance(prompt, str):
        return prompt
    messages: Sequence[BaseMessage] = []
    if isinstance(prompt, PromptValue):
        messages = prompt.to_messages()
    elif isinstance(prompt, BaseMessage):
        messages = [prompt]
    elif isinstance(prompt, Sequence):
        try:
            messages = convert_to_messages(prompt)
        except Exception as error:
            msg = f"the prompt is a {type(prompt).__name__} that does not hold messages: {hint}"
            raise VerifierError(msg) from error
    if not messages:
        msg = f"the prompt is a {type(prompt).__name__}, whose text is not settled: {hint}"
        raise VerifierError(msg)
    return str(messages[0].text) if len(messages) == 1 else get_buffer_string(messages)

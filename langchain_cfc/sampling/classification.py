"""Read from a model's message whether it is an answer, and if not, why: the only place that decides this.

Providers state why a model stopped under different names, and LangChain passes these on in
`response_metadata`. The reasons are recognised by their words, so that one of a provider that is not known
here is classified as well: `length`, `MAX_TOKENS` and `model_context_window_exceeded` all mean a cut-off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import BaseMessage
from pydantic import ValidationError

from langchain_cfc.errors import CFCError
from langchain_cfc.no_answers import NoAnswer
from langchain_cfc.sampling.token_counts import read_usage

# Where OpenAI (both interfaces), Anthropic, Google, Ollama, Bedrock, Cohere, Mistral, vLLM and llama.cpp say
# why they stopped. `status` may also be one of HTTP's numbers, which are skipped.
_REASON_KEYS = (
    *("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason", "stop_type"),
    *("completion_reason", "completionReason", "amazon-bedrock-guardrailAction", "status"),
)
# Details of a reason, with the key that holds it.
_DETAIL_KEYS = {
    "incomplete_details": "reason",
    "prompt_feedback": "block_reason",
    "promptFeedback": "blockReason",
}
_FLAGS: Mapping[str, NoAnswer] = {
    "truncated": "cut_off",
    "stopped_limit": "cut_off",
    "is_blocked": "filtered",
}
# The first pattern that occurs in a reason decides. `language` is Google's for an unsupported one.
_REASON_WORDS: tuple[tuple[NoAnswer, re.Pattern[str]], ...] = (
    ("unparsable", re.compile(r"malformed|unexpected_tool|invalid")),
    (
        "filtered",
        re.compile(
            r"filter|safety|block|guardrail|interven|moderat|toxic|sensitive|prohibit|recitation|spii|armor"
            r"|violat|language"
        ),
    ),
    ("refused", re.compile(r"refus")),
    (
        "cut_off",
        re.compile(
            r"length|max|limit|trunc|window|exceed|incomplete|not_finished|pause|cancel|abort|error|fail|time_?out|interrupt"
            r"|insufficient|overload|repeti|\bother\b"
        ),
    ),
)
_UNSET = re.compile(r"unspecified|\bnone\b|not_block")
_REASONING_BLOCKS = {"thinking", "reasoning", "redacted_thinking", "reasoning_content", "thought"}
_TOOL_BLOCKS = re.compile(r"tool|_call|function|executable_code|code_execution|web_search|computer")
_TEXT_BLOCKS = {"text", "output_text"}
# Where clients put what is no text, beside the content.
_BESIDE = ("audio", "images", "function_call")
# Errors by which clients and parsers say that there is no answer, by class name: their packages are optional.
_ERROR_KINDS: Mapping[str, NoAnswer] = {
    "LengthFinishReasonError": "cut_off",
    "ContentFilterFinishReasonError": "filtered",
    "OpenAIRefusalError": "refused",
}
# What code that reads a message raises if the message is not in the expected form.
_READING_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


def classify_ending(message: BaseMessage) -> NoAnswer | None:
    """Return why a model ended without an answer, as far as it reports that; None if it reports nothing."""
    for name, value in _iterate_reports(message):
        if (kind := _classify_reason(name, value)) is not None:
            return kind
    # The two marks of a refusal are those of OpenAI's two interfaces.
    is_refusal = message.additional_kwargs.get("refusal") or "refusal" in _list_block_types(message)
    return "refused" if is_refusal else None


def _iterate_reports(message: BaseMessage) -> Iterator[tuple[str, Any]]:
    """Yield what a message's metadata says about why the model stopped."""
    for reports in filter(None, (message.response_metadata, message.additional_kwargs)):
        for name, key in _DETAIL_KEYS.items():
            if isinstance(details := reports.get(name), Mapping):
                yield key, details.get(key)
        yield from ((name, reports[name]) for name in _REASON_KEYS if name in reports)
        yield from ((name, True) for name in _FLAGS if reports.get(name) is True)


def _classify_reason(name: str, value: Any) -> NoAnswer | None:
    if name in _FLAGS:
        return _FLAGS[name]
    if "block" in name:  # whatever the reason is
        return "filtered" if value and not _UNSET.search(str(value).lower()) else None
    if not isinstance(value, str):
        value = str(getattr(value, "name", ""))
    return _classify_words(value)


@lru_cache(maxsize=256)
def _classify_words(reason: str) -> NoAnswer | None:
    # Enumerations may be written as `FinishReason.MAX_TOKENS`, and words be joined by anything.
    reason = re.sub(r"[\s-]+", "_", reason.rpartition(".")[2].lower())
    return next((kind for kind, words in _REASON_WORDS if words.search(reason)), None)


def _list_blocks(message: BaseMessage) -> list[Mapping[str, Any]]:
    content = message.content
    return [] if isinstance(content, str) else [one for one in content if isinstance(one, Mapping)]


def _list_block_types(message: BaseMessage) -> list[str]:
    return [str(block.get("type")) for block in _list_blocks(message)]


def explain_blank(message: BaseMessage) -> NoAnswer:
    """Return why a message shows no text, from its other content."""
    extra = message.additional_kwargs
    types = [*_list_block_types(message), *(name for name in _BESIDE if extra.get(name))]
    details = read_usage(getattr(message, "usage_metadata", None)).get("output_token_details", {})
    if (
        not _REASONING_BLOCKS.isdisjoint(types)
        or any(extra.get(name) for name in ("reasoning_content", "reasoning", "thinking"))
        or details.get("reasoning")
    ):
        return "reasoning_only"
    if any(map(_TOOL_BLOCKS.search, types)) or getattr(message, "tool_calls", None):
        return "tool_call_only"
    return "blank" if _TEXT_BLOCKS.issuperset(types) else "unparsable"


def read_visible_text(message: BaseMessage) -> str:
    """Return the text of a message, or the transcript of its speech; without its blocks of reasoning."""
    text = str(message.text)
    if text:
        return text
    blocks = _list_blocks(message)
    written = [one.get("text") for one in blocks if one.get("type") == "output_text"]
    spoken = [
        one.get("transcript")
        for one in (*blocks, message.additional_kwargs.get("audio") or {})
        if isinstance(one, Mapping)
    ]
    return "".join(one for one in written or spoken if isinstance(one, str))


def classify_error(error: BaseException, *, has_reply: bool) -> NoAnswer | None:
    """Return the kind if an error says that a draw is no answer; None if the request itself failed.

    Args:
        error: What the generator raised.
        has_reply: Whether its model had replied, so that something that reads the reply failed.

    Returns:
        The kind, or None. Drawing again until a reply can be read would select among the model's answers.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    found = next((_ERROR_KINDS[name] for name in names if name in _ERROR_KINDS), None)
    if found is not None:
        return found
    is_parser = isinstance(error, OutputParserException) or (
        has_reply and isinstance(error, (ValidationError, json.JSONDecodeError))
    )
    return "unparsable" if is_parser else None


def is_reading_error(error: BaseException, *, has_reply: bool) -> bool:
    """Return whether an error may be about the form of a reply, given that other draws could be read.

    Any code may have raised it after the model replied. Before that, only clients that check the reply
    against a schema raise a pydantic `ValidationError`.
    """
    return isinstance(error, ValidationError) or (
        has_reply and isinstance(error, _READING_ERRORS) and not isinstance(error, CFCError)
    )


def is_incomplete_json(text: str) -> bool:
    """Return whether a text is JSON that ends early, which some parsers complete by guessing.

    Examples:
        >>> is_incomplete_json('{"city": "Li'), is_incomplete_json('{"city": "Lima"}')
        (True, False)
    """
    text = text.strip()
    if not text.startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except ValueError as error:
        at_end = getattr(error, "pos", 0) >= len(text)
        return at_end or str(error).startswith("Unterminated string")
    return False

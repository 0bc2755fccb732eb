"""`DrawnCandidate`: one output of a generator. `Description`: answer extractor and metadata function."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.candidates import Scalar
from langchain_cfc.errors import CollectionError, DescriptionError, DrawError
from langchain_cfc.execution import Call, Steps, Target, add_tags
from langchain_cfc.no_answers import NoAnswer, Reasoning, is_invisible, strip_reasoning
from langchain_cfc.sampling.classification import (
    classify_ending,
    explain_blank,
    is_incomplete_json,
    read_visible_text,
)
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.serialization import canonical_json

# Keys of the output of `with_structured_output(include_raw=True)`.
_RAW_KEYS = {"raw", "parsed", "parsing_error"}
# Half a surrogate pair.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class DrawnCandidate:
    """One output of a generator, with its raw message.

    Attributes:
        text: The visible text, by default without reasoning between tags; canonical JSON of `data` if the
            candidate is structured or calls tools. Empty if it is no answer.
        message: The chat message, if the generator returned one.
        data: Structured output, or a message's text and tool calls, as a JSON object; records store it as
            `message`. None if the candidate is text.
        no_answer: Why it is no answer; None if it is one. Text that shows nothing is `blank`.
        parsed: The object that `data` describes, as the generator made it; None if it made none.
    """

    text: str
    message: BaseMessage | None = None
    data: dict[str, Any] | None = None
    no_answer: NoAnswer | None = None
    parsed: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Give what is no answer the empty text, so that nothing can compare or serve it."""
        if self.no_answer is not None:
            object.__setattr__(self, "text", "")
            object.__setattr__(self, "data", None)
            object.__setattr__(self, "parsed", None)
        elif is_invisible(self.text):
            object.__setattr__(self, "no_answer", "blank")


def _refuse_message(candidate: DrawnCandidate) -> BaseMessage | None:
    msg = (
        f"the message of the candidate {candidate.text!r:.80} was removed from the store when its prompt was "
        "labelled; only its text and data were kept. Label and score by these, or collect into another "
        "store with keep_payloads (--set run.keep_payloads=true)"
    )
    raise CollectionError(msg)


@dataclass(frozen=True)
class StrippedCandidate(DrawnCandidate):
    """A stored candidate whose message was removed; reading `message` raises a `CollectionError`."""

    message: Any = field(default=property(_refuse_message), init=False, repr=False, compare=False)


def make_candidate(
    slot: int,
    output: Any,
    *,
    reply: BaseMessage | None = None,
    may_call_tools: bool = True,
    reasoning: Reasoning = "strip",
) -> DrawnCandidate:
    """Read a generator's output (message, text, pydantic object, dataclass or plain data) as a candidate.

    Args:
        slot: The request slot, for errors.
        output: The output; also that of `with_structured_output(include_raw=True)`.
        reply: The message that the answering model gave, if the output is something that was made of it.
        may_call_tools: Whether calling a tool is an answer, because the generator has tools.
        reasoning: Whether reasoning between tags is removed from text.

    Returns:
        The candidate. None, and what has no text, is no answer.

    Raises:
        DrawError: If it cannot be read as text; the message names the request slot.
    """
    if isinstance(output, DrawnCandidate):
        return output
    if isinstance(output, Mapping) and output.keys() == _RAW_KEYS:
        reply, output = output["raw"], None if output["parsing_error"] else output["parsed"]
    message = output if isinstance(output, BaseMessage) else None
    source = reply if message is None else message
    ending = None if source is None else classify_ending(source)
    if ending is None and isinstance(source, AIMessage) and (source.tool_calls or source.invalid_tool_calls):
        if not may_call_tools:
            ending = "tool_call_only"
        elif message is not None:
            data = _read_tool_calls(source, reasoning)
            text = _to_json(slot, data)
            return DrawnCandidate(text or "", message, data, None if text else "unparsable")
    if ending is not None or output is None:
        return DrawnCandidate("", message, no_answer=ending or "unparsable")
    if message is not None:
        return _make_text_candidate(read_visible_text(message), message, message, reasoning)
    if isinstance(output, str):
        return _make_text_candidate(output, None, source, reasoning)
    return _make_data_candidate(slot, output, source)


def _make_text_candidate(
    whole: str, message: BaseMessage | None, source: BaseMessage | None, reasoning: Reasoning
) -> DrawnCandidate:
    """Read text, which the generator made of the message `source`, as a candidate."""
    text = strip_reasoning(whole) if reasoning == "strip" else whole
    if text and _HALF_PAIR.search(text):  # which no file can hold
        return DrawnCandidate("", message, no_answer="unparsable")
    candidate = DrawnCandidate(text or "", message)
    if candidate.no_answer is None:
        return candidate
    kind: NoAnswer = "blank" if source is None else explain_blank(source)
    return DrawnCandidate("", message, no_answer=kind if is_invisible(whole) else "reasoning_only")


def _make_data_candidate(slot: int, output: Any, source: BaseMessage | None) -> DrawnCandidate:
    """Read structured output, which a parser made of the message `source`, as a candidate."""
    made = output
    if is_dataclass(output) and not isinstance(output, type):
        output = asdict(output)
    elif hasattr(output, "model_dump"):
        try:
            output = output.model_dump(mode="json")
        except (TypeError, ValueError) as error:
            raise _make_unreadable_error(slot, output) from error
    text = _to_json(slot, output)
    if text is None and source is None:
        raise _make_unreadable_error(slot, output)
    if text is None:
        return DrawnCandidate("", no_answer="unparsable")
    if source is not None and is_incomplete_json(read_visible_text(source)):
        return DrawnCandidate("", no_answer="cut_off")
    return DrawnCandidate(text, None, output if isinstance(output, dict) else None, parsed=made)


def _read_tool_calls(message: AIMessage, reasoning: Reasoning) -> dict[str, Any]:
    """Return the text and tool calls of a message as plain data.

    Call ids are left out: they are random, and equal calls must count as equal answers.
    """
    text = str(message.text)
    content = (strip_reasoning(text) or "") if reasoning == "strip" else text
    data: dict[str, Any] = {"content": content, "tool_calls": _remove_ids(message.tool_calls)}
    if message.invalid_tool_calls:
        data["invalid_tool_calls"] = _remove_ids(message.invalid_tool_calls)
    return data


def _remove_ids(calls: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": call["name"], "args": call["args"]} for call in calls]


def _to_json(slot: int, data: Any) -> str | None:
    """Return JSON in the form that records use, so that answers compare alike online and offline.

    None for NaN, infinite numbers and halves of surrogate pairs: a model may write them, but no file or reply
    of a server can hold them.
    """
    try:
        text = canonical_json(data)
        text.encode()
    except ValueError:
        return None
    except TypeError as error:
        raise _make_unreadable_error(slot, data) from error
    return text


def _make_unreadable_error(slot: int, output: Any) -> DrawError:
    return DrawError(
        f"candidate {slot} is a {type(output).__name__}, which cannot be read as text: let the "
        "generator return a message, text or plain data"
    )


class Description:
    """Calls the answer extractor and the metadata function, in the same way online and offline.

    Args:
        answer: Text to extracted answer; None if the text itself is the answer.
        metadata: Prompt to metadata; None if there is no metadata function.

    Attributes:
        has_extractor: Whether there is an answer extractor.
    """

    def __init__(self, answer: Target | None, metadata: Target | None) -> None:
        for name, one in (("answer", answer), ("metadata", metadata)):
            if one is not None and not isinstance(one, Runnable) and not callable(one):
                msg = f"{name} is {short_repr(one)}; expected a function or a Runnable"
                raise DescriptionError(msg)
        # A plain function takes less time than starting a thread for each text.
        self._is_plain = not (answer is None or isinstance(answer, Runnable) or is_async_callable(answer))
        extract = partial(_map_texts, answer) if self._is_plain else answer
        self._extract = None if extract is None else Call("answer extractor", extract, DescriptionError)
        self._describe = None if metadata is None else Call("metadata function", metadata, DescriptionError)
        self.has_extractor = answer is not None

    def extract_answers(
        self, draws: Sequence[DrawnCandidate], config: RunnableConfig, known: dict[str, str] | None = None
    ) -> Steps[list[str]]:
        """Return the answer of each candidate; equal texts are extracted once, and no answer has none.

        `known` maps texts to answers from earlier calls; new answers are added to it.

        Raises:
            DescriptionError: If the extractor fails, or returns anything but text.
        """
        texts = [one.text for one in draws]
        if self._extract is None:
            return texts
        known = {} if known is None else known
        known[""] = ""  # what is no answer
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            invoke = self._extract.invoke_one if self._is_plain else self._extract.invoke_each
            answers = yield from invoke(new, add_tags(config, "cfc:answer"))
            for text, answer in zip(new, answers, strict=True):
                if not isinstance(answer, str):
                    msg = (
                        f"the answer extractor returned a {type(answer).__name__} for candidate "
                        f"{texts.index(text)}; expected text, empty if there is no answer"
                    )
                    raise DescriptionError(msg)
                known[text] = answer
        return [known[text] for text in texts]

    def describe_prompt(self, prompt: Any, config: RunnableConfig) -> Steps[Mapping[str, Scalar]]:
        """Return a prompt's metadata (texts, numbers and booleans by name); empty without a function for it.

        Raises:
            DescriptionError: If the function fails, or returns anything else.
        """
        if self._describe is None:
            return {}
        metadata = yield from self._describe.invoke_one(prompt, add_tags(config, "cfc:metadata"))
        if isinstance(metadata, Mapping) and all(
            isinstance(key, str) and _is_scalar(value) for key, value in metadata.items()
        ):
            return metadata
        msg = (
            f"the metadata function returned {metadata!r:.80}; expected a mapping to text, finite numbers or "
            "booleans"
        )
        raise DescriptionError(msg)


def _map_texts(function: Any, texts: Sequence[str]) -> list[Any]:
    return list(map(function, texts))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))

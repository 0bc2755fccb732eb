"""`DrawnCandidate`: one output of a generator. `Description`: answer extractor and metadata function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig

from langchain_cfc._internal.metadata import Scalar
from langchain_cfc._internal.serialization import canonical_json
from langchain_cfc.errors import CollectionError, DescriptionError, DrawError
from langchain_cfc.execution import Call, Steps, Target, add_tags

_MEDIA = {"image", "audio", "video", "file", "text-plain"}


@dataclass(frozen=True)
class DrawnCandidate:
    """One output of a generator, with its raw message.

    Attributes:
        text: The visible text; canonical JSON of `data` if the candidate is structured or calls tools, empty
            if the provider marks the message as a refusal.
        message: The chat message, if the generator returned one.
        data: Structured output, or a message's text and tool calls, as a JSON object; records store it as
            `message`. None if the candidate is text.
    """

    text: str
    message: BaseMessage | None = None
    data: dict[str, Any] | None = None


class StrippedCandidate(DrawnCandidate):
    """A stored candidate whose message was removed; reading `message` raises an error."""

    def __init__(self, text: str, data: dict[str, Any] | None = None) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "data", data)

    @property
    def message(self) -> BaseMessage | None:
        """Raise a `CollectionError`, because the message is gone."""
        msg = (
            f"the message of the candidate {self.text!r:.80} was removed from the store when its prompt was "
            "labelled; only its text and data were kept. Label by these, or collect into another store with "
            "keep_payloads (--keep-payloads)"
        )
        raise CollectionError(msg)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(text={self.text!r}, data={self.data!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StrippedCandidate):
            return NotImplemented
        return (self.text, self.data) == (other.text, other.data)

    __hash__ = None  # type: ignore[assignment]  # as of any candidate with data


def make_candidate(slot: int, output: Any) -> DrawnCandidate:
    """Read a generator's output (message, text, pydantic object, dataclass or plain data) as a candidate.

    Raises:
        DrawError: If it cannot be read as text; the message names the request slot.
    """
    if isinstance(output, BaseMessage):
        if isinstance(output, AIMessage) and (output.tool_calls or output.invalid_tool_calls):
            data = _read_tool_calls(output)
            return DrawnCandidate(_to_json(slot, data), output, data)
        return DrawnCandidate(_read_text(slot, output), output)
    if isinstance(output, str):
        return DrawnCandidate(output)
    if output is None:
        msg = f"candidate {slot} is None: the generator returned nothing, for example because a parser failed"
        raise DrawError(msg)
    if is_dataclass(output) and not isinstance(output, type):
        output = asdict(output)
    elif hasattr(output, "model_dump"):
        try:
            output = output.model_dump(mode="json")
        except (TypeError, ValueError) as error:
            raise _make_unreadable_error(slot, output) from error
    return DrawnCandidate(_to_json(slot, output), None, output if isinstance(output, dict) else None)


def _read_text(slot: int, message: BaseMessage) -> str:
    """Return a message's text; refuse one that is empty because the message holds something else."""
    content = message.content
    blocks = [] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]
    # The two marks are those of OpenAI's two interfaces.
    if message.additional_kwargs.get("refusal") or "refusal" in [block.get("type") for block in blocks]:
        # Refusals are blank in calibration and serving alike, so set rules never admit them.
        return ""
    text = str(message.text)
    media = [] if text else [block["type"] for block in message.content_blocks if block["type"] in _MEDIA]
    if media:
        msg = (
            f"candidate {slot} is a message of {', '.join(media)} without text, and all such candidates "
            "would count as the same answer: let the generator return text or plain data"
        )
        raise DrawError(msg)
    return text


def _read_tool_calls(message: AIMessage) -> dict[str, Any]:
    """Return the text and tool calls of a message as plain data.

    Call ids are left out: they are random, and equal calls must count as equal answers.
    """
    data: dict[str, Any] = {"content": str(message.text), "tool_calls": _remove_ids(message.tool_calls)}
    if message.invalid_tool_calls:
        data["invalid_tool_calls"] = _remove_ids(message.invalid_tool_calls)
    return data


def _remove_ids(calls: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": call["name"], "args": call["args"]} for call in calls]


def _to_json(slot: int, data: Any) -> str:
    """Return JSON in the form that records use, so that answers compare alike online and offline."""
    try:
        return canonical_json(data)
    except (TypeError, ValueError) as error:
        raise _make_unreadable_error(slot, data) from error


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
        self._extract = None if answer is None else Call("answer extractor", answer, DescriptionError)
        self._describe = None if metadata is None else Call("metadata function", metadata, DescriptionError)
        self.has_extractor = answer is not None

    def extract_answers(
        self, draws: Sequence[DrawnCandidate], config: RunnableConfig, known: dict[str, str] | None = None
    ) -> Steps[list[str]]:
        """Return the answer of each candidate; equal texts are extracted once.

        `known` maps texts to answers from earlier calls; new answers are added to it.

        Raises:
            DescriptionError: If the extractor fails, or returns anything but text.
        """
        texts = [one.text for one in draws]
        if self._extract is None:
            return texts
        known = {} if known is None else known
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            answers = yield from self._extract.invoke_in_turn(new, add_tags(config, "cfc:answer"))
            for text, answer in zip(new, answers, strict=True):
                known[text] = _check_answer(texts.index(text), answer)
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


def _check_answer(slot: int, answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = (
        f"the answer extractor returned a {type(answer).__name__} for candidate {slot}; expected text, "
        "empty if there is no answer"
    )
    raise DescriptionError(msg)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))

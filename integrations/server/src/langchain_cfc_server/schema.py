"""The shapes of requests and responses: the part of OpenAI's API that is spoken, and the fields beyond it.

Requests are checked against these. Responses are made as plain data, and described by these for clients and
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from langchain_cfc import Guarantee
from langchain_cfc.decision import Reason

# A body of the largest size that is all messages would cost a second to read.
MOST_MESSAGES = 2000
# Each would make the model another one than was calibrated.
SAMPLING_PARAMETERS = frozenset(
    {
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "modalities",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "reasoning_effort",
        "seed",
        "stop",
        "temperature",
        "top_logprobs",
        "top_p",
        "verbosity",
        "web_search_options",
    }
)
# What makes candidates structured, and what stands for none of it: a request may repeat what the model was
# calibrated with.
STRUCTURE_PARAMETERS: Mapping[str, Any] = {
    "tools": None,
    "tool_choice": "auto",
    "response_format": {"type": "text"},
}
Nothing: TypeAlias = None


class StrictRequest(BaseModel):
    """A part of a request, in which unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class TextPart(StrictRequest):
    """A piece of text in a message."""

    type: Literal["text"]
    text: str


# Lists stop at their first fault: a megabyte of faults would be a million reasons.
TextParts: TypeAlias = Annotated[list[TextPart], Field(fail_fast=True)]


class ImageUrl(StrictRequest):
    """Where an image is: an address, or the image itself as a `data:` URL."""

    url: str = Field(pattern=r"^(https?://|data:image/)")
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(StrictRequest):
    """An image as a part of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part: TypeAlias = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class FunctionCall(StrictRequest):
    """What a tool was called with."""

    name: str = Field(min_length=1)
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(StrictRequest):
    """A call of a tool by the model."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(StrictRequest):
    """Instructions that the model gets before the conversation."""

    role: Literal["system", "developer"]
    content: str | TextParts
    name: str | None = None


class UserMessage(StrictRequest):
    """A message of the user: the prompt."""

    role: Literal["user"]
    content: str | Annotated[list[Part], Field(fail_fast=True)]
    name: str | None = None


class AssistantMessage(StrictRequest):
    """What was answered before. Clients send back whole messages, so fields that may be empty are known."""

    role: Literal["assistant"]
    content: str | TextParts | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    refusal: None = None
    annotations: Annotated[list[Nothing], Field(fail_fast=True)] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None


class ToolMessage(StrictRequest):
    """The result that a tool call returned."""

    role: Literal["tool"]
    content: str | TextParts
    tool_call_id: str = Field(min_length=1)
    name: str | None = None


Message: TypeAlias = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class StreamOptions(StrictRequest):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CFCOptions(StrictRequest):
    """What this server takes beyond OpenAI's API."""

    # No exponents: a level of a million decimals is a short text with one.
    alpha: (
        Annotated[str, Field(pattern=r"^0?\.[0-9]{1,12}$")] | Annotated[float, Field(gt=0, lt=1)] | None
    ) = Field(default=None, description="Error level, one of those that the model was calibrated at.")
    claims: bool = Field(
        default=False, description="Whether the decision lists the claims of the answer, kept or dropped."
    )


_REPEATED = "What the model was calibrated with, or left out: another one is refused."


class ChatRequest(StrictRequest):
    """A request: a conversation to be answered."""

    model: str = Field(min_length=1)
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, description=_REPEATED)
    tool_choice: str | dict[str, Any] | None = Field(default=None, description=_REPEATED)
    response_format: dict[str, Any] | None = Field(default=None, description=_REPEATED)
    cfc: CFCOptions | None = None
    # Known, and without any effect here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScoredClaim(_Response):
    """One claim of an answer; the text of a dropped one is null unless the operator shows them."""

    start: int
    end: int
    score: float
    kept: bool
    text: str | None


class Decision(_Response):
    """What was decided, without the candidates; with the claims of the answer where they were asked for."""

    abstained: bool
    reason: Reason
    answers: list[str]
    best: str | None
    threshold: float | Literal["inf", "-inf"]
    unknown_categories: list[str]
    guarantee: Guarantee
    models: list[str]
    usage: dict[str, Any] | None
    claims: list[ScoredClaim] | None = None


class Unguaranteed(_Response):
    """What a fallback answered: nothing is promised about it."""

    guarantee: None


class AnswerMessage(_Response):
    """The best answer, or the abstention in words."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = Field(default=[], min_length=1)


class Choice(_Response):
    """The one choice that a response holds."""

    index: Literal[0]
    message: AnswerMessage
    logprobs: None
    finish_reason: Literal["stop", "tool_calls"]


class Usage(_Response):
    """Tokens that all draws cost together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(_Response):
    """The decision about one prompt; without `usage` where no model reports what it used."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[Choice], Field(min_length=1, max_length=1)]
    cfc: Decision | Unguaranteed
    usage: Usage | None = None


class ToolCallDelta(ToolCall):
    """A whole tool call, for nothing is sent in pieces."""

    index: int


class Delta(_Response):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    tool_calls: list[ToolCallDelta] = []


class ChunkChoice(_Response):
    """The one choice that a response holds."""

    index: Literal[0]
    delta: Delta
    logprobs: None
    finish_reason: Literal["stop", "tool_calls"] | None


class ChatCompletionChunk(_Response):
    """An event of a stream: the role, the content, the end with the decision, and usage if wanted."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: Annotated[list[ChunkChoice], Field(max_length=1)]
    cfc: Decision | Unguaranteed | None = None
    usage: Usage | None = None


class ModelEntry(_Response):
    """A model that can be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    cfc: ModelCalibration | None


class ModelCalibration(_Response):
    """What a model was calibrated for; `draws` is the rule that stops drawing before n candidates, if any."""

    artifact: str
    n: int
    draws: str | None = None
    levels: list[str]


class ModelList(_Response):
    """All models that can be asked."""

    object: Literal["list"]
    data: list[ModelEntry]


class ErrorBody(_Response):
    """What went wrong, for programs and people."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(_Response):
    """A request that got no answer."""

    error: ErrorBody


class Health(_Response):
    """The state that the server is in."""

    status: Literal["live", "stalled", "ready", "starting", "draining"]

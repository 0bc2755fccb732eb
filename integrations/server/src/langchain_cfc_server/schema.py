"""Schemas of requests and responses: the supported part of OpenAI's API, and additional fields.

Requests are validated against them. Responses are built as plain data; what they hold beyond OpenAI's API is
described here for clients.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from langchain_cfc import Guarantee
from langchain_cfc.decision import Reason
from langchain_cfc.no_answers import Unscored

# Without this limit, parsing a body of maximum size that consists of tiny messages would take a second.
MOST_MESSAGES = 2000
Nothing: TypeAlias = None


class StrictRequest(BaseModel):
    """Base of all parts of a request; unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Part(StrictRequest):
    """Base of messages and their parts, on which clients mark what a provider may cache."""

    cache_control: dict[str, Any] | None = Field(default=None, exclude=True)
    prompt_cache_breakpoint: Any = Field(default=None, exclude=True)


class TextPart(Part):
    """A piece of text in a message."""

    type: Literal["text"]
    text: str


# Validation of lists stops at the first error, because a large body could cause a million of them.
TextParts: TypeAlias = Annotated[list[TextPart], Field(fail_fast=True)]


class ImageUrl(StrictRequest):
    """The location of an image: a web address, or the image itself as a `data:` URL."""

    url: str = Field(pattern=r"^(https?://|data:image/)")
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Part):
    """An image as a part of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


AnyPart: TypeAlias = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class FunctionCall(StrictRequest):
    """The tool that was called, and its arguments."""

    name: str = Field(min_length=1)
    arguments: str = Field(description="A JSON object, as text.")


class ToolCall(StrictRequest):
    """A call of a tool by the model."""

    id: str = Field(min_length=1)
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(Part):
    """Instructions that the model gets before the conversation."""

    role: Literal["system", "developer"]
    content: str | TextParts
    name: str | None = None


class UserMessage(Part):
    """A message of the user: the prompt."""

    role: Literal["user"]
    content: str | Annotated[list[AnyPart], Field(fail_fast=True)]
    name: str | None = None


class AssistantMessage(Part):
    """An earlier answer. Clients send back whole messages, so fields without effect are accepted if empty."""

    role: Literal["assistant"]
    content: str | TextParts | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    refusal: None = None
    annotations: Annotated[list[Nothing], Field(fail_fast=True)] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None


class ToolMessage(Part):
    """The result that a tool call returned."""

    role: Literal["tool"]
    content: str | TextParts
    tool_call_id: str = Field(min_length=1)
    name: str | None = None


Message: TypeAlias = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class StreamOptions(StrictRequest):
    """Options for what a stream holds besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


# No exponents, by which a short text could state a level with a million decimals.
Level: TypeAlias = (
    Annotated[str, Field(pattern=r"^0?\.[0-9]{1,12}$")] | Annotated[float, Field(gt=0, lt=1)] | None
)


class CFCOptions(StrictRequest):
    """Options of this server beyond OpenAI's API."""

    alpha: Level = Field(
        default=None, description="Error level, one of those that the model was calibrated at."
    )
    max_wrong_rate: Level = Field(
        default=None, description="Rate of wrong answers, one of those that the model is certified for."
    )
    max_wrong_of_all: Level = Field(
        default=None, description="Rate of wrong answers among all questions, one that the model promises."
    )
    claims: bool = Field(
        default=False, description="Whether the decision lists the claims of the answer, kept or dropped."
    )

    @property
    def named_promise(self) -> dict[str, str | float]:
        """The promise that the request names, as an argument; empty if it names none."""
        return self.model_dump(exclude={"claims"}, exclude_none=True)


_REPEATED = "As calibrated, or left out; any other value is refused."


class GuardedRequest(StrictRequest):
    """What the requests of both endpoints have in common."""

    model: str = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cfc: CFCOptions | None = None
    # Accepted, but without effect here: what clients keep their books by, and how a provider works.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    chat_id: str | None = None
    session_id: str | None = None
    message_id: str | None = None
    parent_message_id: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    user_id: str | None = None
    id: str | None = None


# System messages alone ask nothing, which is checked once an operator's choice to leave them out was made.
_HAS_QUESTION: JsonDict = {
    "contains": {"properties": {"role": {"not": {"enum": ["system", "developer"]}}}, "required": ["role"]}
}


class ChatRequest(GuardedRequest):
    """A request: a conversation to be answered."""

    messages: list[Message] = Field(
        min_length=1, max_length=MOST_MESSAGES, fail_fast=True, json_schema_extra=_HAS_QUESTION
    )
    tools: list[dict[str, Any]] | None = Field(default=None, description=_REPEATED)
    tool_choice: str | dict[str, Any] | None = Field(default=None, description=_REPEATED)
    response_format: dict[str, Any] | None = Field(default=None, description=_REPEATED)


class InputText(Part):
    """A piece of text given to the model."""

    type: Literal["input_text"]
    text: str


class OutputText(StrictRequest):
    """A piece of text that the model wrote, as clients send it back."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Nothing], Field(fail_fast=True, max_length=0)] | None = None
    logprobs: Annotated[list[Nothing], Field(fail_fast=True, max_length=0)] | None = None


class InputMessage(Part):
    """A message of the user, or instructions for the model."""

    type: Literal["message"] | None = None
    role: Literal["user", "system", "developer"]
    content: str | Annotated[list[InputText], Field(fail_fast=True)]


class OutputMessage(Part):
    """An earlier answer. Clients send back whole messages, so fields without effect are accepted."""

    type: Literal["message"] | None = None
    role: Literal["assistant"]
    content: str | Annotated[list[OutputText], Field(fail_fast=True)]
    id: str | None = None
    status: Literal["completed"] | None = None
    phase: None = None


Item: TypeAlias = Annotated[InputMessage | OutputMessage, Field(discriminator="role")]


class ResponsesRequest(GuardedRequest):
    """A request: a text or a whole conversation to be answered, because the server stores nothing."""

    input: (
        str
        | Annotated[
            list[Item],
            Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True, json_schema_extra=_HAS_QUESTION),
        ]
    )
    instructions: str | None = None
    conversation: None = None
    previous_response_id: None = None
    prompt: None = None
    truncation: Literal["disabled"] | None = None


# The fields of messages, of any role, by the field of the request that holds the messages.
MESSAGE_FIELDS = {
    "messages": SystemMessage.model_fields | AssistantMessage.model_fields | ToolMessage.model_fields,
    "input": InputMessage.model_fields | OutputMessage.model_fields,
}


class StrictResponse(BaseModel):
    """Base of all parts of a response; it has no other fields than stated."""

    model_config = ConfigDict(extra="forbid")


class ScoredClaim(StrictResponse):
    """One claim of an answer; the text of a dropped claim is null unless the operator shows dropped text."""

    start: int
    end: int
    score: float
    kept: bool
    text: str | None


class Decision(StrictResponse):
    """The decision, without the candidates; with the claims of the answer if they were requested."""

    abstained: bool
    reason: Reason
    answers: list[str]
    best: str | None
    threshold: float | Literal["inf", "-inf"]
    unknown_categories: list[str]
    guarantee: Guarantee
    models: list[str]
    usage: dict[str, Any] | None
    unscored: dict[Unscored, int] | None
    claims: list[ScoredClaim] | None = None


class Unguaranteed(StrictResponse):
    """The answer of a fallback, for which there is no guarantee."""

    guarantee: None


class DecidedResponse(BaseModel):
    """The decision about one prompt, in a response in OpenAI's form, which OpenAI's reference describes."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["chat.completion", "response"]
    model: str
    cfc: Decision | Unguaranteed


class ModelEntry(StrictResponse):
    """A model that is served here."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    cfc: ModelCalibration | None


class ModelCalibration(StrictResponse):
    """A model's calibration; `draws` is the rule that may stop drawing before n candidates, if any.

    `ignored` are the fields of requests that the operator lets the server ignore.
    """

    artifact: str
    n: int
    draws: str | None = None
    levels: list[str]
    max_wrong_rates: list[str]
    max_wrong_of_all: list[str]
    ignored: list[str]


class ModelList(StrictResponse):
    """The list of all models that are served."""

    object: Literal["list"]
    data: list[ModelEntry]


class ErrorBody(StrictResponse):
    """The reason of an error, for programs and people."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(StrictResponse):
    """The response to a request that got no answer."""

    error: ErrorBody


class Health(StrictResponse):
    """The current state of the server."""

    status: Literal["live", "stalled", "ready", "draining"]

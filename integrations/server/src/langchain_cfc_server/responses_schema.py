"""Schemas of `POST /v1/responses`: the supported part of OpenAI's Responses API, text input only."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from langchain_cfc_server.schema import (
    MOST_MESSAGES,
    Decision,
    GuardedRequest,
    Nothing,
    Part,
    StrictRequest,
    StrictResponse,
    Unguaranteed,
)


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


class InputMessage(StrictRequest):
    """A message of the user, or instructions for the model."""

    type: Literal["message"] | None = None
    role: Literal["user", "system", "developer"]
    content: str | Annotated[list[InputText], Field(fail_fast=True)]


class OutputMessage(StrictRequest):
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

    input: str | Annotated[list[Item], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    conversation: None = None
    previous_response_id: None = None
    prompt: None = None
    truncation: Literal["disabled"] | None = None


class TextContent(StrictResponse):
    """The best answer, or the abstention message."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Nothing], Field(max_length=0)]


class MessageItem(StrictResponse):
    """The message with the best answer or the abstention."""

    id: str
    type: Literal["message"]
    status: Literal["completed"]
    role: Literal["assistant"]
    content: list[TextContent]


class CallItem(StrictResponse):
    """A tool call, if the best answer makes one."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed"]
    call_id: str
    name: str
    arguments: str


class TokenDetails(StrictResponse):
    """Token details, always 0 because they are not reported here."""

    cached_tokens: Literal[0] = 0
    reasoning_tokens: Literal[0] = 0


class ResponseUsage(StrictResponse):
    """Total number of tokens used by all draws."""

    input_tokens: int
    input_tokens_details: TokenDetails
    output_tokens: int
    output_tokens_details: TokenDetails
    total_tokens: int


class ResponseObject(StrictResponse):
    """The decision about one prompt; `usage` is null if no model reports it."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed"]
    model: str
    output: list[Annotated[MessageItem | CallItem, Field(discriminator="type")]]
    error: None
    incomplete_details: None
    instructions: str | None
    metadata: dict[str, Any]
    parallel_tool_calls: Literal[True]
    temperature: None
    tool_choice: Literal["auto"]
    tools: Annotated[list[Nothing], Field(max_length=0)]
    top_p: None
    usage: ResponseUsage | None
    cfc: Decision | Unguaranteed

"""`FinalAnswerMiddleware`: the agent's own model decides when to answer; another model gives the answer.

The agent's handler is called with its own model, without streaming. If that model wants to answer, the
handler is called again with the same messages and the answerer in place of the model. All changes that inner
middleware makes to messages and system prompt therefore apply to both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeAlias

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp

from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.execution import add_tags, set_context_variable
from langchain_cfc.extend import read_usage, sum_usage, withhold_quotes
from langchain_cfc.sampling import without_streaming_and_cache
from langchain_cfc_agents.actions import find_last

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any]

# Tag of runs whose answer is discarded unless it calls tools.
ROUTING_TAG = "cfc:routing"
# The request fields whose content the model is shown.
_SHOWN_FIELDS = {"messages", "system_message", "system_prompt", "state"}


class FinalAnswerMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Middleware by which another chat model gives the final answer of an agent.

    Args:
        answerer: The model that answers in place of the agent's model, given the same messages. Its messages
            hold the decision behind the answer in `response_metadata["cfc"]`.
    """

    def __init__(self, answerer: BaseChatModel) -> None:
        super().__init__()
        self.tools = []
        self._answerer = answerer

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Return tool calls of the agent's model, or the answerer's answer; see `AgentMiddleware`.

        Returns:
            The response of the agent's model if it calls tools; otherwise the answerer's response.

        Raises:
            InputError: If the agent is asked for structured output, or for anything else that cannot be
                guarded.
            ServingError: If there is no answer, or it does not come from the answerer.
        """
        self._check_request(request)
        with hide_messages():
            routed = handler(convert_request(_RoutingRequest, request))
        if _calls_tools(routed):
            return routed
        with refuse_interrupts(), withhold_quotes():
            return self._make_response(
                routed, handler(convert_request(_AnswerRequest, request, **self._make_overrides()))
            )

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Do the same as `wrap_model_call`, asynchronously."""
        self._check_request(request)
        with hide_messages():
            routed = await handler(convert_request(_RoutingRequest, request))
        if _calls_tools(routed):
            return routed
        with refuse_interrupts(), withhold_quotes():
            return self._make_response(
                routed, await handler(convert_request(_AnswerRequest, request, **self._make_overrides()))
            )

    def _check_request(self, request: Request) -> None:
        """Raise an error for a request that cannot be guarded, before any model is called."""

    def _make_overrides(self) -> dict[str, Any]:
        """Return the request fields that replace the model by the answerer, without tools or settings."""
        return {"model": self._answerer, "tools": [], "tool_choice": None, "model_settings": {}}

    def _make_response(self, routed: Response, answered: Response) -> Response:
        """Return the answerer's message, with the usage of the discarded answer in its metadata."""
        message = find_last(answered.result)
        decision = None if message is None else message.response_metadata.get("cfc")
        if message is None or not isinstance(decision, dict):
            msg = (
                f"{self.name}: inner middleware answered in place of the chain, so the answer has no "
                f"guarantee; put {self.name} after it in the list"
            )
            raise ServingError(msg)
        if message.tool_calls:
            called = ", ".join(call["name"] for call in message.tool_calls)
            msg = (
                f"{self.name}: the chain's best answer calls tools ({called}), but the agent wanted to "
                "answer. Bind no tools to the chain's generator, or tool_choice='none' if the provider "
                "requires them"
            )
            raise ServingError(msg)
        metadata = {**message.response_metadata, "cfc": {**decision, "routing": _describe_cost(routed)}}
        return ModelResponse(result=[message.model_copy(update={"response_metadata": metadata})])


class SilentRequest(ModelRequest[Any]):
    """A request whose model never streams, even if inner middleware replaces the model.

    Attributes:
        fresh: Whether the model draws candidates, so that caches are switched off as well.
    """

    fresh = True

    def __init__(self, **given: Any) -> None:
        # Since LangChain 1.5, the base class's `__init__` bypasses `__setattr__`.
        super().__init__(**{name: self._prepare_field(name, value) for name, value in given.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; a model is replaced by a copy that does not stream."""
        super().__setattr__(name, self._prepare_field(name, value))

    @classmethod
    def _prepare_field(cls, name: str, value: Any) -> Any:
        """Return a copy of a model that does not stream, and other fields unchanged."""
        return without_streaming_and_cache(value, fresh=cls.fresh) if name == "model" else value


class _RoutingRequest(SilentRequest):
    """A request for the message that shows whether the agent wants to answer."""

    fresh = False

    @classmethod
    def _prepare_field(cls, name: str, value: Any) -> Any:
        """Do the same; raise an `InputError` if the field asks for structured output."""
        if name == "response_format" and value is not None:
            msg = (
                "the agent has a response_format: structured output ends its run with a tool call or a "
                "parsed form, and neither is guarded. Leave it out, and let the chain's generator make the "
                "structured output"
            )
            raise InputError(msg)
        return super()._prepare_field(name, value)


class _AnswerRequest(ModelRequest[Any]):
    """A request for the answerer; inner middleware may change only what the model is shown."""

    def override(self, **overrides: Any) -> Request:
        """Return a copy with other messages or system prompt; all other changes are ignored."""
        shown: Any = {name: value for name, value in overrides.items() if name in _SHOWN_FIELDS}
        return super().override(**shown)


def convert_request(kind: type[Request], request: Request, **changes: Any) -> Request:
    """Return a request of another class, with changes to its fields."""
    made_of = {field.name: getattr(request, field.name) for field in fields(request)}
    return kind(**{**made_of, **changes})


@contextmanager
def hide_messages() -> Iterator[None]:
    """Keep whole messages of models out of LangGraph's streams (models that do not stream emit no chunks)."""
    with set_context_variable(
        var_child_runnable_config, add_tags(ensure_config(), TAG_NOSTREAM, ROUTING_TAG)
    ):
        yield


def _calls_tools(response: Response) -> bool:
    """Return whether the agent's graph goes on to call tools; invalid tool calls do not count."""
    message = find_last(response.result)
    return message is not None and bool(message.tool_calls)


def _describe_cost(routed: Response) -> dict[str, Any]:
    """Return the models and the usage of the discarded answer, without its text."""
    thrown = [message for message in routed.result if isinstance(message, AIMessage)]
    names = [message.response_metadata.get("model_name") for message in thrown]
    usage = sum_usage(read_usage(message.usage_metadata) for message in thrown)
    return {"models": [name for name in names if name], "usage": usage}


@contextmanager
def refuse_interrupts() -> Iterator[None]:
    """Convert interrupts to errors: a resumed step starts from the beginning and would draw again."""
    try:
        yield
    except GraphBubbleUp as interrupt:
        msg = (
            "a part interrupted the agent's graph between the first draw and the decision. After a resume it "
            "would draw again, and no guarantee covers the best of several draws: decide first, then ask a "
            "person"
        )
        raise ServingError(msg) from interrupt

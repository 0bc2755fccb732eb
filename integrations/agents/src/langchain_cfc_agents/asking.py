"""`FinalAnswerMiddleware`: the agent's own model decides whether to go on; another one ends the run.

The agent's handler is called twice with the same messages: for its own model, without streaming, and, where
that one wants to answer, for the answerer in its place. So every change that inner middleware makes to
messages and system prompt holds for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeAlias

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp

from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.extend import add_tags, redact_errors, set_context_variable, without_streaming_and_cache

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any]

# Runs whose answer is discarded, unless it calls tools.
ROUTING_TAG = "cfc:routing"
# The fields of a request that the model is shown.
_SHOWN = {"messages", "system_message", "system_prompt", "state"}


class FinalAnswerMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Lets another chat model give the final answer of an agent.

    Args:
        answerer: Asked in the place of the agent's model, with the messages that this one was shown. The
            decision behind its answer is in `response_metadata["cfc"]`.
    """

    def __init__(self, answerer: BaseChatModel) -> None:
        super().__init__()
        self.tools = []
        self._answerer = answerer

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Ask the agent's model whether it calls tools; see `AgentMiddleware.wrap_model_call`.

        Returns:
            Its own response if it calls tools; else that of the answerer.

        Raises:
            InputError: If the agent is asked for structured output, or for anything else that cannot be
                guarded.
            ServingError: If there is no answer, or it is not the answerer's.
        """
        self._check(request)
        with _hide_messages():
            routed = handler(_convert(_RoutingRequest, request))
        if _calls_tools(routed):
            return routed
        with _refuse_interrupts(), redact_errors():
            return self._make_response(
                routed, handler(_convert(_AnswerRequest, request, **self._make_overrides()))
            )

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Do the same as `wrap_model_call`, asynchronously."""
        self._check(request)
        with _hide_messages():
            routed = await handler(_convert(_RoutingRequest, request))
        if _calls_tools(routed):
            return routed
        with _refuse_interrupts(), redact_errors():
            return self._make_response(
                routed, await handler(_convert(_AnswerRequest, request, **self._make_overrides()))
            )

    def _check(self, request: Request) -> None:
        """Refuse a request that cannot be guarded, before anything is asked."""

    def _make_overrides(self) -> dict[str, Any]:
        """Return the changes that put the answerer, without tools and settings, into a request."""
        return {"model": self._answerer, "tools": [], "tool_choice": None, "model_settings": {}}

    def _make_response(self, routed: Response, answered: Response) -> Response:
        """Return the answerer's message, with the cost of the discarded answer."""
        message = _find_last(answered)
        decision = None if message is None else message.response_metadata.get("cfc")
        if message is None or not isinstance(decision, dict):
            msg = (
                f"{self.name}: middleware further in answered where the chain was asked, so nothing stands "
                f"behind what it says; put {self.name} after it in the list"
            )
            raise ServingError(msg)
        if message.tool_calls:
            called = ", ".join(call["name"] for call in message.tool_calls)
            msg = (
                f"{self.name}: the chain's best answer calls tools ({called}) where the agent wanted to "
                "answer. Let its generator call none: give it no tools, or tool_choice='none' where a "
                "provider wants them named"
            )
            raise ServingError(msg)
        metadata = {**message.response_metadata, "cfc": {**decision, "routing": _describe_cost(routed)}}
        return ModelResponse(result=[message.model_copy(update={"response_metadata": metadata})])


class _RoutingRequest(ModelRequest[Any]):
    """A request for the agent's model without streaming; also for any model that inner middleware chooses."""

    def __init__(self, **given: Any) -> None:
        # From LangChain 1.5 on its `__init__` sets fields past `__setattr__`.
        super().__init__(**{name: _prepare_field(name, value) for name, value in given.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; a model is replaced by one that neither streams nor caches."""
        super().__setattr__(name, _prepare_field(name, value))


def _prepare_field(name: str, value: Any) -> Any:
    """Return a model that neither streams nor caches, and other fields as they are.

    Raises:
        InputError: If the field asks for structured output.
    """
    if name == "response_format" and value is not None:
        msg = (
            "the agent has a response_format: structured output ends its run by a call of a tool, or in "
            "a form that is parsed, and neither is guarded. Leave it out, and let the chain's generator "
            "make the structured output"
        )
        raise InputError(msg)
    return without_streaming_and_cache(value, fresh=False) if name == "model" else value


class _AnswerRequest(ModelRequest[Any]):
    """A request for the answerer; inner middleware may change only what the model is shown."""

    def override(self, **overrides: Any) -> Request:
        """Return the same request of the same model, with other messages."""
        shown: Any = {name: value for name, value in overrides.items() if name in _SHOWN}
        return super().override(**shown)


def _convert(kind: type[Request], request: Request, **changes: Any) -> Request:
    made_of = {field.name: getattr(request, field.name) for field in fields(request)}
    return kind(**{**made_of, **changes})


@contextmanager
def _hide_messages() -> Iterator[None]:
    """Keep whole messages of any model out of LangGraph's streams; without streaming there are no chunks."""
    with set_context_variable(
        var_child_runnable_config, add_tags(ensure_config(), TAG_NOSTREAM, ROUTING_TAG)
    ):
        yield


def _find_last(response: Response) -> AIMessage | None:
    messages = [message for message in response.result if isinstance(message, AIMessage)]
    return messages[-1] if messages else None


def _calls_tools(response: Response) -> bool:
    """Whether the agent goes on, as its graph sees it: calls that cannot be read do not count."""
    message = _find_last(response)
    return message is not None and bool(message.tool_calls)


def _describe_cost(routed: Response) -> dict[str, Any]:
    """Describe the discarded answer: its models and its usage, and none of its text."""
    thrown = [message for message in routed.result if isinstance(message, AIMessage)]
    names = [message.response_metadata.get("model_name") for message in thrown]
    taken: UsageMetadata | None = None
    for message in thrown:
        taken = add_usage(taken, message.usage_metadata) if message.usage_metadata else taken
    return {"models": [name for name in names if name], "usage": None if taken is None else dict(taken)}


@contextmanager
def _refuse_interrupts() -> Iterator[None]:
    """Refuse interrupts: a resumed step starts again, and would draw other candidates."""
    try:
        yield
    except GraphBubbleUp as interrupt:
        msg = (
            "the chain interrupted the agent's graph while it answered. Resumed, it would draw again, and no "
            "promise holds for the best of several draws: let the agent end with the abstention, and ask a "
            "person after that"
        )
        raise ServingError(msg) from interrupt

"""`EndedBy`: the agent's own model decides whether to go on; somebody else says what ends the run.

The agent's machinery is asked twice with the same messages: for its own model, kept quiet, and, where that
one wants to answer, for somebody else in its place. So whatever middleware further in does to messages and
system prompt holds for both.
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

# Runs whose answer is thrown away, unless it calls tools.
ROUTING_TAG = "cfc:routing"
# What of a request the model is shown.
_SHOWN = {"messages", "system_message", "system_prompt", "state"}


class EndedBy(AgentMiddleware[AgentState[Any], Any, Any]):
    """Lets a chat model say what ends the agent's run.

    Args:
        answerer: Asked in the place of the agent's model, with the messages that this one was shown. What
            stands behind its answer it leaves in `response_metadata["cfc"]`.
    """

    def __init__(self, answerer: BaseChatModel) -> None:
        super().__init__()
        self.tools = []
        self._answerer = answerer

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Ask the agent's model whether it calls tools; see `AgentMiddleware.wrap_model_call`.

        Returns:
            Its very response if it calls tools; else what the answerer says.

        Raises:
            InputError: If the agent is asked for structured output, or for what else cannot be guarded.
            ServingError: If nothing can be said, or somebody else said it.
        """
        self._check(request)
        with _unheard():
            routed = handler(_as(_Routing, request))
        if _goes_on(routed):
            return routed
        with _never_again(), redact_errors():
            return self._ended(routed, handler(_as(_Answering, request, **self._asked())))

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """The same as `wrap_model_call`, asynchronously."""
        self._check(request)
        with _unheard():
            routed = await handler(_as(_Routing, request))
        if _goes_on(routed):
            return routed
        with _never_again(), redact_errors():
            return self._ended(routed, await handler(_as(_Answering, request, **self._asked())))

    def _check(self, request: Request) -> None:
        """Refuse a request that cannot be guarded, before anything is asked."""

    def _asked(self) -> dict[str, Any]:
        """Whom to ask, who has tools and settings of his own."""
        return {"model": self._answerer, "tools": [], "tool_choice": None, "model_settings": {}}

    def _ended(self, routed: Response, answered: Response) -> Response:
        """The answerer's message, with what the answer cost that was thrown away."""
        message = _last(answered)
        said = None if message is None else message.response_metadata.get("cfc")
        if message is None or not isinstance(said, dict):
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
        noted = {**message.response_metadata, "cfc": {**said, "routing": _cost(routed)}}
        return ModelResponse(result=[message.model_copy(update={"response_metadata": noted})])


class _Routing(ModelRequest[Any]):
    """A request for the agent's model, kept quiet; so is any that middleware further in puts in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the request is made of, and made anew of."""
        if name == "response_format" and value is not None:
            msg = (
                "the agent has a response_format: structured output ends its run by a call of a tool, or in "
                "a form that is parsed, and neither is guarded. Leave it out, and let the chain's generator "
                "make the structured output"
            )
            raise InputError(msg)
        super().__setattr__(
            name, without_streaming_and_cache(value, fresh=False) if name == "model" else value
        )


class _Answering(ModelRequest[Any]):
    """A request for somebody else; of what middleware further in changes, what is shown counts."""

    def override(self, **overrides: Any) -> Request:
        """The same request of the same model, shown something else."""
        shown: Any = {name: value for name, value in overrides.items() if name in _SHOWN}
        return super().override(**shown)


def _as(kind: type[Request], request: Request, **changes: Any) -> Request:
    made_of = {field.name: getattr(request, field.name) for field in fields(request)}
    return kind(**{**made_of, **changes})


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep whole messages out of LangGraph's streams, whatever model says them; quiet ones have no pieces."""
    with set_context_variable(
        var_child_runnable_config, add_tags(ensure_config(), TAG_NOSTREAM, ROUTING_TAG)
    ):
        yield


def _last(response: Response) -> AIMessage | None:
    said = [message for message in response.result if isinstance(message, AIMessage)]
    return said[-1] if said else None


def _goes_on(response: Response) -> bool:
    """Whether the agent goes on, as its graph sees it: calls that cannot be read are none."""
    message = _last(response)
    return message is not None and bool(message.tool_calls)


def _cost(routed: Response) -> dict[str, Any]:
    """What was thrown away: who said it, and what it took; nothing of what it said."""
    thrown = [message for message in routed.result if isinstance(message, AIMessage)]
    names = [message.response_metadata.get("model_name") for message in thrown]
    taken: UsageMetadata | None = None
    for message in thrown:
        taken = add_usage(taken, message.usage_metadata) if message.usage_metadata else taken
    return {"models": [name for name in names if name], "usage": None if taken is None else dict(taken)}


@contextmanager
def _never_again() -> Iterator[None]:
    """Refuse to be interrupted: a step that is resumed starts anew, and would draw other candidates."""
    try:
        yield
    except GraphBubbleUp as interrupt:
        msg = (
            "the chain interrupted the agent's graph while it answered. Resumed, it would draw anew, and no "
            "promise holds for the best of several draws: let the agent end with the abstention, and ask a "
            "person after that"
        )
        raise ServingError(msg) from interrupt

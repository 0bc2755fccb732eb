"""`GuardedAnswer`: middleware that replaces an agent's final answer by the decision of a chain."""

from __future__ import annotations

import hashlib
from typing import Any

from langchain.agents.middleware import AgentState, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool

from langchain_cfc import CFCChatModel, CFCRunnable
from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.runnable import ABSTAIN_MESSAGE
from langchain_cfc.sampling import walk_runnables
from langchain_cfc_agents.asking import FinalAnswerMiddleware, Request, Response
from langchain_cfc_agents.prompts import make_prompt_data

_DIGEST = "text_digest"


class GuardedAnswer(FinalAnswerMiddleware):
    """Guards the final answer of an agent: `create_agent(model, tools, middleware=[GuardedAnswer(chain)])`.

    The agent's own model is called as usual, but without streaming. If it calls tools, its message passes
    through unchanged. If it wants to answer, its answer is discarded, and the chain gets the messages that
    the model was shown, including the system prompt, in the form of `make_prompt_data`. The chain's decision
    ends the run: its best answer, or the abstention message, even if the chain has `on_abstain="raise"`.
    `response_metadata["cfc"]` holds the reason, the fields that identify the guarantee, and the models and
    usage of the discarded answer (`["cfc"]["routing"]`). The message streams as one chunk.

    What is promised: a prompt is the list of messages at which the agent wants to answer. The questions, the
    tools, and the model that decides when to call them and when to stop determine the distribution of
    prompts. All n candidates of the chain are drawn for the given prompt, and none is the discarded answer.
    The chain's guarantee therefore holds for prompts that arise in the same way as those it was calibrated
    on: record them with `RecordPrompt` and the same agent. Nothing is promised for questions on which the
    agent never tries to answer, and text next to tool calls is not guarded.

    Args:
        chain: A `CFCRunnable`, alone or within another runnable such as `chain.or_else(...)`, that takes
            messages in the form of `make_prompt_data`.
        abstain_message: The text of an abstention.
        strict: Whether a run that ends in another way is an error: by a tool that returns directly (refused
            before any model is called), by a call limit, or by middleware that changes the answer after the
            decision. If False, such a message passes unchanged; its `response_metadata["cfc"]`, if present,
            describes the chain's decision and not the changed message.
        full_result: Whether `response_metadata["cfc"]` holds the whole result, including the answer set.

    Raises:
        InputError: If no `CFCRunnable` can be found in the chain; when called, if the agent has a
            `response_format`, or with `strict` a tool that returns directly.
        ServingError: When called, if drawing, scoring or deciding fails, or with `strict` if something else
            ends the run.
    """

    def __init__(
        self,
        chain: Runnable[Any, Any],
        *,
        abstain_message: str = ABSTAIN_MESSAGE,
        strict: bool = True,
        full_result: bool = False,
    ) -> None:
        if not any(isinstance(part, CFCRunnable) for part in walk_runnables(chain)):
            msg = (
                f"found no CFCRunnable in this {type(chain).__name__}, so the agent's answers would have no "
                "guarantee"
            )
            raise InputError(msg)
        reading: Runnable[Any, Any] = RunnableLambda(make_prompt_data, name="prompt_data")
        # A raised abstention would make retrying middleware draw a second time, hence `on_abstain="return"`.
        super().__init__(
            CFCChatModel(
                chain=reading | chain,
                abstain_message=abstain_message,
                on_abstain="return",
                full_result=full_result,
            )
        )
        self._strict = strict

    def after_agent(self, state: AgentState[Any], runtime: Any) -> None:
        """Check that the run ends with the chain's decision.

        Raises:
            ServingError: If it does not and `strict` is set.
        """
        del runtime
        if self._strict and not self._is_decision(state["messages"][-1]):
            msg = (
                f"the agent's last message ({type(state['messages'][-1]).__name__}) is not what the chain "
                "decided: a tool or other middleware ended the run, or changed the answer. Remove that, or "
                f"allow it with {self.name}(..., strict=False)"
            )
            raise ServingError(msg)

    async def aafter_agent(self, state: AgentState[Any], runtime: Any) -> None:
        """Do the same as `after_agent`, asynchronously."""
        self.after_agent(state, runtime)

    def _make_response(self, routed: Response, answered: Response) -> Response:
        """Return the chain's message, with a digest of its text that `after_agent` checks."""
        (message,) = super()._make_response(routed, answered).result
        decision = {**message.response_metadata["cfc"], _DIGEST: _digest_text(message)}
        metadata = {**message.response_metadata, "cfc": decision}
        return ModelResponse(result=[message.model_copy(update={"response_metadata": metadata})])

    def _check_request(self, request: Request) -> None:
        direct = [tool.name for tool in request.tools if isinstance(tool, BaseTool) and tool.return_direct]
        if self._strict and direct:
            msg = (
                f"the tools {', '.join(direct)} would end the agent without the chain (return_direct). "
                f"Remove that, or allow it with {self.name}(..., strict=False)"
            )
            raise InputError(msg)

    def _is_decision(self, message: AnyMessage) -> bool:
        """Return whether a message is the chain's unchanged decision, or a fallback's answer."""
        decision = message.response_metadata.get("cfc") if isinstance(message, AIMessage) else None
        if not isinstance(decision, dict) or "guarantee" not in decision:
            return False
        if decision["guarantee"] is None:  # the answer of a fallback, without a guarantee
            return True
        return bool(decision.get(_DIGEST) == _digest_text(message))


def _digest_text(message: BaseMessage) -> str:
    """Return the SHA-256 of a message's text."""
    return "sha256:" + hashlib.sha256(str(message.text).encode("utf-8", "surrogatepass")).hexdigest()

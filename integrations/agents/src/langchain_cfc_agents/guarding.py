"""`GuardedAnswer`: an agent that answers only what its chain decided."""

from __future__ import annotations

import hashlib
from typing import Any

from langchain.agents.middleware import AgentState, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool

from langchain_cfc import CFCChatModel, CFCRunnable
from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.extend import walk_runnables
from langchain_cfc.runnable import ABSTAIN_MESSAGE
from langchain_cfc_agents.asking import FinalAnswerMiddleware, Request, Response
from langchain_cfc_agents.prompts import prompt_data

_DIGEST = "text_digest"


class GuardedAnswer(FinalAnswerMiddleware):
    """Guards the final answer of an agent: `create_agent(model, tools, middleware=[GuardedAnswer(chain)])`.

    The agent's own model is asked as ever, but its tokens are not streamed. If it calls tools, its
    message passes through as it is. If it wants to answer, that answer is discarded, and the chain gets the
    messages that the model was shown, system prompt included, as `prompt_data` writes them. What the chain
    decides ends the run: its best answer, or the abstention in words, also where the chain has
    `on_abstain="raise"`. `response_metadata["cfc"]` holds the reason and what identifies the guarantee, and
    next to them what the discarded answer cost (`["cfc"]["routing"]`). It streams as one chunk.

    What is promised: a prompt is the list of messages at which the agent wants to answer. Questions, tools,
    the model that calls them and its choice not to call another are how prompts come about; of the chain's n
    candidates none is the discarded answer, and all are drawn for the prompt as it stands. So the chain's
    guarantee holds over prompts that come about as those did that it was calibrated on: record them with
    `RecordPrompt` and the same agent. Nothing is promised for questions on which the agent never comes to an
    answer, and a text next to calls of tools is not guarded.

    Args:
        chain: A `CFCRunnable`, alone or within another runnable, such as `chain.or_else(...)`, which takes
            messages as `prompt_data` writes them.
        abstain_message: What is said on abstention.
        strict: Whether a run that ends in another way is an error: a tool that returns directly (refused
            before anything is asked), a limit of calls, or middleware that changes the answer after it was
            decided. If not, such a message passes as it is, and what `response_metadata["cfc"]` says, if it
            is there at all, is what the chain decided and not what was made of it.
        full_result: Whether `response_metadata["cfc"]` holds the whole result, the answer set included.

    Raises:
        InputError: If there is no `CFCRunnable` to be seen in the chain; when called, if the agent has a
            `response_format`, or a tool that returns directly.
        ServingError: When called, if nothing could be drawn, scored or decided, or something else ends the
            run.
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
                f"there is no CFCRunnable to be seen in this {type(chain).__name__}, so nothing would stand "
                "behind the agent's answers"
            )
            raise InputError(msg)
        reading: Runnable[Any, Any] = RunnableLambda(prompt_data)
        # Raised to middleware that asks again after errors, an abstention would lead to a second draw.
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
        """Check that the run ends with the decision of the chain.

        Raises:
            ServingError: If it does not.
        """
        del runtime
        if self._strict and not self._is_decision(state["messages"][-1]):
            msg = (
                f"the agent's last message ({type(state['messages'][-1]).__name__}) is not what the chain "
                "decided: a tool or other middleware ended the run, or changed the answer. Take that out, or "
                f"let it pass with {self.name}(..., strict=False)"
            )
            raise ServingError(msg)

    async def aafter_agent(self, state: AgentState[Any], runtime: Any) -> None:
        """Do the same as `after_agent`, asynchronously."""
        self.after_agent(state, runtime)

    def _make_response(self, routed: Response, answered: Response) -> Response:
        """Return the chain's message, with a digest by which `after_agent` recognises its text."""
        (message,) = super()._make_response(routed, answered).result
        decision = {**message.response_metadata["cfc"], _DIGEST: _digest_text(message)}
        metadata = {**message.response_metadata, "cfc": decision}
        return ModelResponse(result=[message.model_copy(update={"response_metadata": metadata})])

    def _check(self, request: Request) -> None:
        direct = [tool.name for tool in request.tools if isinstance(tool, BaseTool) and tool.return_direct]
        if self._strict and direct:
            msg = (
                f"what the tools {', '.join(direct)} return would end the agent without the chain "
                f"(return_direct). Leave that out, or let it pass with {self.name}(..., strict=False)"
            )
            raise InputError(msg)

    def _is_decision(self, message: AnyMessage) -> bool:
        """Whether a message is the decision of the chain."""
        decision = message.response_metadata.get("cfc") if isinstance(message, AIMessage) else None
        if not isinstance(decision, dict) or "guarantee" not in decision:
            return False
        if decision["guarantee"] is None:  # a fallback's, which has no guarantee
            return True
        return bool(decision.get(_DIGEST) == _digest_text(message))


def _digest_text(message: BaseMessage) -> str:
    """Return the SHA-256 of the text of a message."""
    return "sha256:" + hashlib.sha256(str(message.text).encode("utf-8", "surrogatepass")).hexdigest()

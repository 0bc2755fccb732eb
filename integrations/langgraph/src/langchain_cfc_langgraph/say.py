"""`say`: a node that adds the answer as a message, for states that hold a conversation."""

from __future__ import annotations

from typing import Any, Protocol

from langchain_core.messages import AIMessage

from langchain_cfc.runnable import ABSTAIN_MESSAGE
from langchain_cfc_langgraph.state import CFCState, read_decision


class SayNode(Protocol):
    """A node as LangGraph's types declare it, including the name of its argument."""

    def __call__(self, state: CFCState) -> dict[str, Any]:
        """Return the update with the new message."""


def say(*, abstain_message: str = ABSTAIN_MESSAGE) -> SayNode:
    """Return a node that adds one message to the state's `messages`.

    Args:
        abstain_message: The text of the message if there is no answer.

    Returns:
        The node, for `add_node`. The message's `response_metadata["cfc"]` holds the decision in the form of
        `CFCResult.to_message`; for a person's answer, the guarantee is None.
    """

    def add_message(state: CFCState) -> dict[str, Any]:
        answer = state.get("answer")
        if answer is None or answer["guarantee"] is not None:
            return {"messages": [read_decision(state).to_message(abstain_message)]}
        metadata = {"cfc": {"by": answer["by"], "name": answer["name"], "guarantee": None}}
        text = abstain_message if answer["text"] is None else answer["text"]
        return {"messages": [AIMessage(text, response_metadata=metadata)]}

    return add_message

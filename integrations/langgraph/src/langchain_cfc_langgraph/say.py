"""`say`: what was answered as a message, for states that hold a conversation."""

from __future__ import annotations

from typing import Any, Protocol

from langchain_core.messages import AIMessage

from langchain_cfc.runnable import ABSTAIN_MESSAGE
from langchain_cfc_langgraph.state import CFCState, decided


class Saying(Protocol):
    """A node as LangGraph declares it, by the name of its argument."""

    def __call__(self, state: CFCState) -> dict[str, Any]:
        """The message that the state is to be given."""


def say(*, abstain_message: str = ABSTAIN_MESSAGE) -> Saying:
    """A node that adds one message to the state's `messages`.

    Args:
        abstain_message: What is said where nobody knows.

    Returns:
        The node, for `add_node`. The message's `response_metadata["cfc"]` holds the decision, as `to_message`
        of a `CFCResult` writes it; for what anybody else says the guarantee is None.
    """

    def saying(state: CFCState) -> dict[str, Any]:
        answer = state.get("answer")
        if answer is None or answer["guarantee"] is not None:
            return {"messages": [decided(state).to_message(abstain_message)]}
        said = {"cfc": {"by": answer["by"], "name": answer["name"], "guarantee": None}}
        text = abstain_message if answer["text"] is None else answer["text"]
        return {"messages": [AIMessage(text, response_metadata=said)]}

    return saying

"""`ask_person`: a node that interrupts the graph and waits for a person's answer after an abstention."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context
from langgraph.types import interrupt

from langchain_cfc_langgraph.state import CFCAnswer, CFCState, read_decision, read_outcome

REPLY = (
    "Resume with the answer as text, or with a mapping: `answer` holds the text, or None if you do not know "
    "either; `by`, which is optional, your name."
)


def ask_person(state: CFCState, config: RunnableConfig) -> CFCState:
    """Wait for a person's answer; the graph needs a checkpointer.

    The interrupt's value is plain data without any candidate: `question`, `outcome`, `why` the chain
    abstained, what was `promised`, and how to `reply`. After an unusable reply, the graph interrupts again
    and gives the reason in `refused`.

    Args:
        state: The state after a node of `make_cfc_node` that abstained.
        config: The node's config.

    Returns:
        The update with the person's `answer`, whose guarantee is None.

    Raises:
        InputError: If the state holds no decision.
    """
    result = read_decision(state)
    asking = {
        "question": state.get("asked"),
        "outcome": read_outcome(state),
        "why": result.explain(),
        "promised": result.guarantee.sentence,
        "reply": REPLY,
    }
    # Before Python 3.11, async graphs do not pass on the context in which `interrupt` looks for the config.
    with set_config_context(config) as context:
        return {"answer": context.run(_await_reply, asking)}


def _await_reply(asking: dict[str, Any]) -> CFCAnswer:
    """Return the first usable reply; every unusable reply is followed by a new interrupt."""
    reply = interrupt(asking)
    while (refused := _find_problem(reply)) is not None:
        reply = interrupt({**asking, "refused": refused})
    return _make_answer(reply)


def _find_problem(reply: Any) -> str | None:
    """Return why a reply cannot be used; None if it can."""
    if isinstance(reply, str):
        return None if reply.strip() else "The answer is empty."
    if not isinstance(reply, dict):
        return f"The reply is of type {type(reply).__name__}; expected text or a mapping."
    if unknown := [repr(key) for key in reply if key not in {"answer", "by"}]:
        return f"The reply holds {', '.join(unknown)}; expected `answer` and optionally `by`."
    if "answer" not in reply:
        return "The reply holds no `answer`."
    return _find_text_problem("answer", reply["answer"]) or _find_text_problem("by", reply.get("by"))


def _find_text_problem(name: str, text: Any) -> str | None:
    if text is None or (isinstance(text, str) and text.strip()):
        return None
    found = "empty" if isinstance(text, str) else f"of type {type(text).__name__}"
    return f"`{name}` is {found}; expected text or None."


def _make_answer(reply: str | dict[str, str | None]) -> CFCAnswer:
    given = {"answer": reply} if isinstance(reply, str) else reply
    text = given["answer"]
    return CFCAnswer(
        text=text,
        answers=[] if text is None else [text],
        by="person",
        name=given.get("by"),
        guarantee=None,
    )

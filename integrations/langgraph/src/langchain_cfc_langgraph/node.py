"""`make_cfc_node`: a node that decides a question in the state. `make_say_node`: one that tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from langchain_core.messages import AIMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_cfc import CFCResult
from langchain_cfc.errors import AbstentionError, InputError
from langchain_cfc.extend import withhold_quotes
from langchain_cfc.runnable import ABSTAIN_MESSAGE
from langchain_cfc_langgraph.state import CFCAnswer, CFCState, read_decision

Question: TypeAlias = str | Callable[[Any], Any]
Update: TypeAlias = dict[str, Any]

_PROMISE_ARGUMENTS = ("alpha", "max_wrong_rate", "max_wrong_of_all")
_RESET: Update = dict.fromkeys((*_PROMISE_ARGUMENTS, "promise"))


def make_cfc_node(chain: Runnable[Any, Any], *, question: Question = "question") -> Runnable[Any, Update]:
    """Return a node that answers or abstains, in sync and async graphs.

    It reads the question and the promise, and writes `asked`, `decision` and `answer`; see `CFCState`. If the
    chain fails, the node raises and writes nothing. LangGraph puts error messages into checkpoints and
    streams, so they quote no candidate, whatever the chain's `show_rejected`; `__cause__` does. An
    abstention is not a failure: if the chain has `on_abstain="raise"`, it is still written as a decision.

    Args:
        chain: A `CFCRunnable`, or a runnable around one that returns a `CFCResult`, such as
            `chain.with_retry()`.
        question: The state's key for the question, or a function from the state to the chain's input, such as
            `lambda state: state["messages"][-1].text`.

    Returns:
        The node, for `add_node`.
    """

    def decide(state: Any, config: RunnableConfig) -> Update:
        prompt, asked, promise = _read_question(state, question)
        with withhold_quotes():
            try:
                result = chain.invoke(prompt, config, **promise)
            except AbstentionError as error:
                result = error.result
        return _make_update(asked, result)

    async def adecide(state: Any, config: RunnableConfig) -> Update:
        prompt, asked, promise = _read_question(state, question)
        with withhold_quotes():
            try:
                result = await chain.ainvoke(prompt, config, **promise)
            except AbstentionError as error:
                result = error.result
        return _make_update(asked, result)

    return RunnableLambda(decide, adecide, name="decide")


def clear_decision(state: CFCState) -> Update:
    """Return an update that clears the last decision, so that it never stands next to a new question.

    Args:
        state: The state with a new question.

    Returns:
        None for `asked`, `decision` and `answer`. What names the promise, such as `alpha`, is moved to
        `promise`, so that it does not apply to the next question even if this one fails.
    """
    return {**_RESET, "promise": _read_promise(state), "asked": None, "decision": None, "answer": None}


def _read_question(state: Any, question: Question) -> tuple[Any, Any, dict[str, Any]]:
    """Return the question, the question as plain data, and the promise as arguments of the chain."""
    prompt = question(state) if callable(question) else read_key(state, question)
    if prompt is None:
        where = "question= found nothing" if callable(question) else f"nothing under {question!r}"
        msg = f"there is no question in the state: {where}"
        raise InputError(msg)
    asked = to_plain(prompt)
    if read_key(state, "decision") is not None and read_key(state, "asked") == asked:
        msg = (
            "this question has been decided already: a second draw after the outcome is known has no "
            "guarantee. Ask a person, or, if the user asked again, put `clear_decision` first"
        )
        raise InputError(msg)
    return prompt, asked, read_key(state, "promise") or _read_promise(state)


def _read_promise(state: Any) -> dict[str, Any]:
    """Return what names the promise of the next decision, as arguments of the chain."""
    named = {name: read_key(state, name) for name in _PROMISE_ARGUMENTS}
    return {name: value for name, value in named.items() if value is not None}


def read_key(state: Any, key: str) -> Any:
    """Return the value under a key of a state, a mapping or an object; None if there is none."""
    return state.get(key) if isinstance(state, dict) else getattr(state, key, None)


def to_plain(prompt: Any) -> Any:
    """Return a question as plain data: text, JSON, or messages as roles and contents."""
    try:
        if not isinstance(prompt, (str, dict)):
            messages = (
                prompt.to_messages() if isinstance(prompt, PromptValue) else convert_to_messages(prompt)
            )
            prompt = convert_to_openai_messages(messages)
        json.dumps(prompt, allow_nan=False)
    except (TypeError, ValueError, NotImplementedError) as error:
        msg = (
            f"the question is a {type(prompt).__name__} that is not plain data: ask in text, JSON or messages"
        )
        raise InputError(msg) from error
    return prompt


def _make_update(asked: Any, result: Any) -> Update:
    """Return the update of the state; it resets the promise, which applied to this question only."""
    if not isinstance(result, CFCResult):
        msg = (
            f"the chain returned {type(result).__name__}; expected CFCResult. Pass the CFCRunnable itself: "
            "the graph's other nodes and edges decide what to say and whom to ask on abstention"
        )
        raise InputError(msg)
    decision = result.model_dump(mode="json")
    answer: CFCAnswer | None = None
    if not result.abstained:
        answer = CFCAnswer(
            text=result.best,
            answers=list(result.answers),
            by="model",
            name=None,
            guarantee=decision["guarantee"],
        )
    return {**_RESET, "asked": asked, "decision": decision, "answer": answer}


class SayNode(Protocol):
    """A node as LangGraph's types declare it, including the name of its argument."""

    def __call__(self, state: CFCState) -> dict[str, Any]:
        """Return the update with the new message."""


def make_say_node(*, abstain_message: str = ABSTAIN_MESSAGE) -> SayNode:
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

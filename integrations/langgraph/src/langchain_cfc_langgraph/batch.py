"""`make_batch_node`: a node that decides a list of questions in the state, together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_cfc import CFCRunnable
from langchain_cfc.errors import InputError
from langchain_cfc.extend import withhold_quotes
from langchain_cfc.runnable import BatchResult
from langchain_cfc_langgraph.node import Update, read_key, to_plain


def make_batch_node(
    chain: CFCRunnable, *, questions: str = "questions", max_wrong_share: str | float = 0.05
) -> Runnable[Any, Update]:
    """Return a node that answers a list of questions with few wrong answers on average; see `answer_batch`.

    It reads the list, and writes `asked`, the questions as plain data, and `batch`, the fields of the
    `BatchResult`: a state needs both keys. As of other nodes, errors quote no candidate.

    Args:
        chain: The runnable itself: a wrapper such as a retry would decide on parts of the list.
        questions: The state's key for the list.
        max_wrong_share: The share of wrong answers; fixed here, before any question is seen.

    Returns:
        The node, for `add_node`, in sync and async graphs.

    Raises:
        InputError: If the chain is not a `CFCRunnable`.
    """
    if not isinstance(chain, CFCRunnable):
        msg = f"a batch is decided by a CFCRunnable itself, got {type(chain).__name__}"
        raise InputError(msg)

    def decide(state: Any, config: RunnableConfig) -> Update:
        asked, given = _read_questions(state, questions)
        with withhold_quotes():
            return _make_update(asked, chain.answer_batch(given, max_wrong_share, config))

    async def adecide(state: Any, config: RunnableConfig) -> Update:
        asked, given = _read_questions(state, questions)
        with withhold_quotes():
            return _make_update(asked, await chain.aanswer_batch(given, max_wrong_share, config))

    return RunnableLambda(decide, adecide, name="decide_batch")


def _read_questions(state: Any, key: str) -> tuple[list[Any], Sequence[Any]]:
    """Return the questions as plain data and as they are; refuse those that were decided already."""
    given = read_key(state, key)
    if not isinstance(given, (list, tuple)):
        msg = f"expected a list of questions under {key!r} in the state, found {type(given).__name__}"
        raise InputError(msg)
    asked = list(map(to_plain, given))
    if read_key(state, "batch") is not None and read_key(state, "asked") == asked:
        msg = (
            "these questions have been decided already: a second draw after the outcome is known has no "
            "guarantee. If they were asked again, set batch to None first"
        )
        raise InputError(msg)
    return asked, given


def _make_update(asked: list[Any], result: BatchResult) -> Update:
    return {"asked": asked, "batch": result.model_dump(mode="json")}

"""`CFCState`: a graph's state as plain data. `read_outcome`: choose the next node after a decision."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ValidationError

# Before Python 3.12, pydantic, which validates the states of some graphs, rejects `typing.TypedDict`.
from typing_extensions import TypedDict

from langchain_cfc import CFCResult
from langchain_cfc.errors import InputError
from langchain_cfc.runnable import read_result

Outcome = Literal["answered", "abstained", "not_certifiable"]


class CFCAnswer(TypedDict):
    """An answer, with its author and its guarantee.

    Attributes:
        text: The best answer; None if a person was asked and does not know either.
        answers: The answer set that the guarantee is about, best first; a person's single answer, or none.
        by: Who answered.
        name: The person's name if they gave it; None otherwise.
        guarantee: The fields of a `Guarantee`; None for a person's answer.
    """

    text: str | None
    answers: list[str]
    by: Literal["model", "person"]
    name: str | None
    guarantee: dict[str, Any] | None


class CFCState(TypedDict, total=False):
    """The keys that the nodes of this package read and write; derive your own state from it.

    The nodes write only dicts, lists, texts, numbers, booleans and None.

    Attributes:
        question: The prompt, of any kind that the chain takes.
        alpha: Error level of the next decision, if the artifact holds other promises too; used once.
        max_wrong_rate: Certified rate of wrong answers of the next decision, likewise.
        max_wrong_of_all: Rate of wrong answers among all questions of the next decision, likewise.
        promise: The promise of the decision in progress; `clear_decision` moves it here from these three.
        asked: The question that `decision` and `answer` belong to, as plain data.
        decision: The fields of the `CFCResult`, `result.model_dump(mode="json")`.
        answer: The answer; None until there is one.
    """

    question: Any
    alpha: str | float | None
    max_wrong_rate: str | float | None
    max_wrong_of_all: str | float | None
    promise: dict[str, str | float] | None
    asked: Any
    decision: dict[str, Any] | None
    answer: CFCAnswer | None


def read_outcome(state: CFCState) -> Outcome:
    """Return the outcome of a decision, as the path function of `add_conditional_edges`.

    Args:
        state: The state after a node of `make_cfc_node`.

    Returns:
        `answered`; `not_certifiable` if no set can be certified for prompts like this; `abstained` for any
        other reason, for example because no candidate was accepted or a bot abstains.

    Raises:
        InputError: If the state holds no decision.
    """
    result = read_decision(state)
    if not result.abstained:
        return "answered"
    return "not_certifiable" if result.reason == "not_certifiable" else "abstained"


def read_decision(state: CFCState) -> CFCResult:
    """Return the decision that a state holds.

    Raises:
        InputError: If there is none, or this version cannot read it.
    """
    decision = state.get("decision")
    if decision is None:
        msg = (
            "the state holds no decision: put a node of make_cfc_node before this one, and derive the state "
            "from CFCState"
        )
        raise InputError(msg)
    try:
        return read_result(decision)
    except ValidationError as error:
        fields = (
            ", ".join(sorted({str(one["loc"][0]) for one in error.errors() if one["loc"]})) or "all of it"
        )
        msg = (
            f"the decision in the state cannot be read ({fields}): it was written by another node or "
            "another version of langchain-cfc; ask the question again"
        )
        raise InputError(msg) from error

"""The state of a graph as plain data, and the outcomes that choose the next node."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ValidationError

# Pydantic, which reads the states of some graphs, does not take those of `typing` before Python 3.12.
from typing_extensions import TypedDict

from langchain_cfc import CFCResult
from langchain_cfc.errors import InputError
from langchain_cfc.runnable import read_result

Outcome = Literal["answered", "abstained", "not_certifiable"]


class CFCAnswer(TypedDict):
    """An answer, who gave it, and what is promised about it.

    Attributes:
        text: The best answer; None where a person was asked and knows none either.
        answers: The answer set, best first, of which the guarantee speaks; a person's one answer, or none.
        by: Who answered.
        name: The person's name, where they gave one; None otherwise.
        guarantee: The fields of a `Guarantee`; None for what a person says, about which nothing is promised.
    """

    text: str | None
    answers: list[str]
    by: Literal["model", "person"]
    name: str | None
    guarantee: dict[str, Any] | None


class CFCState(TypedDict, total=False):
    """The keys that the nodes of this package read and write; derive your own state from it.

    All that they write is made of dicts, lists, texts, numbers, booleans and None.

    Attributes:
        question: The prompt, of any kind that the chain takes.
        alpha: Error level of the next decision, where the artifact holds several; taken once.
        level: The same, as long as that decision is under way; `clear` takes it out of `alpha`.
        asked: The question that `decision` and `answer` belong to, as plain data.
        decision: The fields of the `CFCResult`, `result.model_dump(mode="json")`.
        answer: The answer; None until there is one.
    """

    question: Any
    alpha: str | float | None
    level: str | float | None
    asked: Any
    decision: dict[str, Any] | None
    answer: CFCAnswer | None


def outcome(state: CFCState) -> Outcome:
    """Return where to go after a decision, for `add_conditional_edges`.

    Args:
        state: The state after a `cfc_node`.

    Returns:
        `answered`; `not_certifiable` where no set can be certified for prompts like this; `abstained` for any
        other reason: no candidate was accepted where the artifact allows empty sets, or the policy withholds
        the set.

    Raises:
        InputError: If the state holds no decision.
    """
    result = read_decision(state)
    if not result.abstained:
        return "answered"
    return "not_certifiable" if result.reason == "not_certifiable" else "abstained"


def read_decision(state: CFCState) -> CFCResult:
    """Read the decision that a state holds.

    Raises:
        InputError: If it holds none, or one that this version cannot read.
    """
    decision = state.get("decision")
    if decision is None:
        msg = (
            "the state holds no decision: put a cfc_node before this one, and derive the state from CFCState"
        )
        raise InputError(msg)
    try:
        return read_result(decision)
    except ValidationError as error:
        fields = (
            ", ".join(sorted({str(one["loc"][0]) for one in error.errors() if one["loc"]})) or "all of it"
        )
        msg = (
            f"the decision in the state cannot be read ({fields}): another node wrote it, or another version "
            "of langchain-cfc; ask the question again"
        )
        raise InputError(msg) from error

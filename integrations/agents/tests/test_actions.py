"""Equal actions are equal texts: whatever the order of calls, and however a model writes their arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_cfc_agents.actions import Toolbox, list_open_calls
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from integrations.agents.tests.office import Desk
from langchain_cfc.errors import InputError

TOOLBOX = Toolbox([*Desk().tools, {"type": "web_search"}], ["look_up"])


def calling(*calls: tuple[str, dict[str, Any]], text: str = "", **fields: Any) -> AIMessage:
    made: Any = [{"name": name, "args": args, "id": str(place)} for place, (name, args) in enumerate(calls)]
    return AIMessage(text, tool_calls=made, **fields)


def read(*calls: tuple[str, dict[str, Any]], text: str = "") -> str:
    return TOOLBOX.read_candidate(calling(*calls, text=text)).text


def test_arguments_are_what_the_schema_makes_of_them() -> None:
    whole = ("book", {"room": "small", "day": "friday"})
    assert read(("book", {"day": "friday"})) == read(whole) == read(whole, text="I book it.")
    assert read(("book", {"day": "friday", "room": "large"})) != read(whole)
    assert read(("book", {"day": "Friday"})) != read(whole)


def test_arguments_of_other_types_are_converted() -> None:
    @tool
    def pay(euros: float, to: list[str] | None = None) -> str:
        """Pay."""
        return f"{euros} {to}"

    box = Toolbox([pay], [])
    texts = {box.read_candidate(calling(("pay", {"euros": euros}))).text for euros in (5, 5.0, "5")}
    assert texts == {'{"calls":[{"args":{"euros":5.0,"to":null},"name":"pay"}]}'}


def test_parallel_calls_are_one_action_in_any_order() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("book", {"day": day}) for day in ("friday", "monday")]
    assert read(*calls) == read(*reversed(calls))
    assert read(*calls) != read(*calls, calls[0])


def test_text_is_the_action_without_calls() -> None:
    assert read(text="done") == read(text="all is booked") == '{"calls":[]}'


def test_arguments_that_a_schema_refuses_stay_as_they_are() -> None:
    assert json.loads(read(("book", {"night": "friday"}))) == {
        "calls": [{"name": "book", "args": {"night": "friday"}}]
    }
    assert json.loads(read(("unknown", {"a": 1})))["calls"] == [{"name": "unknown", "args": {"a": 1}}]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (calling(("book", {"day": float("nan")})), "unparsable"),
        (
            AIMessage("", invalid_tool_calls=[{"name": "book", "args": "{", "id": "1", "error": None}]),
            "unparsable",
        ),
        (AIMessage(" "), "blank"),
        (calling(("book", {}), response_metadata={"finish_reason": "length"}), "cut_off"),
    ],
)
def test_message_that_cannot_be_read_is_no_answer(message: AIMessage, kind: str) -> None:
    assert TOOLBOX.read_candidate(message).no_answer == kind


def test_unguarded_tools_must_exist() -> None:
    with pytest.raises(InputError, match=r"no tool of this agent: lookup\. It has book, look_up"):
        Toolbox(Desk().tools, ["lookup"])


def test_open_calls_are_those_that_no_later_message_answers() -> None:
    first, second = calling(("book", {})), calling(("book", {}), ("look_up", {}))
    done = ToolMessage("done", tool_call_id="0")
    asked = HumanMessage("book")
    assert list_open_calls([asked, first]) == first.tool_calls
    # Some providers use the ids of calls again.
    assert list_open_calls([asked, first, done, second], ["look_up"]) == second.tool_calls[:1]
    assert list_open_calls([asked, first, done, second, done]) == second.tool_calls[1:]
    assert list_open_calls([asked, first, done]) == list_open_calls([asked]) == []

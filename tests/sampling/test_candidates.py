"""`make_candidate`: an output's text, which identifies the answer, and the data that records keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel

from langchain_cfc.candidates import encode_answers
from langchain_cfc.errors import DrawError
from langchain_cfc.records import Candidate
from langchain_cfc.sampling.candidates import make_candidate
from tests.sampling.drawing import Draw


class Town(BaseModel):
    """Structured output."""

    name: str
    capital: bool


@dataclass
class Place:
    """The same as a dataclass, with another inside."""

    name: str
    near: Place | None = None


def make_call(name: str, number: str = "1", **args: Any) -> dict[str, Any]:
    """A tool call as models return it, with an id of its own."""
    return {"name": name, "args": args, "id": number, "type": "tool_call"}


def make_invalid_call(args: str, error: str | None = None) -> dict[str, Any]:
    return {"name": "f", "args": args, "id": "1", "error": error, "type": "invalid_tool_call"}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (AIMessage("said"), "said"),
        (AIMessage(""), ""),
        (AIMessageChunk(content="said"), "said"),
        (AIMessage([{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]), "in parts"),
        (HumanMessage("echoed"), "echoed"),
        ({"b": 1, "a": [True, None, 0.5]}, '{"a":[true,null,0.5],"b":1}'),
        (["a", "b"], '["a","b"]'),
        ({"town": "Bogotá"}, '{"town":"Bogotá"}'),
        (7, "7"),
        (Town(name="Lima", capital=True), '{"capital":true,"name":"Lima"}'),
        (Place("Callao", near=Place("Lima")), '{"name":"Callao","near":{"name":"Lima","near":null}}'),
    ],
)
def test_make_candidate_reads_the_text_of_an_output(output: Any, text: str) -> None:
    found = make_candidate(0, output)
    assert found.text == text
    assert (found.message is not None) == isinstance(output, BaseMessage)


@pytest.mark.parametrize(
    "output",
    [
        {"town": "Bogotá", "country": {"name": "Colombia", "code": [1, 2]}},
        Town(name="Lima", capital=True),
        Place("Callao", near=Place("Lima")),
        AIMessage("so:", tool_calls=[make_call("find", town="Lima"), make_call("show")]),
        AIMessage("", invalid_tool_calls=[make_invalid_call('{"x": ')]),
    ],
)
def test_structured_candidate_text_equals_the_answer_key_of_records(output: Any) -> None:
    # Answers are compared, and their lengths measured, offline by `answer_key` and online by the text.
    found = make_candidate(0, output)
    assert found.text == Candidate(message=found.data, score=0.5, correct=True).answer_key


def test_text_candidates_have_no_data() -> None:
    assert make_candidate(0, "plain").data is None
    assert make_candidate(0, AIMessage("said")).data is None
    assert make_candidate(0, ["a"]).data is None


def test_tool_calls_with_other_ids_have_equal_texts() -> None:
    one, same = (AIMessage("", tool_calls=[make_call("f", number, b=1, a=2)], id=number) for number in "12")
    other = AIMessage("", tool_calls=[make_call("f", "1", a=2, b=2)])
    assert make_candidate(0, one).text == make_candidate(1, same).text
    assert make_candidate(0, one).text != make_candidate(2, other).text
    assert make_candidate(0, one).message is one


def test_tool_call_text_depends_on_call_order_not_argument_order() -> None:
    first, second = make_call("first"), make_call("second", x=1, y=2)
    there = make_candidate(0, AIMessage("", tool_calls=[first, second]))
    back = make_candidate(0, AIMessage("", tool_calls=[second, first]))
    assert there.text != back.text
    turned = {**second, "args": {"y": 2, "x": 1}}
    assert make_candidate(0, AIMessage("", tool_calls=[first, turned])).text == there.text


SEARCH, LOOK_UP = make_call("search", x=1, y={"a": [2.0, True]}), make_call("look_up", city="Lima")
SAME_CALLS = [
    AIMessage("Let me look.", tool_calls=[SEARCH, LOOK_UP]),
    AIMessage("<think>Lima?</think>", tool_calls=[LOOK_UP, SEARCH]),
    AIMessage(
        [{"type": "text", "text": "Now:"}, {"type": "tool_use", "id": "1", "name": "search", "input": {}}],
        tool_calls=[
            make_call("search", y={"a": [2, True]}, x=1.0),
            make_call("look_up", city="Lima"),
        ],
    ),
]
OTHER_CALLS = [
    AIMessage("", tool_calls=[SEARCH]),
    AIMessage("", tool_calls=[SEARCH, SEARCH, LOOK_UP]),
    AIMessage("", tool_calls=[make_call("search", x=1, y={"a": [True, 2]}), LOOK_UP]),
    AIMessage("", tool_calls=[make_call("search", x=True, y={"a": [2, True]}), LOOK_UP]),
    AIMessage("", tool_calls=[make_call("search", x="1", y={"a": [2, True]}), LOOK_UP]),
    AIMessage("", tool_calls=[make_call("search", x=1.5, y={"a": [2, True]}), LOOK_UP]),
    *(
        AIMessage("", tool_calls=[SEARCH, make_call("look_up", city=city)])
        for city in ("Lima ", "Li\u200bma", "L\u0456ma", "lima", "\uff2cima")
    ),
    AIMessage("", tool_calls=[SEARCH], invalid_tool_calls=[make_invalid_call('{"name": ')]),
]


def test_equal_calls_of_tools_are_one_answer_whatever_their_order_and_preamble() -> None:
    texts = [make_candidate(0, message).text for message in (*SAME_CALLS, *OTHER_CALLS)]
    codes, _ = encode_answers(texts, len(texts))
    assert codes.tolist() == [[0, 0, 0, *range(3, len(texts))]]


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ('{"a": 1, "b": "x"}', '{"b":"\\u0078","a":1.0}', True),
        ('\u200b["Lima", 1e2]', '["Lima",100]', True),
        ('{"content": "a", "tool_calls": []}', '{"content": "b", "tool_calls": []}', False),
        (
            '{"content": "a", "tool_calls": [1], "more": 1}',
            '{"content": "b", "tool_calls": [1], "more": 1}',
            False,
        ),
        ('["a", "b"]', '["b", "a"]', False),
        ('{"a": "Lima"}', '{"a": "lima"}', False),
        ('{"a": "N\u2019Djamena"}', '{"a": "N\'Djamena"}', True),
        ('{"a": "if x:\\n  y"}', '{"a": "if x:\\ny"}', False),
        ('{"a": "rm \'/a  b\'"}', '{"a": "rm \'/a b\'"}', False),
        ('{"a  b": 1}', '{"a b": 1}', False),
        ('{"a": 1, "a": 2}', '{"a": 2}', False),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992.0}', False),
    ],
)
def test_json_answers_are_compared_by_value(one: str, other: str, are_one: bool) -> None:
    codes, _ = encode_answers([one, other], 2)
    assert (codes[0, 1] == 0) == are_one


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '["a", ' * 400 + "1" + "]" * 400, '{"a": 1' + "0" * 5000 + "}"]
)
def test_texts_that_are_no_strict_json_are_compared_as_text(text: str) -> None:
    codes, _ = encode_answers([text, text.replace("a", "b"), f" {text}"], 3)
    assert codes.tolist() == [[0, 1, 0]]


def test_message_with_tool_calls_differs_from_one_without() -> None:
    called = make_candidate(0, AIMessage("well", tool_calls=[make_call("f", x=1)]))
    assert called.data == {"content": "well", "tool_calls": [{"name": "f", "args": {"x": 1}}]}
    assert called.text != make_candidate(0, AIMessage("well")).text
    assert called.text != make_candidate(0, AIMessage("", tool_calls=[make_call("f", x=1)])).text


def test_invalid_tool_calls_differ_by_their_arguments() -> None:
    one, other = (
        AIMessage("", invalid_tool_calls=[make_invalid_call(args)]) for args in ('{"x": ', '{"y": ')
    )
    assert make_candidate(0, one).text != make_candidate(0, other).text
    # Why they could not be read is the parser's word, not the model's.
    said = AIMessage("", invalid_tool_calls=[make_invalid_call('{"x": ', "unexpected end")])
    assert make_candidate(0, one).text == make_candidate(0, said).text


def test_candidate_text_excludes_reasoning() -> None:
    thought = {"type": "reasoning", "reasoning": "Peru, so"}
    message = AIMessage([thought, {"type": "text", "text": "lima"}])
    assert make_candidate(0, message).text == "lima"
    # Reasoning until the tokens run out is an empty answer, and no error.
    assert make_candidate(0, AIMessage([thought])).text == ""


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("", additional_kwargs={"refusal": "I cannot say"}),
        AIMessage([{"type": "refusal", "refusal": "I cannot say"}]),
    ],
)
def test_refusal_of_a_model_is_an_empty_text(message: AIMessage) -> None:
    assert make_candidate(0, message).text == ""


IMAGE = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}


def test_candidate_with_text_and_image_keeps_its_message() -> None:
    message = AIMessage([{"type": "text", "text": "here"}, IMAGE])
    found = make_candidate(0, message)
    assert found.text == "here"
    assert found.message is message


@pytest.mark.parametrize(
    "block", [IMAGE, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
)
def test_candidate_of_images_without_text_is_no_answer(block: dict[str, Any]) -> None:
    # They would all have the text "", and pass for one and the same answer.
    assert make_candidate(2, AIMessage([block])).no_answer == "unparsable"


class Wrapped(BaseModel, arbitrary_types_allowed=True):
    """Structured output that holds what JSON cannot."""

    inner: object


@pytest.mark.parametrize(
    "output",
    [
        Wrapped(inner=object()),
        object(),
        {1, 2},
        float("nan"),
        {"x": float("inf")},
        b"x",
        [AIMessage("x")],
        {1: 0, "a": 0},
        Town,
    ],
)
def test_make_candidate_refuses_outputs_that_are_no_plain_data(output: Any, draw: Draw) -> None:
    with pytest.raises(DrawError, match=r"candidate 0 is a \w+, which cannot be read as text"):
        draw(RunnableLambda(lambda _: output), 2)


@pytest.mark.parametrize("value", [float("nan"), "half a pair: \ud800"])
def test_values_that_json_does_not_hold_are_no_answer_of_a_model(value: Any) -> None:
    reply = AIMessage("{}")
    called = make_candidate(0, AIMessage("", tool_calls=[make_call("f", x=value)]))
    parsed = make_candidate(0, {"raw": reply, "parsed": {"x": value}, "parsing_error": None})
    said = make_candidate(0, AIMessage(f"{value}") if isinstance(value, str) else reply, reply=reply)
    assert [one.no_answer for one in (called, parsed)] == ["unparsable"] * 2
    assert (said.no_answer == "unparsable") == isinstance(value, str)


def test_output_none_is_no_answer(draw: Draw) -> None:
    assert [one.no_answer for one in draw(RunnableLambda(lambda _: None), 2)] == ["unparsable"] * 2


def test_make_candidate_reads_structured_output_with_its_raw_message() -> None:
    town = Town(name="Lima", capital=True)
    found = make_candidate(0, {"raw": AIMessage("{}"), "parsed": town, "parsing_error": None})
    assert (found.text, found.message) == (make_candidate(0, town).text, None)
    unread = make_candidate(0, {"raw": AIMessage("Lima"), "parsed": None, "parsing_error": ValueError("no")})
    assert unread.no_answer == "unparsable"

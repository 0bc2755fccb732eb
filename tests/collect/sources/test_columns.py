"""What columns mean: inputs in three ways, references, metadata, clusters and ids."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped] # it has no types
import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from pydantic import ValidationError

from langchain_cfc.collect.sources import Columns, read_examples
from langchain_cfc.records import Example
from tests.collect.sources.writing import refusal

# One row each of the shapes in which public question sets come.
GSM8K = {"question": "Ann has 3 pens and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}
NQ_OPEN = {"question": "who wrote emma", "answer": ["Jane Austen", "Austen"]}
SVAMP = {"ID": "chal-1", "Body": "Ann has 3 pens.", "Question": "How many?", "Answer": 3.0, "Type": "Count"}
SQUAD = {"id": "56be", "question": "Where?", "answers": {"text": ["Lima"], "answer_start": [3]}}


def one(row: dict[str, Any], **columns: Any) -> Example:
    (example,) = read_examples([row], Columns(**columns))
    return example


def problem(row: dict[str, Any], **columns: Any) -> str:
    return refusal([row], Columns(**columns)).problem


def refused(**columns: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Columns(**columns)
    return str(caught.value)


def test_columns_by_name() -> None:
    example = one(GSM8K, input="question", reference="answer")
    assert (example.input, example.reference) == (GSM8K["question"], GSM8K["answer"])
    assert (example.metadata, example.cluster) == ({}, None)


def test_lists_stay_lists() -> None:
    assert one(NQ_OPEN, input="question", reference="answer").reference == ["Jane Austen", "Austen"]


def test_text_from_a_template() -> None:
    columns = {
        "prompt": "{Body} {Question}\nAnswer:",
        "id": "ID",
        "reference": "Answer",
        "metadata": ["Type"],
    }
    assert one(SVAMP, **columns) == Example(
        id="chal-1",
        input="Ann has 3 pens. How many?\nAnswer:",
        reference=3.0,
        metadata={"Type": "Count"},
    )


def test_a_value_inside_an_object() -> None:
    assert one(SQUAD, input="question", reference="answers.text").reference == ["Lima"]
    assert one({"a.b": 1, "a": {"b": 2}, "q": "?"}, input="q", reference="a.b").reference == 1
    assert one({"a": {"b": {"c": 5}}, "q": "?"}, input="q", reference="a.b.c").reference == 5
    assert one({"a": None, "q": "?"}, input="q", reference="a.b").reference is None
    for a in (3, {"c": 1}, [1]):
        assert "no column 'a.b'" in problem({"a": a, "q": "?"}, input="q", reference="a.b")


MESSAGES = [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize("value", ["", "Where?", MESSAGES, {"question": "Where?"}])
def test_an_input_is_text_messages_or_an_object(value: object) -> None:
    assert one({"q": value}, input="q").input == value


@pytest.mark.parametrize("value", [5, None, True, 0.5])
def test_nothing_else_is_an_input(value: object) -> None:
    assert f"input: found {value!r}; expected text, a list of messages" in problem({"q": value}, input="q")


def test_several_columns_make_an_object() -> None:
    row = {"question": "Where?", "context": None, "k": 3, "more": "x"}
    assert one(row, inputs=["question", "context", "k"]).input == {
        "question": "Where?",
        "context": None,
        "k": 3,
    }


def test_messages_from_templates() -> None:
    pairs = [["system", "Be short."], ["user", "{question}"], ["assistant", "{{hm}}"], ["user", "Well?"]]
    written = one(NQ_OPEN, prompt=pairs).input
    assert written == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "who wrote emma"},
        {"role": "assistant", "content": "{hm}"},
        {"role": "user", "content": "Well?"},
    ]
    assert isinstance(written, list)
    assert convert_to_messages(written) == [
        SystemMessage("Be short."),
        HumanMessage("who wrote emma"),
        AIMessage("{hm}"),
        HumanMessage("Well?"),
    ]


def test_a_column_of_messages_is_inserted() -> None:
    row = {"turns": [*MESSAGES, {"role": "assistant", "content": "Here."}], "q": "And now?"}
    prompt = [["system", "Be short."], ["placeholder", "{turns}"], ["user", "{q}"]]
    assert one(row, prompt=prompt).input == [
        {"role": "system", "content": "Be short."},
        *row["turns"],
        {"role": "user", "content": "And now?"},
    ]
    assert "no column 'turns'" in problem({"q": "?"}, prompt=prompt)
    assert "the column 'turns' is null" in problem({**row, "turns": None}, prompt=prompt)


PROMPTS: list[tuple[BasePromptTemplate[Any], Any]] = [
    (PromptTemplate.from_template("Q: {question}"), "Q: who wrote emma"),
    (PromptTemplate.from_template("Q: {{question}}", template_format="mustache"), "Q: who wrote emma"),
    (PromptTemplate.from_template("{lead} {question}").partial(lead="Q:"), "Q: who wrote emma"),
    (
        ChatPromptTemplate([("user", "{question}"), MessagesPlaceholder("turns", optional=True)]),
        [{"role": "user", "content": "who wrote emma"}],
    ),
    (
        ChatPromptTemplate(
            [("user", [{"type": "text", "text": "{question}"}, {"type": "text", "text": "?"}])]
        ),
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "who wrote emma"}, {"type": "text", "text": "?"}],
            }
        ],
    ),
    (
        ChatPromptTemplate([HumanMessage("Hi", name="bob"), ("user", "{question}")]),
        [{"role": "user", "name": "bob", "content": "Hi"}, {"role": "user", "content": "who wrote emma"}],
    ),
]


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS)
def test_a_langchain_prompt_of_the_users_own(prompt: BasePromptTemplate[Any], expected: object) -> None:
    columns = Columns(prompt=prompt)
    assert one(NQ_OPEN, prompt=prompt).input == expected
    dumped = columns.model_dump(mode="json")
    assert json.loads(json.dumps(dumped)) == dumped
    assert dumped == Columns(prompt=prompt.model_copy(deep=True)).model_dump(mode="json")


def test_an_optional_part_of_a_prompt_is_used_where_there_is_one() -> None:
    prompt = ChatPromptTemplate([MessagesPlaceholder("turns", optional=True), ("user", "{q}")])
    rows: list[dict[str, Any]] = [{"q": "a"}, {"q": "b", "turns": MESSAGES}]
    first, second = read_examples(rows, Columns(prompt=prompt))
    assert first.input == [{"role": "user", "content": "a"}]
    assert second.input == [*MESSAGES, {"role": "user", "content": "b"}]


def test_messages_that_an_input_cannot_carry_are_bad_rows() -> None:
    known = SystemMessage("Be short.", response_metadata={"cost": 3})
    prompt = ChatPromptTemplate([known, ("user", "{question}")])
    assert "more than role, content, name and tool calls" in problem(NQ_OPEN, prompt=prompt)
    plain = ChatPromptTemplate([SystemMessage("Be short."), ("user", "{question}")])
    assert one(NQ_OPEN, prompt=plain).input == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "who wrote emma"},
    ]
    # A role of one's own cannot be taken back.
    critic = ChatPromptTemplate([ChatMessage(content="No.", role="critic"), ("user", "{question}")])
    assert "more than role, content, name and tool calls" in problem(NQ_OPEN, prompt=critic)


UNFIT = [
    (None, "the column 'q' is null"),
    (["a", "b"], "the column 'q' holds ['a', 'b']; expected text, a number, true or false"),
    ({"a": 1}, "the column 'q' holds {'a': 1}"),
    (float("nan"), "found nan"),
    (dt.date(2020, 1, 1), "found datetime.date(2020, 1, 1)"),
]


@pytest.mark.parametrize(("value", "words"), UNFIT)
@pytest.mark.parametrize("prompt", ["Q: {q}", [["user", "{q}"]]])
def test_what_cannot_stand_in_a_text_is_a_bad_row(value: object, words: str, prompt: object) -> None:
    found = problem({"q": value}, prompt=prompt)
    assert "row 1: prompt: " in found
    assert words in found


def test_a_template_that_fails_makes_a_bad_row() -> None:
    assert "prompt: the prompt cannot be made: ValueError" in problem({"q": "text"}, prompt="{q:.2f}")
    assert one({"q": 1 / 3}, prompt="{q:.2f}").input == "0.33"


@pytest.mark.parametrize("value", [7, 7.5, "7", np.int64(7), np.float64(7.5), np.str_("7")])
def test_numbers_become_names(value: object) -> None:
    example = one({"q": "?", "n": value}, input="q", id="n", cluster="n")
    assert example.id == example.cluster == str(value)
    assert type(example.id) is str


@pytest.mark.parametrize("value", [None, True, float("nan"), "", [1], {}])
def test_nothing_else_becomes_an_id(value: object) -> None:
    assert "row 1: id: found " in problem({"q": "?", "n": value}, input="q", id="n")


@pytest.mark.parametrize("value", [None, ""])
def test_no_cluster_means_alone(value: object) -> None:
    assert one({"q": "?", "c": value}, input="q", cluster="c").cluster is None
    assert "cluster: found [1]" in problem({"q": "?", "c": [1]}, input="q", cluster="c")


def test_metadata_holds_scalars_and_leaves_nulls_out() -> None:
    row = {"q": "?", "a": "x", "b": 1.5, "c": True, "d": None, "e": [1], "f": {"g": 2}}
    example = one(row, input="q", metadata=["a", "b", "c", "d", "f.g"])
    assert example.metadata == {"a": "x", "b": 1.5, "c": True, "f.g": 2}
    assert "metadata.e: found [1]" in problem(row, input="q", metadata=["a", "e"])


PLAIN: list[tuple[object, object]] = [
    (np.float32(0.5), 0.5),
    (np.bool_(1), True),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([{"a": np.int8(1)}, "x"], dtype=object), [{"a": 1}, "x"]),
    (("a", np.array(1)), ["a", 1]),
    (pa.scalar({"a": [1, None]}), {"a": [1, None]}),
    ([pa.scalar("x")], ["x"]),
    (pa.scalar(None, pa.struct({"a": pa.int8()})), None),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN)
def test_arrays_and_their_scalars_become_plain_json(value: object, expected: object) -> None:
    reference = one({"q": "?", "r": value}, input="q", reference="r").reference
    assert reference == expected
    # Types as well: 1 == True == np.int8(1).
    assert json.dumps(reference) == json.dumps(expected)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
NO_JSON = [
    (float("nan"), "found nan"),
    (np.array([1.0, np.inf]), "found inf"),
    (dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), "found datetime"),
    (Decimal("1.5"), "found Decimal"),
    (b"x", "found b'x'"),
    ({1: "x"}, "found 1"),
    ({"x"}, "found {'x'}"),
    (ENDLESS, "nested too deeply"),
    ("\ud800", "half of a surrogate pair"),
]


@pytest.mark.parametrize(("value", "words"), NO_JSON)
def test_what_is_no_json_makes_a_bad_row(value: object, words: str) -> None:
    found = problem({"q": "?", "r": value}, input="q", reference="r")
    assert "row 1: reference" in found
    assert words in found
    # And nobody minds what is in a column that is not named.
    assert one({"q": "?", "r": value}, input="q").reference is None


def test_json_written_as_text() -> None:
    row = {"q": "?", "r": '["a", "b"]', "m": "3"}
    example = one(row, input="q", reference="r", metadata=["m"], json_columns=["r", "m"])
    assert (example.reference, example.metadata) == (["a", "b"], {"m": 3})
    assert one(row, input="q", reference="r").reference == '["a", "b"]'


def test_a_path_into_json_written_as_text() -> None:
    row = {"q": "?", "r": '{"a": {"b": [1], "c": "[2]"}}'}
    assert one(row, input="q", reference="r.a.b", json_columns=["r"]).reference == [1]
    assert one(row, input="q", reference="r.a.c", json_columns=["r", "r.a.c"]).reference == [2]
    assert one({**row, "r": None}, input="q", reference="r.a", json_columns=["r"]).reference is None
    assert "no column 'r.a'" in problem(row, input="q", reference="r.a")
    assert "no column 'r.d'" in problem(row, input="q", reference="r.d", json_columns=["r"])
    assert "which json_columns says is JSON" in problem(
        {**row, "r": "{"}, input="q", reference="r.a", json_columns=["r"]
    )


@pytest.mark.parametrize("cell", ["", "a", '{"a": 1, "a": 2}', "NaN", "[" * 100_000, ["a"], 5])
def test_what_json_columns_do_not_hold_makes_a_bad_row(cell: object) -> None:
    found = problem({"q": "?", "r": cell}, input="q", reference="r", json_columns=["r"])
    assert "row 1: reference: " in found
    assert len(found) < 300


def test_a_column_that_is_not_there() -> None:
    found = problem(NQ_OPEN, input="question", reference="anwser")
    assert found == "no column 'anwser'; there are question, answer; did you mean 'answer'?"
    error = refusal([SVAMP], Columns(prompt="{Body} {question}"), "set_aside")
    assert (error.line, error.field) == (1, "prompt")
    assert "did you mean 'Question'?" in error.problem
    for part in ("id", "input", "cluster"):
        columns: dict[str, Any] = {"input": "question", part: "zzz"}
        assert refusal([NQ_OPEN], Columns(**columns)).field == part
    for part in ("inputs", "metadata"):
        columns = {**({} if part == "inputs" else {"input": "question"}), part: ["question", "zzz"]}
        error = refusal([NQ_OPEN], Columns(**columns))
        assert (error.field, error.problem) == (part, "no column 'zzz'; there are question, answer")


def test_many_columns_are_not_all_listed() -> None:
    found = problem({f"c{number:03}": "" for number in range(1000)}, input="question")
    assert found.endswith("c019 and 980 more")


FEW_SHOT = FewShotPromptTemplate(
    examples=[{"a": "1"}],
    example_prompt=PromptTemplate.from_template("{a}"),
    suffix="{q}",
    input_variables=["q"],
)
REFUSED = [
    ({}, "found none of input, prompt and inputs; expected exactly one"),
    ({"input": "q", "prompt": "{q}"}, "found input and prompt of"),
    ({"input": "q", "inputs": ["q"]}, "found input and inputs of"),
    ({"inputs": []}, "at least 1 item"),
    ({"input": ""}, "at least 1 character"),
    ({"input": "q", "metdata": ["a"]}, "Extra inputs are not permitted"),
    ({"input": "q", "metadata": "topic"}, "valid tuple"),
    ({"input": 5}, "valid string"),
    ({"input": "q", "json_columns": ["q", "r"]}, "found r in json_columns, but nowhere else"),
    ({"prompt": "Question: {q"}, "expected '}' before end of string"),
    ({"prompt": "question"}, "it names no column"),
    ({"prompt": []}, "it names no column"),
    ({"prompt": [["usr", "{q}"]]}, "Unexpected message type: usr"),
    ({"prompt": [["user"]]}, "found ('user',); expected template text, a list of [role, text]"),
    ({"prompt": [["user", 5]]}, "found ('user', 5)"),
    ({"prompt": 5}, "found 5; expected template text"),
    ({"prompt": {"user": "{q}"}}, "found {'user': '{q}'}"),
    ({"prompt": FEW_SHOT}, "LangChain does not write the prompt as plain data"),
    (
        {"prompt": PromptTemplate.from_template("{q}{x}").partial(x=lambda: "now")},
        "not write the prompt as plain data",
    ),
]


@pytest.mark.parametrize(("columns", "words"), REFUSED)
def test_columns_that_make_no_sense_are_refused_before_any_row(columns: dict[str, Any], words: str) -> None:
    assert words in refused(**columns)


WRITTEN: list[dict[str, Any]] = [
    {"input": "q"},
    {"inputs": ["q", "k"], "id": "n", "reference": "r", "json_columns": ["r"]},
    {"prompt": "Q: {q}", "metadata": ["a", "b"], "cluster": "c"},
    {"prompt": [["system", "x"], ["user", "{q}"]]},
]


@pytest.mark.parametrize("written", WRITTEN)
def test_columns_are_plain_data(written: dict[str, Any]) -> None:
    columns = Columns.model_validate(written)
    dumped = columns.model_dump(mode="json")
    assert json.loads(json.dumps(dumped)) == dumped
    assert {name: value for name, value in dumped.items() if value not in (None, [])} == written
    assert Columns.model_validate(dumped) == columns
    # What is worked out on the way is no part of it.
    list(read_examples([dict.fromkeys("qknrabc", "1")], columns))
    assert columns.model_dump(mode="json") == dumped

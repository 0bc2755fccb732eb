"""`Columns`: inputs, references, metadata, clusters and ids of rows."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped] # it has no types
import pytest
from langchain_cfc_collect import Columns, read_examples
from pydantic import ValidationError

from integrations.collect.tests.sources.writing import catch_record_error
from langchain_cfc.records import Example

NQ_OPEN = {"question": "who wrote emma", "answer": ["Jane Austen", "Austen"]}
SVAMP = {"ID": "chal-1", "Body": "Ann has 3 pens.", "Question": "How many?", "Answer": 3.0, "Type": "Count"}
SQUAD = {"id": "56be", "question": "Where?", "answers": {"text": ["Lima"], "answer_start": [3]}}


def read_one(row: dict[str, Any], **columns: Any) -> Example:
    (example,) = read_examples([row], Columns(**columns))
    return example


def find_problem(row: dict[str, Any], **columns: Any) -> str:
    return catch_record_error([row], Columns(**columns)).problem


def catch_validation_error(**columns: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Columns(**columns)
    return str(caught.value)


def test_prompt_template_text_is_filled_from_columns() -> None:
    columns = {
        "prompt": "{Body} {Question}\nAnswer:",
        "id": "ID",
        "reference": "Answer",
        "metadata": ["Type"],
    }
    assert read_one(SVAMP, **columns) == Example(
        id="chal-1", input="Ann has 3 pens. How many?\nAnswer:", reference=3.0, metadata={"Type": "Count"}
    )


def test_column_path_with_dots_reads_nested_values() -> None:
    assert read_one(SQUAD, input="question", reference="answers.text").reference == ["Lima"]
    assert read_one({"a.b": 1, "a": {"b": 2}, "q": "?"}, input="q", reference="a.b").reference == 1
    assert read_one({"a": {"b": {"c": 5}}, "q": "?"}, input="q", reference="a.b.c").reference == 5
    assert read_one({"a": None, "q": "?"}, input="q", reference="a.b").reference is None
    for a in (3, {"c": 1}, [1]):
        assert "no column 'a.b'" in find_problem({"a": a, "q": "?"}, input="q", reference="a.b")


MESSAGES = [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize("value", [5, None, True, 0.5])
def test_input_of_any_other_type_is_a_bad_row(value: object) -> None:
    assert f"input: found {value!r}; expected text, a list of messages" in find_problem(
        {"q": value}, input="q"
    )


def test_inputs_option_makes_an_object_of_several_columns() -> None:
    row = {"question": "Where?", "context": None, "k": 3, "more": "x"}
    assert read_one(row, inputs=["question", "context", "k"]).input == {
        "question": "Where?",
        "context": None,
        "k": 3,
    }


def test_prompt_option_makes_messages_from_role_and_text_pairs() -> None:
    pairs = [["system", "Be short."], ["user", "{question}"], ["assistant", "{{hm}}"], ["user", "Well?"]]
    assert read_one(NQ_OPEN, prompt=pairs).input == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "who wrote emma"},
        {"role": "assistant", "content": "{hm}"},
        {"role": "user", "content": "Well?"},
    ]


UNFIT_TEMPLATE_VALUES = [
    (None, "the column 'q' holds None"),
    (["a", "b"], "the column 'q' holds ['a', 'b']; expected text, a number, true or false"),
    ({"a": 1}, "the column 'q' holds {'a': 1}"),
    (float("nan"), "found nan"),
    (b"x", "found b'x'"),
]


@pytest.mark.parametrize(("value", "words"), UNFIT_TEMPLATE_VALUES)
@pytest.mark.parametrize("prompt", ["Q: {q}", [["user", "{q}"]]])
def test_prompt_template_refuses_values_that_are_not_scalars(
    value: object, words: str, prompt: object
) -> None:
    found = find_problem({"q": value}, prompt=prompt)
    assert "row 1: prompt: " in found
    assert words in found


def test_prompt_template_with_an_unfit_format_is_a_bad_row() -> None:
    assert "prompt: the prompt cannot be made: ValueError" in find_problem({"q": "text"}, prompt="{q:.2f}")
    assert read_one({"q": 1 / 3}, prompt="{q:.2f}").input == "0.33"


@pytest.mark.parametrize("value", [7, 7.5, "7", np.int64(7), np.float64(7.5), np.str_("7")])
def test_id_and_cluster_convert_numbers_to_text(value: object) -> None:
    example = read_one({"q": "?", "n": value}, input="q", id="n", cluster="n")
    assert example.id == example.cluster == str(value)
    assert type(example.id) is str


@pytest.mark.parametrize("value", [None, True, float("nan"), "", [1], {}])
def test_id_that_is_no_text_or_number_is_a_bad_row(value: object) -> None:
    assert "row 1: id: found " in find_problem({"q": "?", "n": value}, input="q", id="n")


@pytest.mark.parametrize("value", [None, ""])
def test_null_or_empty_cluster_means_no_cluster(value: object) -> None:
    assert read_one({"q": "?", "c": value}, input="q", cluster="c").cluster is None
    assert "cluster: found [1]" in find_problem({"q": "?", "c": [1]}, input="q", cluster="c")


def test_metadata_accepts_scalars_and_leaves_out_nulls() -> None:
    row = {"q": "?", "a": "x", "b": 1.5, "c": True, "d": None, "e": [1], "f": {"g": 2}}
    example = read_one(row, input="q", metadata=["a", "b", "c", "d", "f.g"])
    assert example.metadata == {"a": "x", "b": 1.5, "c": True, "f.g": 2}
    assert "metadata.e: found [1]" in find_problem(row, input="q", metadata=["a", "e"])


CONVERTED_VALUES: list[tuple[object, object]] = [
    (np.float32(0.5), 0.5),
    (np.bool_(1), True),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([{"a": np.int8(1)}, "x"], dtype=object), [{"a": 1}, "x"]),
    (("a", np.array(1)), ["a", 1]),
    (pa.scalar({"a": [1, None]}), {"a": [1, None]}),
    ([pa.scalar("x")], ["x"]),
    (pa.scalar(None, pa.struct({"a": pa.int8()})), None),
    (
        [Decimal("1.50"), Decimal("2.00"), Decimal("0.12345678901234567890")],
        [1.5, 2, "0.12345678901234567890"],
    ),
    ([date(2026, 1, 2), datetime(2026, 1, 2, 3, 4)], ["2026-01-02", "2026-01-02T03:04:00"]),  # noqa: DTZ001 - as in a file
]


@pytest.mark.parametrize(("value", "expected"), CONVERTED_VALUES)
def test_reference_converts_numpy_and_arrow_values_to_json(value: object, expected: object) -> None:
    reference = read_one({"q": "?", "r": value}, input="q", reference="r").reference
    assert reference == expected
    # Types as well: 1 == True == np.int8(1).
    assert json.dumps(reference) == json.dumps(expected)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
NOT_JSON_VALUES = [
    (float("nan"), "found nan"),
    (np.array([1.0, np.inf]), "found inf"),
    (Decimal("NaN"), "found Decimal"),
    (b"x", "found b'x'"),
    ({1: "x"}, "found 1"),
    ({"x"}, "found {'x'}"),
    (ENDLESS, "more than 100 nested levels"),
    (pa.scalar(10**9, pa.date32()), "found <"),
    ("\ud800", "half of a surrogate pair"),
]


@pytest.mark.parametrize(("value", "words"), NOT_JSON_VALUES)
def test_reference_that_is_not_json_is_a_bad_row(value: object, words: str) -> None:
    found = find_problem({"q": "?", "r": value}, input="q", reference="r")
    assert "row 1: reference" in found
    assert words in found
    # The content of a column that is not named does not matter.
    assert read_one({"q": "?", "r": value}, input="q").reference is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"a": "Lima", "b": "Ciudad de los Reyes"}, ["Lima", "Ciudad de los Reyes"]),
        ({"a": ["Lima", "L."], "b": "Lima"}, ["Lima", "L."]),
        ({"a": "", "b": 5}, [5]),
        ({"a": None, "b": ""}, None),
    ],
)
def test_answers_of_all_reference_columns_count(row: dict[str, Any], expected: object) -> None:
    assert read_one({"q": "?", **row}, input="q", reference=["a", "b"]).reference == expected
    assert read_one({"q": "?", **row}, input="q", reference=["a"]).reference == row["a"]
    assert "no column 'c'" in find_problem({"q": "?", **row}, input="q", reference=["a", "c"])


@pytest.mark.parametrize(
    "cell",
    [
        "['A', 'B']",
        '["A", "B"]',
        " ['A', \"B\"]",
        "array(['A', 'B'], dtype=object)",
        "['A' 'B']",
        "['A'\n 'B']",
        "['A\u2028' 'B']",
    ],
)
def test_json_cells_are_lists_as_python_and_numpy_write_them(cell: str) -> None:
    found = read_one({"q": "?", "r": cell}, input="q", reference="r", cells={"r": "json"}).reference
    assert [one.rstrip("\u2028") for one in found] == ["A", "B"]


@pytest.mark.parametrize(
    ("cell", "how", "expected"),
    [
        ("Lima|Lima city", "|", ["Lima", "Lima city"]),
        ("Lima; ;L. ", ";", ["Lima", "L."]),
        ("Lima", ";", ["Lima"]),
        ("a || b|c", "||", ["a", "b|c"]),
        ("a|b", "text", "a|b"),
    ],
)
def test_separators_split_cells(cell: str, how: str, expected: object) -> None:
    assert read_one({"q": "?", "r": cell}, input="q", reference="r", cells={"r": how}).reference == expected
    assert read_one({"q": "?", "r": cell}, input="q", reference="r").reference == cell
    rows = [{"q": "?", "r": cell}] * 2 + [{"q": "?", "r": "Lima"}]
    found = Columns(input="q", reference="r").find_lists(rows)
    assert found == ({} if cell == "Lima" else {"r": "|" if "|" in cell else ";"})
    assert Columns(input="q", reference="r", cells={"r": "text"}).find_lists(rows) == {}
    assert Columns(input="q", reference="r").find_lists(rows[1:] + rows[2:]) == {}


def test_json_cells_hold_arrays_inside_objects_and_texts_with_quotes() -> None:
    cell = "{'text': array([\"O'Higgins\", 'say \\'a\\' \\'b\\''], dtype=object), 'start': array([1, 2])}"
    found = read_one({"q": "?", "r": cell}, input="q", reference="r", cells={"r": "json"}).reference
    assert found == {"text": ["O'Higgins", "say 'a' 'b'"], "start": [1, 2]}
    for other in ("array(['A'", "zeros(['A'])", "array()"):
        assert "which cells says" in find_problem(
            {"q": "?", "r": other}, input="q", reference="r", cells={"r": "json"}
        )


def test_only_cells_of_the_input_are_part_of_it() -> None:
    columns = Columns(inputs=("a.b", "c"), reference="r", cells={"a": "json", "c": ";", "r": "json"})
    assert columns.input_cells == {"a": "json", "c": ";"}


def test_column_path_reads_one_item_of_a_list() -> None:
    row = {"q": "?", "r": [{"text": "A"}, {"text": "B"}], "s.0": "column"}
    assert read_one(row, input="q", reference="r.0.text").reference == "A"
    assert read_one(row, input="q", reference=["r.1.text", "r.2.text"]).reference == ["B"]
    assert read_one(row, input="q", reference="s.0").reference == "column"
    assert "no column 'r.0.answer'" in find_problem(row, input="q", reference="r.0.answer")


def test_column_path_reads_inside_json_cells() -> None:
    row = {"q": "?", "r": '{"a": {"b": [1], "c": "[2]"}}'}
    assert read_one(row, input="q", reference="r.a.b", cells={"r": "json"}).reference == [1]
    assert read_one(row, input="q", reference="r.a.c", cells={"r": "json", "r.a.c": "json"}).reference == [2]
    assert read_one({**row, "r": None}, input="q", reference="r.a", cells={"r": "json"}).reference is None
    assert "no column 'r.a'" in find_problem(row, input="q", reference="r.a")
    assert "no column 'r.d'" in find_problem(row, input="q", reference="r.d", cells={"r": "json"})
    assert "which cells says is JSON" in find_problem(
        {**row, "r": "{"}, input="q", reference="r.a", cells={"r": "json"}
    )


@pytest.mark.parametrize("cell", ["", "a", '{"a": 1, "a": 2}', "NaN", "[" * 100_000, ["a"], 5])
def test_json_cells_with_invalid_json_are_bad_rows(cell: object) -> None:
    found = find_problem({"q": "?", "r": cell}, input="q", reference="r", cells={"r": "json"})
    assert "row 1: reference: " in found
    assert len(found) < 300


def test_templates_name_values_inside_objects() -> None:
    row = {"in": {"q": "Where?", "n": 2.5, "past": [{"role": "user", "content": "Hi"}]}, "a.b": "x"}
    assert read_one(row, prompt="{in.q} {in.n:.2f} {in.q!r} {a.b} {{in.q}}").input == (
        "Where? 2.50 'Where?' x {in.q}"
    )
    messages: Any = read_one(row, prompt=[["system", "{in.n}"], ["user", "{in.q}"]]).input
    assert [one["content"] for one in messages] == ["2.5", "Where?"]
    assert "'in.past' holds" in find_problem(row, prompt="{in.past}")
    assert "no column 'in.x'" in find_problem(row, prompt="{in.x}")


def test_missing_column_is_reported_with_similar_names() -> None:
    found = find_problem(NQ_OPEN, input="question", reference="anwser")
    assert "reference: no column 'anwser'; there are question and answer; did you mean 'answer'?" in found
    assert "did you mean 'Question'?" in find_problem(SVAMP, prompt="{Body} {question}")
    for part in ("id", "input", "cluster"):
        columns: dict[str, Any] = {"input": "question", part: "zzz"}
        assert f"{part}: no column 'zzz'; there are" in find_problem(NQ_OPEN, **columns)
    for part in ("inputs", "metadata"):
        columns = {**({} if part == "inputs" else {"input": "question"}), part: ["question", "zzz"]}
        assert f"{part}: no column 'zzz'; there are" in find_problem(NQ_OPEN, **columns)


INVALID_COLUMNS = [
    ({}, "found none of input, prompt and inputs; expected one, such as"),
    ({"input": "q", "prompt": "{q}"}, "found input and prompt of"),
    ({"input": "q", "inputs": ["q"]}, "found input and inputs of"),
    ({"input": "q", "metdata": ["a"]}, "Extra inputs are not permitted"),
    ({"input": "q", "metadata": "topic"}, "valid tuple"),
    ({"input": "q", "cells": {"q": "json", "r": "|"}}, "found r in cells, but nowhere else"),
    ({"input": "q", "cells": {"q": "list"}}, "expected json, text, or a separator such as ; or |"),
    ({"prompt": "Question: {q"}, "expected '}' before end of string"),
    ({"prompt": "question"}, "it names no column"),
    ({"prompt": [["usr", "{q}"]]}, "Unexpected message type"),
    ({"prompt": [["user"]]}, "Field required"),
    ({"prompt": [["placeholder", "{turns}"], ["user", "{q}"]]}, "Unexpected message type"),
    ({"prompt": {"user": "{q}"}}, "valid string"),
]


@pytest.mark.parametrize(("columns", "words"), INVALID_COLUMNS)
def test_columns_refuse_invalid_settings(columns: dict[str, Any], words: str) -> None:
    assert words in catch_validation_error(**columns)

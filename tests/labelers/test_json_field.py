"""`JsonField`: a field of structured output, compared as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers import JsonField
from langchain_cfc.sampling.candidates import make_candidate
from tests.calls import is_correct

INVOICE = (
    '{"total": {"value": 12.50, "currency": "EUR"}, "lines": [{"sku": "a"}, {"sku": "b"}], "paid": true}'
)


@pytest.mark.parametrize(
    ("path", "reference"),
    [
        (("total", "value"), 12.5),
        (("total", "currency"), "EUR"),
        (("lines", 1, "sku"), "b"),
        (("lines", 0), {"sku": "a"}),
        (("lines",), [{"sku": "a"}, {"sku": "b"}]),
        (("total",), {"currency": "EUR", "value": 12.5}),
        (("paid",), True),
    ],
)
def test_json_field_compares_the_value_at_a_path(path: tuple[str | int, ...], reference: Any) -> None:
    assert is_correct(JsonField(*path), reference, INVOICE)
    assert not is_correct(JsonField(*path), "something else", INVOICE)


@pytest.mark.parametrize(
    "path", [("sum",), ("lines", 2), ("lines", "1"), ("total", 0), ("paid", "x"), ("total", "value", 0)]
)
def test_json_field_with_a_missing_path_is_wrong(path: tuple[str | int, ...]) -> None:
    assert not is_correct(JsonField(*path), 12.5, INVOICE)


@pytest.mark.parametrize(
    ("reference", "text", "label"),
    [
        (5, "5", True),
        (5, "5.0", True),
        (5.0, "5", True),
        (5, "0.5e1", True),
        (5, "5.0000000000000000000001", False),
        (0.1, "0.1", True),
        (0.1, "0.1000000000000000055511151231257827", False),
        (5, '"5"', False),
        ("5", "5", False),
        (1, "true", False),
        (True, "1", False),
        (False, "0", False),
        (0, "null", False),
        ("", "null", False),
        (0, "-0", True),
        (10**400, "1e400", True),
        (5, "1e999999999", False),
        (5, "1e" + "9" * 30, False),
        (5, "9" * 10_000, False),
        ([1, 2], "[1.0, 2]", True),
        ([1, 2], "[2, 1]", False),
        ([1, 2], "[1, 2, 3]", False),
        ({"a": 1, "b": None}, '{"b": null, "a": 1}', True),
        ({"a": 1}, '{"b": null, "a": 1}', False),
        ({"a": [True]}, '{"a": [1]}', False),
        ("é", '"\\u00e9"', True),
        ("Lima", '"lima"', False),
    ],
)
def test_json_field_compares_values_as_json(reference: Any, text: str, label: bool) -> None:
    assert is_correct(JsonField(), reference, text) is label


@pytest.mark.parametrize(
    "text",
    ["", "Lima", "{'a': 1}", '{"a": 1', '{"a": NaN}', '{"a": 1, "a": 1}', '{"a": 1} and more', "[" * 100_000],
)
def test_json_field_of_invalid_json_is_wrong(text: str) -> None:
    assert not is_correct(JsonField("a"), 1, text)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('```json\n{"a": 1}\n```', True),
        ('\n```\n{"a": 1}```  ', True),
        ('```json\r\n{"a": 1}\r\n```', True),
        ('Here it is:\n```json\n{"a": 1}\n```', False),
        ('```python\n{"a": 1}\n```', False),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 1}\n```', False),
        ("```", False),
        ("```json", False),
    ],
)
def test_json_field_accepts_one_code_fence(text: str, label: bool) -> None:
    assert is_correct(JsonField("a"), 1, text) is label


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@drawn(VALUES, VALUES)
def test_json_field_reads_structured_candidates_like_text(value: Any, other: Any) -> None:
    [draw] = [make_candidate(0, {"value": value})]
    asked = {"prompt": "?", "reference": {"value": value}, "candidates": [draw]}
    assert JsonField().invoke(asked) == [True]  # type: ignore[arg-type]
    text = json.dumps({"value": other})
    same = is_correct(JsonField(), {"value": value}, text)
    assert same == is_correct(JsonField(), {"value": other}, draw.text)
    if json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True):
        assert same


@pytest.mark.parametrize("reference", [math.nan, math.inf, {1, 2}, object()])
def test_json_field_refuses_references_that_are_not_json(reference: Any) -> None:
    with pytest.raises(LabelerError, match="is not JSON"):
        is_correct(JsonField(), reference, "1")


@pytest.mark.parametrize("step", [-1, True, 1.0, None, ("a",)])
def test_json_field_refuses_invalid_paths(step: Any) -> None:
    with pytest.raises(InputError, match="expected keys and indices counted from 0"):
        JsonField("a", step)

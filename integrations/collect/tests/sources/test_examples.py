"""`read_examples`: ids, bad rows, and equal results from every kind of source."""

from __future__ import annotations

import json
import pickle
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped] # it has no types
import pyarrow as pa  # type: ignore[import-untyped] # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped] # it has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_cfc_collect import Columns, read_examples
from langchain_cfc_collect.sources.detection import describe_lists, detect_columns
from langchain_cfc_collect.sources.files import BadRow, read_rows

from integrations.collect.tests.sources.writing import (
    WRITERS,
    catch_record_error,
    write,
    write_jsonl,
    write_parquet,
)
from langchain_cfc.errors import InputError, LabelerError, RecordError
from langchain_cfc.no_answers import is_invisible
from langchain_cfc.records import Example
from tests.lengths import repetitions

INPUT = Columns(input="q")
NAMED = Columns(id="n", input="q")


def read_ids(source: Any, columns: Columns = INPUT) -> list[str]:
    return [example.id for example in read_examples(source, columns)]


def test_default_id_is_a_digest_of_input_and_reference() -> None:
    columns = Columns(input="q", reference="r", metadata=("m",))
    rows: list[dict[str, Any]] = [
        {"q": "a", "r": "x", "m": 1},
        {"q": "a", "r": "y", "m": 1},
        {"q": "b", "r": "x", "m": 1},
        {"q": "ax", "r": None, "m": 1},
        {"q": {"k": 1, "l": 2}, "r": "x", "m": 1},
    ]
    made = read_ids(rows, columns)
    assert len(set(made)) == len(rows)
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in made)
    # Fixed for good: a collection that is resumed knows its prompts by them.
    assert made[0] == "40c0bc08fb0525db"
    moved: list[dict[str, Any]] = [{**row, "m": 2} for row in reversed(rows)]
    assert read_ids(moved, columns) == made[::-1]
    assert read_ids([{"q": {"l": 2, "k": 1}, "r": "x", "m": 1}], columns) == made[4:]


EXPECTED_INPUT = "expected text, a list of messages or an object, all of finite JSON"
BAD_ROWS: list[tuple[Columns, list[Any], list[str], list[BadRow]]] = [
    (
        INPUT,
        [{"q": "a"}, {"q": "b"}, {"q": "a"}],
        ["a", "b"],
        [BadRow(3, "", "the same input and reference as row 1; expected rows to differ")],
    ),
    (
        NAMED,
        [{"n": 7, "q": "a"}, {"n": 8, "q": "a"}, {"n": "7", "q": "b"}],
        ["a", "a"],
        [BadRow(3, "id", "'7' is also the id of row 1; expected ids to differ")],
    ),
    # The id of a bad row may be used again.
    (
        NAMED,
        [{"n": 7, "q": None}, {"n": 7, "q": "b"}],
        ["b"],
        [BadRow(1, "input", f"found None; {EXPECTED_INPUT}")],
    ),
    (
        INPUT,
        [{"q": "a"}, "q", None],
        ["a"],
        [
            BadRow(row, "", f"found {found}; expected an object of values by column")
            for row, found in ((2, "'q'"), (3, None))
        ],
    ),
]


@pytest.mark.parametrize(("columns", "rows", "inputs", "bad"), BAD_ROWS)
def test_read_examples_finds_duplicates_and_items_that_are_no_rows(
    columns: Columns, rows: list[Any], inputs: list[str], bad: list[BadRow]
) -> None:
    examples = read_examples(rows, columns, "set_aside")
    assert [example.input for example in examples] == inputs
    assert examples.bad_rows == bad


MIXED = """\
{"n": 1, "q": "a"}
{"n": 2, "q": null}

oops
{"n": 1, "q": "b"}
{"n": 3}
{"n": 4, "q": "c"}
"""
MIXED_BAD = [(2, "input"), (4, ""), (5, "id"), (6, "input")]


def test_read_examples_sets_bad_rows_aside_on_request(tmp_path: Path) -> None:
    examples = read_examples(write(tmp_path / "a.jsonl", MIXED), NAMED, bad_rows="set_aside")
    assert examples.bad_rows == []
    for _ in range(2):
        assert [example.id for example in examples] == ["1", "4"]
        assert [(row.number, row.field) for row in examples.bad_rows] == MIXED_BAD
    assert examples.bad_rows[3].problem == "no column 'q'; there are n"


def test_read_examples_reports_all_bad_rows_in_one_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", MIXED)
    examples = read_examples(path, NAMED)
    with pytest.raises(RecordError) as caught:
        list(examples)
    error = caught.value
    assert (error.source, error.line, error.field) == (str(path), 0, "")
    first, second = error.problem.split("\n")
    assert first.startswith("4 bad rows; correct them, or skip them: bad_rows='set_aside'")
    assert second.startswith("  line 2: input: ")
    assert second.endswith(". Others: line 4, 5 and 6")
    assert [(row.number, row.field) for row in examples.bad_rows] == MIXED_BAD
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    assert str(again) == str(error)
    many = catch_record_error([{"q": 1}] * 60, INPUT, "refuse").problem
    assert many.endswith(". Others: row 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 49 more")


def test_read_examples_yields_nothing_after_a_bad_row() -> None:
    examples = iter(read_examples([{"q": "a"}, {"q": None}, {"q": "b"}], INPUT))
    assert next(examples).input == "a"
    with pytest.raises(RecordError, match="1 bad row;"):
        next(examples)


def test_row_without_any_column_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{}\n{"question": "a", "ref": "b"}\n')
    columns = Columns(input="question", reference="ref")
    examples = read_examples(path, columns, "set_aside")
    assert [one.input for one in examples] == ["a"]
    assert "no column 'question'; there are none" in str(examples.bad_rows[0])
    assert list(describe_lists(read_rows(path), columns)) == []


@pytest.mark.parametrize("policy", ["refuse", "set_aside"])
def test_dataset_of_bad_rows_is_refused_under_any_policy(policy: str) -> None:
    problem = catch_record_error([{"q": 1}, {"q": 2}], INPUT, policy).problem
    assert "2 bad rows" in problem
    assert ("skip them" in problem) == (policy == "refuse")


def test_iterator_of_rows_can_be_read_once() -> None:
    examples = read_examples(iter([{"q": "a"}]), INPUT)
    assert len(list(examples)) == 1
    with pytest.raises(RecordError, match=r"rows: no rows; expected at least one \(an iterator gives"):
        list(examples)


HUGGING_FACE = [{"q": "a", "r": ["x", "y"], "s": {"t": [1, 2]}}, {"q": "b", "r": [], "s": {"t": []}}]


@pytest.mark.parametrize("kind", ["plain", "numpy", "arrow rows", "iterable"])
def test_hugging_face_datasets_give_the_same_examples_as_lists(kind: str) -> None:
    dataset = datasets.Dataset.from_list(HUGGING_FACE)
    source: Any = {
        "plain": dataset,
        "numpy": dataset.with_format("numpy"),
        "arrow rows": dataset.data.to_pylist(),
        "iterable": dataset.to_iterable_dataset(),
    }[kind]
    for path in ("r", "s.t"):
        columns = Columns(input="q", reference=path)
        examples = read_examples(source, columns)
        expected = list(read_examples(HUGGING_FACE, columns))
        assert list(examples) == expected
        assert list(examples) == expected
    with pytest.raises(InputError, match="expected rows"):
        read_examples(datasets.DatasetDict(train=dataset), columns)


# Without halves of surrogate pairs, which UTF-8 cannot write, and NUL, which Python 3.10 cannot read in CSV.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
ROW = st.fixed_dictionaries(
    {
        "n": st.integers(-(10**9), 10**9),
        "q": TEXT.filter(lambda one: not is_invisible(one)),
        "r": st.lists(TEXT, max_size=3),
        "o": st.fixed_dictionaries({"x": st.floats(allow_nan=False, allow_infinity=False), "y": TEXT}),
        "m": st.booleans(),
        "t": TEXT,
        "c": TEXT,
    }
)
DATASET = st.lists(ROW, min_size=1, max_size=5, unique_by=lambda row: row["n"])
COLUMNS = st.sampled_from(
    [
        {"input": "q", "reference": "r", "metadata": ["m", "t"]},
        {"input": "o", "reference": "o.x", "metadata": ["o.y"]},
        {"inputs": ["q", "r", "o.x"], "cluster": "c"},
        {"prompt": "{q}: {t}{c}", "reference": "o", "cluster": "n"},
        {"prompt": [["system", "{t}"], ["user", "{q}"]], "reference": "q"},
    ]
)


@settings(max_examples=repetitions(150, share=0.3))
@given(rows=DATASET, written=COLUMNS)
def test_every_source_format_gives_the_same_examples(
    rows: list[dict[str, Any]], written: dict[str, Any]
) -> None:
    columns = Columns(id="n", **written)
    expected = [columns.create_example(row, "rows", number) for number, row in enumerate(rows, start=1)]
    assert [example.id for example in expected] == [str(row["n"]) for row in rows]
    assert list(read_examples(rows, columns)) == expected
    with tempfile.TemporaryDirectory() as folder:
        for name, writer in WRITERS.items():
            path = writer(Path(folder) / name, rows)
            assert list(read_examples(path, with_json_cells(columns, path))) == expected
            # The control: a list in CSV is text unless its cells are read as JSON.
            if path.suffix == ".csv" and written.get("reference") == "r":
                assert list(read_examples(path, columns)) != expected


def with_json_cells(columns: Columns, path: Path) -> Columns:
    """Return columns that read the JSON cells of CSV files."""
    if path.suffix != ".csv":
        return columns
    used = json.dumps(columns.model_dump(mode="json"))
    return columns.model_copy(update={"cells": {name: "json" for name in "rom" if f'"{name}' in used}})


N = 20_000
LONG = "x" * 500


def peak_memory(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def count(examples: Iterable[Example]) -> int:
    return sum(1 for _ in examples)


@pytest.mark.long
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_read_examples_streams_a_long_file(tmp_path: Path, name: str) -> None:
    # N rows of more than 500 bytes. The ids and numbers that are kept take 65 + 32 bytes for each, and a dict
    # of N entries at most 3 MB while it grows.
    path = WRITERS[name](tmp_path / name, [{"q": f"{number} {LONG}"} for number in range(N)])
    examples = read_examples(path, INPUT)
    assert peak_memory(lambda: count(examples)) < 6e6
    assert count(examples) == N
    assert peak_memory(lambda: list(examples)) > 12e6


def test_read_rows_streams_one_large_parquet_row_group(tmp_path: Path) -> None:
    rows = [{"q": f"{number} {LONG}", "unused": LONG * 2} for number in range(20_000)]
    path = write_parquet(tmp_path / "a.parquet", rows, compression="none", use_dictionary=False)
    assert pq.ParquetFile(path).num_row_groups == 1
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in read_rows(path))
    assert most < path.stat().st_size / 5
    table = pq.read_table(path)
    assert table.nbytes > path.stat().st_size / 2


SORTED = [{"q": f"{topic} {number}"} for topic in ("easy", "hard") for number in range(1000)]


def read_sample(rows: list[dict[str, Any]], limit: int) -> list[Any]:
    return [example.input for example in read_examples(rows, INPUT, limit=limit)]


def test_limit_draws_a_fair_sample_of_a_sorted_source() -> None:
    # Hypergeometric: of 400 prompts, 200 are hard on average, with standard deviation 8.95; four of these
    # leave a false alarm of 7e-5 over seeds. Control: the first 400 rows hold none.
    hard = sum(one.startswith("hard") for one in read_sample(SORTED, 400))
    assert abs(hard - 200) <= 36
    assert not any(row["q"].startswith("hard") for row in SORTED[:400])


def test_limit_keeps_its_sample_when_it_grows_or_rows_move() -> None:
    few, more = read_sample(SORTED, 20), read_sample(SORTED[::-1], 50)
    assert more[:20] == few
    assert len(set(more)) == 50
    assert sorted(read_sample(SORTED, 5000)) == sorted(row["q"] for row in SORTED)
    # Ids are digests of input and reference, so a corrected reference changes ids, but not the sample.
    answers = Columns(input="q", reference="r")
    for reference in ("Lima", "Cusco"):
        rows = [{**row, "r": reference} for row in SORTED]
        assert [one.input for one in read_examples(rows, answers, limit=20)] == few


def test_limit_refuses_bad_rows_outside_its_sample_and_numbers_below_1() -> None:
    with pytest.raises(RecordError, match="1 bad row"):
        read_sample([*SORTED, {"q": None}], 3)
    with pytest.raises(InputError, match="limit is 0"):
        read_sample(SORTED, 0)


def refuse_blank_references(example: Example) -> None:
    if not example.reference:
        msg = "the reference is blank"
        raise LabelerError(msg)


def test_examples_check_makes_rows_with_unusable_references_bad() -> None:
    rows = [{"q": "a", "r": "x"}, {"q": "b", "r": ""}, {"q": "c", "r": None}]
    for policy in ("refuse", "set_aside"):
        examples = read_examples(rows, Columns(input="q", reference="r"), policy)  # type: ignore[arg-type]
        examples.check = refuse_blank_references
        if policy == "refuse":
            with pytest.raises(RecordError, match=r"row 2: reference: the reference is blank"):
                list(examples)
        else:
            assert [one.input for one in examples] == ["a"]
        assert [bad.number for bad in examples.bad_rows] == [2, 3]


BLANK = [
    (Columns(input="q"), "input"),
    (Columns(prompt="Answer: {q}{also}"), "prompt"),
    (Columns(inputs=("q", "also")), "inputs"),
]


@pytest.mark.parametrize(("columns", "part"), BLANK, ids=[part for _, part in BLANK])
@pytest.mark.parametrize("blank", ["", " \t", "\u200b"])
def test_row_without_a_question_is_a_bad_row(columns: Columns, part: str, blank: str) -> None:
    rows = [{"q": "Peru?", "also": ""}, {"q": blank, "also": blank}]
    with pytest.raises(RecordError, match=rf"row 2: {part}: found nothing in .*q.*; expected a question"):
        list(read_examples(rows, columns))
    assert len(list(read_examples(rows, columns, "set_aside"))) == 1


OBJECTS = [{"text": "Lima", "start": 1}, {"text": "Lima city", "start": 9}]
NESTED: list[tuple[dict[str, Any], str | None, Any]] = [
    ({"question": "q", "answers": OBJECTS}, "answers.text", ["Lima", "Lima city"]),
    ({"question": "q", "answers": json.dumps(OBJECTS)}, "answers.text", ["Lima", "Lima city"]),
    ({"question": "q", "answers": json.dumps({"text": ["Lima"], "start": [1]})}, "answers.text", ["Lima"]),
    ({"question": "q", "answers": str({"text": ["Lima"], "start": [1]})}, "answers.text", ["Lima"]),
    ({"question": "q", "answers": str(["Lima", "Cusco"])}, "answers", ["Lima", "Cusco"]),
    ({"question": "q", "answers": '["Lima", "L."]'}, "answers", ["Lima", "L."]),
    ({"question": "q", "answer": json.dumps({"value": "x", "aliases": ["x"]})}, "answer.aliases", ["x"]),
    ({"inputs": '{"question": "q"}', "outputs": '{"answer": "x"}'}, "outputs.answer", "x"),
    ({"question": "q", "answer": '{"a": 1, "b": 2}'}, "answer", '{"a": 1, "b": 2}'),
    ({"question": "q", "answer": "[" * 100_000}, "answer", "[" * 100_000),
    ({"question": "q", "answer": {"a": 1, "b": 2}}, "answer", {"a": 1, "b": 2}),
    ({"question": "q", "answer": {"city": "Lima"}}, "answer", {"city": "Lima"}),
    ({"inputs": {"question": "q"}, "outputs": {"answer": "x"}}, "outputs.answer", "x"),
    # A question read as the whole object would hold its right answer.
    ({"item": {"question": "q", "answer": "x"}}, "item.answer", "x"),
    ({"question": {"text": "q", "answer": "x"}}, "question.answer", "x"),
]


@pytest.mark.parametrize(("row", "found", "answers"), NESTED)
def test_answers_in_objects_lists_and_json_text_are_found(
    tmp_path: Path, row: dict[str, Any], found: str, answers: Any
) -> None:
    rows = [row, row | {"id": 1}, dict.fromkeys(row) | ({"question": "x"} if "answers" in row else {})]
    for path in (write_jsonl(tmp_path / "a.jsonl", rows), write_parquet(tmp_path / "a.parquet", rows)):
        columns = detect_columns(read_rows(path))
        assert columns.reference == found
        (example,) = read_examples([row], columns)
        assert (example.input, example.reference) == ("q", answers)
        assert list(describe_lists(read_rows(path), columns)) == []


def test_dotted_name_into_text_says_how_to_read_the_cells() -> None:
    rows = [{"q": "Peru?", "answers": '{"text": ["Lima"]}'}]
    with pytest.raises(RecordError, match=r"\n  --set source\.cells\.answers=json"):
        list(read_examples(rows, Columns(input="q", reference="answers.text")))
    columns = Columns(input="q", reference="answers.text", cells={"answers": "json"})
    assert next(iter(read_examples(rows, columns))).reference == ["Lima"]
    with pytest.raises(RecordError, match=r"no column 'other\.text'; there are q and answers"):
        list(read_examples(rows, Columns(input="q", reference="other.text")))

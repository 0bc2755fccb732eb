"""Find the columns of a dataset that hold the question and its reference, by their names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.support.text import join_names
from langchain_cfc_collect.sources.columns import Columns, References, parse_cell
from langchain_cfc_collect.sources.files import IN_MEMORY, BadRow, Rows, to_plain

# Usual column names without spaces and signs, the likeliest first; case does not matter.
_QUESTION = """
    question questionstem prompt input query problem instruction text q
    frage pregunta pergunta domanda vraag вопрос 问题 問題 質問 질문
"""
# What can only be right answers comes before what a table of evaluations calls the model's answers.
_REFERENCE = """
    reference groundtruth groundtruths gold goldanswer goldenanswer expected expectedoutput expectedanswer
    correctanswer correctanswers bestanswer rightanswer answers answer answerkey ideal target label output
    solution a antwort respuesta réponse reponse resposta risposta antwoord ответ 答案 回答 정답
"""
QUESTION_NAMES, REFERENCE_NAMES = _QUESTION.split(), _REFERENCE.split()
# Usual names of the options of a multiple-choice question.
_OPTIONS = re.compile(
    "choice|option|distractor|incorrect|wrong|candidate|ending|(answer|ans|opt?|sol)[a-e1-5]$"
)
_CHOSEN = re.compile("correct|right|gold|key|label|(answer|choice|option)(key|index|idx|id|letter|number)")
# How an answer names one of them.
_OPTION_NAME = re.compile("[A-Za-z]|[0-9]")
# Usual names of answers inside an object: all answers come before one of them.
_INNER_NAMES = ("aliases", "text", "answers", "answer", "value", "question")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Number of rows to look at when deciding whether a column holds JSON.
_SAMPLE_ROWS = 50


def detect_columns(
    rows: Rows, question: str | None = None, reference: References | None = None, prompt: str | None = None
) -> Columns:
    """Return the meaning of a dataset's columns, guessed from their names where not given.

    A column of text is read as JSON if its first values (up to 50) are all lists of answers, or objects that
    the name of an answer leads into. Without a prompt template, which may name any columns, the question
    itself is the input. Raises `RecordError` if there are no rows, and `InputError` if a column cannot be
    guessed.
    """
    sample = read_sample(rows)
    reference = reference or find_usual_name(sample, REFERENCE_NAMES, question)
    question = question or find_usual_name(sample, QUESTION_NAMES, reference)
    reference = reference or find_usual_name(sample, REFERENCE_NAMES, question)
    if reference is None or (question is None and prompt is None):
        part = "reference" if reference is None else "question"
        msg = (
            f"{rows.name}: which column holds the {part}? The names do not show it: "
            f"{join_names(list(sample[0]), 20)}. Call it {part!r} there, or use --{part} on the command line"
        )
        raise InputError(msg)
    names = (reference,) if isinstance(reference, str) else reference
    if question is not None and (prompt is None or f"{{{question}}}" in prompt):
        names = (*names, question)
    return Columns(
        input=question if prompt is None else None,
        prompt=prompt,
        reference=reference,
        cells=dict.fromkeys(_list_json_columns(sample, names), "json"),
    )


def describe_lists(rows: Rows, columns: Columns, *, in_python: bool = False) -> Iterator[str]:
    """Describe references that look like several answers but are read as one text, or name unseen options."""
    sample = read_sample(rows)
    unseen = [name for name in find_options(sample) if f"{{{name}" not in str(columns.prompt)]
    given = {str(row.get(columns.reference)) for row in sample}  # type: ignore[arg-type]  # or none at all
    if unseen and all(map(_OPTION_NAME.fullmatch, given)):
        yield (
            f"{join_names(unseen, 5)} look like options, and {columns.reference!r} like their letters or "
            "numbers, but the model will not see the options: put them into the questions or the prompt"
        )
    for name, how in columns.find_lists(sample).items():
        key = f"source.cells.{format_key(name)}"
        inner, looks = name, "lists" if how == "json" else f"several answers between {how}"
        if how == "json" and _list_keys(sample, name):
            inner, looks = _look_inside(sample, name), "objects"
            if inner == name:  # an object may be one answer
                continue
        several, one = (
            (
                f"read_examples({'rows' if rows.name == IN_MEMORY else repr(rows.name)}, Columns(input="
                f"{columns.input!r}, reference={column!r}, cells={{{name!r}: {value!r}}}))"
                if in_python
                else f"{'' if column == name else f'--reference {shlex.quote(column)} '}"
                f"--set {shlex.quote(f'{key}={value}')}"
            )
            for column, value in ((inner, how), (name, "text"))
        )
        again = "" if in_python else " (and --relabel, if answers were drawn already)"
        yield (
            f"most cells of {name!r} look like {looks}, but each is compared as one text. If they hold "
            f"several right answers, collect with {several}{again}; if not, with {one}"
        )


def format_key(name: str) -> str:
    """Return a key as TOML writes it."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def read_sample(rows: Rows) -> Sequence[Mapping[str, Any]]:
    """Return the first rows that can be read, at most 50, as JSON; raise `RecordError` if there are none."""
    good = (row[1] for row in rows if not isinstance(row, BadRow) and row[1])
    sample = [{name: to_plain(cell) for name, cell in row.items()} for row in islice(good, _SAMPLE_ROWS)]
    if not sample:
        bad = next((row for row in rows if isinstance(row, BadRow)), None)
        if bad is not None:
            raise RecordError(rows.name, bad.number, bad.field, f"no row can be used: {bad.problem}")
        raise RecordError(rows.name, 0, "", "no rows; expected at least one with a question and a reference")
    return sample


def find_usual_name(
    sample: Sequence[Mapping[str, Any]], usual: Sequence[str], other: References | None = None
) -> str | None:
    """Return the column with one of the usual names, or the only one besides `other`, if that is given.

    If it holds objects, or no column has a usual name, columns one level inside objects are considered, such
    as `answers.text`.
    """
    others = other if isinstance(other, tuple) else (other,)
    options = find_options(sample)
    free = [name for name in sample[0] if name not in others and name not in options]
    # The whole of an object would also hold the other column: the question its right answer.
    whole = [name for name in free if not any(str(one).startswith(f"{name}.") for one in others)]
    by_plain_name = {_simplify(name): name for name in reversed(whole)}
    found = next((by_plain_name[name] for name in usual if name in by_plain_name), None)
    if found is None and other is not None and len(free) == len(whole) == 1:
        found = free[0]
    if found is not None:
        return _look_inside(sample, found)
    # Objects such as the inputs and outputs of LangSmith's datasets.
    inner = {_simplify(key): f"{name}.{key}" for name in reversed(free) for key in _list_keys(sample, name)}
    return next((inner[name] for name in usual if name in inner and inner[name] not in others), None)


def find_options(sample: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of the options of multiple-choice questions, such as A, B and C, or choices.

    Lists of answers are options if another column seems to say which of them is right.
    """
    plain = {name: _simplify(name) for row in sample[:1] for name in row}
    letters = {"a", "b", "c", "d", "e"} if {"a", "b"} <= set(plain.values()) else set()
    lists = {"answer", "answers"} if any(map(_CHOSEN.match, plain.values())) else set()
    return [
        name
        for name, one in plain.items()
        if one in letters
        or _OPTIONS.match(one)
        or (one in lists and all(_holds_several(row.get(name)) for row in sample))
    ]


def _holds_several(value: Any) -> bool:
    parsed = _parse(value)
    return isinstance(parsed, list) and len(parsed) > 1


def _simplify(name: Any) -> str:
    """Return the name of a column without spaces, signs and case."""
    return re.sub(r"[\W_]", "", str(name)).casefold()


def _look_inside(sample: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the column inside `name` that holds the answers, if it holds objects as SQuAD or TriviaQA do.

    These are objects whose values are lists or that have no other key, because other objects may be answers
    themselves; or lists of objects.
    """
    objects, keys = _list_objects(sample, name), _list_keys(sample, name)
    are_lists = any(isinstance(_parse(row.get(name)), list) for row in sample)
    for key in (one for one in _INNER_NAMES if one in keys):
        if are_lists or len(keys) == 1 or all(isinstance(one[key], list) for one in objects):
            return f"{name}.{key}"
    return name


def _list_keys(sample: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the keys that all objects of a column share; none if it holds anything else."""
    objects = _list_objects(sample, name)
    return [key for key in objects[0] if all(key in one for one in objects)] if objects else []


def _list_objects(sample: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the objects in the cells of a column, also in lists and in JSON text; none if one has others."""
    values = [_parse(row[name]) for row in sample if row.get(name) is not None]
    objects = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return objects if all(isinstance(one, Mapping) for one in objects) else []


def _parse(value: Any) -> Any:
    """Return what a cell of JSON text holds; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}:
        with suppress(ValueError):
            return parse_cell(value, "json")
    return value


def _list_json_columns(sample: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Iterator[str]:
    """Yield the columns of text that hold JSON: lists of answers, or objects that dotted names lead into."""
    for name in names:
        head = name if name in sample[0] else name.partition(".")[0]
        texts = [row[head] for row in sample if row.get(head) not in (None, "")]
        kinds = list if head == name else (list, dict)
        if texts and all(isinstance(one, str) and isinstance(_parse(one), kinds) for one in texts):
            yield head

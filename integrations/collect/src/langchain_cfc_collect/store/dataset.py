"""Keep the prompts of a store in step with their dataset: add new ones, and take over what has changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from sqlalchemy import Connection, func, select

from langchain_cfc.errors import CollectionError, StoreError
from langchain_cfc.records import Example, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.stages import Labels
from langchain_cfc_collect.store import schema
from langchain_cfc_collect.store.rows import (
    ADD_PROMPTS,
    PAGE_SIZE,
    SET_DRAWN,
    SET_EXAMPLE,
    insert_stages,
    make_prompt_row,
    read_example,
)
from langchain_cfc_collect.store.schema import Write

# Makes the writes of a prompt's finished stages for its position.
MakeWrites: TypeAlias = Callable[[int], list[Write]]
# Executes writes in the transaction of a connection.
Execute: TypeAlias = Callable[[Connection, Iterable[Write]], None]

_RELABEL_ADVICE = (
    "If references were corrected, collect with relabel=True (--relabel), which labels what is stored again"
)
_prompts = schema.prompts


def add_prompts(
    name: str,
    connection: Connection,
    execute: Execute,
    items: Iterable[tuple[Example, MakeWrites | None]],
) -> int:
    """Add all prompts that are not stored yet, or none if one cannot be used; return the number added.

    Stored prompts take metadata and cluster from the examples, which do not affect candidates or labels. A
    prompt whose candidates are already drawn comes with the function that makes the writes of its stages.
    Raises `StoreError` if another prompt is stored under the same id, or other candidates of it, or a prompt
    only seems to be new: one with the same input is stored that is not among the examples. The caller then
    rolls the transaction back.
    """
    stream = iter(items)
    inputs: dict[str, str] = {}  # of new prompts without a record, with their ids
    seen: set[str] = set()
    last = connection.execute(select(func.max(_prompts.c.position))).scalar()
    first = position = 0 if last is None else last + 1
    while page := list(islice(stream, PAGE_SIZE)):
        ids = [canonical_json(example.id) for example, _ in page]
        query = select(_prompts).where(_prompts.c.id.in_(ids))
        known = {row.id: (row, read_example(name, row)) for row in connection.execute(query)}
        new: dict[str, Example] = {}
        writes: list[Write] = []
        for key, (example, make_writes) in zip(ids, page, strict=True):
            seen.add(key)
            if key in new:  # it was added a moment ago
                _check_unchanged(name, example, new[key], ("input", "reference", "metadata", "cluster"))
            elif key in known:
                row, stored = known[key]
                is_recent = row.position >= first
                _check_unchanged(name, example, stored, ("input", "reference"))
                _check_unchanged(name, example, stored, ("metadata", "cluster") if is_recent else ())
                if make_writes is not None:
                    check_same_draws(name, row, make_writes(row.position))
                writes += _update_example(row.position, stored, example)
            else:
                new[key] = example
                writes.append((ADD_PROMPTS, make_prompt_row(position, example)))
                if make_writes is not None:
                    writes += make_writes(position)
                elif first:
                    inputs[canonical_json(example.input)] = example.id
                position += 1
        execute(connection, writes)
    if inputs:
        _check_inputs_are_new(name, connection, first, seen, inputs)
    return position - first


def _check_inputs_are_new(
    name: str, connection: Connection, first: int, seen: Collection[str], inputs: Mapping[str, str]
) -> None:
    """Refuse new prompts whose input was stored before `first` under an id that no example has."""
    for position, stored in read_examples(name, connection).items():
        new = inputs.get(canonical_json(stored.input))
        if position < first and new is not None and canonical_json(stored.id) not in seen:
            msg = (
                f"the input of the prompt {new!r} is stored in {name} under the id {stored.id!r}, which is "
                f"not in the dataset any more. {_RELABEL_ADVICE}, if no other prompt has the same input; "
                "otherwise collect into another store"
            )
            raise StoreError(msg)


def update_examples(
    name: str, connection: Connection, execute: Execute, examples: Iterable[Example]
) -> tuple[int, int]:
    """Take id, reference, metadata and cluster of stored prompts from the dataset as it is now.

    Returns the numbers of corrected references and of prompts without an example. Raises `StoreError` if the
    input of a prompt has changed, because its candidates were drawn for the other.
    """
    stored = read_examples(name, connection)
    matched = match_examples(stored, examples)
    corrected, writes = 0, list[Write]()
    for position, example in matched.items():
        _check_unchanged(name, example, stored[position], ("input",))
        corrected += bool(_list_differing(example, stored[position], ("reference",)))
        writes += _update_example(position, stored[position], example)
    execute(connection, writes)
    return corrected, len(stored) - len(matched)


def read_examples(name: str, connection: Connection) -> dict[int, Example]:
    """Return the examples of all stored prompts by their positions."""
    rows = connection.execute(select(_prompts).order_by(_prompts.c.position)).all()
    return {row.position: read_example(name, row) for row in rows}


def match_examples(stored: Mapping[int, Example], examples: Iterable[Example]) -> dict[int, Example]:
    """Match stored prompts to the examples of their dataset as it is now.

    Args:
        stored: Examples of the stored prompts by position.
        examples: The examples of the dataset.

    Returns:
        The examples by the position of their stored prompt: the one with the same id, or else the only one
        with the same input, provided that no other stored prompt without an example has that input. Ids that
        are digests change when a reference is corrected.
    """
    by_id = {example.id: example for example in examples}
    ids = {one.id for one in stored.values()}
    same_input: defaultdict[str, tuple[list[int], list[Example]]] = defaultdict(lambda: ([], []))
    for position, one in stored.items():
        if one.id not in by_id:
            same_input[canonical_json(one.input)][0].append(position)
    for one in by_id.values():
        if one.id not in ids:
            same_input[canonical_json(one.input)][1].append(one)
    matched = {position: by_id[one.id] for position, one in stored.items() if one.id in by_id}
    for positions, found in same_input.values():
        if len(positions) == len(found) == 1:
            matched[positions[0]] = found[0]
    return matched


def _update_example(position: int, stored: Example, example: Example) -> list[Write]:
    """Return the write that gives a stored prompt the example's columns; none if they are the same."""
    if not _list_differing(example, stored, ("id", "reference", "metadata", "cluster")):
        return []
    row = make_prompt_row(position, example)
    return [(SET_EXAMPLE, {name: row[name] for name in ("position", "id", "example")})]


def make_record_writes(models: Sequence[str], record: PromptRecord, position: int) -> list[Write]:
    """Return the writes of all stages of a finished prompt, whose candidates were drawn by `models`."""
    candidates = record.candidates
    draws = [
        DrawnCandidate(str(one.text), no_answer=one.no_answer)
        if one.message is None
        else DrawnCandidate(one.answer_key, None, one.message)
        for one in candidates
    ]
    outputs = [one.scores for one in candidates]
    verdicts = [None if one.no_answer or one.no_verdict else one.score for one in candidates]
    scores = VerifierScores(verdicts, outputs if any(outputs) else None)
    answers = [one.answer for one in candidates if one.answer is not None]
    if answers and len(answers) < len(candidates):
        msg = f"record {record.id!r} (number {position + 1}): only some of its candidates have an `answer`"
        raise CollectionError(msg)
    labels = Labels([None if one.no_label else one.correct for one in candidates], answers or None)
    return insert_stages(draws, scores, labels, Usage.from_models(models), position)


def check_same_draws(name: str, row: Any, writes: Iterable[Write]) -> None:
    """Raise a `StoreError` if a prompt is stored with other candidates than these writes have."""
    drawn = [values["draws"] for statement, values in writes if statement is SET_DRAWN]
    if row.draws is not None and drawn != [row.draws]:
        msg = f"the prompt {row.id} has other candidates in {name}: add it to another store"
        raise StoreError(msg)


def _list_differing(example: Example, stored: Example, fields: Sequence[str]) -> list[str]:
    return [
        field
        for field in fields
        if canonical_json(getattr(example, field)) != canonical_json(getattr(stored, field))
    ]


def _check_unchanged(name: str, example: Example, stored: Example, fields: Sequence[str]) -> None:
    differing = _list_differing(example, stored, fields)
    if differing:
        advice = (
            _RELABEL_ADVICE
            if differing == ["reference"]
            else "Collect it into another store, or give changed prompts new ids"
        )
        msg = (
            f"the prompt {example.id!r} has another {' and '.join(differing)} in {name}: the dataset "
            f"has changed. {advice}"
        )
        raise StoreError(msg)

"""Keep the prompts of a store in step with their dataset: add new ones, and take over what has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, func, select

from langchain_cfc.errors import CollectionError, StoreError
from langchain_cfc.records import Example, PromptRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.support.database import DatabaseStore
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.executor import Labels
from langchain_cfc_collect.store import schema
from langchain_cfc_collect.store.rows import (
    ADD_PROMPTS,
    PAGE_SIZE,
    SET_EXAMPLE,
    Row,
    combine_writes,
    execute_writes,
    insert_draws,
    insert_labels,
    insert_scores,
    make_prompt_row,
)
from langchain_cfc_collect.store.schema import Write

T = TypeVar("T")
# Makes the writes of a prompt's finished stages for its position, draws first.
MakeWrites: TypeAlias = Callable[[int], list[list[Write]]]

_RELABEL_ADVICE = (
    "If references were corrected, collect with relabel=True (--relabel), which labels what is stored again"
)
# Columns from the dataset that affect neither candidates nor labels.
_DESCRIPTIVE_COLUMNS = ("metadata", "cluster")


def add_prompts(
    store: DatabaseStore,
    connection: Connection,
    items: Iterable[tuple[Example, MakeWrites | None]],
) -> int:
    """Add all prompts that are not stored yet, or none if one cannot be used; return the number added.

    Stored prompts take metadata and cluster from the examples, which do not affect candidates or labels. A
    prompt whose candidates are already drawn comes with the function that makes the writes of its stages.
    Raises `StoreError` if another prompt is stored under the same id, or other candidates of it, or a prompt
    only seems to be new: one with the same input is stored that is not among the examples. The caller then
    rolls the transaction back.
    """
    new, stream = 0, iter(items)
    seen: set[str] = set()
    inputs: dict[str, str] = {}  # of new prompts without a record, with their ids
    columns = schema.prompts.c
    last = connection.execute(select(func.max(columns.position))).scalar()
    first = position = 0 if last is None else last + 1
    while page := list(islice(stream, PAGE_SIZE)):
        query = select(schema.prompts).where(columns.id.in_([example.id for example, _ in page]))
        known = {row["id"]: dict(row) for row in connection.execute(query).mappings()}
        writes: list[list[Write]] = []
        for example, make_writes in page:
            row = make_prompt_row(position, example)
            seen.add(example.id)
            if known.setdefault(example.id, row) is not row:
                _check_unchanged(store.name, row, known[example.id], ("input", "reference"))
                if make_writes is not None:
                    _check_same_draws(store.name, known[example.id], make_writes)
                if known[example.id]["position"] < first:
                    writes.append(update_example(known[example.id], example))
                else:  # it was added a moment ago
                    _check_unchanged(store.name, row, known[example.id], _DESCRIPTIVE_COLUMNS)
                continue
            if make_writes is not None:
                writes += make_writes(position)
            elif first:
                inputs[row["input"]] = example.id
            writes.append([(ADD_PROMPTS, [row])])
            position, new = position + 1, new + 1
        execute_writes(connection, combine_writes(writes))
    if inputs:
        _check_inputs_are_new(store.name, connection, first, seen, inputs)
    return new


def _check_inputs_are_new(
    name: str, connection: Connection, first: int, seen: Collection[str], inputs: Mapping[str, str]
) -> None:
    """Refuse new prompts whose input was stored before `first` under an id that no example has."""
    columns = schema.prompts.c
    stored = connection.execute(select(columns.id, columns.input).where(columns.position < first))
    replaced = [(one.id, inputs[one.input]) for one in stored if one.id not in seen and one.input in inputs]
    if replaced:
        old, new = replaced[0]
        msg = (
            f"the input of the prompt {new!r} is stored in {name} under the id {old!r}, which is not in the "
            f"dataset any more ({len(replaced)} such prompts). {_RELABEL_ADVICE}, if no other prompt has the "
            "same input; otherwise collect into another store"
        )
        raise StoreError(msg)


def match_examples(connection: Connection, examples: Iterable[Example]) -> dict[int, Example]:
    """Match stored prompts to the examples of their dataset as it is now.

    Args:
        connection: Connection to the store.
        examples: The examples.

    Returns:
        The examples by the position of their stored prompt: the one with the same id, or else the only one
        with the same input, provided that no other stored prompt without an example has that input. Ids that
        are digests change when a reference is corrected.
    """
    columns = schema.prompts.c
    stored = connection.execute(select(columns.position, columns.id, columns.input)).all()
    by_id = {example.id: example for example in examples}
    ids = {one.id for one in stored}
    open_prompts = _group_by_input((one.input, one.position) for one in stored if one.id not in by_id)
    open_examples = _group_by_input(
        (canonical_json(example.input), example) for example in by_id.values() if example.id not in ids
    )
    matched = {one.position: by_id[one.id] for one in stored if one.id in by_id}
    for key, positions in open_prompts.items():
        found = open_examples.get(key, [])
        if len(positions) == len(found) == 1:
            matched[positions[0]] = found[0]
    return matched


def _group_by_input(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def update_examples(name: str, connection: Connection, matched: Mapping[int, Example]) -> tuple[int, int]:
    """Take id, reference, metadata and cluster of stored prompts from examples.

    Returns the numbers of corrected references and of prompts without an example. Raises `StoreError` if the
    input of a prompt has changed, because its candidates were drawn for the other.
    """
    corrected, missing, writes = 0, 0, []
    for one in connection.execute(select(schema.prompts)).mappings().all():
        row = dict(one)
        example = matched.get(row["position"])
        if example is None:
            missing += 1
            continue
        _check_unchanged(name, make_prompt_row(row["position"], example), row, ("input",))
        corrected += canonical_json(example.reference) != row["reference"]
        writes.append(update_example(row, example))
    execute_writes(connection, combine_writes(writes))
    return corrected, missing


def update_example(row: Mapping[str, Any], example: Example) -> list[Write]:
    """Return the write that gives a stored prompt the example's columns; none if they are the same."""
    given = make_prompt_row(row["position"], example)
    if given["digest"] == row["digest"]:
        return []
    changed = {f"set_{name}": given[name] for name in ("id", "reference", *_DESCRIPTIVE_COLUMNS, "digest")}
    return [(SET_EXAMPLE, [{"where_position": row["position"], **changed}])]


def make_record_writes(
    models: Sequence[str], record: PromptRecord, position: int, *, forbids_nul: bool
) -> list[list[Write]]:
    """Return the writes of all stages of a finished prompt, whose candidates were drawn by `models`."""
    candidates = record.candidates
    draws = [
        DrawnCandidate(str(one.text), no_answer=one.no_answer)
        if one.message is None
        else DrawnCandidate(one.answer_key, None, one.message)
        for one in candidates
    ]
    outputs = [one.scores or {} for one in candidates]
    verdicts = [None if one.no_answer or one.no_verdict else one.score for one in candidates]
    scores = VerifierScores(verdicts, outputs if any(outputs) else None)
    answers = [one.answer for one in candidates if one.answer is not None]
    if answers and len(answers) < len(candidates):
        msg = f"record {record.id!r} (number {position + 1}): only some of its candidates have an `answer`"
        raise CollectionError(msg)
    labels = Labels([None if one.no_label else one.correct for one in candidates], answers or None)
    return [
        insert_draws(position, draws, Usage.from_models(models), forbids_nul=forbids_nul),
        insert_scores(position, scores, Usage()),
        insert_labels(position, labels, Usage(), forbids_nul=forbids_nul),
    ]


def _check_same_draws(name: str, known: Row, make_writes: MakeWrites) -> None:
    """Refuse a prompt that is stored with other candidates."""
    digests = [
        row["set_draws_digest"]
        for writes in make_writes(known["position"])
        for _, added in writes
        for row in added
        if "set_draws_digest" in row
    ]
    if known.get("draws_digest") and digests != [known["draws_digest"]]:
        msg = f"the prompt {known['id']!r} has other candidates in {name}: add it to another store"
        raise StoreError(msg)


def _check_unchanged(name: str, row: Row, known: Mapping[str, Any], fields: Sequence[str]) -> None:
    differing = [field for field in fields if row[field] != known[field]]
    if differing:
        advice = (
            _RELABEL_ADVICE
            if differing == ["reference"]
            else "Collect it into another store, or give changed prompts new ids"
        )
        msg = (
            f"the prompt {row['id']!r} has another {' and '.join(differing)} in {name}: the dataset "
            f"has changed. {advice}"
        )
        raise StoreError(msg)

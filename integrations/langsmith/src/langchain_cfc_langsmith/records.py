"""Store calibration records as a LangSmith dataset and restore them without loss.

One dataset holds one records file. An example's id is derived from its dataset and record, so that pushing
again after an interruption adds only what is missing. Each example states the total number of records, so
that missing ones are noticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from langsmith import Client
from langsmith.schemas import Dataset, Example
from langsmith.utils import LangSmithNotFoundError
from pydantic import ValidationError

from langchain_cfc import PromptRecord, write_records
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.extend import check_records, require_candidates
from langchain_cfc.records import Provenance, Records
from langchain_cfc_langsmith.asking import find_dataset, iterate_examples, make_client, translate_errors
from langchain_cfc_langsmith.source import read_dataset_rows

# Few enough that their ids fit into one URL.
_BATCH_SIZE = 50
_METADATA_KEY = "cfc"
_MAX_LISTED = 10


class PushResult(NamedTuple):
    """The numbers of examples that a push added and that existed before.

    Attributes:
        dataset_id: Id of the dataset.
        created: Number of new examples.
        already: Number of examples that existed with the same content.
    """

    dataset_id: UUID
    created: int
    already: int


class _Entry(NamedTuple):
    """The content of an example: a record, with its position in the dataset."""

    row: int
    of: int
    record: PromptRecord
    provenance: Provenance | None


def push_records(
    records: Iterable[PromptRecord],
    dataset: str,
    *,
    provenance: Provenance | None = None,
    client: Client | None = None,
) -> PushResult:
    """Store records as a dataset: inputs, references, labelled candidates and provenance.

    Args:
        records: At least one record; `read_records("records.jsonl")` reads a file.
        dataset: Name of the dataset, created if it does not exist. It must hold only these records.
        provenance: Provenance of the records; by default that of a `Records` object.
        client: The client; by default configured by the environment.

    Returns:
        The numbers of examples that were added and that existed before.

    Raises:
        RecordError: If the records do not form a valid dataset.
        InputError: If the dataset holds one of these records with other content, or from another file.
        CollectionError: If LangSmith cannot be reached or refuses; then push again.
    """
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    # Check all records before the first one is sent.
    good = [require_candidates(one) for one in check_records(records, provenance)]
    service = make_client(client)
    into = _ensure_dataset(service, dataset)
    entries = [_Entry(row, len(good), record, provenance) for row, record in enumerate(good)]
    remaining, created = iter(entries), 0
    while batch := list(islice(remaining, _BATCH_SIZE)):
        created += _push_batch(service, into, batch)
    return PushResult(into.id, created, len(good) - created)


def pull_records(
    dataset: str,
    path: str | os.PathLike[str],
    *,
    as_of: str | None = None,
    client: Client | None = None,
) -> int:
    """Write a dataset made by `push_records` to a records file, in the original order, all or nothing.

    Args:
        dataset: Name or id of the dataset.
        path: The file to write; see `write_records`.
        as_of: The version, see `read_dataset_rows`; by default the latest.
        client: The client; by default configured by the environment.

    Returns:
        Number of records written.

    Raises:
        RecordError: If an example is not a record, records are missing, or they come from several files.
        InputError: If the file cannot be written.
        CollectionError: If LangSmith cannot be reached, or there is no such dataset or version.
    """
    service = make_client(client)
    rows = read_dataset_rows(dataset, as_of=as_of, client=service)
    version = rows.name.rpartition("?as_of=")[2]
    entries = sorted(
        (
            _read_entry(rows.name, one)
            for one in iterate_examples(service, find_dataset(service, dataset), version)
        ),
        key=lambda one: one.row,
    )
    _check_complete(rows.name, entries)
    provenance = entries[0].provenance
    return write_records(path, [one.record for one in entries], provenance)


def _ensure_dataset(client: Client, name: str) -> Dataset:
    with translate_errors(f"making the dataset {name!r}"):
        dataset: Dataset
        try:
            dataset = client.read_dataset(dataset_name=name)
        except LangSmithNotFoundError:
            dataset = client.create_dataset(name, description="Calibration records of langchain-cfc")
    return dataset


def _push_batch(client: Client, dataset: Dataset, batch: Sequence[_Entry]) -> int:
    wanted = {_example_id(dataset, one.record): one for one in batch}
    with translate_errors(f"looking for {len(wanted)} records in {dataset.name!r}"):
        there = list(client.list_examples(dataset_id=dataset.id, example_ids=list(wanted)))
    other = [wanted[one.id].record.id for one in there if _read_entry(dataset.name, one) != wanted[one.id]]
    if other:
        listed = ", ".join(other[:_MAX_LISTED]) + (", ..." if len(other) > _MAX_LISTED else "")
        msg = (
            f"the dataset {dataset.name!r} holds {len(other)} of these records with other content, or as "
            f"part of another file: {listed}; push to a dataset with another name"
        )
        raise InputError(msg)
    missing = [_make_example(name, wanted[name]) for name in wanted.keys() - {one.id for one in there}]
    if missing:
        with translate_errors(f"adding {len(missing)} records to {dataset.name!r}"):
            client.create_examples(dataset_id=dataset.id, examples=missing)
    return len(missing)


def _example_id(dataset: Dataset, record: PromptRecord) -> UUID:
    # Derived from both, because ids are unique in a workspace and a record may be in several datasets.
    return uuid5(dataset.id, record.id)


def _make_example(name: UUID, entry: _Entry) -> dict[str, Any]:
    fields = entry.record.model_dump(mode="json", exclude_defaults=True)
    outputs = {"reference": fields.pop("reference", None), "candidates": fields.pop("candidates")}
    provenance = None if entry.provenance is None else entry.provenance.model_dump(mode="json")
    ours = {"row": entry.row, "of": entry.of, "provenance": provenance}
    return {
        "id": name,
        "inputs": {"input": fields.pop("input")},
        "reference_outputs": outputs,
        # Under a single key, because LangSmith adds its own keys to the metadata.
        "metadata": {_METADATA_KEY: {**ours, "record": fields}},
    }


def _read_entry(source: str, example: Example) -> _Entry:
    try:
        ours: Any = (example.metadata or {})[_METADATA_KEY]
        inputs, outputs = example.inputs or {}, example.outputs or {}
        whole = {
            **ours["record"],
            "input": inputs["input"],
            "reference": outputs["reference"],
            "candidates": outputs["candidates"],
        }
        header = ours["provenance"]
        provenance = None if header is None else Provenance.model_validate(header)
        return _Entry(int(ours["row"]), int(ours["of"]), PromptRecord.model_validate(whole), provenance)
    except (KeyError, TypeError, ValidationError) as error:
        problem = (
            f"the example {example.id} is not a record made by push_records: {type(error).__name__}: {error}"
        )
        raise RecordError(source, 0, "", problem) from error


def _check_complete(source: str, entries: Sequence[_Entry]) -> None:
    """Raise a RecordError if records are missing, because the rest would no longer be a random sample."""
    if not entries:
        raise RecordError(source, 0, "", "no records; expected at least one")
    missing = sorted(set(range(entries[0].of)) - {one.row for one in entries})
    if missing or len(entries) != entries[0].of:
        listed = ", ".join(map(str, missing[:_MAX_LISTED]))
        problem = f"found {len(entries)} of {entries[0].of} records (missing: {listed}); push them again"
        raise RecordError(source, 0, "", problem)
    if any((one.of, one.provenance) != (entries[0].of, entries[0].provenance) for one in entries):
        raise RecordError(source, 0, "", "records of several files; expected records of one")

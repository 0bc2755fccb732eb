"""Prompts into a store: all of them or none, and each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from sqlalchemy import Connection, func, select

from langchain_cfc.collect.stages import Paid
from langchain_cfc.collect.store import rows, schema, writes
from langchain_cfc.collect.store.results import PAGE
from langchain_cfc.collect.store.rows import Row
from langchain_cfc.collect.store.writes import ADD_PROMPTS, Writes, execute
from langchain_cfc.database import Database
from langchain_cfc.errors import StoreError
from langchain_cfc.records import Example, PromptRecord

_prompts = schema.prompts


def add(
    database: Database, items: Iterable[tuple[Example, PromptRecord | None]], versions: Sequence[str] = ()
) -> int:
    """Add all that are not there yet, or none: what cannot be used leaves no half of a dataset behind.

    Args:
        database: The store's.
        items: Each an example, with its record where it is finished already.
        versions: What the models that drew for the records call themselves.

    Returns:
        How many are new.

    Raises:
        StoreError: If another prompt is there under the same id.
    """
    new, stream = 0, iter(items)
    with database.writing() as connection:
        last = connection.execute(select(func.max(_prompts.c.position))).scalar()
        position = 0 if last is None else last + 1
        while page := list(islice(stream, PAGE)):
            known = _known(connection, [example.id for example, _ in page])
            added = Writes()
            for example, record in page:
                row = rows.of_example(position, example)
                if known.setdefault(example.id, row) is not row:
                    _check_same(database.name, row, known[example.id])
                    continue
                if record is not None:
                    _add_record(database, added, row, record, versions)
                added.add(ADD_PROMPTS, [row])
                position, new = position + 1, new + 1
            execute(connection, added.all())
    return new


def _add_record(
    database: Database, added: Writes, row: Row, record: PromptRecord, versions: Sequence[str]
) -> None:
    position, without_nul = row["position"], database.without_nul
    draws, scores, labels = rows.of_record(position, record)
    for stage in (
        writes.drawn(position, draws, Paid.drawn_by(versions), without_nul=without_nul),
        writes.scored(position, scores, Paid()),
        writes.labelled(position, labels, Paid(), without_nul=without_nul),
    ):
        for statement, parameters in stage:
            added.add(statement, parameters)


def _check_same(name: str, row: Row, known: Row) -> None:
    differing = [
        field for field in ("input", "reference", "metadata", "cluster") if row[field] != known[field]
    ]
    if differing:
        msg = (
            f"the prompt {row['id']!r} has another {' and '.join(differing)} in {name}: the dataset "
            "has changed. Collect it into a store of its own, or give changed prompts new ids"
        )
        raise StoreError(msg)


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, Row]:
    found = connection.execute(select(_prompts).where(_prompts.c.id.in_(ids))).mappings()
    return {row["id"]: dict(row) for row in found}

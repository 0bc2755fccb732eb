"""Stores of version 1: digests are added, and messages compressed, once and in one transaction."""

from __future__ import annotations

import zlib
from typing import Any

from sqlalchemy import Connection, Integer, Text, bindparam, column, select, table, update

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.digests import (
    draw_checksum,
    draws_digest,
    labels_digest,
    prompt_digest,
    scores_digest,
)
from langchain_cfc.collect.store.seal import SEAL, Seal
from langchain_cfc.database import Database

OLD_VERSION = 1
_PAGE = 200
_DIGESTS = ("digest", "context", "draws_digest", "scores_digest", "labels_digest")
_prompts, _draws, _scores, _labels = schema.prompts, schema.draws, schema.scores, schema.labels
_facts, _calls = schema.facts, schema.calls
# Where version 1 kept messages.
_MESSAGES = table("draws", column("prompt", Integer), column("slot", Integer), column("message", Text))
_SEAL_PROMPT = (
    update(_prompts)
    .where(_prompts.c.position == bindparam("of"))
    .values({name: bindparam(f"new_{name}") for name in _DIGESTS if name != "context"})
)
_SEAL_DRAW = (
    update(_draws)
    .where(_draws.c.prompt == bindparam("of"), _draws.c.slot == bindparam("at"))
    .values(packed=bindparam("new_packed"), checksum=bindparam("new_checksum"))
)


def upgrade(database: Database) -> None:
    """Make a store of version 1 one of this version.

    Nothing could be noticed in it before, so the digests are of what it holds now.

    Args:
        database: The store's.

    Raises:
        StoreError: If another run is at work on it, or it cannot be written.
    """
    with database.locked(), database.writing() as connection:
        if database.embedded:
            # The driver would begin it after the tables are changed.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        _add_columns(connection, "BLOB" if database.embedded else "BYTEA")
        schema.announced.create(connection)
        digests = _seal_prompts(connection)
        connection.exec_driver_sql("ALTER TABLE draws DROP COLUMN message")
        _seal_store(connection, digests)


def _add_columns(connection: Connection, binary: str) -> None:
    added = [("prompts", name, "TEXT") for name in _DIGESTS]
    added += [("draws", "packed", binary), ("draws", "checksum", "TEXT")]
    added += [("calls", "answered", "INTEGER NOT NULL DEFAULT 0")]
    for name, new, kind in added:
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {new} {kind}")


def _seal_prompts(connection: Connection) -> list[str]:
    """Write the digests of all prompts and candidates; return those of the finished prompts."""
    after, finished = -1, []
    page = select(_prompts).order_by(_prompts.c.position).limit(_PAGE)
    while found := connection.execute(page.where(_prompts.c.position > after)).all():
        after = found[-1].position
        sealed = [_sealed(connection, row) for row in found]
        connection.execute(_SEAL_PROMPT, sealed)
        finished += [
            one["new_labels_digest"]
            for row, one in zip(found, sealed, strict=True)
            if row.stage == Stage.LABELLED
        ]
    return finished


def _sealed(connection: Connection, row: Any) -> rows.Row:
    """Write the checksums of a prompt's candidates; return its digests."""
    position = row.position
    drawn = _of_prompt(connection, _draws, position)
    messages = select(_MESSAGES.c.message).where(_MESSAGES.c.prompt == position).order_by(_MESSAGES.c.slot)
    packed = [
        None if message is None else zlib.compress(message.encode())
        for message in connection.execute(messages).scalars()
    ]
    for one, message in zip(drawn, packed, strict=True):
        checksum = draw_checksum(position, one.slot, one.text, one.data, message)
        connection.execute(
            _SEAL_DRAW, {"of": position, "at": one.slot, "new_packed": message, "new_checksum": checksum}
        )
    scores, labels = _of_prompt(connection, _scores, position), _of_prompt(connection, _labels, position)
    made = {
        "draws_digest": draws_digest(position, [one.text for one in drawn], [one.data for one in drawn]),
        "scores_digest": scores_digest(
            position, [one.score for one in scores], [one.outputs for one in scores]
        ),
        "labels_digest": labels_digest(
            position, [one.correct for one in labels], [one.answer for one in labels], row.described
        ),
    }
    return {
        "of": position,
        "new_digest": prompt_digest(row._mapping),  # noqa: SLF001 - SQLAlchemy's public name
        # In the order of the stages, none for those that are not finished.
        **{
            f"new_{name}": value if row.stage > stage else None
            for stage, (name, value) in enumerate(made.items())
        },
    }


def _of_prompt(connection: Connection, rows_of: Any, position: int) -> list[Any]:
    query = select(rows_of).where(rows_of.c.prompt == position).order_by(rows_of.c.slot)
    return list(connection.execute(query))


def _seal_store(connection: Connection, digests: list[str]) -> None:
    connection.execute(
        update(_facts).where(_facts.c.name == "version").values(value=rows.written(schema.VERSION))
    )
    known = dict(map(tuple, connection.execute(select(_facts.c.name, _facts.c.value))))
    count = len(connection.execute(select(_prompts.c.position)).all())
    models = select(_calls.c.model).where(_calls.c.drew, _calls.c.model != "").distinct()
    seal = Seal(prompts=count).with_finished(digests).with_facts(known)
    seal = seal.with_models(connection.execute(models).scalars())
    connection.execute(_facts.insert(), {"name": SEAL, "value": seal.written()})

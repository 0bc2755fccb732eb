"""`Facts`: what a store is, and what its records are made with, so that nothing else is mixed into them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, Integer, Text, bindparam, column, insert, select, table, update

from langchain_cfc._internal.database import Database
from langchain_cfc._version import __version__
from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.integrity import (
    SEAL,
    Seal,
    draw_checksum,
    draws_digest,
    labels_digest,
    prompt_digest,
    read_seal,
    replace_seal,
    scores_digest,
)
from langchain_cfc.errors import StoreError

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


# Of a configuration, what records say of themselves.
OF_RECORDS = ("n", "generator", "verifier", "labeler", "answer")


class Facts:
    """What a store says of itself.

    Args:
        database: The store's.
        create: Whether to make its tables where there are none.

    Raises:
        StoreError: If there are other tables, or those of another release.
    """

    def __init__(self, database: Database, *, create: bool) -> None:
        self._database = database
        self._name = database.name
        if create:
            self._create()
        self._check_version()

    @property
    def configuration(self) -> dict[str, Any]:
        """What its records are made with; empty in a new store."""
        found: dict[str, Any] = self._fact("configuration") or {}
        return found

    def settle(self, configuration: Mapping[str, Any]) -> None:
        """Say what its records are made with from now on, unless they were made with something else."""
        settled = rows.written({**self.configuration, **self.check(configuration)})
        with self._database.writing() as connection:
            _write_facts(connection, {"configuration": settled})
            replace_seal(connection, read_seal(connection).with_facts(_read_facts(connection)))

    def check(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse what its records were not made with.

        Args:
            configuration: By name, plain data.

        Returns:
            The same as it is stored.

        Raises:
            StoreError: If it holds records that were made with something else.
        """
        given: dict[str, Any] = json.loads(rows.written(configuration))
        if known := self.configuration:
            _refuse_other(self._name, known, given)
        return given

    def _create(self) -> None:
        """Make the tables, unless there are any: they are looked at next, whoever made them."""
        known = self._database.tables()
        if known - set(schema.metadata.tables) and self._database.embedded:
            return
        if schema.facts.name in known and self._fact("format") is not None:
            return
        self._database.create(schema.metadata)
        if self._fact("format") is None:
            created = datetime.now(tz=timezone.utc).isoformat(timespec="seconds")
            facts = {
                "version": schema.VERSION,
                "created_at": created,
                "library_version": __version__,
                "format": schema.FORMAT,
            }
            written = {name: rows.written(value) for name, value in facts.items()}
            with self._database.writing() as connection:
                # Of what was begun and not finished nothing is left.
                connection.execute(schema.facts.delete())
                _write_facts(connection, {**written, SEAL: Seal().with_facts(written).written()})

    def _check_version(self) -> None:
        if schema.facts.name not in self._database.tables() or self._fact("format") != schema.FORMAT:
            msg = f"{self._name} is no store of a collection"
            raise StoreError(msg)
        version = self._fact("version")
        if version == OLD_VERSION:
            upgrade(self._database)
            return
        if version != schema.VERSION:
            msg = (
                f"{self._name} is a store of version {version}, and this release reads version "
                f"{schema.VERSION}: export its records with the release that made it, and import them here"
            )
            raise StoreError(msg)

    def _fact(self, name: str) -> Any:
        query = select(schema.facts.c.value).where(schema.facts.c.name == name)
        with self._database.reading() as connection:
            value = connection.execute(query).scalar()
        return None if value is None else json.loads(value)


def _read_facts(connection: Connection) -> dict[str, str]:
    return dict(map(tuple, connection.execute(select(schema.facts.c.name, schema.facts.c.value))))


def _write_facts(connection: Connection, facts: Mapping[str, str]) -> None:
    connection.execute(schema.facts.delete().where(schema.facts.c.name.in_(facts)))
    connection.execute(
        insert(schema.facts), [{"name": name, "value": value} for name, value in facts.items()]
    )


def _refuse_other(name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to mix records that were made differently.

    Names that only one of the two has say nothing, unless records need them.
    """
    shared = [key for key in known if key in given]
    missing = [key for key in OF_RECORDS if key not in known and given.get(key) is not None]
    different = [*(key for key in shared if known[key] != given[key]), *missing]
    if not different:
        return
    listed = "; ".join(line for key in different for line in _contrast(key, known.get(key), given[key]))
    msg = (
        f"{name} was made with another configuration: {listed}. Its records and new ones would not be "
        "exchangeable: collect into another store, or go back to the old configuration"
    )
    raise StoreError(msg)


def _contrast(key: str, known: Any, given: Any) -> Iterator[str]:
    if isinstance(known, Mapping) and isinstance(given, Mapping):
        for name in {**known, **given}:
            if known.get(name) != given.get(name):
                yield from _contrast(f"{key}.{name}", known.get(name), given.get(name))
    elif known is None:
        yield f"{key} is now {given!r:.80}, and was not stated"
    else:
        yield f"{key} was {known!r:.80} and is now {given!r:.80}"

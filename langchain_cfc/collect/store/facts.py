"""`Facts`: what a store is, and what its records are made with, so that nothing else is mixed into them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, insert, select

from langchain_cfc._version import __version__
from langchain_cfc.collect.store import rows, schema
from langchain_cfc.collect.store.seal import SEAL, Seal, read_seal, replace_seal
from langchain_cfc.collect.store.upgrade import OLD_VERSION, upgrade
from langchain_cfc.database import Database
from langchain_cfc.errors import StoreError

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

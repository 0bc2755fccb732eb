"""The tables of a monitor's store, and the tally that says what was written to them.

**Digests.** Each row holds a digest of its values. One fact, the tally, holds the number and the sum of these
digests by table, and a digest of each state of the tests. Every transaction that writes updates it, and every
reading compares it with the rows, so that rows that were changed, removed or added in another way are found.
This detects damage and edits by hand, not forgery, and not an earlier copy of the whole store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    ForeignKey,
    MetaData,
    SmallInteger,
    Table,
    Text,
    delete,
    insert,
    select,
)

from langchain_cfc.errors import StoreError
from langchain_cfc.support.database import ROW_NUMBER, define_facts

# Most rows per query and transaction, and the number of latest results that figures are about.
PAGE_SIZE = 1000
LIST_FIELDS = ("scores", "accepted", "features", "codes", "lengths", "models")

_metadata = MetaData()


# Holds the tally, and the state of each artifact's tests under its digest, among other facts.
FACTS = define_facts("monitor_facts", _metadata)

RESULTS = Table(
    "monitor_results",
    _metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("alpha", Text, nullable=False),
    Column("outcome", SmallInteger, nullable=False),
    Column("withheld", Boolean, nullable=False),
    Column("max_wrong_rate", Text),
    Column("max_wrong_of_all", Text),
    Column("threshold", Double, nullable=False),
    Column("scores", Text, nullable=False),  # JSON, like the next ones
    Column("accepted", Text, nullable=False),
    Column("features", Text, nullable=False),
    Column("codes", Text, nullable=False),
    Column("lengths", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("binding", Text, nullable=False),
    Column("seconds", Double),
    Column("digest", Text, nullable=False),
)

LABELS = Table(
    "monitor_labels",
    _metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("result", Text, ForeignKey("monitor_results.id"), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("correct", Text, nullable=False),  # JSON
    Column("probability", Double, nullable=False),
    Column("digest", Text, nullable=False),
)

# Prompts that could not be served.
FAILURES = Table(
    "monitor_failures",
    _metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("error", Text, nullable=False),  # name of its type only, because its message may quote a prompt
    Column("digest", Text, nullable=False),
)

TALLY = "tally"  # name of the fact
_JSON_COLUMNS = {*LIST_FIELDS, "metadata", "correct"}
_DIGITS = 16
_MODULUS = 16**_DIGITS


@dataclass
class Tally:
    """What was written to a store, without what was deleted."""

    # Of each table the last row number ever given, the number of rows, and the sum of their digests
    rows: dict[str, list[int]] = field(
        default_factory=lambda: {table.name: [0, 0, 0] for table in (RESULTS, LABELS, FAILURES)}
    )
    states: dict[str, str] = field(default_factory=dict)  # digest of the state of the tests, by artifact

    @classmethod
    def read(cls, connection: Connection) -> Tally:
        """Read the tally of a store; raise a StoreError if it is damaged."""
        text = _read_fact(connection, TALLY)
        if _hash(text[_DIGITS:]) != text[:_DIGITS]:
            msg = "the tally of the monitor's store is damaged: restore a backup, or use a new store"
            raise StoreError(msg)
        return cls(**json.loads(text[_DIGITS:]))

    def to_text(self) -> str:
        """Return its digest and its JSON."""
        text = json.dumps(vars(self))
        return _hash(text) + text

    def insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows with the next numbers and with their digests; mappings and sequences become JSON."""
        last, count, total = self.rows[table.name]
        sealed = []
        for number, values in enumerate(rows, last + 1):
            row = {"number": number, **values}
            for column in table.c:
                if column.name in _JSON_COLUMNS:
                    row[column.name] = json.dumps(row[column.name])
                elif isinstance(column.type, Double) and row[column.name] is not None:
                    row[column.name] = float(row[column.name])  # as the database returns it
            digest = _hash_row(table, [row[column.name] for column in table.c if column.name != "digest"])
            sealed.append({**row, "digest": digest})
            total += int(digest, 16)
        if sealed:
            connection.execute(insert(table), sealed)
        self.rows[table.name] = [last + len(sealed), count + len(sealed), total % _MODULUS]

    def delete(self, connection: Connection, table: Table, where: ColumnElement[bool]) -> None:
        """Delete rows; a damaged one is an error, because it may not be meant."""
        count, total = add_up_rows(connection, table, where)
        connection.execute(delete(table).where(where))
        last, counted, sum_ = self.rows[table.name]
        self.rows[table.name] = [last, counted - count, (sum_ - total) % _MODULUS]

    def read_state(self, connection: Connection, digest: str) -> Any:
        """Return the state of the tests of an artifact; None before the first."""
        if digest not in self.states:
            return None
        text = _read_fact(connection, digest)
        if _hash(text) != self.states[digest]:
            msg = f"the state of {digest[:20]} is damaged (its digest differs): use a new store"
            raise StoreError(msg)
        return json.loads(text)

    def write_state(self, connection: Connection, digest: str, data: Any) -> None:
        """Write the state of the tests of an artifact."""
        text = json.dumps(data)
        connection.execute(delete(FACTS).where(FACTS.c.name == digest))
        connection.execute(insert(FACTS), {"name": digest, "value": text})
        self.states[digest] = _hash(text)


def _read_fact(connection: Connection, name: str) -> str:
    return str(connection.execute(select(FACTS.c.value).where(FACTS.c.name == name)).scalar())


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()


def _hash_row(table: Table, values: Sequence[Any]) -> str:
    return _hash(json.dumps([table.name, *values]))


def check_row(table: Table, row: Sequence[Any]) -> None:
    """Raise a StoreError unless the last value of a row is the digest of the others."""
    try:
        is_intact = _hash_row(table, row[:-1]) == row[-1]
    except (TypeError, ValueError):  # a value of another type
        is_intact = False
    if not is_intact:
        msg = f"a row of {table.name} is damaged (its digest differs): restore a backup, or use a new store"
        raise StoreError(msg)


def add_up_rows(connection: Connection, table: Table, *where: ColumnElement[bool]) -> tuple[int, int]:
    """Check rows, and return their number and the sum of their digests."""
    count = total = 0
    for row in connection.execute(select(table).where(*where).execution_options(yield_per=PAGE_SIZE)):
        check_row(table, row)
        count, total = count + 1, total + int(row.digest, 16)
    return count, total % _MODULUS

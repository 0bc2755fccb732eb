"""Tables of a store, the same in SQLite and PostgreSQL, and the digests that detect damage.

**Stages.** A prompt is one row. A stage is finished when its column (`draws`, `scores`, `labels`) is written,
in one transaction with what was paid for it. Single candidates are kept in a table of their own until then,
and their chat messages until the prompt is labelled, because nothing reads them after that.

**Digests.** Every JSON value begins with a digest of the value, its column and its prompt, so that damage is
detected before the value is used. It is BLAKE2b, 8 bytes as 16 hexadecimal digits: it detects flipped bits
and swapped pages, not forgery. The facts have one digest together, and state the number of prompts, so that
lost prompts are detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NoReturn, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TextClause,
    case,
    func,
    select,
    true,
)

from langchain_cfc.errors import CFCError, StoreError
from langchain_cfc.support.database import ROW_NUMBER, define_facts
from langchain_cfc.support.serialization import canonical_json

# A statement, and the values of its parameters, which go to the driver directly.
Statement: TypeAlias = Insert | TextClause
Row: TypeAlias = dict[str, Any]
Write: TypeAlias = tuple[Statement, Row]

FORMAT = "langchain-cfc/collection"
# Version of the tables below.
VERSION = 3

metadata = MetaData()

# Facts about the store, among them how its records are made (`configuration`).
facts = define_facts("facts", metadata)
DIGEST_FACT, PROMPTS_FACT = "digest", "prompts"

# One row per prompt, in the order of the dataset. The values from `example` on are JSON with a digest.
prompts = Table(
    "prompts",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),  # JSON
    Column("stage", SmallInteger, nullable=False),  # `Stage`
    Column("example", Text, nullable=False),
    Column("context", Text),  # digest of the prepared input, while candidates are not complete
    Column("draws", Text),  # for each candidate its text, its data and whether it had a message
    Column("claims", Text),  # claims that the first answer was split into; scores and labels are then theirs
    Column("scores", Text),  # verdicts and raw outputs
    Column("labels", Text),  # labels, extracted answers and the output of the metadata function
    Column("error", Text),  # why the next stage failed; null if it did not
)

# Candidates of prompts that are not drawn completely, and messages of those that are not labelled.
draws = Table(
    "draws",
    metadata,
    # `number_draw`: SQLite checks the order of such keys, so that lost rows are detected.
    Column("number", ROW_NUMBER, primary_key=True, autoincrement=False),
    Column("prompt", Integer, ForeignKey(prompts.c.position), nullable=False),
    Column("slot", Integer, nullable=False),
    # Digest, and JSON, compressed if it is long, as with log-probabilities.
    Column("packed", LargeBinary, nullable=False),
)
_SLOTS = 1 << 20


def number_draw(position: Any, slot: int = 0) -> Any:
    """Return the number of a candidate's row; those of a prompt follow each other."""
    return position * _SLOTS + slot


# Requests and usage of models, including failed stages: each write for a stage adds one row per model.
calls = Table(
    "calls",
    metadata,
    Column("number", ROW_NUMBER, primary_key=True),
    Column("prompt", Integer, ForeignKey(prompts.c.position), nullable=False),
    Column("stage", SmallInteger, nullable=False),  # stage that makes the requests
    # Requests announced before they were made; negative if fewer were made. Those not matched by `answered`
    # may have been charged although no answer was received: the process died, or a connection broke.
    Column("announced", Integer, nullable=False),
    Column("answered", Integer, nullable=False),  # requests that were answered
    Column("model", Text, nullable=False),
    Column("drew", Boolean, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    # Whether this is the part at batch prices of calls that other rows count.
    Column("batched", Boolean, nullable=False),
)


# Digests

_DIGEST_BYTES = 8
_DIGITS = 2 * _DIGEST_BYTES


def _hash(content: bytes, where: str = "") -> bytes:
    return blake2b(where.encode() + content, digest_size=_DIGEST_BYTES).digest()


def seal(position: int, column: str, value: Any) -> str:
    """Return a value as JSON after its digest; raise `ValueError` or `TypeError` if it has none."""
    return _seal_json(position, column, canonical_json(value))


def _seal_json(position: int, column: str, text: str) -> str:
    return _hash(text.encode(), f"{position}\0{column}").hex() + text


def seal_copy(position: int, column: str, row: Any) -> str:
    """Return the value of a column of another prompt, which `unseal` has checked, as this prompt's."""
    return _seal_json(position, column, getattr(row, column)[_DIGITS:])


def unseal(store: str, row: Any, column: str) -> Any:
    """Return the value of a column of a prompt, None if it is null; `StoreError` if it was changed."""
    text = getattr(row, column)
    if text is None:
        return None
    if not isinstance(text, str):
        raise_damage(store, row)
    digest, content = text[:_DIGITS], text[_DIGITS:]
    if _hash(content.encode(), f"{row.position}\0{column}").hex() != digest:
        raise_damage(store, row)
    return json.loads(content)


def seal_bytes(position: int, slot: int, content: bytes) -> bytes:
    """Return the bytes of a candidate after their digest."""
    return _hash(content, f"{position}\0{slot}") + content


def unseal_bytes(row: Any) -> bytes | None:
    """Return the bytes of a candidate's row; None if they were changed."""
    digest, content = row.packed[:_DIGEST_BYTES], row.packed[_DIGEST_BYTES:]
    return bytes(content) if _hash(content, f"{row.prompt}\0{row.slot}") == digest else None


def digest_facts(values: Mapping[str, str]) -> str:
    """Return the digest of all facts, given as JSON by name, as a JSON text."""
    known = sorted([name, value] for name, value in values.items() if name != DIGEST_FACT)
    return canonical_json(_hash(canonical_json(known).encode()).hex())


# The facts, each with the number of prompts, the position after the last one, and the number of prompts whose
# finished stages differ from their columns. One statement sees one state, even while others write.
_columns = prompts.c
_finished = sum(
    case((one.is_not(None), 1), else_=0) for one in (_columns.draws, _columns.scores, _columns.labels)
)
_counts = select(
    func.count().label("total"),
    func.coalesce(func.max(_columns.position) + 1, 0).label("end"),
    func.count(case((_columns.stage != _finished, 1))).label("odd"),
).subquery()
SELECT_STATE = select(facts, _counts).select_from(facts.join(_counts, true()))


def check_state(store: str, rows: Any) -> None:
    """Raise `StoreError` if the rows of `SELECT_STATE` show that facts or prompts were lost or changed."""
    known = {row.name: row.value for row in rows}
    if known.get(DIGEST_FACT) != digest_facts(known):
        raise_damage(store)
    if {(row.total, row.end, row.odd) for row in rows} != {(size := int(known[PROMPTS_FACT]), size, 0)}:
        raise_damage(store)


_RESTORE_ADVICE = ". Restore a backup; `langchain-cfc store check STORE` checks the whole store"


def raise_damage(store: str, prompt: Any = None) -> NoReturn:
    """Raise the error about changed content, of a prompt given by its row if it is known."""
    what = "its content" if prompt is None else f"the prompt {json.loads(prompt.id)!r:.80}"
    msg = f"{store} is damaged: {what} differs from what was written{_RESTORE_ADVICE}"
    raise StoreError(msg)


@contextmanager
def report_damage(store: str) -> Iterator[None]:
    """Turn any failure to read stored values into a `StoreError` that names the store."""
    try:
        yield
    except CFCError:
        raise
    except Exception as error:
        msg = f"{store} is damaged: {type(error).__name__}: {error}{_RESTORE_ADVICE}"
        raise StoreError(msg) from error

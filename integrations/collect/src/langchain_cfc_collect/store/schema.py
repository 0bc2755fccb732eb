"""Tables, digests and the seal of a store, the same in SQLite and PostgreSQL.

**Tables.** Rows are added and not changed, except for the progress of a prompt and the chat messages of its
candidates: nothing reads these after labelling, and `STRIPPED` replaces them. A stage is finished when all of
its rows are written, in one transaction, and the primary keys exclude duplicates. Candidates are written one
by one, before their stage is finished.

**Digests.** Every finished stage leaves a digest of its rows, so that damage is detected before the rows are
used. A digest is BLAKE2b of canonical JSON, 8 bytes as 16 hexadecimal digits: it detects flipped bits and
lost pages, not forgery.

**Seal.** The fact `seal` summarises the content of the store, so that lost prompts and facts are detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Delete,
    Double,
    ForeignKey,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Update,
    bindparam,
    cast,
    literal,
    select,
    union_all,
    update,
)

from langchain_cfc.errors import CFCError, StoreError
from langchain_cfc.sampling.comparison import is_equal_or_named
from langchain_cfc.support.database import ROW_NUMBER, define_facts
from langchain_cfc_collect.costs import Stage

# A statement, and the rows that it is executed with.
Statement: TypeAlias = Insert | Update | Delete
Write: TypeAlias = tuple[Statement, list[dict[str, Any]]]

FORMAT = "langchain-cfc/collection"
# Version of the tables below.
VERSION = 2
# Value of the column `packed` after the message was removed.
STRIPPED = b""

metadata = MetaData()

# Facts about the store, among them how its records are made (`configuration`).
facts = define_facts("facts", metadata)

# One row per prompt, in the order of the dataset.
prompts = Table(
    "prompts",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("input", Text, nullable=False),  # JSON, like `reference`, `metadata` and `described`
    Column("reference", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("cluster", Text),
    Column("stage", SmallInteger, nullable=False),  # `Stage`
    Column("described", Text),  # output of the metadata function
    Column("error", Text),  # JSON: why the next stage failed; null if it did not
    Column("digest", Text),  # digest of the columns that come from the dataset
    Column("context", Text),  # digest of the prepared input, while candidates are not complete
    Column("draws_digest", Text),  # digest of the rows of a finished stage, like the next two
    Column("scores_digest", Text),
    Column("labels_digest", Text),  # includes `described`
)


def _define_slots(name: str, within: MetaData, *columns: Column[Any]) -> Table:
    """Define a table with one row per candidate or claim of a prompt."""
    prompt = Column("prompt", Integer, ForeignKey(prompts.c.position), primary_key=True, autoincrement=False)
    slot = Column("slot", Integer, primary_key=True, autoincrement=False)
    return Table(name, within, prompt, slot, *columns, sqlite_with_rowid=False)


draws = _define_slots(
    "draws",
    metadata,
    Column("text", Text, nullable=False),
    Column("data", Text),  # JSON: the object of a structured candidate, or the text why it is no answer
    Column("packed", LargeBinary),  # JSON of the chat message, compressed because log-probabilities are long
    Column("checksum", Text),  # digest of this row
)

scores = _define_slots(
    "scores",
    metadata,
    Column("score", Double, nullable=False),
    Column("outputs", Text),  # JSON: raw outputs of several verifiers by name; JSON's null without a verdict
)

# `correct` is null if no label could be read.
labels = _define_slots("labels", metadata, Column("correct", Boolean), Column("answer", Text))

# Claims that the first answer of a prompt was split into; slots of scores and labels are then claims' slots.
# Separate metadata: stores of answers, and those of earlier releases, lack this table.
claims = _define_slots(
    "claims",
    MetaData(),
    Column("start", Integer, nullable=False),  # first character in the answer
    Column("stop", Integer, nullable=False),  # one after the last character
    Column("text", Text, nullable=False),
    Column("checksum", Text, nullable=False),  # digest of this row and of the number of claims
)


def define_entries(name: str, within: MetaData, *columns: Column[Any]) -> Table:
    """Define a table with any number of rows per stage of a prompt, about the requests of the stage."""
    number = Column("number", ROW_NUMBER, primary_key=True)
    prompt = Column("prompt", Integer, ForeignKey(prompts.c.position), nullable=False)
    stage = Column("stage", SmallInteger, nullable=False)  # stage that makes the requests
    return Table(name, within, number, prompt, stage, *columns)


def match_keys(table: Table, keys: Sequence[str]) -> list[Any]:
    """Return the conditions that the columns `keys` equal the parameters `where_KEY`."""
    return [table.c[name] == bindparam(f"where_{name}") for name in keys]


def define_update(table: Table, keys: Sequence[str], columns: Sequence[str]) -> Update:
    """Define the statement that sets columns to the parameters `set_COLUMN`, in rows as in `match_keys`."""
    values: dict[str, Any] = {name: bindparam(f"set_{name}") for name in columns}
    return update(table).where(*match_keys(table, keys)).values(values)


# Requests announced before they were made. Those not matched by answers in `calls` may have been answered and
# charged although no answer was received: the process died, or a connection broke.
announced = define_entries(
    "announced",
    metadata,
    Column("requests", Integer, nullable=False),  # negative if fewer were made than announced
)

# Usage of models, including failed stages: each write for a stage of a prompt adds one row per model.
calls = define_entries(
    "calls",
    metadata,
    Column("model", Text, nullable=False),
    Column("drew", Boolean, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("answered", Integer, nullable=False, server_default="0"),  # requests that were answered
)


_DIGEST_BYTES = 8
_MODULUS = 1 << (8 * _DIGEST_BYTES)
# Created once, because `json.dumps` with options creates an encoder for every call.
JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _hash_values(*values: Any) -> str:
    """Return the digest of plain data, with lists and tuples treated as equal."""
    return blake2b(JSON_ENCODER.encode(values).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def digest_prompt(row: Mapping[str, Any]) -> str:
    """Return the digest of the columns of a prompt that come from the dataset."""
    return _hash_values(
        *(row[name] for name in ("position", "id", "input", "reference", "metadata", "cluster"))
    )


def digest_draw(position: int, slot: int, text: str, data: str | None, packed: bytes | None) -> str:
    """Return the checksum of one candidate, which is written before its stage is finished."""
    return _hash_values(position, slot, text, data, None if packed is None else packed.hex())


def digest_claim(row: Mapping[str, Any], count: int) -> str:
    """Return the checksum of one of an answer's `count` claims, which are written before their scores."""
    return _hash_values(count, *(row[name] for name in ("prompt", "slot", "start", "stop", "text")))


def digest_draws(position: int, texts: Sequence[str], data: Sequence[str | None]) -> str:
    """Return the digest of a prompt's n candidates in slot order."""
    return _hash_values(position, texts, data)


def digest_scores(position: int, scores: Sequence[float], outputs: Sequence[str | None]) -> str:
    """Return the digest of a prompt's n scores and raw outputs."""
    # Adding 0.0 removes negative zeros, which SQLite does not store.
    return _hash_values(position, [score + 0.0 for score in scores], outputs)


def digest_labels(
    position: int, correct: Sequence[bool | None], answers: Sequence[str | None], described: str | None
) -> str:
    """Return the digest of a prompt's n labels and answers, and of its metadata function's output."""
    return _hash_values(
        position, [None if label is None else bool(label) for label in correct], answers, described
    )


def _sum_digests(digests: Iterable[str]) -> int:
    """Return the sum of digests modulo 2^64, which does not depend on their order."""
    return sum(int(one, 16) for one in digests) % _MODULUS


SEAL_FACT = "seal"
_SELECT_SEAL = select(facts.c.value).where(facts.c.name == SEAL_FACT)
_REPLACE_SEAL = facts.update().where(facts.c.name == SEAL_FACT)
# A single statement reads a consistent state of the store, even while other processes write.
_SELECT_ALL = union_all(
    select(literal(-1), cast(literal(0), Text), facts.c.name, facts.c.value, cast(literal(None), Text)),
    select(
        prompts.c.position,
        cast(prompts.c.stage, Text),
        cast(literal(None), Text),
        prompts.c.labels_digest,
        prompts.c.error,
    ),
)


@dataclass(frozen=True)
class Seal:
    """Summary of the content of a store; its fields are stored as JSON."""

    prompts: int = 0
    finished: int = 0
    total: int = 0  # sum of the labels digests of the finished prompts, modulo 2^64
    models: tuple[str, ...] = ()  # names of the models that drew candidates, sorted
    facts: str = ""  # digest of all other facts

    @classmethod
    def parse(cls, text: str | None) -> Seal:
        """Parse a stored seal; raises `ValueError` if it is damaged or missing."""
        if text is None:
            msg = "its seal is missing"
            raise ValueError(msg)
        values, known = json.loads(text)
        if _hash_values(values) != known:
            msg = "the seal is damaged"
            raise ValueError(msg)
        return cls(**{**values, "models": tuple(values["models"])})

    def to_json(self) -> str:
        """Return the seal as JSON, together with its own digest."""
        values = asdict(self)
        return json.dumps([values, _hash_values(values)])

    def with_facts(self, facts: Mapping[str, str]) -> Seal:
        """Return the seal for the same store with these facts."""
        return replace(self, facts=_digest_facts(facts))

    def with_finished(self, digests: Sequence[str]) -> Seal:
        """Return the seal for the same store with more finished prompts, given their labels digests."""
        total = _sum_digests([f"{self.total:x}", *digests])
        return replace(self, finished=self.finished + len(digests), total=total)


def _digest_facts(values: Mapping[str, str]) -> str:
    return _hash_values(sorted([name, value] for name, value in values.items() if name != SEAL_FACT))


def read_seal(connection: Connection) -> Seal:
    """Return the seal of a store; raises `ValueError` if it is damaged or missing."""
    return Seal.parse(connection.execute(_SELECT_SEAL).scalar())


def seal_facts(connection: Connection) -> None:
    """Update the seal of a store to its current facts."""
    known = dict(map(tuple, connection.execute(select(facts.c.name, facts.c.value))))
    replace_seal(connection, read_seal(connection).with_facts(known))


def replace_seal(connection: Connection, seal: Seal) -> None:
    """Replace the seal of a store in the transaction of a connection."""
    connection.execute(_REPLACE_SEAL, {"value": seal.to_json()})


def verify_seal(name: str, connection: Connection) -> tuple[Seal, list[int]]:
    """Compare the content of a store with its seal.

    Returns the seal and the positions of the finished prompts in order; raises `StoreError` if prompts or
    facts were lost or changed.
    """
    rows = connection.execute(_SELECT_ALL).all()
    found_facts = {fact: value for _, _, fact, value, _ in rows if fact is not None}
    found_prompts = [(position, stage, value) for position, stage, fact, value, _ in rows if fact is None]
    # A flipped bit can turn null into a number, and a prompt with an error would be skipped.
    if not all(error is None or isinstance(error, str) for *_, error in rows):
        msg = f"{name} is damaged: an error is not text"
        raise StoreError(msg)
    finished = sorted(
        (position, value) for position, stage, value in found_prompts if int(stage) == Stage.LABELLED
    )
    seal = Seal.parse(found_facts.pop(SEAL_FACT, None))
    for what, count, expected in (
        ("prompts", len(found_prompts), seal.prompts),
        ("finished prompts", len(finished), seal.finished),
    ):
        if count != expected:
            msg = f"{name} is damaged: it has {count} {what} instead of {expected}"
            raise StoreError(msg)
    if _sum_digests(value for _, value in finished) != seal.total or _digest_facts(found_facts) != seal.facts:
        msg = f"{name} is damaged: its content differs from what was written"
        raise StoreError(msg)
    return seal, [position for position, _ in finished]


_RESTORE_ADVICE = ". Restore a backup; `langchain-cfc store check STORE` checks the whole store"


@contextmanager
def report_damage(name: str) -> Iterator[None]:
    """Turn any failure to read stored values into a `StoreError` that names the store."""
    try:
        yield
    except CFCError:
        raise
    except Exception as error:
        msg = f"{name} is damaged: {type(error).__name__}: {error}{_RESTORE_ADVICE}"
        raise StoreError(msg) from error


def check_prompt(name: str, row: Any) -> None:
    """Raise `StoreError` if the row of a prompt was changed."""
    _check_equal(name, row.id, digest_prompt(row._mapping), row.digest)  # noqa: SLF001 - SQLAlchemy's public name
    # A stage is finished if and only if its digest is there.
    digests = [row.draws_digest, row.scores_digest, row.labels_digest]
    _check_equal(
        name, row.id, [one is not None for one in digests], [row.stage > stage for stage in range(3)]
    )
    # A flipped bit can turn null into a number.
    _check_equal(name, row.id, type(row.context), type(None) if row.context is None else str)


def check_draws(name: str, prompt: Any, rows: Sequence[Any]) -> None:
    """Raise `StoreError` if the candidates of a prompt or their messages were changed."""
    for one in rows:
        checksum = digest_draw(one.prompt, one.slot, one.text, one.data, one.packed)
        _check_equal(name, prompt.id, checksum, one.checksum)
    if prompt.stage >= Stage.DRAWN:
        digest = digest_draws(prompt.position, [one.text for one in rows], [one.data for one in rows])
        _check_equal(name, prompt.id, digest, prompt.draws_digest)


def check_claims(name: str, prompt: Any, rows: Sequence[Any]) -> None:
    """Raise `StoreError` if the claims of a prompt were changed, or some of them were lost."""
    for one in rows:
        _check_equal(name, prompt.id, digest_claim(one._mapping, len(rows)), one.checksum)  # noqa: SLF001 - as above


def check_scores(name: str, prompt: Any, rows: Sequence[Any]) -> None:
    """Raise `StoreError` if the scores of a scored prompt were changed."""
    digest = digest_scores(prompt.position, [one.score for one in rows], [one.outputs for one in rows])
    _check_equal(name, prompt.id, digest, prompt.scores_digest)


def check_finished(name: str, row: Any, draws: Sequence[Any], items: Sequence[Any]) -> None:
    """Raise `StoreError` if a finished prompt or its answers, claims, scores or labels were changed.

    `draws` are rows of its n answers; `items` are rows of what was scored and labelled, the same answers or
    the claims of the first one, with scores and labels.
    """
    check_prompt(name, row)
    _check_equal(name, row.id, [one.slot for one in items], list(range(len(items))))
    texts, data = [one.text for one in draws], [one.data for one in draws]
    _check_equal(name, row.id, digest_draws(row.position, texts, data), row.draws_digest)
    check_scores(name, row, items)
    correct, answers = [one.correct for one in items], [one.answer for one in items]
    digest = digest_labels(row.position, correct, answers, row.described)
    _check_equal(name, row.id, digest, row.labels_digest)


def _check_equal(name: str, prompt: Any, found: object, expected: object) -> None:
    if found != expected:
        msg = f"{name} is damaged: the prompt {prompt!r:.80} differs from what was written{_RESTORE_ADVICE}"
        raise StoreError(msg)


def add_given_ids(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the ids that its components were given since.

    The user then vouches for the component that drew, scored or labelled before as well.
    """
    return {
        name: given[name] if name in given and is_equal_or_named(one, given[name]) else one
        for name, one in known.items()
    }

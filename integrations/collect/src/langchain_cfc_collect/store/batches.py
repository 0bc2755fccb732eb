"""Tables for providers' batches: the requests of each batch, and their results until the stage is finished.

A batch is written with all its requests before it is submitted, and the provider's id before the run waits
for the batch. A result is written with its usage when it is fetched, and deleted in the transaction that
finishes its stage. So after a kill at any moment, the store still shows what was paid for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Row,
    SmallInteger,
    Table,
    Text,
    insert,
    select,
    text,
)

from langchain_cfc_collect.costs import ModelCalls, Stage, Usage
from langchain_cfc_collect.store import schema
from langchain_cfc_collect.store.schema import Write

HTTP_OK = 200

batches = Table(
    "batches",
    schema.metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False, unique=True),  # key by which the batch is found at its provider
    Column("provider", Text, nullable=False),
    Column("address", Text, nullable=False),  # of the provider's server
    Column("endpoint", Text, nullable=False),  # path of the requests, such as `/v1/chat/completions`
    Column("model", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),  # Unix time in seconds
    Column("input_tokens", BigInteger, nullable=False),  # estimate, like the next one
    Column("output_tokens", BigInteger, nullable=False),
    Column("id", Text),  # the provider's id; null until the batch is known to be submitted
    Column("ended", Boolean, nullable=False),  # whether all results are fetched
)

requests = Table(
    "batch_requests",
    schema.metadata,
    Column("prompt", Integer, ForeignKey(schema.prompts.c.position), primary_key=True, autoincrement=False),
    Column("stage", SmallInteger, primary_key=True, autoincrement=False),  # stage that makes the request
    Column("digest", Text, primary_key=True),  # digest of the request
    Column("occurrence", Integer, primary_key=True, autoincrement=False),  # number among equal requests
    Column("batch", Integer, ForeignKey(batches.c.number), nullable=False),
    Column("line", Integer, nullable=False),  # number in the batch
    Column("status", SmallInteger),  # null until there is a result; 200 if it is an answer, otherwise 0
    Column("live", Boolean, nullable=False),  # whether the result is from a live call, as the batch had none
    Column("packed", LargeBinary),  # compressed body of an answer
    Column("model", Text),  # as reported by the result, like the next two
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Index("batch_lines", "batch", "line"),
    sqlite_with_rowid=False,
)

_ADD_BATCH = insert(batches)
_ADD_REQUESTS = insert(requests)
_SET_ID = text("UPDATE batches SET id = :id WHERE number = :number")
_SET_ENDED = text("UPDATE batches SET ended = TRUE WHERE number = :number")
_SET_RESULT = text(
    "UPDATE batch_requests SET status = :status, live = :live, packed = :packed, model = :model, "
    "input_tokens = :input_tokens, output_tokens = :output_tokens "
    "WHERE prompt = :prompt AND stage = :stage AND digest = :digest AND occurrence = :occurrence"
)
_DELETE_UNANSWERED = text("DELETE FROM batch_requests WHERE batch = :batch AND status IS NULL")
_DELETE_STAGE = text("DELETE FROM batch_requests WHERE prompt = :prompt AND stage = :stage")
# In the order in which one transaction may execute them.
STATEMENTS = (
    _ADD_BATCH,
    _ADD_REQUESTS,
    _SET_ID,
    _SET_RESULT,
    _DELETE_UNANSWERED,
    _SET_ENDED,
    _DELETE_STAGE,
)


@dataclass(frozen=True)
class RequestKey:
    """Key that identifies a request, in this run and in later ones."""

    prompt: int
    stage: Stage
    digest: str
    occurrence: int

    @property
    def columns(self) -> dict[str, Any]:
        """The key as columns of its row."""
        return {**vars(self), "stage": int(self.stage)}


@dataclass(frozen=True)
class Answer:
    """Result of one request of a batch, from the batch or from a live call in its place."""

    packed: bytes | None = None  # compressed body; None if there is no answer that can be read
    calls: ModelCalls | None = None  # usage that the answer reports; None if there is none
    live: bool = False  # whether this is the result of a live call
    lost: bool = False  # whether the provider seems to have processed the request, but sent no result

    @property
    def usage(self) -> Usage:
        """Usage of this one answer."""
        return Usage() if self.calls is None else Usage((self.calls,))

    @property
    def columns(self) -> dict[str, Any]:
        """The answer as columns of the request's row."""
        status, calls = (0, None) if self.packed is None else (HTTP_OK, self.calls)
        used = {name: getattr(calls, name, None) for name in ("model", "input_tokens", "output_tokens")}
        return {"status": status, "live": self.live, "packed": self.packed, **used}


@dataclass(frozen=True)
class BatchRow:
    """Row of a batch in the store, by its columns, without its requests."""

    number: int
    key: str
    provider: str
    address: str
    endpoint: str
    model: str
    created_at: int
    input_tokens: int
    output_tokens: int
    id: str | None = None
    ended: bool = False

    @property
    def estimate(self) -> Usage:
        """Estimated usage of all its requests."""
        return Usage((ModelCalls(self.model, False, self.input_tokens, self.output_tokens),))


def insert_batch(row: BatchRow, keys: Sequence[RequestKey]) -> list[Write]:
    """Return the writes that store a batch before it is submitted, with its requests in line order."""
    of = {"batch": row.number, "live": False}
    lines = [(_ADD_REQUESTS, {**key.columns, **of, "line": line}) for line, key in enumerate(keys)]
    return [(_ADD_BATCH, {**vars(row)}), *lines]


def set_id(number: int, provider_id: str) -> list[Write]:
    """Return the writes that store the provider's id of a batch."""
    return [(_SET_ID, {"number": number, "id": provider_id})]


def set_answers(answers: Sequence[tuple[RequestKey, Answer]]) -> list[Write]:
    """Return the writes that store the results of requests."""
    return [(_SET_RESULT, {**key.columns, **answer.columns}) for key, answer in answers]


def end_batch(number: int) -> list[Write]:
    """Return the writes that end a batch; those of its requests that have no result are deleted."""
    return [(_DELETE_UNANSWERED, {"batch": number}), (_SET_ENDED, {"number": number})]


def finish_stage(position: int, stage: Stage) -> list[Write]:
    """Return the writes that delete the answers of a stage."""
    return [(_DELETE_STAGE, {"prompt": position, "stage": int(stage)})]


# Reads


def read_batches(connection: Connection) -> list[BatchRow]:
    """Return all batches so far, in the order of their numbers."""
    return [BatchRow(*row) for row in connection.execute(select(batches).order_by(batches.c.number))]


def read_open_batches(connection: Connection) -> list[tuple[BatchRow, dict[int, RequestKey]]]:
    """Return the batches that are not completely fetched, each with its open requests by line."""
    held: dict[int, dict[int, RequestKey]] = defaultdict(dict)
    for one in connection.execute(select(requests).where(requests.c.status.is_(None))):
        held[one.batch][one.line] = _read_key(one)
    return [(row, held[row.number]) for row in read_batches(connection) if not row.ended]


def _read_key(row: Row[Any]) -> RequestKey:
    return RequestKey(row.prompt, Stage(row.stage), row.digest, row.occurrence)


def read_answers(connection: Connection) -> Iterator[tuple[RequestKey, Answer]]:
    """Yield the stored answers of all stages that are not finished."""
    for row in connection.execute(select(requests).where(requests.c.status.is_not(None))):
        counts = row.input_tokens, row.output_tokens, 1
        calls = None if row.model is None else ModelCalls(row.model, False, *counts)
        yield _read_key(row), Answer(row.packed, calls, bool(row.live))

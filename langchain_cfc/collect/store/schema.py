"""The tables of a store, the same in SQLite and PostgreSQL.

Rows are added and, but for the stage of a prompt, never changed: a stage is finished when its rows are
there, all of a prompt's in one transaction, and the primary keys let none be there twice. Candidates are
there one by one, before the stage that they belong to is finished.

Every stage leaves a digest of its rows (`digests.py`), and the fact `seal` says what the store holds in all
(`seal.py`).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)

FORMAT = "langchain-cfc/collection"
# Of the tables below; another release may read only what it knows.
VERSION = 2

metadata = MetaData()

# What the store is and what it was made with: `format`, `version`, `configuration` and the like, as JSON.
facts = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# One row per prompt, in the order of the dataset.
prompts = Table(
    "prompts",
    metadata,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("input", Text, nullable=False),  # JSON, like reference, metadata and described
    Column("reference", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("cluster", Text),
    Column("stage", SmallInteger, nullable=False),  # `Stage`
    Column("described", Text),  # what the metadata function says
    Column("error", Text),  # why it failed at the stage after this one; null where it did not
    Column("digest", Text),  # of the columns that come from the dataset
    Column("context", Text),  # digest of what was prepared for candidates that are not complete yet
    Column("draws_digest", Text),  # this one and the next two: of the rows of a finished stage
    Column("scores_digest", Text),
    Column("labels_digest", Text),  # `described` included
)

draws = Table(
    "draws",
    metadata,
    Column("prompt", Integer, ForeignKey("prompts.position"), primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
    Column("data", Text),  # JSON of a structured candidate
    Column("packed", LargeBinary),  # JSON of the chat message, compressed: log-probabilities are long
    Column("checksum", Text),  # digest of this row
    sqlite_with_rowid=False,
)

scores = Table(
    "scores",
    metadata,
    Column("prompt", Integer, ForeignKey("prompts.position"), primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("score", Double, nullable=False),
    Column("outputs", Text),  # JSON: raw outputs of several verifiers by name
    sqlite_with_rowid=False,
)

labels = Table(
    "labels",
    metadata,
    Column("prompt", Integer, ForeignKey("prompts.position"), primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("correct", Boolean, nullable=False),
    Column("answer", Text),
    sqlite_with_rowid=False,
)

# Requests that were announced before they were made. Those that no row of `calls` accounts for may have been
# answered, and paid for, without the answer having been received: the process died, or a connection broke.
announced = Table(
    "announced",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("prompt", Integer, ForeignKey("prompts.position"), nullable=False),
    Column("stage", SmallInteger, nullable=False),  # the one that the requests are made for
    Column("requests", Integer, nullable=False),  # below 0 where fewer were made than announced
)

# What models took, failed stages included: a row per prompt, stage and model each time.
calls = Table(
    "calls",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("prompt", Integer, ForeignKey("prompts.position"), nullable=False),
    Column("stage", SmallInteger, nullable=False),  # the one that the calls were made for
    Column("model", Text, nullable=False),
    Column("drew", Boolean, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("answered", Integer, nullable=False, server_default="0"),  # requests that were answered
)

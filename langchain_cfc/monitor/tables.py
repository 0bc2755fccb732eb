"""The tables of a monitor, the same in SQLite and PostgreSQL; a prefix lets them lie beside others."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    false,
)

FORMAT = "langchain-cfc/monitor"
# Of the tables below; another release may read only what it knows.
VERSION = 2

metadata = MetaData()
_NUMBER = BigInteger().with_variant(Integer, "sqlite")

# `format` and `version`; and of each artifact what has been seen of it, as JSON.
facts = Table(
    "monitor_facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

results = Table(
    "monitor_results",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("alpha", Text, nullable=False),
    Column("outcome", SmallInteger, nullable=False),
    Column("withheld", Boolean, nullable=False),
    Column("bot", Boolean, nullable=False),
    Column("threshold", Double, nullable=False),
    Column("scores", Text, nullable=False),  # JSON, like all lists and objects
    Column("accepted", Text, nullable=False),
    Column("features", Text, nullable=False),
    Column("codes", Text, nullable=False),
    Column("lengths", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("outputs", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("binding", Text, nullable=False),
    Column("seconds", Double),
    # Whether the tests have seen it. They take results as they find them: one that another process was still
    # writing when a later one was seen comes after it.
    Column("seen", Boolean, nullable=False, server_default=false()),
)
Index(
    "monitor_results_unseen", results.c.number, sqlite_where=~results.c.seen, postgresql_where=~results.c.seen
)

labels = Table(
    "monitor_labels",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("result", Text, ForeignKey("monitor_results.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("correct", Text, nullable=False),
    Column("probability", Double, nullable=False),
    Column("seen", Boolean, nullable=False, server_default=false()),
)
Index("monitor_labels_unseen", labels.c.number, sqlite_where=~labels.c.seen, postgresql_where=~labels.c.seen)

# Prompts that could not be served.
failures = Table(
    "monitor_failures",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("at", Double, nullable=False),
    Column("artifact", Text, nullable=False),
    Column("error", Text, nullable=False),  # name of its type; its message may quote a prompt
)

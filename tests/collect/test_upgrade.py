"""Stores of version 1, without digests and with messages as text, are opened and brought up to date once."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from langchain_cfc.collect.store import Store
from langchain_cfc.errors import StoreError
from tests.collect.damaging import Read, make_store

# As SQLAlchemy made them.
TABLES = """
CREATE TABLE facts (name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name));
CREATE TABLE prompts (position INTEGER NOT NULL, id TEXT NOT NULL, input TEXT NOT NULL,
    reference TEXT NOT NULL, metadata TEXT NOT NULL, cluster TEXT, stage SMALLINT NOT NULL,
    described TEXT, error TEXT,
    PRIMARY KEY (position), UNIQUE (id));
CREATE TABLE draws (prompt INTEGER NOT NULL, slot INTEGER NOT NULL, text TEXT NOT NULL, data TEXT,
    message TEXT, PRIMARY KEY (prompt, slot),
    FOREIGN KEY(prompt) REFERENCES prompts (position)) WITHOUT ROWID;
CREATE TABLE scores (prompt INTEGER NOT NULL, slot INTEGER NOT NULL, score DOUBLE NOT NULL, outputs TEXT,
    PRIMARY KEY (prompt, slot), FOREIGN KEY(prompt) REFERENCES prompts (position)) WITHOUT ROWID;
CREATE TABLE labels (prompt INTEGER NOT NULL, slot INTEGER NOT NULL, correct BOOLEAN NOT NULL, answer TEXT,
    PRIMARY KEY (prompt, slot), FOREIGN KEY(prompt) REFERENCES prompts (position)) WITHOUT ROWID;
CREATE TABLE calls (number INTEGER NOT NULL, prompt INTEGER NOT NULL, stage SMALLINT NOT NULL,
    model TEXT NOT NULL, drew BOOLEAN NOT NULL, input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL,
    PRIMARY KEY (number), FOREIGN KEY(prompt) REFERENCES prompts (position));
"""
COPIED = {
    "facts": "SELECT name, iif(name = 'version', '1', value) FROM new.facts WHERE name != 'seal'",
    "prompts": "SELECT position, id, input, reference, metadata, cluster, stage, described, error "
    "FROM new.prompts",
    # Version 1 had no candidates of prompts whose others were not drawn yet.
    "draws": "SELECT prompt, slot, text, data, unpacked(packed) FROM new.draws WHERE prompt % 20 != 3",
    "scores": "SELECT prompt, slot, score, outputs FROM new.scores",
    "labels": "SELECT prompt, slot, correct, answer FROM new.labels",
    "calls": "SELECT number, prompt, stage, model, drew, input_tokens, output_tokens FROM new.calls",
}


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.db"
    make_store(path, 40)
    return path


@pytest.fixture
def old(new: Path) -> Path:
    """The same store as version 1 wrote it."""
    path = new.with_name("old.db")
    with closing(sqlite3.connect(path)) as file:
        file.create_function(
            "unpacked", 1, lambda packed: None if packed is None else zlib.decompress(packed).decode()
        )
        file.executescript("PRAGMA journal_mode = WAL;" + TABLES)
        file.execute("ATTACH ? AS new", (str(new),))
        for table, query in COPIED.items():
            file.execute(f"INSERT INTO main.{table} {query}")
        file.commit()
    return path


def test_an_old_store_is_what_it_was_and_damage_shows_from_now_on(new: Path, old: Path) -> None:
    found, expected = Read.of(old), Read.of(new)
    *rest, unfinished = found.rest
    assert rest == list(expected.rest[:-1])
    assert [(one.draws, one.scores) for one in unfinished] == [
        (one.draws, one.scores) for one in expected.rest[-1]
    ]
    # Not again.
    with closing(sqlite3.connect(old)) as file:
        (seal,) = file.execute("SELECT value FROM facts WHERE name = 'seal'").fetchone()
    with Store(old) as store:
        store.check()
        assert store.usage().tokens == 42 * 40
    with closing(sqlite3.connect(old)) as file:
        assert file.execute("SELECT value FROM facts WHERE name = 'seal'").fetchone() == (seal,)
        file.execute("UPDATE scores SET score = 0.5 WHERE prompt = 4 AND slot = 0")
        file.commit()
    with Store(old) as store, pytest.raises(StoreError, match="the prompt 'p4' is not what was written"):
        store.table()


def test_an_old_store_that_a_run_works_on_is_left_alone(new: Path, old: Path) -> None:
    before = old.read_bytes()
    with Store(new) as store, store.lock():
        # The lock that the other release would hold.
        new.with_name("new.db.lock").rename(new.with_name("old.db.lock"))
        with pytest.raises(StoreError, match="another run is at work"):
            Store(old)
    assert old.read_bytes() == before

"""`DatabaseStore` in SQLite: opening, writing, locking and checking; what is wrong is a typed error."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.errors import StoreError
from tests.memory import mount

sqlalchemy = pytest.importorskip("sqlalchemy")
pytest.importorskip("filelock")

from langchain_cfc.support.database import (  # noqa: E402 - only if both are installed
    DatabaseStore,
    StoreBusyError,
    StoreNotFoundError,
    define_facts,
)

FACTS = define_facts("facts", sqlalchemy.MetaData())


class Notes(DatabaseStore):
    """A store with a table of facts alone."""

    _facts = FACTS
    _format = "notes"
    _version = 1
    _missing_message = "there are no notes at"
    _wrong_format_message = "holds no notes"
    _wrong_version_advice = "write them again"

    def read(self, name: str) -> Any:
        return self._read_fact(name)


class LaterNotes(Notes):
    """Notes of another version."""

    _version = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes.db"


def write(store: Notes, **facts: Any) -> None:
    with store.begin_write() as connection:
        store.write_facts(connection, facts)


def test_store_keeps_what_was_written_and_only_its_owner_reads_it(path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="there are no notes at"):
        Notes(path)
    with Notes(path, create=True) as store:
        write(store, one="1", two='{"a": []}')
        write(store, one="3")
        with store.begin_write():
            modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    modes.pop("notes.db.lock")  # which is empty
    assert modes == {"notes.db": 0o600, "notes.db-wal": 0o600, "notes.db-shm": 0o600}
    assert path.with_name("notes.db.lock").stat().st_size == 0
    # Permissions that a file has already stay.
    path.chmod(0o660)
    with Notes(f"sqlite:///{path}", create=True) as again:
        assert (again.read("one"), again.read("two"), again.read("three")) == (3, {"a": []}, None)
        again.check_pages(thoroughly=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_failed_transaction_leaves_nothing_behind(path: Path) -> None:
    with Notes(path, create=True) as store:
        with pytest.raises(StoreError, match=r"cannot write .*; finished work is kept"):
            write(store, one="1", two=["no text"])
        assert store.read("one") is None


def test_stores_that_start_at_once_create_the_tables_once(path: Path) -> None:
    opened: list[Any] = []
    threads = [
        threading.Thread(target=lambda: opened.append(Notes(path, create=True).read("version")))
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert opened == [1] * 4


def test_locked_store_is_busy_for_every_other_run_under_any_name(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with Notes(path, create=True) as store, Notes(path) as other, Notes(link) as linked:
        for one in (other, linked):
            with store.lock(), pytest.raises(StoreBusyError, match="another run is using"), one.lock():
                pass
            with store.lock():
                assert one.read("version") == 1  # reading is allowed
            with one.lock():
                pass


def test_half_created_store_is_created_again(path: Path) -> None:
    Notes(path, create=True).close()
    for left in ("UPDATE facts SET name = 'x' WHERE name = 'format'", "DROP TABLE facts"):
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(left)
        with Notes(path, create=True) as store:
            assert (store.read("version"), store.read("x")) == (1, None)


@pytest.mark.parametrize("create", [False, True])
def test_other_databases_and_versions_are_refused_and_unchanged(path: Path, create: bool) -> None:
    other, text = path.with_name("other.db"), path.with_name("text.db")
    Notes(path, create=True).close()
    with closing(sqlite3.connect(other)) as file, file:
        file.execute("CREATE TABLE mine (a)")
    text.write_text("no database at all, but some text\n" * 50)
    for kind, where, said in (
        (LaterNotes, path, r"is a store of version 1, but .* reads version 2: write them"),
        (Notes, other, "holds no notes"),
        (Notes, text, "file is not a database"),
    ):
        before = where.read_bytes()
        with pytest.raises(StoreError, match=said):
            kind(where, create=create)
        assert where.read_bytes() == before


NO_ADDRESSES = (
    *(
        "mssql+pyodbc://user:secret@host/base",
        "://user:secret@host",
        "postgresql://user:secret@host:port/base",
    ),
    *("user:secret@host/base", "postgresql//user:secret@host/base", "host=a password=secret dbname=b"),
)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        *((name, "names no file") for name in (":memory:", "", "sqlite://", "sqlite:///:memory:")),
        *((name, "cannot be read: expected a path") for name in NO_ADDRESSES),
        ("sqlite:///a.db:x@y:z://", "unable to open|there are no notes"),
    ],
)
def test_address_that_is_no_store_is_refused_without_its_password(where: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as refused:
        Notes(where)
    assert "secret" not in str(refused.value)


def test_file_with_a_second_name_is_refused_under_both(path: Path) -> None:
    second = path.with_name("second.db")
    with Notes(path, create=True) as store:
        os.link(path, second)
        for where in (path, second):
            for create in (False, True):
                with pytest.raises(StoreError, match=r"has 2 names \(hard links\).*Remove the other name"):
                    Notes(where, create=create)
        # It is unknown which of the two is meant, also where the first was opened before.
        with pytest.raises(StoreError, match="has 2 names"), store.lock():
            pass
    second.unlink()
    assert Notes(path).read("version") == 1


@pytest.mark.parametrize("name", ["a name with spaces.db", "plain.db"])
def test_file_with_a_mount_of_its_own_is_refused(path: Path, name: str) -> None:
    other = path.with_name(name)
    other.touch()
    with Notes(path, create=True) as store, mount(other, "--bind", path), store.lock():
        assert other.stat().st_ino == path.stat().st_ino
        with pytest.raises(StoreError, match="mount the folder that holds it"):
            Notes(other)


def test_mounted_folder_shares_the_lock_of_its_store(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with (
        Notes(path, create=True) as store,
        mount(elsewhere, "--bind", path.parent),
        Notes(elsewhere / path.name) as other,
        store.lock(),
        pytest.raises(StoreBusyError),
        other.lock(),
    ):
        pass


def test_mounted_file_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Notes(path, create=True).close()
    table = tmp_path / "mounts"
    monkeypatch.setattr("langchain_cfc.support.database._MOUNT_TABLE", table)
    Notes(path).close()  # a system without such a table
    table.write_text(f"36 35 98:0 / {path} rw\n")
    with pytest.raises(StoreError, match="is mounted as a single file"):
        Notes(path)


def test_damaged_store_is_a_typed_error(path: Path) -> None:
    with Notes(path, create=True) as store:
        write(store, one="{")
        with pytest.raises(StoreError, match="is damaged: its one cannot be read"):
            store.read("one")
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    with pytest.raises(StoreError):
        Notes(path)


def test_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="its folder must exist and be writable"):
        Notes(tmp_path / "nowhere" / "notes.db", create=True)
    assert list(tmp_path.iterdir()) == []

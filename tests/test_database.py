"""`DatabaseStore` in SQLite: opening, writing, locking and checking; what is wrong is a typed error."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc.errors import StoreError

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
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Notes(f"sqlite:///{path}", create=True) as again:
        assert (again.read("one"), again.read("two"), again.read("three")) == (3, {"a": []}, None)
        again.check_pages(thoroughly=True)


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


def test_locked_store_is_busy_for_every_other_run(path: Path) -> None:
    with Notes(path, create=True) as store, Notes(path) as other:
        with store.lock(), pytest.raises(StoreBusyError, match="another run is using"), other.lock():
            pass
        with other.lock():
            pass


def test_other_databases_and_versions_are_refused(path: Path, tmp_path: Path) -> None:
    Notes(path, create=True).close()
    with pytest.raises(StoreError, match=r"is a store of version 1, but .* reads version 2: write them"):
        LaterNotes(path)
    other = tmp_path / "other.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{other}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (a)")
    engine.dispose()
    for create in (False, True):
        with pytest.raises(StoreError, match="holds no notes"):
            Notes(other, create=create)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (":memory:", "names no file"),
        ("sqlite://", "names no file"),
        ("nodatabase://x", "is not a usable database"),
        ("sqlite:///a.db:x@y:z://", "unable to open|there are no notes"),
        ("://", "is neither a path nor a database URL"),
    ],
)
def test_address_that_is_no_store_is_refused(where: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        Notes(where)


def test_file_with_a_second_name_is_refused(path: Path, tmp_path: Path) -> None:
    Notes(path, create=True).close()
    os.link(path, tmp_path / "second.db")
    with pytest.raises(StoreError, match="has 2 names"):
        Notes(path)


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

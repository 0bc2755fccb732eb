"""Full and read-only disks are reported, and runs resume once there is room."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.store import Store

from integrations.collect.tests.fakes import FakeExecutor, N, run
from langchain_cfc.errors import StoreError
from langchain_cfc.support import database
from tests.memory import mount

SIZE, AT_ONCE = 300, 4


class Disk:
    """A small file system of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def change(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with mount(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        yield Disk(folder)


def large() -> FakeExecutor:
    return FakeExecutor(texts=lambda name: [f"{name} {slot} " + "x" * 2000 for slot in range(N)])


def check_intact(path: Path, executor: FakeExecutor) -> None:
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []
    with Store(path) as store:
        stages = store.count_stages()
        # What was drawn is there, but for what was under way.
        drawn = sum(stages[stage] for stage in Stage if stage > Stage.OPEN)
        assert 0 < executor.count("draw") - AT_ONCE <= drawn <= executor.count("draw") < SIZE
        for record in store.read_records():
            assert [one.text for one in record.candidates] == list(executor.texts(record.id))


def check_completes(path: Path, executor: FakeExecutor) -> None:
    assert run(path, executor, at_once=AT_ONCE).status.labelled == SIZE
    assert sum(count - 1 for count in executor.done.values()) <= AT_ONCE
    with Store(path) as store:
        assert [record.id for record in store.read_records()] == [f"p{number}" for number in range(SIZE)]


def test_full_disk_is_reported_and_the_run_resumes_with_free_space(disk: Disk) -> None:
    executor, path = large(), disk.folder / "store.db"
    with pytest.raises(StoreError, match="full; finished work is kept, so run again") as raised:
        run(path, executor, SIZE, at_once=AT_ONCE)
    assert str(path) in str(raised.value)
    check_intact(path, executor)
    # Still full.
    with pytest.raises(StoreError, match="disk is full"):
        run(path, large(), at_once=AT_ONCE)
    disk.change("size=16m")
    check_completes(path, executor)


def test_store_at_its_page_limit_is_reported_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up = database._configure_connection

    def bounded(connection: Any, record: Any) -> None:
        set_up(connection, record)
        connection.execute("PRAGMA max_page_count = 200")

    executor, path = large(), tmp_path / "store.db"
    monkeypatch.setattr(database, "_configure_connection", bounded)
    with pytest.raises(StoreError, match="full; finished work"):
        run(path, executor, SIZE, at_once=AT_ONCE)
    monkeypatch.undo()
    check_intact(path, executor)
    check_completes(path, executor)


# With a few pages left, SQLite has no room for its index of the journal, and speaks of an I/O error.
@pytest.mark.parametrize(("left", "said"), [(4, "disk is full"), (16, "I/O error; [0-9]{1,2} KiB are free")])
def test_disk_full_before_the_first_write_leaves_no_store(disk: Disk, left: int, said: str) -> None:
    (disk.folder / "ballast").write_bytes(b"x" * (2**20 - 1024 * left))
    path = disk.folder / "store.db"
    with pytest.raises(StoreError, match=said):
        run(path, FakeExecutor(), SIZE)
    (disk.folder / "ballast").unlink()
    assert run(path, FakeExecutor(), 3).status.labelled == 3


@pytest.mark.parametrize("is_disk", [True, False], ids=["read-only disk", "immutable file"])
def test_store_that_cannot_be_written_is_reported_and_unchanged(disk: Disk, is_disk: bool) -> None:
    executor, path = FakeExecutor(), disk.folder / "store.db"
    run(path, executor, 5)
    before = path.read_bytes()
    if is_disk:
        disk.change("ro")
        with pytest.raises(StoreError, match=r"cannot (write|read) .*new\.db"):
            run(disk.folder / "new.db", executor, 9)
    # Root may write whatever permissions say, but for this.
    elif subprocess.run(["chattr", "+i", path], check=False, capture_output=True).returncode:
        pytest.skip("this file system knows no immutable files")
    with pytest.raises(StoreError, match=r"cannot (write|read) .*store\.db.*must .* be writable"):
        run(path, executor, 9)
    assert path.read_bytes() == before
    disk.change("rw") if is_disk else subprocess.run(["chattr", "-i", path], check=True)
    assert run(path, executor, 9).status.labelled == 9
    assert set(executor.done.values()) == {1}

"""A store file that can be reached by two names is refused, since locks and journals go by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_cfc_collect.costs import Stage
from langchain_cfc_collect.store import Store

from integrations.collect.tests.fakes import FakeExecutor, run
from integrations.collect.tests.sharing import make_numbered_examples, mount
from langchain_cfc.errors import StoreError
from langchain_cfc.support import database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "store.db"
    with Store(found, create=True) as store:
        store.add(make_numbered_examples(3))
    return found


def test_store_with_a_hard_link_is_refused_under_both_names(path: Path) -> None:
    link = path.with_name("link.db")
    with Store(path) as store, store.lock():
        os.link(path, link)
        for create in (False, True):
            with pytest.raises(
                StoreError, match=r"link\.db has 2 names \(hard links\).*Remove the other name"
            ):
                Store(link, create=create)
        assert store.count_stages()[Stage.OPEN] == 3
    # It is unknown which of the two is meant.
    with pytest.raises(StoreError, match=r"store\.db has 2 names"):
        run(path, FakeExecutor())
    link.unlink()
    assert run(path, FakeExecutor()).status.labelled == 3


def test_store_lock_refuses_a_file_with_a_hard_link(path: Path) -> None:
    with Store(path) as store:
        os.link(path, path.with_name("link.db"))
        with pytest.raises(StoreError, match="has 2 names"), store.lock():
            pass


@pytest.fixture(params=["a name with spaces.db", "plain.db"])
def mounted(path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The store under another name, by a bind mount of the file itself."""
    other = path.with_name(request.param)
    other.touch()
    with mount(other, "--bind", path):
        yield other


def test_bind_mounted_store_file_is_refused(path: Path, mounted: Path) -> None:
    assert path.stat().st_ino == mounted.stat().st_ino
    assert mounted.stat().st_nlink == 1
    with (
        Store(path) as store,
        store.lock(),
        pytest.raises(StoreError, match="mount the folder that holds it"),
    ):
        Store(mounted)


def test_bind_mounted_folder_shares_the_lock_of_its_store(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    busy = pytest.raises(StoreError, match="another run is using")
    with (
        mount(elsewhere, "--bind", path.parent),
        Store(path) as store,
        store.lock(),
        Store(elsewhere / path.name) as other,
        busy,
        other.lock(),
    ):
        pass


def test_store_opens_on_systems_without_a_list_of_mounts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_MOUNT_TABLE", path.with_name("none"))
    with Store(path) as store:
        assert store.count_stages()[Stage.OPEN] == 3

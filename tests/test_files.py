from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from langchain_cfc.errors import InputError
from langchain_cfc.support.files import atomic_writer, read_regular


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def find_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_atomic_writer_creates_the_file_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_writer(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list_names(tmp_path) == ["file"]


def test_atomic_writer_keeps_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_writer(str(path)) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_atomic_writer_leaves_nothing_new_after_a_failure(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_writer(path) as file:
            file.write(b"new")
            raise failure

    with pytest.raises(failure):
        write()
    assert path.read_bytes() == b"old"
    assert list_names(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_atomic_writer_reports_a_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, full)
    with (
        pytest.raises(InputError, match=r"cannot write .*file: No space left on device; nothing was written"),
        atomic_writer(tmp_path / "file") as file,
    ):
        file.write(b"new")
    assert list_names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is the system's")
def test_atomic_writer_leaves_nothing_new_if_the_disk_is_full(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writes fail after some have succeeded."""
    program = (
        "import resource, signal, sys\n"
        "from langchain_cfc.support.files import atomic_writer\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    with atomic_writer(sys.argv[1]) as file:\n"
        "        for _ in range(100):\n"
        "            file.write(b'x' * 10_000)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    path = tmp_path / "file"
    path.write_bytes(b"old")
    ran = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == f"InputError cannot write {path}: File too large; nothing was written"
    assert path.read_bytes() == b"old"
    assert list_names(tmp_path) == ["file"]


def test_atomic_writer_raises_other_os_errors_unchanged(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_writer(tmp_path / "file") as file:
            file.write(b"new")
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        write()
    assert list_names(tmp_path) == []


@pytest.mark.parametrize("name", ["file", "ñ" * 120])
def test_atomic_writer_keeps_files_that_are_being_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with atomic_writer(path) as first:
        first.write(b"first")
        with atomic_writer(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list_names(tmp_path) == [name]


def test_read_regular_refuses_anything_but_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="not a regular file"):
            read_regular(path, 10)
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 10) == b"0123456789"
    with pytest.raises(InputError, match="larger than 0 MiB"):
        read_regular(tmp_path / "file", 9)


def test_atomic_writer_syncs_before_it_replaces_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[int, bool]]()
    monkeypatch.setattr("os.fsync", lambda number: synced.append((os.fstat(number).st_size, path.exists())))
    with atomic_writer(path) as file:
        file.write(b"new")
    assert synced == [(3, False)]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_atomic_writer_gives_a_new_file_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_writer(tmp_path / "file"):
            pass
    finally:
        os.umask(before)
    assert find_mode(tmp_path / "file") == 0o666 & ~umask


def test_atomic_writer_creates_private_files_with_mode_600(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_writer(path, private=True):
        assert [find_mode(one) for one in tmp_path.iterdir()] == [0o600]
    assert find_mode(path) == 0o600
    # Who shares it once shares it for good.
    path.chmod(0o640)
    with atomic_writer(path, private=True):
        pass
    assert find_mode(path) == 0o640


def test_atomic_writer_keeps_the_mode_of_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    with atomic_writer(path):
        assert [find_mode(one) for one in tmp_path.iterdir()] == [0o600, 0o600]
    assert find_mode(path) == 0o600


def test_atomic_writer_follows_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with atomic_writer(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("folder", ["none", "file"])
def test_atomic_writer_names_a_missing_folder(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=rf"the folder .*{folder} does not exist"),
        atomic_writer(tmp_path / folder / "new"),
    ):
        pytest.fail("nothing could be written here")


def test_atomic_writer_refuses_folders_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="not a regular file"), atomic_writer(path):
            pytest.fail("this must not be replaced")
    assert list_names(tmp_path) == ["pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_atomic_writer_names_files_and_folders_without_permission(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o400)
    with pytest.raises(InputError, match="read-only"), atomic_writer(tmp_path / "file"):
        pytest.fail("the file is read-only")
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied in the folder"), atomic_writer(tmp_path / "new"):
        pytest.fail("the folder is read-only")

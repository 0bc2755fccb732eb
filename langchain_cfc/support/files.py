"""Write files atomically, determine their creation time, and read untrusted files up to a size limit."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from langchain_cfc.errors import InputError

if sys.platform != "win32":
    import fcntl

# Modes of new files before the umask: files that hold prompts and answers, and all others.
PRIVATE_MODE, _DEFAULT_MODE = 0o600, 0o666
# Of a full disk, a quota, a limit on the size of files, and a failing device.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Maximum number of the target's characters in the name of a temporary file, which has at most 255 bytes.
_MAX_NAME_CHARACTERS = 40


def read_creation_time() -> datetime:
    """Return the current time in UTC, or `SOURCE_DATE_EPOCH` if it is set, for reproducible files.

    Raises `InputError` if that is not a whole number of seconds (reproducible-builds.org).
    """
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return datetime.fromtimestamp(time.time() if stated is None else int(stated), timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        msg = f"SOURCE_DATE_EPOCH must be a whole number of seconds since 1970, got {stated!r}"
        raise InputError(msg) from error


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise an `InputError` for a path that `atomic_writer` cannot write to, before work is done for it."""
    target = Path(os.path.realpath(path))
    _read_existing_mode(target)
    with _create_temporary(target, PRIVATE_MODE) as file:
        pass
    Path(file.name).unlink()


@contextmanager
def atomic_writer(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file for writing that replaces `path` only once everything is on disk.

    Until then, and after a failure, readers of `path` see the old content or none, never part of the new. A
    replaced file keeps its mode; a new one gets what the umask allows, for the owner only if `private`. A
    symbolic link is followed, not replaced. Raises an InputError if `path` cannot be written.
    """
    target = Path(os.path.realpath(path))
    mode = _read_existing_mode(target)
    file = _create_temporary(target, PRIVATE_MODE if private else _DEFAULT_MODE)
    temporary = Path(file.name)
    try:
        with file:
            if mode is not None:
                temporary.chmod(mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
            msg = f"cannot write {target}: {error.strerror}; nothing was written"
            raise InputError(msg) from error
        raise


@contextmanager
def lock_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Wait until no other process or thread holds these folders' locks, and hold them."""
    with ExitStack() as held:
        # In one order, so that no two processes wait for each other; Windows cannot open folders.
        for folder in sorted(set(folders)) if sys.platform != "win32" else ():
            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of an untrusted file; raise an InputError if it is not regular or too large."""
    # Opening a pipe would wait for a writer.
    if not stat.S_ISREG(path.stat().st_mode):
        msg = "not a regular file"
        raise InputError(msg)
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        msg = f"larger than {most_bytes >> 20} MiB"
        raise InputError(msg)
    return data


def is_replaceable(path: Path) -> bool:
    """Return whether every user of this machine may write or replace a file.

    Args:
        path: The file. In a folder that every user may write, a link to it can be replaced as well.

    Returns:
        False also on Windows, and for what is no regular file.
    """
    if os.name == "nt" or not path.is_file():
        return False
    folders = [folder.stat().st_mode for folder in {path.parent, path.resolve().parent}]
    # In a sticky folder, such as /tmp, only its owner may replace a file.
    open_to_all = [mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in folders]
    return any((path.stat().st_mode & stat.S_IWOTH, *open_to_all))


def _read_existing_mode(target: Path) -> int | None:
    """Return the permissions of the file to be replaced; None if there is none."""
    if not target.exists():
        return None
    if not target.is_file() or not os.access(target, os.W_OK):
        # Replacing would succeed even on a read-only file, and would destroy a device such as /dev/null.
        msg = f"cannot write {target}: it is not a regular file, or it is read-only"
        raise InputError(msg)
    return stat.S_IMODE(target.stat().st_mode)


def _create_temporary(target: Path, mode: int) -> BinaryIO:
    """Create a file next to the target, with a mode before the umask."""
    path = target.with_name(f".{target.name[:_MAX_NAME_CHARACTERS]}.{secrets.token_hex(8)}.tmp")
    try:
        return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"cannot write {target}: the folder {target.parent} does not exist"
        raise InputError(msg) from error
    except OSError as error:
        msg = f"cannot write {target}: {error.strerror} in the folder {target.parent}"
        raise InputError(msg) from error


def lock_file(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return False if it is already locked or cannot be locked."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

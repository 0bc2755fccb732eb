"""Writing a file as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from langchain_cfc.errors import InputError


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of `path` only once everything is on disk.

    Whoever reads `path` meanwhile, or after a failure, sees the old content or none, never part of the new.
    The mode is what `open()` would have left: that of the file replaced, else what the umask allows.

    Args:
        path: Where the file shall be. A symbolic link is followed, not replaced.

    Yields:
        A binary file in the same folder; leaving the block by an exception removes it.

    Raises:
        InputError: If the folder does not exist or cannot be written to, or `path` is something that `open()`
            could not write either, or not a regular file.
    """
    target = Path(os.path.realpath(path))
    mode = _mode_to_keep(target)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    file = _created(temporary, target)
    try:
        with file:
            if mode is not None:
                temporary.chmod(mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode_to_keep(target: Path) -> int | None:
    """Permissions of the file to be replaced; None where there is none."""
    if not target.exists():
        return None
    if not target.is_file() or not os.access(target, os.W_OK):
        # Replacing would succeed on a read-only file, and would destroy a device such as /dev/null.
        msg = f"cannot write {target}: it is not a regular file, or it is read-only"
        raise InputError(msg)
    return stat.S_IMODE(target.stat().st_mode)


def _created(temporary: Path, target: Path) -> BinaryIO:
    """A new file with the mode that the umask gives, which one made by `tempfile` would not have."""
    try:
        return temporary.open("xb")
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"cannot write {target}: the folder {target.parent} does not exist"
        raise InputError(msg) from error
    except OSError as error:
        msg = f"cannot write {target}: {error.strerror} in the folder {target.parent}"
        raise InputError(msg) from error

"""The database of a store: opening, setting up and locking it, with errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from langchain_cfc.errors import StoreError

# The package's key among the advisory locks of a PostgreSQL database.
_LOCK = 0x1A7C_CFC0
# SQLite's message for a folder that does not exist or is not writable.
_UNOPENED = "unable to open database file"
# Linux lists mounts here, with mount points in the fifth column and these characters escaped.
_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class Database:
    """The database of a store: an SQLite file by its path, or a database by its URL."""

    def __init__(self, where: str | os.PathLike[str]) -> None:
        self._url = _parse_url(where)
        embedded = self._url.get_backend_name() == "sqlite"
        self.name = str(self._url.database) if embedded else self._url.render_as_string(hide_password=True)
        try:
            # Named parameters, so that rows can be passed to the driver as they are.
            style = {"paramstyle": "named"} if embedded else {}
            self.engine: Engine = create_engine(self._url, **style)
        except ModuleNotFoundError as error:
            msg = f"{self.name} needs the driver {error.name}: pip install 'langchain-cfc[postgres]'"
            raise StoreError(msg) from error
        except (NoSuchModuleError, ArgumentError) as error:
            msg = f"{self.name} is not a usable database: {error}"
            raise StoreError(msg) from error
        if self.is_sqlite:
            _check_one_name(self.path)
            event.listen(self.engine, "connect", _configure)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is an SQLite file."""
        return self._url.get_backend_name() == "sqlite"

    @property
    def rejects_nul(self) -> bool:
        """Whether texts cannot contain the character U+0000, as in PostgreSQL."""
        return not self.is_sqlite

    @property
    def path(self) -> Path:
        """The path of the SQLite file."""
        return Path(str(self._url.database))

    def list_tables(self) -> set[str]:
        """Return the names of the tables."""
        with self.begin_read() as connection:
            return set(inspect(connection).get_table_names())

    def create_tables(self, tables: MetaData) -> None:
        """Create the tables that do not exist yet."""
        if self.is_sqlite:
            with self.explain_errors("write"), self.engine.connect() as connection:
                # A permanent setting of the file, so only once the file is known to be a store.
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with self.begin_write() as connection:
            tables.create_all(connection)

    @contextmanager
    def begin_read(self) -> Iterator[Connection]:
        """Open a connection for reading."""
        with self.explain_errors("read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def begin_snapshot(self) -> Iterator[Connection]:
        """Open a connection that sees one state of the database, regardless of concurrent writes."""
        with self.begin_read() as connection:
            if self.is_sqlite:
                # The driver begins transactions only for writes.
                connection.exec_driver_sql("BEGIN")
                yield connection
            else:
                yield connection.execution_options(isolation_level="REPEATABLE READ")

    def check_pages(self, *, thoroughly: bool = False) -> None:
        """Check an SQLite file, `thoroughly` including indexes; PostgreSQL's server has its own checksums."""
        if not self.is_sqlite:
            return
        with self.begin_read() as connection:
            pragma = "integrity_check" if thoroughly else "quick_check"
            found = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA {pragma}(3)")]
        if found != ["ok"]:
            msg = f"{self.name} is damaged: {'; '.join(found)}. Restore a copy of it"
            raise StoreError(msg)

    @contextmanager
    def begin_write(self) -> Iterator[Connection]:
        """Open a transaction that is durably committed at the end, or rolled back after an error."""
        with self.explain_errors("write"), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def begin_uncommitted(self) -> Iterator[Connection]:
        """Open a transaction that is rolled back at the end unless it was committed."""
        with self.explain_errors("write"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def explain_errors(self, what: str) -> Iterator[None]:
        """Convert the database's errors to a StoreError that says where it failed and what was kept."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            kept = (
                "" if what == "read" else "; whatever was finished before is kept, so run again once it can"
            )
            # SQLite creates files next to its own even for reading.
            where = "; its folder must be there and writable, even to read" if _UNOPENED in str(cause) else ""
            msg = f"cannot {what} {self.name}: {str(cause).strip()}{where}{kept}"
            raise StoreError(msg) from error

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Lock the store for this run; a StoreError if another run holds the lock."""
        if not self.is_sqlite:
            with self._advisory_lock():
                yield
            return
        _check_one_name(self.path)
        # The same lock for all symbolic links to the file.
        lock = FileLock(f"{self.path.resolve()}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise self._busy() from error
        except OSError as error:
            msg = f"cannot write {self.name}: {error.strerror} ({error.filename})"
            raise StoreError(msg) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _advisory_lock(self) -> Iterator[None]:
        with self.explain_errors("lock"), self.engine.connect() as connection:
            # The server detects a dead client by keepalives, and releases its lock.
            for setting in ("idle = 30", "interval = 10", "count = 3"):
                connection.execute(text(f"SET tcp_keepalives_{setting}"))
            if not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar_one():
                raise self._busy()
            # The session holds the lock, so the transaction need not stay open.
            connection.commit()
            try:
                yield
            finally:
                # A lost session has released its lock, and its error is already being raised.
                with suppress(SQLAlchemyError):
                    connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})

    def _busy(self) -> StoreError:
        return StoreError(f"another run is at work on {self.name}: let it end, or stop it, before the next")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _parse_url(where: str | os.PathLike[str]) -> URL:
    written = os.fspath(where)
    if "://" not in written:
        return URL.create("sqlite", database=written)
    try:
        url = make_url(written)
    except ArgumentError as error:
        msg = f"{written.split('@')[-1]!r} is neither a path nor a database URL"
        raise StoreError(msg) from error
    # The package chooses the driver.
    return url.set(drivername="postgresql+psycopg") if url.drivername in {"postgresql", "postgres"} else url


def _check_one_name(path: Path) -> None:
    """Reject an SQLite file that has a second name: a hard link, or a mount of the file itself.

    SQLite keeps its journal and its shared memory next to the name by which a file was opened, and the lock
    file is there as well. Two processes that use two names of one file see different ones, and corrupt it
    (https://www.sqlite.org/howtocorrupt.html, "Multiple links to the same file"). Symbolic links are followed
    and are safe, and so is a folder that is mounted elsewhere.
    """
    real = path.resolve()
    if not real.is_file():
        return
    links = real.stat().st_nlink
    if links > 1:
        msg = (
            f"{path} has {links} names (hard links), and SQLite would keep a journal for each of them: two "
            "runs could write it at once and corrupt it. Remove the other name, or replace this one by a copy"
        )
        raise StoreError(msg)
    if str(real) in _mount_points():
        msg = (
            f"{path} is a file that is mounted by itself, and SQLite's journal next to it would not be "
            "shared with the original: mount the folder that holds it"
        )
        raise StoreError(msg)


def _mount_points() -> set[str]:
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return set()
    points = {fields[4] for line in lines if len(fields := line.split(" ")) > 4}  # noqa: PLR2004
    for escape, character in _MOUNT_ESCAPES.items():
        points = {point.replace(escape, character) for point in points}
    return points


def _configure(connection: Any, record: Any) -> None:
    del record
    for setting in ("synchronous = FULL", "foreign_keys = ON", "busy_timeout = 30000"):
        connection.execute(f"PRAGMA {setting}")

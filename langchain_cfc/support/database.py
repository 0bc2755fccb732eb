"""`DatabaseStore`: open, create, check and lock a store in a database, with errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import disk_usage
from typing import Any, ClassVar, TypeVar

from filelock import FileLock, Timeout
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from langchain_cfc.errors import StoreError
from langchain_cfc.support.files import PRIVATE_MODE
from langchain_cfc.support.suggestions import suggest_file
from langchain_cfc.support.text import redact_addresses

StoreT = TypeVar("StoreT", bound="DatabaseStore")
# Type of an auto-incrementing primary key.
ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")
# Seconds to wait for another process that is creating the tables, and between two attempts.
_CREATION_TIMEOUT, _POLL_INTERVAL = 30.0, 0.05
# Key of an advisory lock: the package's number, and the kind of store and its schema in the database.
_KEY = f"({0x1A7C_CFC0}, hashtext(:store || coalesce(current_schema(), '')))"
# The package chooses the drivers.
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
# What holds a password as addresses and settings of PostgreSQL do, but would be taken for a path.
_UNFINISHED_ADDRESS = re.compile(
    r"(?!\w:[\\/])(?:.*:.*@|postgres(?:ql)?:|.*\b(?:password|dbname)\s*=)", re.IGNORECASE
)
# SQLite's message for a folder that does not exist or is not writable.
_CANNOT_OPEN = "unable to open database file"
_READ_ONLY = "attempt to write a readonly database"
_IO_ERROR = "disk I/O error"
# On Linux, the list of mounts, with mount points in the fifth column and white space and backslashes escaped.
_MOUNT_TABLE = Path("/proc/self/mountinfo")


def define_facts(name: str, metadata: MetaData) -> Table:
    """Return a table of facts about a store: JSON values by name, such as `format` and `version`."""
    return Table(
        name, metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False)
    )


class StoreBusyError(StoreError):
    """Another run holds the lock of a store."""


class StoreNotFoundError(StoreError):
    """There is no store yet at this path or address, but one can be created."""


class DatabaseStore:
    """Base of stores: tables in an SQLite file, given by its path, or in a database, given by its URL.

    A subclass sets the table of facts, whose `MetaData` holds all tables of the store; the store's format and
    version; and the words of errors about a missing store, another database or another version.
    """

    _facts: ClassVar[Table]
    _format: ClassVar[str]
    _version: ClassVar[int]
    _missing_message: ClassVar[str]
    _wrong_format_message: ClassVar[str]
    _wrong_version_advice: ClassVar[str]

    def __init__(self, where: str | os.PathLike[str], *, create: bool = False) -> None:
        self._url = _parse_url(where)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self.path = Path(str(self._url.database))
        self.name = (
            str(self._url.database)
            if self.is_sqlite
            else redact_addresses(self._url.render_as_string(hide_password=True))
        )
        try:
            # Named parameters, so that rows can be passed to the driver unchanged.
            style = {"paramstyle": "named"} if self.is_sqlite else {}
            self.engine: Engine = create_engine(self._url, **style)
        except ModuleNotFoundError as error:
            msg = f"{self.name} needs the driver {error.name}: pip install 'langchain-cfc-collect[postgres]'"
            raise StoreError(msg) from error
        if self.is_sqlite:
            if ":memory:" in self.name or self.name in {"None", "", "."}:
                msg = f"{self.name!r} names no file: a store outlives its run, so give a path such as s.db"
                raise StoreError(msg)
            _check_single_name(self.path)
            event.listen(self.engine, "connect", _configure_connection)
            if not create and not self.path.is_file():
                msg = f"{self._missing_message} {self.name}{suggest_file(self.path)}"
                raise StoreNotFoundError(msg)
            if create and not self.path.exists():
                # SQLite would follow the umask; the files that it adds take the mode of this one. If this
                # fails, opening the store fails as well, with an error that says why.
                with suppress(OSError):
                    self.path.touch(PRIVATE_MODE)
        try:
            self._open(create=create)
        except BaseException:
            self.close()
            raise

    def __enter__(self: StoreT) -> StoreT:  # noqa: PYI019 - `Self` is not in `typing` before 3.11
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; everything written is already on disk."""
        self.engine.dispose()

    def _open(self, *, create: bool) -> None:
        """Create the tables if needed, and check the format and version of the store."""
        if create and self._read_fact("format") is None:
            self._create()
        if self._read_fact("format") != self._format:
            msg = f"{self.name} {self._wrong_format_message}"
            raise StoreNotFoundError(msg) if self._can_create() else StoreError(msg)
        version = self._read_fact("version")
        if version != self._version:
            msg = (
                f"{self.name} is a store of version {version}, but this release reads version "
                f"{self._version}: {self._wrong_version_advice}"
            )
            raise StoreError(msg)

    def _create(self) -> None:
        """Create the tables unless they exist; processes that start at the same time take turns."""
        with self.lock(_CREATION_TIMEOUT):
            if not self._can_create():
                return
            if self.is_sqlite:
                with self.explain_errors("write"), self.engine.connect() as connection:
                    # A permanent setting of the file, so only once it is known not to be another database.
                    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            with self.begin_write() as connection:
                self._facts.metadata.create_all(connection)
            with self.begin_write() as connection:
                # Remove facts that an interrupted creation left behind.
                connection.execute(self._facts.delete())
                self.write_facts(connection, self._list_first_facts())

    def _can_create(self) -> bool:
        """Whether there is no store yet and, in SQLite, no other table either."""
        others = self._list_tables() - set(self._facts.metadata.tables)
        return self._read_fact("format") is None and not (others and self.is_sqlite)

    def _list_first_facts(self) -> dict[str, str]:
        """Return the facts of a new store, as JSON by name."""
        return {"version": json.dumps(self._version), "format": json.dumps(self._format)}

    def _list_tables(self) -> set[str]:
        with self.begin_read() as connection:
            return set(inspect(connection).get_table_names())

    def _read_fact(self, name: str) -> Any:
        """Return a fact that the store states; None if it does not, as before its tables are complete."""
        if self._facts.name not in self._list_tables():
            return None
        rows = self.read_rows(select(self._facts.c.value).where(self._facts.c.name == name))
        try:
            return json.loads(rows[0].value) if rows else None
        except ValueError as error:
            msg = f"{self.name} is damaged: its {name} cannot be read. Restore a backup"
            raise StoreError(msg) from error

    def write_facts(self, connection: Connection, facts: Mapping[str, str]) -> None:
        """Write facts, as JSON by name, in a connection's transaction; they replace earlier facts."""
        rows = [{"name": name, "value": value} for name, value in facts.items()]
        connection.execute(self._facts.delete().where(self._facts.c.name.in_(facts)))
        connection.execute(self._facts.insert(), rows)

    @contextmanager
    def begin_read(self) -> Iterator[Connection]:
        """Open a connection for reading."""
        with self.explain_errors("read"), self.engine.connect() as connection:
            yield connection

    def read_rows(self, query: Select[Any]) -> Sequence[Any]:
        """Return all rows of a query."""
        with self.begin_read() as connection:
            return connection.execute(query).all()

    def check_pages(self, *, thoroughly: bool = False) -> None:
        """Raise a StoreError if an SQLite file is damaged; PostgreSQL's server has its own checksums.

        With `thoroughly`, the check includes the indexes.
        """
        if not self.is_sqlite or not self.path.is_file():
            return
        with self.begin_read() as connection:
            pragma = "integrity_check" if thoroughly else "quick_check"
            found = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA {pragma}(3)")]
        if found != ["ok"]:
            msg = f"{self.name} is damaged: {'; '.join(found)}. Restore a backup"
            raise StoreError(msg)

    @contextmanager
    def begin_write(self) -> Iterator[Connection]:
        """Open a transaction that is durably committed at the end, or rolled back after an error."""
        with self.explain_errors("write"), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def explain_errors(self, what: str) -> Iterator[None]:
        """Convert database errors to a StoreError that says what failed and what was kept."""
        try:
            yield
        # The last of names in a damaged schema.
        except (SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error, UnicodeDecodeError) as error:
            cause = getattr(error, "orig", None) or error
            kept = "" if what == "read" else "; finished work is kept, so run again once this is fixed"
            msg = f"cannot {what} {self.name}: {str(cause).strip()}{self._explain_cause(str(cause))}{kept}"
            raise StoreError(msg) from error

    def _explain_cause(self, cause: str) -> str:
        """Return a hint that SQLite's own error message lacks, or an empty text."""
        if _CANNOT_OPEN in cause or _READ_ONLY in cause:  # SQLite creates files next to its own
            return "; it and its folder must exist and be writable, even for reading"
        if _IO_ERROR in cause:  # also reported if the disk has no room for the index of the journal
            with suppress(OSError):
                return f"; {disk_usage(self.path.parent).free // 1024} KiB are free on its disk"
        return ""

    @contextmanager
    def lock(self, timeout: float = 0.0) -> Iterator[None]:
        """Lock the store against other runs; raise a StoreError if it stays locked for `timeout` seconds."""
        if not self.is_sqlite:
            with self._advisory_lock(timeout):
                yield
            return
        _check_single_name(self.path)
        # Resolved, so that all symbolic links to the file share one lock.
        lock = FileLock(f"{self.path.resolve()}.lock")
        try:
            lock.acquire(timeout=timeout, poll_interval=_POLL_INTERVAL)
        except Timeout as error:
            raise self._make_busy_error() from error
        except OSError as error:
            msg = f"cannot write {self.name}: {error.strerror} ({error.filename})"
            raise StoreError(msg) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _advisory_lock(self, timeout: float) -> Iterator[None]:
        end = time.monotonic() + timeout
        with self.explain_errors("lock"), self.engine.connect() as connection:
            # By keepalives the server detects a dead client and releases its lock. The connection is detached
            # so that it does not return to the pool with these settings.
            connection.detach()
            for setting in ("idle = 30", "interval = 10", "count = 3"):
                connection.execute(text(f"SET tcp_keepalives_{setting}"))
            acquire, given = text("SELECT pg_try_advisory_lock" + _KEY), {"store": self._format}
            while not connection.execute(acquire, given).scalar_one():
                if time.monotonic() >= end:
                    raise self._make_busy_error()
                time.sleep(_POLL_INTERVAL)
            # The lock belongs to the session, so the transaction need not stay open.
            connection.commit()
            try:
                yield
            finally:
                # A lost session has already released its lock, and its error is already being raised.
                with suppress(SQLAlchemyError):
                    connection.execute(text("SELECT pg_advisory_unlock" + _KEY), given)

    def _make_busy_error(self) -> StoreBusyError:
        return StoreBusyError(f"another run is using {self.name}: wait until it ends, or stop it")


def _parse_url(where: str | os.PathLike[str]) -> URL:
    written = os.fspath(where)
    if "://" not in written and (not _UNFINISHED_ADDRESS.match(written) or Path(written).is_file()):
        return URL.create("sqlite", database=written)
    try:
        url = make_url(written)
        return url.set(drivername=_DRIVERS[url.drivername.partition("+")[0].lower()])
    except (ArgumentError, ValueError, KeyError):
        # It is not quoted, because any part of it may be a password.
        msg = (
            "the address of the store cannot be read: expected a path such as s.db, or a URL such as "
            "postgresql://host/database"
        )
        raise StoreError(msg) from None


def find_store_file(where: str | os.PathLike[str]) -> Path | None:
    """Return the path of a store in an SQLite file, None for one elsewhere; `StoreError` if it is neither."""
    url = _parse_url(where)
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def _check_single_name(path: Path) -> None:
    """Reject an SQLite file that has a second name: a hard link, or a mount of the file itself.

    SQLite puts its journal and shared memory next to the name by which a file was opened; the lock file is
    there as well. Two processes that use different names of the same file do not share them and corrupt it
    (https://www.sqlite.org/howtocorrupt.html, "Multiple links to the same file"). Symbolic links are resolved
    and therefore safe, and so is a folder that is mounted elsewhere.
    """
    real = path.resolve()
    if not real.is_file():
        return
    links = real.stat().st_nlink
    if links > 1:
        msg = (
            f"{path} has {links} names (hard links), and SQLite would keep a journal for each of them: two "
            "runs could write to it at once and corrupt it. Remove the other name, or replace this one by a "
            "copy"
        )
        raise StoreError(msg)
    written = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", str(real))
    if written in _read_mount_points():
        msg = (
            f"{path} is mounted as a single file, so SQLite's journal next to it would not be "
            "shared with the original: mount the folder that holds it"
        )
        raise StoreError(msg)


def _read_mount_points() -> set[str]:
    try:
        lines = _MOUNT_TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return set()
    return {fields[4] for line in lines if len(fields := line.split(" ")) > 4}  # noqa: PLR2004


def _configure_connection(connection: Any, record: Any) -> None:
    del record
    for setting in ("synchronous = FULL", "foreign_keys = ON", "busy_timeout = 30000"):
        connection.execute(f"PRAGMA {setting}")

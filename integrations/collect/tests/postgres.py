"""A temporary PostgreSQL server on this machine.

Debian's packages bring the programs: `apt-get install postgresql`. No service need run.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.concurrency import wait_until

_USER = "collector"
# Where Debian keeps the programs that are not meant for everybody's path.
_DEBIAN = Path("/usr/lib/postgresql")


class Server:
    """A server with a folder of its own, which does not run yet.

    Args:
        programs: The folder of `initdb` and `postgres`.
        folder: A new one, for the data and the socket.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        # The server refuses to run as root.
        self._user = pwd.getpwnam("daemon") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self._databases = 0
        self._reused: str | None = None
        self._begun("initdb", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync").wait()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        # Commits are as durable as on any server: fsync is on.
        self._process = self._begun(
            "postgres", "-k", str(self._folder), "-h", "127.0.0.1", "-p", str(self.port)
        )
        wait_until(self._answers)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End all sessions and stop; SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def database(self) -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"store{self._databases}"
        self.run(f"CREATE DATABASE {name}")
        return f"postgresql://{_USER}@/{name}?host={self._folder}&port={self.port}"

    def reset_database(self) -> str:
        """The URL of one database for all callers, emptied: to make a new one for each takes far longer."""
        if self._reused is None:
            self._reused = self.database()
            return self._reused
        name = self._reused.partition("@/")[2].partition("?")[0]
        self.run("DROP SCHEMA public CASCADE", name)
        self.run("CREATE SCHEMA public", name)
        return self._reused

    def over_tcp(self, url: str) -> str:
        """The URL of the same database, through the network."""
        name = url.partition("@/")[2].partition("?")[0]
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{name}"

    def run(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """What the server says to a statement."""
        with psycopg.connect(self._address(database), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description is not None else []

    def _address(self, database: str) -> str:
        return f"host={self._folder} port={self.port} user={_USER} dbname={database}"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            psycopg.connect(self._address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def _begun(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        who = self._user
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, "-D", self._folder / "data", *arguments],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                user=None if who is None else who.pw_uid,
                group=None if who is None else who.pw_gid,
                extra_groups=None if who is None else [],
            )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


@contextmanager
def postgres() -> Iterator[Server]:
    """A server that runs; skips where PostgreSQL is not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    # Not in pytest's folder, which other users may not enter; sockets want short paths as well.
    with tempfile.TemporaryDirectory(prefix="cfc-pg-") as folder:
        server = Server(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            # At once: what it holds is of no further use, and need not be brought to disk.
            server.stop(signal.SIGQUIT)

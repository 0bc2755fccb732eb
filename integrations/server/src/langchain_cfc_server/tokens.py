"""`ClientTokens`: bearer tokens and their clients, which can be replaced while the server runs.

A file holds one token per line, in plain text or as `sha256:` and the hexadecimal digest, followed by
attributes of its client:

    sha256:9f86d0... name=app concurrent=8 per_minute=600
    sha256:60303a... name=prometheus only=metrics

Lines with the same name belong to one client, so that an old and a new token can both be valid. The file is
checked whenever a token is presented, so that a removed token is refused at once, and also periodically.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from langchain_cfc.errors import InputError
from langchain_cfc.extend import is_replaceable

_LOG = logging.getLogger("langchain_cfc_server")
# The syntax that RFC 6750 allows after `Bearer`.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_MIN_LENGTH = 16
_PLAIN_TOKEN = re.compile(rb"(?m)^[ \t]*(?!sha256:)[^#\s]")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
# Seconds after a change in which another may keep the modification time, or the change may not be complete.
_UNSETTLED_SECONDS = 2.0
_EXPECTED = "`TOKEN` or `sha256:DIGEST`, then KEY=VALUE for any of name, concurrent, per_minute and only"


@dataclass(frozen=True)
class Client:
    """A client, as described by its line in the token file.

    Attributes:
        name: Name in logs and metrics; lines with the same name share their limits.
        concurrent: Maximum number of requests that wait or are processed; None for the server's own limit.
        per_minute: Maximum number of requests per minute; None for no limit.
        only_metrics: Whether the client may read the metrics and nothing else.
    """

    name: str
    concurrent: int | None = None
    per_minute: int | None = None
    only_metrics: bool = False


class ClientTokens:
    """The valid tokens; their file is read again when it has changed.

    Attributes:
        is_stale: Whether the current file is unusable, so that the tokens read before remain valid; none does
            if the file was deleted.
        replaced: How often tokens were replaced.
        refused: How often a changed file could not be used.

    Args:
        tokens: Valid tokens of clients without their own limits, if there is no file.
        path: The token file.

    Raises:
        InputError: If the file or a token cannot be used.
    """

    def __init__(self, tokens: Iterable[str] = (), path: str | os.PathLike[str] | None = None) -> None:
        self.is_stale = False
        self.replaced = 0
        self.refused = 0
        self._path = None if path is None else Path(path)
        self._read: bytes | None = None
        self._state: tuple[int, ...] | None = None
        self._is_settled = True
        self._missing_since: float | None = None
        if self._path is None:
            check_tokens(tokens)
            self._clients = {
                sha256(token.encode()).digest(): Client(f"token-{number}")
                for number, token in enumerate(tokens, 1)
            }
        else:
            self._clients = _parse_file(self._read_file(self._path), self._path)

    def __len__(self) -> int:
        """Return the number of valid tokens."""
        return len(self._clients)

    @property
    def has_metrics_token(self) -> bool:
        """Whether there is a token for the metrics only, so that no other token may read them."""
        return any(client.only_metrics for client in self._clients.values())

    @property
    def has_several_clients(self) -> bool:
        """Whether the tokens are those of more than one client."""
        return len({client.name for client in self._clients.values() if not client.only_metrics}) > 1

    def find_client(self, presented: bytes) -> Client | None:
        """Return the client of a token; None if the token is not valid now.

        The token is hashed and compared with every digest, so that the time taken reveals neither a token's
        length or first characters nor which token matched.
        """
        self.read_if_changed()
        digest = sha256(presented).digest()
        found = [client for valid, client in self._clients.items() if hmac.compare_digest(digest, valid)]
        return found[0] if found else None

    def reload(self) -> None:
        """Read the file; if it is unusable, log and count that, and keep the current tokens."""
        if self._path is None:
            return
        before = self._read
        try:
            clients = _parse_file(self._read_file(self._path), self._path)
        except InputError as error:
            if self._read != before or not self.is_stale:
                self.is_stale = True
                self.refused += 1
                fields = {"problem": str(error), "tokens": len(self)}
                _LOG.error("tokens not replaced; the previous ones stay valid", extra={"fields": fields})
            return
        if self._read == before and not self.is_stale:
            return
        added, removed = len(clients.keys() - self._clients), len(self._clients.keys() - clients)
        self._clients, self.is_stale = clients, False
        self.replaced += 1
        fields = {"tokens": len(self), "added": added, "removed": removed}
        _LOG.info("tokens replaced", extra={"fields": fields})

    def read_if_changed(self) -> None:
        """Read the file again if it has changed, or may have changed, since it was read."""
        if self._path is None:
            return
        try:
            state = _get_file_state(self._path)
            self._missing_since = None
        except FileNotFoundError:
            state = None
            self._refuse_if_deleted(time.monotonic())
        except OSError:
            state = None
        if state != self._state or not self._is_settled:
            self.reload()

    def _refuse_if_deleted(self, now: float) -> None:
        """Refuse every token if the file has been missing for longer than it takes to replace it."""
        if self._missing_since is None:
            self._missing_since = now
        elif self._clients and now - self._missing_since > _UNSETTLED_SECONDS:
            self._clients = {}
            _LOG.error("the token file was deleted; every token is refused", extra={"fields": {"tokens": 0}})

    def _read_file(self, path: Path) -> str:
        self._state, self._read, self._is_settled = None, None, True
        try:
            # Taken before reading, so that a change in between is noticed the next time.
            self._state = _get_file_state(path)
            content, mode = path.read_bytes(), 0 if os.name == "nt" else path.stat().st_mode
        except OSError as error:
            msg = f"the tokens in {path} cannot be read: {type(error).__name__}"
            raise InputError(msg) from error
        self._read = sha256(content).digest()
        if is_replaceable(path):
            msg = f"every user of this machine may add tokens to {path}: `chmod o-w` it, and its folder"
            raise InputError(msg)
        if mode & stat.S_IROTH and _PLAIN_TOKEN.search(content):
            _LOG.warning(
                "every user of this machine may read the tokens: `chmod o-r` the file, or list digests",
                extra={"fields": {"path": str(path)}},
            )
        self._is_settled = not 0 <= time.time() - self._state[0] / 1e9 < _UNSETTLED_SECONDS
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            msg = f"the tokens in {path} cannot be read: it is not UTF-8"
            raise InputError(msg) from error


def check_tokens(tokens: Iterable[str]) -> None:
    """Check that tokens are long enough and that clients can send them; errors never quote a token.

    Raises:
        InputError: If a token cannot be used.
    """
    for position, token in enumerate(tokens):
        if not _is_usable(token):
            msg = (
                f"token {position} cannot be used: expected at least {_MIN_LENGTH} letters, digits or any "
                "of ._~+/- such as `openssl rand -hex 32` prints"
            )
            raise InputError(msg)


def _is_usable(token: str) -> bool:
    return len(token) >= _MIN_LENGTH and _TOKEN.fullmatch(token) is not None


def _get_file_state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev, found.st_ctime_ns


def _parse_file(text: str, path: Path) -> dict[bytes, Client]:
    """Return the clients by the digests of their tokens; errors quote nothing from the file but names."""
    clients: dict[bytes, Client] = {}
    named: dict[str, Client] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"the tokens in {path} cannot be used: line {number}"
        digest = _parse_token(words[0], where)
        client = _parse_client(words[1:], number, where)
        if digest in clients:
            msg = f"{where}: this token is on another line already"
            raise InputError(msg)
        if named.setdefault(client.name, client) != client:
            msg = f"{where}: another line with the name {client.name} has other limits; give both the same"
            raise InputError(msg)
        clients[digest] = client
    if all(client.only_metrics for client in clients.values()):
        msg = f"{path} holds no tokens for clients: expected one a line, {_EXPECTED}"
        raise InputError(msg)
    return clients


def _parse_token(word: str, where: str) -> bytes:
    if word.startswith("sha256:"):
        if (found := _DIGEST.fullmatch(word)) is None:
            msg = f"{where}: expected 64 digits of 0-9 and a-f after sha256:, as `sha256sum` prints them"
            raise InputError(msg)
        return bytes.fromhex(found[1])
    if not _is_usable(word):
        msg = f"{where}: a token has at least {_MIN_LENGTH} letters, digits or any of ._~+/-"
        raise InputError(msg)
    return sha256(word.encode()).digest()


def _parse_client(words: list[str], number: int, where: str) -> Client:
    given = dict(word.partition("=")[::2] for word in words)
    patterns = {
        "name": _NAME,
        "concurrent": _NUMBER,
        "per_minute": _NUMBER,
        "only": re.compile("metrics"),
    }
    if len(given) < len(words) or not all(
        key in patterns and patterns[key].fullmatch(value) for key, value in given.items()
    ):
        msg = f"{where}: expected {_EXPECTED}, each once, with whole numbers of at least 1"
        raise InputError(msg)
    concurrent, per_minute = (
        int(given[key]) if key in given else None for key in ("concurrent", "per_minute")
    )
    return Client(given.get("name", f"token-{number}"), concurrent, per_minute, only_metrics="only" in given)

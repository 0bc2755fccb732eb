"""`BatchJournal`: a file that keeps what was drawn and scored, so that a batch that was stopped goes on.

Each line is one JSON object. The first names what the others depend on: artifact, generator and verifier, the
questions and the share of wrong answers. Another share or a part of the questions, chosen after scores are
known, would void the promise, so a journal refuses them. A line that was not written to its end is dropped.
Once the batch is answered, its failed questions have failed for good: if they were tried again, other
questions could be answered than those that were shown.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.runnable.serving import ScoredPrompt
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.support.files import PRIVATE_MODE, check_target, lock_file
from langchain_cfc.verifiers.base import VerifierScores

_FORMAT = "langchain-cfc/batch"


class BatchJournal:
    """The journal of one batch, open for this process alone.

    Args:
        path: The file; made if it is missing, readable by its owner alone, since it holds candidates.
        batch: What the lines depend on, by name.

    Raises:
        InputError: If the file cannot be written to, is in use, is no journal, is damaged, or belongs to
            another batch; the message names what differs.
    """

    def __init__(self, path: str | os.PathLike[str], batch: Mapping[str, str]) -> None:
        self._path, self._lock = Path(path), threading.Lock()
        check_target(self._path)
        self._outcomes: dict[int, ScoredPrompt | ServingError] = {}
        self._file = self._open()
        try:
            self._read({"format": _FORMAT, **batch})
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file, which another process may then use."""
        self._file.close()

    def find(self, digest: int) -> ScoredPrompt | ServingError | None:
        """Return what was drawn and scored for a question, or how it failed for good; None if nothing was."""
        return self._outcomes.get(digest)

    def keep(self, digest: int, scored: ScoredPrompt) -> None:
        """Write what was drawn and scored for a question, at once."""
        held = {
            "draws": [
                {"text": one.text, "data": one.data, "no_answer": one.no_answer} for one in scored.draws
            ],
            "verdicts": list(scored.scored.verdicts),
            "outputs": None if scored.scored.outputs is None else list(scored.scored.outputs),
            "texts": scored.texts,
            "common": scored.common,
        }
        self._write({"question": digest, "scored": held})

    def finish(self, failed: Mapping[int, str]) -> None:
        """Write which questions have failed for good, and how."""
        new = {str(digest): error for digest, error in failed.items() if digest not in self._outcomes}
        if new:
            self._write({"failed": new})

    def _open(self) -> BinaryIO:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE_MODE)
        except OSError as error:
            msg = f"cannot write {self._path}: {error.strerror or error}"
            raise InputError(msg) from error
        file = os.fdopen(descriptor, "r+b")
        if sys.platform != "win32" and not lock_file(file):
            file.close()
            msg = f"{self._path} is in use by another process: wait for it, or choose another file"
            raise InputError(msg)
        return file

    def _read(self, header: Mapping[str, str]) -> None:
        self._file.seek(0)
        complete, _, rest = self._file.read().rpartition(b"\n")
        if rest:  # a process was killed while it wrote
            self._file.truncate(len(complete) + 1 if complete else 0)
        lines = complete.split(b"\n") if complete else []
        if not lines:
            self._write(header)
            return
        try:
            first, *others = map(json.loads, lines)
            self._check_header(first, header)
            for found in others:
                if "failed" in found:
                    self._outcomes |= {int(key): ServingError(one) for key, one in found["failed"].items()}
                else:
                    self._outcomes[found["question"]] = _restore(**found["scored"])
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"{self._path}: a damaged line ({error}); remove the file to draw all questions again"
            raise InputError(msg) from error

    def _check_header(self, found: Mapping[str, Any], header: Mapping[str, str]) -> None:
        differing = [name for name, value in header.items() if found.get(name) != value]
        if differing:
            msg = (
                f"{self._path}: made for another batch, with another {' and another '.join(differing)} (its "
                f"max_wrong_share is {found.get('max_wrong_share')}): repeat that batch as it was, or write "
                "to another file"
            )
            raise InputError(msg)

    def _write(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        with self._lock:
            try:
                self._file.write(data)
                self._file.flush()
                with suppress(OSError):  # some file systems cannot
                    os.fsync(self._file.fileno())
            except OSError as error:
                msg = f"cannot write {self._path}: {error.strerror or error}"
                raise InputError(msg) from error


def _restore(**held: Any) -> ScoredPrompt:
    return ScoredPrompt(
        draws=[DrawnCandidate(**one) for one in held["draws"]],
        scored=VerifierScores(held["verdicts"], held["outputs"]),
        texts=held["texts"],
        spans=[],
        common={**held["common"], "models": tuple(held["common"]["models"])},
    )

"""`open_attempts`: the ledger of attempts as a file beside the records.

The file is written before an outcome is shown, refusals included, so that the next run counts the attempt. Of
two runs at once the second to finish has to start again, as its test is another one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from langchain_cfc.artifact.attempts import AttemptLedger, Previous
from langchain_cfc.artifact.facts import Attempt
from langchain_cfc.artifact.model import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import ArtifactError, InputError, UnattainableTargetError
from langchain_cfc.support.files import atomic_writer, check_target, lock_folders
from langchain_cfc.support.serialization import canonical_json, compute_sha256

_SUFFIX = ".attempts.json"
_PACKAGE = Path(__file__).resolve().parent.parent
_HEADER = {"format": "langchain-cfc/attempts", "version": 1}


@dataclass
class AttemptFiles:
    """The ledgers beside some files of records, joined.

    Attributes:
        paths: The ledgers' files, which need not exist.
        ledger: All attempts known.
    """

    paths: tuple[Path, ...]
    ledger: AttemptLedger

    def check(self) -> None:
        """Check that the files can be written, before a long computation whose outcome they must record.

        Raises:
            InputError: If a file cannot be written.
        """
        for path in self.paths:
            check_target(path)

    def record(self, made: Previous) -> None:
        """Add attempts to the files, before their outcome is shown.

        Args:
            made: The attempts: a ledger, an artifact or a refusal.

        Raises:
            InputError: If a file cannot be written, or another run has recorded an attempt meanwhile.
        """
        with self._update() as there:
            ledger = AttemptLedger.collect(self.ledger, made)
            if not {one.key for one in ledger.attempts}.issuperset(one.key for one in there.attempts):
                msg = (
                    f"{self.paths[0]}: another run has recorded an attempt on these records meanwhile: run "
                    "again"
                )
                raise InputError(msg)
            self.ledger = ledger

    def record_look(self, labelled: LabelledBatch, what: str) -> None:
        """Add a look at labels to the files, before figures from them are shown.

        Args:
            labelled: The prompts whose labels were used.
            what: What shows the figures, such as `compare`.

        Raises:
            InputError: If a file cannot be written.
        """
        with self._update() as there:
            self.ledger = AttemptLedger.collect(self.ledger, there).with_look(labelled, what)

    @contextmanager
    def _update(self) -> Iterator[AttemptLedger]:
        """Yield the attempts in the files, then write `ledger`; one process or thread at a time."""
        with lock_folders(path.parent for path in self.paths):
            held = [_read_ledger(path) for path in self.paths]
            yield AttemptLedger.collect(*held)
            for path, there in zip(self.paths, held, strict=True):
                if set(self.ledger.attempts) != set(there.attempts):
                    attempts = [one.model_dump(mode="json") for one in self.ledger.attempts]
                    data = {**_HEADER, "digest": _compute_digest(attempts), "attempts": attempts}
                    with atomic_writer(path) as file:
                        file.write((json.dumps(data, indent=1) + "\n").encode())


@contextmanager
def open_attempts(
    records: Sequence[str | os.PathLike[str]], replaced: str | os.PathLike[str] | None = None
) -> Iterator[AttemptFiles]:
    """Open the ledger of attempts on some records; a refusal that leaves the block is recorded.

    Args:
        records: Files of records or a store; the ledger of `records.jsonl` is `records.jsonl.attempts.json`
            beside it. That of a database or a pipe is in the current folder. Ledgers in the same folder
            count as well where they share inputs, such as those of a copy. The recording that ships with the
            package is an example and has none.
        replaced: An artifact that will be overwritten; its attempts are known as well.

    Yields:
        The ledger and its files.

    Raises:
        InputError: If a ledger is damaged.
    """
    paths = tuple(dict.fromkeys(filter(None, map(_find_path, records))))
    copies = sorted({one for path in paths for one in path.parent.glob(f"*{_SUFFIX}")} - {*paths})
    old: CalibrationArtifact | None = None
    if replaced is not None and Path(replaced).is_file():
        with suppress(ArtifactError):  # nothing that this release wrote is lost
            old = CalibrationArtifact.load(replaced)
    nearby = AttemptLedger.collect(*map(_read_ledger, copies)).attempts
    ledger = AttemptLedger.collect(*map(_read_ledger, paths), old, AttemptLedger(nearby=nearby))
    kept = AttemptFiles(paths, ledger)
    try:
        yield kept
    except UnattainableTargetError as error:
        kept.record(error)
        raise


def _find_path(records: str | os.PathLike[str]) -> Path | None:
    """Return the path of a ledger; None for the package's own recording, whose folder may be read-only."""
    given = os.fspath(records)
    if given.startswith("sqlite") and "://" in given:
        given = given.split("://", 1)[1].removeprefix("/")
    if Path(given).is_file():
        target = Path(os.path.realpath(given))
        return None if target.is_relative_to(_PACKAGE) else target.with_name(target.name + _SUFFIX)
    address = given.split("://")[-1].split("@")[-1].split("?")[0]
    return Path(re.sub(r"[^\w.-]+", "-", address).strip("-") + _SUFFIX).resolve()


def _compute_digest(attempts: list[dict[str, object]]) -> str:
    return compute_sha256(canonical_json(attempts))


def _read_ledger(path: Path) -> AttemptLedger:
    try:
        data = json.loads(path.read_bytes())
        if set(data) == {*_HEADER, "digest", "attempts"} and _HEADER.items() <= data.items():
            attempts = tuple(Attempt.model_validate(one) for one in data["attempts"])
            if data["digest"] == _compute_digest(data["attempts"]):
                return AttemptLedger(attempts)
        error: Exception | None = None
    except FileNotFoundError:
        return AttemptLedger()
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as damage:
        error = damage
    msg = (
        f"{path}: not a ledger of attempts, or changed since it was written; it says which labels have been "
        "used to certify: restore it, or certify with new labels in another folder"
    )
    raise InputError(msg) from error

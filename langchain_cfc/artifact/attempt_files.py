"""`open_attempts`: the ledger of attempts as a file beside the records.

The file is written before an outcome is shown, refusals included, so that the next run counts the attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from langchain_cfc._internal.files import atomic_writer
from langchain_cfc.artifact.attempts import Attempt, AttemptLedger, Previous
from langchain_cfc.artifact.model import CalibrationArtifact
from langchain_cfc.errors import ArtifactError, InputError, UnattainableTargetError

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

    def record(self, made: Previous) -> None:
        """Add attempts to the files, before their outcome is shown.

        Args:
            made: The attempts: a ledger, an artifact or a refusal.

        Raises:
            InputError: If a file cannot be written, or another run has recorded an attempt meanwhile.
        """
        ledger = AttemptLedger.collect(self.ledger, made)
        known = {one.key for one in ledger.attempts}
        for path in self.paths:
            there = _read_ledger(path)
            if not known.issuperset(one.key for one in there.attempts):
                msg = f"{path}: another run has recorded an attempt on these records meanwhile: run again"
                raise InputError(msg)
            if set(ledger.attempts) != set(there.attempts):
                data = {**_HEADER, "attempts": [one.model_dump(mode="json") for one in ledger.attempts]}
                with atomic_writer(path) as file:
                    file.write((json.dumps(data, indent=1) + "\n").encode())
        self.ledger = ledger


@contextmanager
def open_attempts(
    records: Sequence[str | os.PathLike[str]], replaced: str | os.PathLike[str] | None = None
) -> Iterator[AttemptFiles]:
    """Open the ledger of attempts on some records; a refusal that leaves the block is recorded.

    Args:
        records: Files of records or a store; the ledger of `records.jsonl` is `records.jsonl.attempts.json`
            beside it. A database URL has no such file, nor has the recording that ships with the package.
        replaced: An artifact that will be overwritten; its attempts are known as well.

    Yields:
        The ledger and its files.

    Raises:
        InputError: If a ledger is damaged.
    """
    # The recording in the package is an example, and its folder may be read-only.
    files = [os.path.realpath(one) for one in records if Path(one).is_file()]
    files = [one for one in files if not Path(one).is_relative_to(_PACKAGE)]
    paths = tuple(dict.fromkeys(Path(f"{one}{_SUFFIX}") for one in files))
    old: CalibrationArtifact | None = None
    if replaced is not None and Path(replaced).is_file():
        with suppress(ArtifactError):  # nothing that this release wrote is lost
            old = CalibrationArtifact.load(replaced)
    kept = AttemptFiles(paths, AttemptLedger.collect(*map(_read_ledger, paths), old))
    try:
        yield kept
    except UnattainableTargetError as error:
        kept.record(error)
        raise


def _read_ledger(path: Path) -> AttemptLedger:
    if not path.exists():
        return AttemptLedger()
    try:
        data = json.loads(path.read_bytes())
        if set(data) == {*_HEADER, "attempts"} and _HEADER.items() <= data.items():
            return AttemptLedger(tuple(Attempt.model_validate(one) for one in data["attempts"]))
        error: Exception | None = None
    except (OSError, ValueError, TypeError, AttributeError) as damage:
        error = damage
    msg = (
        f"{path}: not a ledger of attempts, or damaged; it says which labels have been used to certify: "
        "restore it, or certify with new labels in another file"
    )
    raise InputError(msg) from error

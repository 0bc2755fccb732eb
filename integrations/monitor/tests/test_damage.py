"""Damaged and edited stores of a monitor: every change ends in an error, or changes nothing that is read."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_monitor import CFCMonitor, Label

from integrations.monitor.tests.watching import truths
from langchain_cfc import CalibrationArtifact, PromptRecord
from langchain_cfc.errors import StoreError
from langchain_cfc.runnable import CFCResult
from tests.lengths import mostly_long, repetitions

# Each edit is made by hand in another program, after the tests have seen all rows.
EDITS = {
    **{
        f"{name} = {value}, {where}": f"UPDATE monitor_results SET {name} = {value} WHERE number {where}"  # noqa: S608 - fixed texts
        for where in ("> 5", "= 3")
        for name, value in [
            ("scores", "'[0.9, 0.9]'"),
            ("scores", "'nonsense'"),
            ("scores", "'[1e999]'"),
            ("features", "7"),
            ("codes", "'{}'"),
            ("metadata", "'[]'"),
            ("models", "'[\"other\"]'"),
            ("threshold", "-1"),
            ("threshold", "'many'"),
            ("outcome", "outcome + 1"),
            ("withheld", "NOT withheld"),
            ("artifact", "'sha256:x'"),
            ("at", "at - 86400"),
            ("at", "1e300"),
            ("seconds", "100"),
            ("binding", "'unverified'"),
            ("seen", "0"),
            ("number", "number + 1000"),
            ("digest", "'0123456789abcdef'"),
        ]
    },
    "results removed": "DELETE FROM monitor_results WHERE number < 4",
    "last result removed": "DELETE FROM monitor_results WHERE number = 24",
    "labels removed": "DELETE FROM monitor_labels",
    "labels changed": "UPDATE monitor_labels SET correct = 'false'",
    "labels not read": "UPDATE monitor_labels SET seen = 0",
    "probabilities changed": "UPDATE monitor_labels SET probability = 0.5",
    "failures changed": "UPDATE monitor_failures SET at = 5",
    "state removed": "DELETE FROM monitor_facts WHERE name LIKE 'sha256:%'",
    "counts removed": "DELETE FROM monitor_facts WHERE name LIKE 'seen:%'",
    "facts emptied": "UPDATE monitor_facts SET value = '{}' WHERE name <> 'turn'",
    "facts unreadable": "UPDATE monitor_facts SET value = 'nonsense' WHERE name <> 'turn'",
    "version unreadable": "UPDATE monitor_facts SET value = '[' WHERE name = 'version'",
}


def read_all(artifact: CalibrationArtifact, store: Path) -> Any:
    with CFCMonitor(artifact, store, create=False) as monitor:
        # What the status leaves out.
        results = monitor._store.read_results(artifact.digest, 0.0)
        return monitor.read_status().model_dump(exclude={"age_days"}), results


@pytest.fixture
def damage(
    artifact: CalibrationArtifact,
    results: Sequence[CFCResult],
    served: Sequence[PromptRecord],
    tmp_path: Path,
) -> Callable[[Callable[[Path], None]], bool]:
    """Damage a copy of a store; return whether that is reported, and check that nothing changed if not."""
    store, copy = tmp_path / "monitor.db", tmp_path / "copy.db"
    with CFCMonitor(artifact, store) as monitor:
        for number, result in enumerate(results[:24]):
            monitor.record(result, f"r{number}")
        monitor.receive_failure(StoreError("no answer"))
        monitor.flush()
        monitor.label(*(Label(f"r{number}", truths(served[number])) for number in range(12)))
        monitor.read_status()
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = read_all(artifact, store)

    def check(change: Callable[[Path], None]) -> bool:
        for left in tmp_path.glob("copy.db*"):
            left.unlink()
        shutil.copy(store, copy)
        change(copy)
        try:
            after = read_all(artifact, copy)
        except StoreError:
            return True
        assert after == before
        return False

    return check


def test_every_flipped_bit_is_reported_or_changes_nothing(damage: Any) -> None:
    rng = random.Random(54)  # noqa: S311 - reproducible damage, no secrets
    reported, flips = 0, repetitions(500, share=0.06)

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[rng.randrange(100, len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    for _ in range(flips):
        reported += damage(flip)
    assert reported > flips / 10


@mostly_long("edit", list(EDITS), quick=6)
def test_every_edit_by_hand_is_reported(damage: Any, edit: str) -> None:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(EDITS[edit])

    assert damage(change)

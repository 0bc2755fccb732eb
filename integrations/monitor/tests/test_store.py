"""The store of a monitor: it loses no result of several writers, and no damage or edit stays unseen."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_monitor import CFCMonitor, Label

from integrations.monitor.tests.watching import truths
from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.errors import StoreError
from langchain_cfc.runnable import CFCResult
from tests.lengths import LONG, mostly_long, repetitions

# A copy of a row with other values.
COPY = (
    "CREATE TEMP TABLE copied AS SELECT * FROM {0} LIMIT 1; UPDATE copied SET {1}; "
    "INSERT OR REPLACE INTO {0} SELECT * FROM copied"
)
ROLL_BACK = "DELETE FROM {0}; INSERT INTO {0} SELECT * FROM earlier.{0}"
MOMENTS = ["never read", "after a status", "after labels"]
# Each edit is made by hand in another program; those of labels change nothing before there are any.
EDITS = {
    **{
        f"{name} = {value}, {where}": f"UPDATE monitor_results SET {name} = {value} WHERE number {where}"  # noqa: S608 - fixed texts
        for where in ("> 5", "= 3")
        for name, value in [
            ("scores", "'[0.9, 0.9]'"),
            ("scores", "'nonsense'"),
            ("scores", "'[1e999]'"),
            ("accepted", "replace(accepted, 'e', 'x')"),
            ("features", "7"),
            ("codes", "'{}'"),
            ("lengths", "'[]'"),
            ("metadata", "'[]'"),
            ("models", "'[\"other\"]'"),
            ("threshold", "-1"),
            ("threshold", "'many'"),
            ("outcome", "outcome + 1"),
            ("withheld", "NOT withheld"),
            ("artifact", "'sha256:x'"),
            ("alpha", "'0.5'"),
            ("max_wrong_rate", "'0.1'"),
            ("max_wrong_of_all", "'0.1'"),
            ("at", "at - 86400"),
            ("at", "1e300"),
            ("seconds", "100"),
            ("binding", "'unverified'"),
            ("id", "id || 'x'"),
            ("number", "number + 1000"),
            ("digest", "'0123456789abcdef'"),
        ]
    },
    "results removed": "DELETE FROM monitor_results WHERE number < 4",
    "last result removed": "DELETE FROM monitor_results WHERE number = 24",
    "all results removed": "DELETE FROM monitor_results",
    "result copied": COPY.format("monitor_results", "number = 25, id = 'copy'"),
    "result copied with its digest over another": COPY.format("monitor_results", "number = 4, id = 'r3'"),
    "results swapped": "UPDATE monitor_results SET number = CASE number WHEN 3 THEN -4 ELSE -3 END "
    "WHERE number IN (3, 4); UPDATE monitor_results SET number = -number WHERE number < 0",
    "labels removed": "DELETE FROM monitor_labels",
    "one label removed": "DELETE FROM monitor_labels WHERE number = 2",
    "label copied to another result": COPY.format("monitor_labels", "number = 13, result = 'r20'"),
    "label moved": "UPDATE monitor_labels SET result = 'r20' WHERE number = 2",
    "labels changed": "UPDATE monitor_labels SET correct = 'false'",
    "labels dated": "UPDATE monitor_labels SET at = at + 1 WHERE number = 2",
    "labels renumbered": "UPDATE monitor_labels SET number = number + 100",
    "labels sealed otherwise": "UPDATE monitor_labels SET digest = '0123456789abcdef' WHERE number = 1",
    "probabilities changed": "UPDATE monitor_labels SET probability = 0.5",
    "failures removed": "DELETE FROM monitor_failures",
    "failure copied": COPY.format("monitor_failures", "number = 2"),
    "failures dated": "UPDATE monitor_failures SET at = 5",
    "failures moved": "UPDATE monitor_failures SET artifact = 'sha256:x'",
    "failures renamed": "UPDATE monitor_failures SET error = 'RecordError'",
    "failures renumbered": "UPDATE monitor_failures SET number = 7",
    "failures sealed otherwise": "UPDATE monitor_failures SET digest = '0123456789abcdef'",
    "state removed": "DELETE FROM monitor_facts WHERE name LIKE 'sha256:%'",
    "state changed": "UPDATE monitor_facts SET value = replace(value, '1', '2') WHERE name LIKE 'sha256:%'",
    "tally removed": "DELETE FROM monitor_facts WHERE name = 'tally'",
    "tally changed": "UPDATE monitor_facts SET value = replace(value, '24', '23') WHERE name = 'tally'",
    "facts emptied": "UPDATE monitor_facts SET value = '{}'",
    "facts unreadable": "UPDATE monitor_facts SET value = 'nonsense'",
    "version unreadable": "UPDATE monitor_facts SET value = '[' WHERE name = 'version'",
    "format changed": "UPDATE monitor_facts SET value = '1' WHERE name = 'format'",
    **{
        f"{table} of an earlier copy": ROLL_BACK.format(table)
        for table in ("monitor_results", "monitor_labels", "monitor_facts")
    },
}


def read_all(artifact: CalibrationArtifact, store: Path) -> Any:
    with CFCMonitor(artifact, store, create=False) as monitor:
        # What the status leaves out.
        traffic = monitor.read_traffic()
        return monitor.read_status().model_dump(exclude={"age_days"}), traffic.results, traffic.labels


@pytest.fixture(scope="module")
def stores(
    artifact: CalibrationArtifact,
    results: Sequence[CFCResult],
    served: Sequence[PromptRecord],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """Copies of one store at three moments, and an earlier one."""
    folder = tmp_path_factory.mktemp("stores")
    paths = {name: folder / f"{name}.db" for name in ("earlier", *MOMENTS)}

    def keep(name: str) -> None:
        monitor.flush()
        with closing(sqlite3.connect(folder / "monitor.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(folder / "monitor.db", paths[name])

    with CFCMonitor(artifact, folder / "monitor.db") as monitor:
        for number, result in enumerate(results[:24]):
            if number == 10:
                keep("earlier")
            monitor.record(result, f"r{number}")
        monitor.receive_failure(StoreError("no answer"))
        keep("never read")
        monitor.read_status()
        keep("after a status")
        monitor.label(*(Label(f"r{number}", truths(served[number])) for number in range(12)))
        keep("after labels")
    return paths


@pytest.fixture
def damage(
    artifact: CalibrationArtifact, stores: dict[str, Path], moment: str, tmp_path: Path
) -> Callable[[Callable[[Path], None]], bool]:
    """Damage a copy of a store; return whether that is reported, and check that nothing changed if not."""
    copy = tmp_path / "copy.db"

    def read_copy(change: Callable[[Path], None]) -> Any:
        for left in tmp_path.glob("copy.db*"):
            left.unlink()
        shutil.copy(stores[moment], copy)
        change(copy)
        return read_all(artifact, copy)

    before = read_copy(lambda _: None)

    def check(change: Callable[[Path], None]) -> bool:
        try:
            after = read_copy(change)
        except StoreError:
            return True
        assert after == before
        return False

    return check


@mostly_long("moment", MOMENTS, quick=1)
def test_every_flipped_bit_is_reported_or_changes_nothing(damage: Any) -> None:
    rng = random.Random(54)  # noqa: S311 - reproducible damage, no secrets
    reported, flips = 0, repetitions(500, share=0.06)

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    for _ in range(flips):
        reported += damage(flip)
    assert reported > flips / 10


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_edit_by_hand_is_reported(damage: Any, stores: dict[str, Path]) -> None:
    changed: list[int] = []

    def change(path: Path, edit: str) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("ATTACH ? AS earlier", [str(stores["earlier"])])
            connection.executescript(edit)
            changed.append(connection.total_changes)

    for name in EDITS if LONG else [*list(EDITS)[:: len(EDITS) // 6], "state changed"]:
        is_reported = damage(partial(change, edit=EDITS[name]))
        assert is_reported or not changed[-1], name
    assert sum(map(bool, changed)) > len(changed) / 2


ROOT = Path(__file__).parents[3]


def test_monitor_loses_no_result_of_threads_and_a_fork(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    result = chain.invoke(served[0].input)
    each = repetitions(250, share=0.2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [monitor.record(result) for _ in range(each)], range(8)))
    monitor.flush()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            monitor.record(result)
            monitor.flush()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert monitor.read_status().results == 8 * each + 1


def test_monitor_keeps_results_while_the_database_is_away(
    monitor: CFCMonitor,
    chain: CFCRunnable,
    served: Sequence[PromptRecord],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = chain.invoke(served[0].input)

    def away(*_: Any) -> None:
        msg = "the disk is full"
        raise StoreError(msg)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(monitor._store, "add", away)
        for _ in range(10):
            monitor.record(result)
        end = time.monotonic() + 10.0
        while "the disk is full" not in caplog.text and time.monotonic() < end:
            time.sleep(0.05)
        with pytest.raises(StoreError, match="the disk is full"):
            monitor.flush()
    assert "could not be written yet" in caplog.text
    assert monitor.read_status().results == 10
    assert monitor.lost == 0


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes may write to."""
    is_file = request.param == "sqlite"
    return str(tmp_path / "monitor.db") if is_file else request.getfixturevalue("server").database()


def start_writers(where: str, artifact: Path, names: Sequence[str], results: int, rate: float) -> list[Any]:
    command = [sys.executable, "-m", "integrations.monitor.tests.test_store", where, str(artifact)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    found: list[Any] = [subprocess.Popen([*command, one, str(results), str(rate)], **pipes) for one in names]
    for process in found:
        assert process.stdout.readline() == "ready\n"
    for process in found:
        process.stdin.write("go\n")
        process.stdin.flush()
    return found


@pytest.mark.long
def test_monitor_loses_and_doubles_no_result_of_several_processes(
    where: str, artifact: CalibrationArtifact, tmp_path: Path
) -> None:
    rate = 1000 if where.startswith("postgres") else (300 if LONG else 60)
    saved = tmp_path / "artifact.json"
    artifact.save(saved)
    writers = 8 if LONG else 3
    each = rate // writers * 4
    # Written a quarter faster than the rate, which closing takes off again.
    processes = start_writers(
        where, saved, [f"p{number}" for number in range(writers)], each, 1.25 * rate / writers
    )
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * writers
    with CFCMonitor(artifact, where) as monitor:
        assert monitor.read_status().results == writers * each
        assert max(one.outcomes for one in monitor.read_status().tests) == writers * each


@pytest.mark.long
def test_killed_writer_of_a_monitor_loses_at_most_its_last_second(
    where: str, artifact: CalibrationArtifact, tmp_path: Path
) -> None:
    saved = tmp_path / "artifact.json"
    artifact.save(saved)
    processes = start_writers(where, saved, [f"p{number}" for number in range(3)], 10_000, 100)
    time.sleep(3.0)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    printed = [process.communicate()[0].split() for process in processes]
    with CFCMonitor(artifact, where) as monitor:
        kept = monitor.read_status().results
    # Written every second: of each, those of a second and of a write are the most that may be missing; a
    # machine that does other things may be later.
    missing = 3 * 100 * (1.5 if LONG else 2.5)
    assert sum(map(len, printed)) - missing <= kept <= sum(map(len, printed)) + 3
    assert kept > 0


def test_concurrent_monitor_statuses_count_each_result_once(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    result = chain.invoke(served[0].input)
    many = repetitions(3000, share=0.1)
    for _ in range(many):
        monitor.record(result)
    monitor.flush()

    def look(_: int) -> int:
        with CFCMonitor(artifact, monitor._store.name) as other:
            return max(one.outcomes for one in other.read_status().tests)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(4))) == [many] * 4


def say_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(store: str, artifact: str, name: str, *pace: str) -> None:
    """Pass results to a monitor at a rate, and print the name of each."""
    results, rate = map(float, pace)
    held = CalibrationArtifact.load(artifact)
    result = demo_chain(held).invoke(next(iter(load_recording())).input)
    monitor = CFCMonitor(held, store)
    say_line("ready")
    sys.stdin.readline()
    began = time.perf_counter()
    for number in range(int(results)):
        monitor.record(result, f"{name}-{number}")
        say_line(f"{name}-{number}")
        ahead = (number + 1) / rate - (time.perf_counter() - began)
        if ahead > 0.0:
            time.sleep(ahead)
    monitor.close()
    say_line(f"done {time.perf_counter() - began}")


if __name__ == "__main__":
    main(*sys.argv[1:])

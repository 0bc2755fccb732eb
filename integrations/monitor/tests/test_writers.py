"""Threads, processes and databases that write to one monitor lose no result."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_monitor import CFCMonitor

from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord
from langchain_cfc.errors import StoreError
from tests.lengths import LONG, repetitions

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
    command = [sys.executable, "-m", "integrations.monitor.tests.writing", where, str(artifact)]
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
    told = [process.communicate()[0].split() for process in processes]
    with CFCMonitor(artifact, where) as monitor:
        kept = monitor.read_status().results
    # Written every second: of each, those of a second and of a write are the most that may be missing; a
    # machine that does other things may be later.
    missing = 3 * 100 * (1.5 if LONG else 2.5)
    assert sum(map(len, told)) - missing <= kept <= sum(map(len, told)) + 3
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

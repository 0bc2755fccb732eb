"""A monitor beside a chain on recorded answers of two real models, and its store under many processes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.demo import demo_chain, recording
from langchain_cfc.errors import (
    AttainabilityWarning,
    CFCWarning,
    DrawError,
    FingerprintWarning,
    InputError,
    StoreError,
)
from langchain_cfc.monitor import CFCMonitor, Label, Limits, labels_of, read_labels
from langchain_cfc.monitor.kept import stated
from langchain_cfc.monitor.observed import Observed
from langchain_cfc.monitor.store import MonitorStore
from langchain_cfc.records import Records, read_records, write_records
from langchain_cfc.replay import RecordedMetadata, RecordedScores, ReplayChatModel, recorded_parts
from tests.collect.postgres import Server, postgres
from tests.lengths import LONG

ROOT = Path(__file__).parents[2]
WEAKER = ROOT / "examples" / "escalation" / "cheap.jsonl.gz"


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """Calibrated and certified on two thirds of the recording; the rest is what it serves."""
    with pytest.warns(AttainabilityWarning):
        made = calibrate(
            recording(),
            alpha="0.2",
            features="mean_score + group(topic)",
            set_rule="unique(all)",
            test_fraction=0.4,
            certification_fraction=0.5,
        )
    # Randomised ranks take their numbers from its digest, which another time of making would change.
    return certify(made.model_copy(update={"created_at": "2026-01-01T00:00:00+00:00"}), recording())


@pytest.fixture(scope="module")
def served(artifact: CalibrationArtifact) -> list[PromptRecord]:
    """Prompts that the artifact has not seen, in an order that is not theirs."""
    split = artifact.calibration.split
    held_out = [one for one in recording() if split.part(one.id, one.cluster) == "test"]
    return [held_out[place] for place in np.random.default_rng(0).permutation(len(held_out))]


@pytest.fixture(scope="module")
def chain(artifact: CalibrationArtifact) -> CFCRunnable:
    return demo_chain(artifact)


@pytest.fixture(scope="module")
def results(chain: CFCRunnable, served: Sequence[PromptRecord]) -> list[CFCResult]:
    """What it answers to each of them."""
    return [chain.invoke(one.input) for one in served]


@pytest.fixture
def monitor(artifact: CalibrationArtifact, tmp_path: Path) -> Iterator[CFCMonitor]:
    with CFCMonitor(artifact, tmp_path / "monitor.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres() as started:
        yield started


def swapped(folder: Path) -> Records:
    """What a weaker model answered, under the name of the one that was calibrated."""
    write_records(folder / "swapped.jsonl", read_records(WEAKER), recording().provenance)
    return read_records(folder / "swapped.jsonl")


def truths(record: PromptRecord) -> list[bool | None]:
    return [one.correct for one in record.candidates]


def test_under_no_drift_there_is_no_alarm_and_decisions_are_counted(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    results = [chain.invoke(one.input, {"callbacks": [monitor]}) for one in served]
    status = monitor.status()
    assert status.alarms == ()
    assert status.results == len(served) > 300
    assert status.answered == np.mean([any(one.accepted for one in it.candidates) for it in results])
    assert status.flagged == np.mean([it.reason == "not_certifiable" for it in results])
    assert status.seconds is not None
    assert 0.0 < status.seconds[0] <= status.seconds[1]
    assert {one.kind for one in status.tests} == {"drift", "kept", "labelled"}
    assert {one.what for one in status.tests if one.alpha == "0.2"} >= {"decision", "threshold"}
    assert max(one.outcomes for one in status.tests) == len(served)
    assert all(one.since is None for one in status.tests)
    # Asked again, nothing is seen twice.
    assert monitor.status().tests == status.tests


def test_a_weaker_model_behind_the_same_name_is_found_without_a_label(
    monitor: CFCMonitor,
    artifact: CalibrationArtifact,
    chain: CFCRunnable,
    served: Sequence[PromptRecord],
    tmp_path: Path,
) -> None:
    records = swapped(tmp_path)
    weaker = CFCRunnable(
        artifact=artifact,
        generator=ReplayChatModel.of(records, records.provenance),
        verifier=RecordedScores(records.provenance),
        answer=lambda text: text.strip().lower().partition("\n")[0],
        answer_id="first-line-normalised",
        metadata=RecordedMetadata(records),
        max_concurrency=1,
    )
    known = {one.id for one in records}
    after = [one for one in served if one.id in known]
    for one in served[:200]:
        if one is served[100]:
            halfway = time.time()
        monitor.see(chain.invoke(one.input))
    for one in after:
        monitor.see(weaker.invoke(one.input))
    first = monitor.status().alarms[0]
    assert first.kind == "drift"
    assert first.evidence >= first.needed
    assert "since about" in first.sentence()
    found = time.mktime(time.strptime(str(first.since)[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    # It began where evidence was lowest, not long before the swap; times are told in seconds.
    assert halfway - 1.0 <= found <= time.time()


def test_labels_show_whether_the_certified_rate_is_kept(
    artifact: CalibrationArtifact,
    results: Sequence[CFCResult],
    served: Sequence[PromptRecord],
    tmp_path: Path,
) -> None:
    def labelled(wrong: float) -> Any:
        rng = np.random.default_rng(3)
        with CFCMonitor(artifact, tmp_path / f"{wrong}.db") as monitor:
            labels = []
            for one, result in zip(served, results, strict=True):
                name = monitor.see(result)
                broken = rng.random() < wrong
                labels.append(Label(name, [False] * artifact.n if broken else truths(one)))
            assert monitor.label(*labels) == len(labels)
            assert monitor.label(*labels) == 0
            return monitor.status()

    sound, broken = labelled(0.0), labelled(0.5)
    assert sound.labels == len(served)
    assert not [one for one in sound.alarms if one.kind == "kept"]
    alarms = [one for one in broken.alarms if one.kind == "kept"]
    everyone = next(one for one in alarms if one.group == "all prompts")
    assert everyone.seen is not None
    assert everyone.certified is not None
    assert everyone.seen < everyone.certified
    assert "is broken over all prompts at alpha = 0.2" in everyone.sentence()
    stated = next(one for one in artifact.certificates[0].shares if one.name == "1")
    assert everyone.certified == stated.kept_at_least


def test_labels_that_were_sampled_count_as_often_as_makes_them_fair(
    artifact: CalibrationArtifact, results: list[CFCResult], served: list[PromptRecord], tmp_path: Path
) -> None:
    """Whoever labels hard prompts four times as often sees a rate that is not that of all prompts."""
    rng = np.random.default_rng(5)

    def seen(told: bool) -> float:
        # Who does not say with what probability counts every label.
        least = 0.25 if told else 1.0
        with CFCMonitor(artifact, tmp_path / f"{told}.db", least_probability=least) as monitor:
            labels = []
            for one, result in zip(served * 3, results * 3, strict=True):
                name = monitor.see(result)
                hard = not any(truth for truth in truths(one))
                probability = 1.0 if hard else 0.25
                if rng.random() < probability:
                    labels.append(Label(name, truths(one), probability if told else 1.0))
            monitor.label(*labels)
            tests = monitor.status().tests
            found = next(one for one in tests if one.kind == "kept" and one.group == "all prompts").seen
            assert found is not None
            return found

    told = [
        Label("", truths(one)).of(Observed.of(it, "", 0.0))[0] is True
        for one, it in zip(served, results, strict=True)
    ]
    kept = sum(told) / len(told)
    # Of about 3 * 0.25 * 480 labels: within five standard deviations.
    assert abs(seen(told=True) - kept) < 5 * 0.5 / math.sqrt(0.75 * len(served))
    assert seen(told=False) < kept - 0.1


def test_labels_of_best_answers_show_whether_they_are_as_rarely_wrong_as_certified(
    served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    made = calibrate(
        recording(),
        max_wrong_rate="0.2",
        features="1",
        test_fraction=0.4,
        certification_fraction=0.5,
        provenance=recording().provenance,
    )
    bot = CFCRunnable(artifact=made, bot=True, **recorded_parts(recording()))
    plain = CFCRunnable(artifact=made, alpha=made.alphas[-1], **recorded_parts(recording()))
    split = made.calibration.split
    asked = [one for one in served if split.part(one.id, one.cluster) == "test"]

    def watched(chain: CFCRunnable, wrong: float) -> Any:
        rng = np.random.default_rng(21)
        with CFCMonitor(made, tmp_path / f"{id(chain)}-{wrong}.db") as monitor:
            labels = []
            for one in asked:
                result = chain.invoke(one.input)
                name = monitor.see(result)
                if not result.abstained:
                    right = {it.answer for it in one.candidates if it.correct}
                    labels.append(Label(name, result.best in right and rng.random() >= wrong))
            monitor.label(*labels)
            found = monitor.status()
        tests = [one for one in found.tests if one.kind == "right"]
        # One word about the best answer says nothing of the set.
        assert {one.outcomes for one in found.tests if one.kind == "kept"} == {0}
        return len(labels), tests

    count, (sound, *_) = watched(bot, 0.0)
    assert sound.outcomes == count > 100
    assert sound.certified == 0.8
    assert not sound.alarm
    _, (broken, *_) = watched(bot, 0.3)
    assert broken.alarm
    assert "The rate of right answers, certified at least 80.0 %, is broken" in broken.sentence()
    # The certificate speaks of its policy, and not of sets that are answered without it.
    _, (other, *_) = watched(plain, 0.3)
    assert other.outcomes == 0


@pytest.mark.parametrize("asked", ["any", "hard", "hard and said so"])
def test_labels_of_results_that_look_different_are_doubted(
    asked: str,
    artifact: CalibrationArtifact,
    results: list[CFCResult],
    served: list[PromptRecord],
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(9)
    least = 0.2 if "said" in asked else 1.0
    store = tmp_path / "monitor.db"
    with CFCMonitor(artifact, store, label_days=0.0, least_probability=least) as monitor:
        labels = []
        for one, result in zip(served * 3, results * 3, strict=True):
            name = monitor.see(result)
            hard = result.features["mean_score"] > 0.5
            probability = 0.3 if asked == "any" else (0.8 if hard else 0.2)
            if rng.random() < probability:
                labels.append(Label(name, truths(one), probability if "said" in asked else 1.0))
        monitor.label(*labels)
        status = monitor.status()
        # A block is compared once.
        assert monitor.status().tests == status.tests
    compared = max(one.outcomes for one in status.tests if one.kind == "labelled")
    assert compared > 150
    assert bool(status.doubts) == (asked == "hard")
    if status.doubts:
        assert "differs between labelled results and the others" in status.doubts[0].sentence()
    # Doubts about labels are no alarm.
    assert not set(status.alarms) & set(status.doubts)


def test_a_result_is_heard_of_once_whatever_is_around_it(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    config: Any = {"callbacks": [monitor]}
    prompt = served[0].input
    around = RunnableLambda(lambda one: one) | chain | RunnableLambda(lambda one: one)
    around.invoke(prompt, config)
    asyncio.run(around.ainvoke(prompt, config))
    around.batch([prompt] * 3, config)
    assert monitor.status().results == 5
    CFCChatModel(chain=chain).invoke(str(prompt), config)
    assert monitor.status().results == 6
    assert not monitor._runs


def test_a_run_is_named_by_its_id_and_failures_are_counted(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    run = uuid4()
    chain.invoke(served[0].input, {"callbacks": [monitor], "run_id": run})
    assert monitor.label(Label(str(run), truths(served[0]))) == 1
    with pytest.raises(DrawError):
        (RunnableLambda(lambda one: one) | chain).invoke("never recorded", {"callbacks": [monitor]})
    status = monitor.status()
    assert (status.results, status.labels, status.failures) == (1, 1, 1)


def test_what_cannot_be_meant_is_refused(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    name = monitor.see(chain.invoke(served[0].input))
    with pytest.raises(InputError, match=r"holds no result 'nobody'"):
        monitor.label(Label(name, truths(served[0])), Label("nobody", True))
    assert monitor.status().labels == 0
    with pytest.raises(InputError, match="speaks of 3 candidates, and there are 10"):
        monitor.label(Label(name, [True] * 3))
    with pytest.raises(InputError, match="which is below least_probability"):
        monitor.label(Label(name, truths(served[0]), probability=0.5))
    with pytest.raises(InputError, match=r"lies in \(0, 1\]"):
        Label(name, True, probability=0.0)
    with pytest.raises(InputError, match="label 1, correct: Field required"):
        labels_of([{"id": name, "right": True}])
    assert labels_of([{"id": name, "correct": True}]) == [Label(name, True)]
    other = demo_chain(artifact.model_copy(update={"certificates": []}))
    with pytest.raises(InputError, match="give each artifact a monitor of its own"):
        monitor.see(other.invoke(served[0].input))
    for wrong in ({"level": 0.0}, {"level": 1.0}, {"every": 0.0}, {"batch": 0}, {"keep_days": 0.0}):
        with pytest.raises(InputError):
            CFCMonitor(artifact, monitor._store.name, **wrong)


def test_a_file_of_something_else_is_refused(artifact: CalibrationArtifact, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE questions (name TEXT, value TEXT)")
    other.close()
    with pytest.raises(StoreError, match="is no monitor's"):
        CFCMonitor(artifact, tmp_path / "other.db")
    with pytest.raises(StoreError, match="there is no monitor"):
        MonitorStore(tmp_path / "nothing.db")
    CFCMonitor(artifact, tmp_path / "newer.db").close()
    with sqlite3.connect(tmp_path / "newer.db") as newer:
        newer.execute("UPDATE monitor_facts SET value = '99' WHERE name = 'version'")
    newer.close()
    with pytest.raises(StoreError, match="version 99"):
        CFCMonitor(artifact, tmp_path / "newer.db")


def test_no_text_is_stored(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    chain.invoke(served[0].input, {"callbacks": [monitor]})
    monitor.close()
    stored = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    texts = [str(served[0].input), *(str(one.text) for one in served[0].candidates)]
    assert not [one for one in texts if len(one) > 5 and one.encode() in stored]
    assert b"0.2" in stored


def test_old_results_are_forgotten_and_what_was_learnt_stays(
    artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    with CFCMonitor(artifact, tmp_path / "monitor.db", keep_days=1e-9, label_days=0.0) as monitor:
        for one in served[:20]:
            monitor.see(chain.invoke(one.input))
        time.sleep(0.01)  # until all of them are older than a ten thousandth of a second
        first = monitor.status()
        monitor.see(chain.invoke(served[20].input))
        time.sleep(0.01)
        second = monitor.status()
    assert (first.results, second.results) == (0, 0)
    assert max(one.outcomes for one in second.tests) == 21


def test_many_threads_and_a_fork_lose_nothing(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    result = chain.invoke(served[0].input)
    threads = [threading.Thread(target=lambda: [monitor.see(result) for _ in range(250)]) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    monitor.flush()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            monitor.see(result)
            monitor.flush()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert monitor.status().results == 8 * 250 + 1


def test_while_the_database_is_away_results_wait(
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
            monitor.see(result)
        end = time.monotonic() + 10.0
        while "the disk is full" not in caplog.text and time.monotonic() < end:
            time.sleep(0.05)
        with pytest.raises(StoreError, match="the disk is full"):
            monitor.flush()
    assert "wait to be written" in caplog.text
    assert monitor.status().results == 10
    assert monitor.lost == 0


def started(where: str, artifact: Path, names: Sequence[str], results: int, rate: float) -> list[Any]:
    command = [sys.executable, "-m", "tests.monitor.writing", where, str(artifact)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    found: list[Any] = [subprocess.Popen([*command, one, str(results), str(rate)], **pipes) for one in names]
    for process in found:
        assert process.stdout.readline() == "ready\n"
    for process in found:
        process.stdin.write("go\n")
        process.stdin.flush()
    return found


@pytest.mark.parametrize(("kind", "rate"), [("sqlite", 300), ("postgres", 1000)])
def test_eight_processes_lose_and_double_nothing(
    kind: str, rate: int, artifact: CalibrationArtifact, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path / "monitor.db")
    if kind == "postgres":
        where = request.getfixturevalue("server").database()
    saved = tmp_path / "artifact.json"
    artifact.save(saved)
    each = rate // 8 * 4
    # Told a quarter faster than they need be, so that the rate is reached with what closing takes.
    processes = started(where, saved, [f"p{number}" for number in range(8)], each, 1.25 * rate / 8)
    told = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    # A machine that does other things takes longer, and loses nothing either.
    seconds = max(float(one[-1]) for one in told)
    assert not LONG or 8 * each / seconds >= rate
    with CFCMonitor(artifact, where) as monitor:
        assert monitor.status().results == 8 * each
        assert max(one.outcomes for one in monitor.status().tests) == 8 * each


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_writer_that_is_killed_loses_its_last_second(
    kind: str, artifact: CalibrationArtifact, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path / "monitor.db")
    if kind == "postgres":
        where = request.getfixturevalue("server").database()
    saved = tmp_path / "artifact.json"
    artifact.save(saved)
    processes = started(where, saved, [f"p{number}" for number in range(3)], 10_000, 100)
    time.sleep(3.0)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    told = [process.communicate()[0].split() for process in processes]
    with CFCMonitor(artifact, where) as monitor:
        kept = monitor.status().results
    # Written every second: of each, those of a second and of a write are the most that may be missing; a
    # machine that does other things may be later.
    missing = 3 * 100 * (1.5 if LONG else 2.5)
    assert sum(map(len, told)) - missing <= kept <= sum(map(len, told)) + 3
    assert kept > 0


def test_two_that_look_at_the_same_time_show_each_result_once(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    result = chain.invoke(served[0].input)
    for _ in range(3000):
        monitor.see(result)
    monitor.flush()
    found: list[int] = []

    def look() -> None:
        with CFCMonitor(artifact, monitor._store.name) as other:
            found.append(max(one.outcomes for one in other.status().tests))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [3000] * 4


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("langchain-cfc")), "monitor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_command_says_what_is_so_and_exits_with_one_on_an_alarm(
    artifact: CalibrationArtifact,
    results: Sequence[CFCResult],
    served: Sequence[PromptRecord],
    tmp_path: Path,
) -> None:
    store, saved, sheet = (tmp_path / name for name in ("monitor.db", "artifact.json", "labels.jsonl"))
    artifact.save(saved)
    with CFCMonitor(artifact, store) as monitor:
        names = [monitor.see(result) for result in results]
    quiet = run("status", saved, store)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert "no alarm" in quiet.stdout
    assert f"results    {len(served)}" in quiet.stdout
    lines = [json.dumps({"id": name, "correct": [False] * artifact.n}) for name in names]
    sheet.write_text("\n".join(lines), encoding="utf-8")
    added = run("labels", saved, store, sheet)
    assert added.stdout == f"{len(names)} labels added to {store}\n"
    assert json.loads(run("labels", saved, store, sheet, "--json").stdout)["labels"] == 0
    loud = run("status", saved, store)
    assert loud.returncode == 1
    assert "The rate of kept promises, certified at least" in loud.stdout
    data = json.loads(run("status", saved, store, "--json").stdout)
    assert data["alarms"] >= 1
    assert data["results"] == len(served)
    missing = run("status", saved, tmp_path / "nothing.db")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "there is no monitor at" in missing.stderr
    sheet.write_text('{"id": 3, "correct": true}', encoding="utf-8")
    wrong = run("labels", saved, store, sheet)
    assert wrong.returncode == 2
    assert "label 1, id: Input should be a valid string" in wrong.stderr


def test_what_needs_no_statistics_has_limits(
    artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    store = tmp_path / "monitor.db"
    config: Any = {"callbacks": []}

    def breaches(**limits: float) -> tuple[str, ...]:
        with CFCMonitor(artifact, store, limits=Limits(**limits)) as looking:
            status = looking.status()
        assert status.sound == (not status.breaches)
        return status.breaches

    with CFCMonitor(artifact, store) as monitor:
        config["callbacks"] = [monitor]
        for one in served[:9]:
            chain.invoke(one.input, config)
        with pytest.raises(DrawError):
            chain.invoke("never recorded", config)
        assert monitor.status().failing == 0.1
    assert breaches() == ()
    assert breaches(age_days=1e5, failing=0.1, seconds=60.0) == ()
    (failing,) = breaches(failing=0.05)
    assert failing == "10.0 % of the latest prompts could not be served; at most 5 % are allowed"
    (old,) = breaches(age_days=0.0)
    days = (datetime.now(timezone.utc) - datetime.fromisoformat(artifact.created_at)).days
    assert old.startswith(f"The artifact is {days} days old")
    (slow,) = breaches(seconds=0.0)
    assert "s at the 99th percentile; at most 0 s are allowed" in slow
    saved = tmp_path / "artifact.json"
    artifact.save(saved)
    assert run("status", saved, store).returncode == 0
    limited = run("status", saved, store, "--max-failing", "0.05")
    assert limited.returncode == 1
    assert "10.0 % of the latest prompts could not be served" in limited.stdout
    page = tmp_path / "page.html"
    assert run("report", saved, store, "--out", page, "--max-failing", "0.05").returncode == 1
    assert "None of" in page.read_text()
    assert "could not be served; at most 5 % are allowed." in page.read_text()


def test_parts_that_nothing_vouches_for_are_noted(
    artifact: CalibrationArtifact, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    parts = recorded_parts(recording())
    with pytest.warns(FingerprintWarning, match="nothing says for sure whether verifier"):
        unsure = CFCRunnable(artifact=artifact, **{**parts, "verifier": parts["verifier"].__call__})
    with CFCMonitor(artifact, tmp_path / "monitor.db") as monitor:
        for one in served[:3]:
            monitor.see(demo_chain(artifact).invoke(one.input))
        assert not [one for one in monitor.status().notes if "does not say what it is" in one]
        monitor.see(unsure.invoke(served[3].input))
        (note,) = [one for one in monitor.status().notes if "does not say what it is" in one]
    assert note.startswith("25 % of the latest results")


def test_runs_without_an_end_do_not_pile_up(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langchain_cfc.monitor.monitor.MOST_RUNS", 5)
    for _ in range(20):
        monitor.on_chain_start({}, None, run_id=uuid4())
    assert len(monitor._runs) == 5
    # Those of now are still heard of.
    chain.invoke(served[0].input, {"callbacks": [monitor]})
    assert monitor.status().results == 1


def test_to_look_at_a_store_deletes_nothing(
    artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    store, saved = tmp_path / "monitor.db", tmp_path / "artifact.json"
    artifact.save(saved)
    with CFCMonitor(artifact, store, keep_days=None) as monitor:
        for one in served[:5]:
            monitor.see(chain.invoke(one.input))
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE monitor_results SET at = at - 200 * 86400")
    connection.close()
    looked = run("status", saved, store, "--json")
    assert json.loads(looked.stdout)["results"] == 5
    assert json.loads(run("status", saved, store, "--json").stdout)["results"] == 5
    # The control: a monitor that keeps them for 90 days lets them go.
    with CFCMonitor(artifact, store) as forgetting:
        forgetting.status()
        assert forgetting.status().results == 0


def test_the_first_label_of_a_result_counts_and_arrays_are_labels(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    name = monitor.see(chain.invoke(served[0].input))
    first = Label(name, np.array(truths(served[0]), dtype=np.bool_).tolist())
    assert first == Label(name, np.array(truths(served[0]), dtype=np.bool_))  # type: ignore[arg-type]  # as users do
    assert monitor.label(first, Label(name, [False] * artifact.n)) == 1
    assert monitor.traffic().labels[name].correct == tuple(truths(served[0]))


@pytest.mark.parametrize("correct", ["yes", [1, 0], 1, {"correct": True}])
def test_what_is_no_label_is_refused(correct: Any) -> None:
    with pytest.raises(InputError, match="label of 'x': expected true or false"):
        Label("x", correct)


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="that is no name of a result"):
        Label("\ud800", True)


def test_labels_that_fit_no_result_can_be_left_out(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    good, bad = (monitor.see(chain.invoke(one.input)) for one in served[:2])
    labels = [Label(good, truths(served[0])), Label(bad, [True] * (artifact.n - 1))]
    with pytest.raises(InputError, match="speaks of 9 candidates"):
        monitor.label(*labels)
    assert monitor.status().labels == 0
    with pytest.warns(CFCWarning, match="1 labels do not fit their results and are left out"):
        assert monitor.label(*labels, leave_out_unfit=True) == 1
    with pytest.warns(CFCWarning, match="1 labels"):
        assert monitor.label(labels[1], leave_out_unfit=True) == 0


def test_a_file_that_nests_too_deeply_is_no_label(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(InputError, match="cannot be read as JSON Lines"):
        read_labels(tmp_path / "deep.jsonl")


def test_damage_to_what_was_seen_is_said(
    artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    store = tmp_path / "monitor.db"
    with CFCMonitor(artifact, store) as monitor:
        monitor.see(chain.invoke(served[0].input))
        monitor.status()
        for damaged in ("{", "{}", "[]"):
            with sqlite3.connect(store) as connection:
                connection.execute(
                    "UPDATE monitor_facts SET value = ? WHERE name = ?", (damaged, artifact.digest)
                )
            connection.close()
            with pytest.raises(StoreError, match=r"is damaged .*: watch into a new store"):
                monitor.status()


def test_a_rate_that_is_certified_twice_is_watched_once() -> None:
    bot = calibrate(
        recording(),
        alpha="0.4",
        max_wrong_rate="0.3",
        features="1",
        certification_fraction=0.3,
        provenance=recording().provenance,
    )
    assert bot.policy is not None
    twice = bot.model_copy(update={"certificates": bot.policy.coverage})
    assert [(one.what, one.group, one.alpha) for one in stated(twice)] == [
        (one.what, one.group, one.alpha) for one in stated(bot)
    ]


def test_a_promise_with_confidence_is_watched_without_a_certificate(tmp_path: Path) -> None:
    made = calibrate(
        recording(),
        alpha="0.4",
        features="bins(mean_score, 2)",
        threshold_rule="grouped",
        confident=True,
        delta="0.1",
        test_fraction=0.4,
        provenance=recording().provenance,
    )
    split, chain = made.calibration.split, demo_chain(made)
    asked = [one for one in recording() if split.part(one.id, one.cluster) == "test"]

    def watched(broken: float) -> list[Any]:
        rng = np.random.default_rng(23)
        with CFCMonitor(made, tmp_path / f"{broken}.db") as monitor:
            names = [monitor.see(chain.invoke(one.input)) for one in asked]
            labels = [
                Label(name, [False] * made.n if rng.random() < broken else truths(one))
                for name, one in zip(names, asked, strict=True)
            ]
            monitor.label(*labels)
            return [one for one in monitor.status().tests if one.kind == "kept"]

    assert made.confidence is not None
    sound, broken = watched(0.0), watched(0.5)
    assert len(sound) == len(made.confidence.names) > 1
    assert {one.certified for one in sound} == {0.6}
    assert not any(one.alarm for one in sound)
    assert any(one.alarm for one in broken)

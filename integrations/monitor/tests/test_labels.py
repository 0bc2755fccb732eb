"""Labels of a monitor: alarms on certified rates, and labels that are refused."""

from __future__ import annotations

import math
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_cfc_monitor.observed import ObservedResult
from langchain_cfc_monitor.store import MonitorStore

from integrations.monitor.tests.watching import Served, list_held_out, truths, watch_results
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import CFCWarning, InputError, StoreError
from tests.lengths import mostly_long, repetitions


@pytest.fixture(scope="module")
def confident() -> CalibrationArtifact:
    """Promises with confidence, so that it needs no certificate."""
    made = calibrate(
        load_recording(), alpha="0.4", features="bins(mean_score, 2)", delta="0.1", test_fraction=0.4
    )
    assert made.confidence is not None
    assert not made.certificates
    return made


@pytest.mark.parametrize("promise", ["artifact", pytest.param("confident", marks=pytest.mark.long)])
def test_labels_alarm_if_the_certified_rate_is_not_kept(
    promise: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    artifact: CalibrationArtifact = request.getfixturevalue(promise)
    served, chain = list_held_out(artifact)[: repetitions(480, share=0.3)], demo_chain(artifact)
    results = [chain.invoke(one.input) for one in served]

    def labelled(wrong: float) -> Any:
        with watch_results(artifact, tmp_path / f"{wrong}.db", served, results, wrong) as monitor:
            return monitor.read_status()

    sound, broken = labelled(0.0), labelled(0.5)
    assert sound.labels == len(served)
    assert not [one for one in sound.alarms if one.kind == "kept"]
    alarms = [one for one in broken.alarms if one.kind == "kept"]
    everyone = next(one for one in alarms if one.group == "all prompts")
    assert everyone.seen is not None
    assert everyone.certified is not None
    assert everyone.seen < everyone.certified
    assert f"is violated for all prompts at alpha = {artifact.alphas[0]}" in everyone.sentence
    shares = artifact.certificates[0].shares if artifact.certificates else ()
    stated = next((one.kept_at_least for one in shares if one.name == "1"), 0.6)
    assert everyone.certified == stated
    if not shares:  # all prompts, and two bins
        assert [one.certified for one in sound.tests if one.kind == "kept"] == [0.6] * 3


def test_monitor_warns_of_a_label_that_contradicts_the_first(
    artifact: CalibrationArtifact, seen: Served, tmp_path: Path
) -> None:
    served, results = seen
    (row, *_) = (row for row, one in enumerate(results) if one.best is not None and any(truths(served[row])))
    known = truths(served[row])
    with CFCMonitor(artifact, tmp_path / "monitor.db") as monitor:
        name = monitor.record(results[row])
        assert monitor.label(Label(name, known)) == 1
        with pytest.warns(CFCWarning, match=f"labels of '{name}' contradict earlier ones .* the first label"):
            assert monitor.label(Label(name, [not one for one in known])) == 0
        assert monitor.read_traffic().labels[name].correct == tuple(known)
        # Controls: the same label again, and one that says less but no other.
        assert monitor.label(Label(name, known)) == 0
        assert monitor.label(Label(name, [None, *known[1:]])) == 0


@pytest.mark.long
def test_sampled_labels_are_weighted_by_their_probability(
    artifact: CalibrationArtifact, seen: Served, tmp_path: Path
) -> None:
    """Labelling hard prompts four times as often biases the rate unless probabilities are stated."""
    served, results = seen
    rng = np.random.default_rng(5)

    def measure(is_stated: bool) -> float:
        # Without stated probabilities every label counts.
        least = 0.25 if is_stated else 1.0
        with CFCMonitor(artifact, tmp_path / f"{is_stated}.db", least_probability=least) as monitor:
            labels = []
            for one, result in zip(served * 3, results * 3, strict=True):
                name = monitor.record(result)
                hard = not any(truth for truth in truths(one))
                probability = 1.0 if hard else 0.25
                if rng.random() < probability:
                    labels.append(Label(name, truths(one), probability if is_stated else 1.0))
            monitor.label(*labels)
            tests = monitor.read_status().tests
            found = next(one for one in tests if one.kind == "kept" and one.group == "all prompts").seen
            assert found is not None
            return found

    kept_flags = [
        Label("", truths(one)).judge(ObservedResult.from_result(it, "", 0.0))[0] is True
        for one, it in zip(served, results, strict=True)
    ]
    kept = sum(kept_flags) / len(kept_flags)
    # Of about 3 * 0.25 * 480 labels: within five standard deviations.
    assert abs(measure(is_stated=True) - kept) < 5 * 0.5 / math.sqrt(0.75 * len(served))
    assert measure(is_stated=False) < kept - 0.1


@mostly_long("asked", ["hard", "any", "hard and said so"], quick=1)
def test_monitor_doubts_labels_of_results_that_differ_from_the_others(
    asked: str, artifact: CalibrationArtifact, seen: Served, tmp_path: Path
) -> None:
    served, results = seen
    rng = np.random.default_rng(9)
    least = 0.2 if "said" in asked else 1.0
    store = tmp_path / "monitor.db"
    with CFCMonitor(artifact, store, label_days=0.0, least_probability=least) as monitor:
        labels = []
        for one, result in zip(served * 3, results * 3, strict=True):
            name = monitor.record(result)
            hard = result.features["mean_score"] > 0.5
            probability = 0.3 if asked == "any" else (0.8 if hard else 0.2)
            if rng.random() < probability:
                labels.append(Label(name, truths(one), probability if "said" in asked else 1.0))
        monitor.label(*labels)
        status = monitor.read_status()
        # A block is compared once.
        assert monitor.read_status().tests == status.tests
    compared = max(one.outcomes for one in status.tests if one.kind == "labelled")
    assert compared > 0.1 * len(served * 3)
    assert bool(status.doubts) == (asked == "hard")
    if status.doubts:
        assert "differs between labelled results and the others" in status.doubts[0].sentence
    # Doubts about labels are no alarm.
    assert not set(status.alarms) & set(status.doubts)


def test_monitor_refuses_files_that_are_no_monitor_store(
    artifact: CalibrationArtifact, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, other:
        other.execute("CREATE TABLE questions (name TEXT, value TEXT)")
    with pytest.raises(StoreError, match="is not the store of a monitor"):
        CFCMonitor(artifact, tmp_path / "other.db")
    with pytest.raises(StoreError, match="there is no monitor"):
        MonitorStore(tmp_path / "nothing.db")


@pytest.mark.parametrize("correct", ["yes", [1, 0], 1, {"correct": True}])
def test_label_refuses_invalid_values(correct: Any) -> None:
    with pytest.raises(InputError, match="label of 'x': expected true or false"):
        Label("x", correct)


def test_monitor_label_can_leave_out_unfit_labels(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    good, bad = (monitor.record(chain.invoke(one.input)) for one in served[:2])
    labels = [Label(good, truths(served[0])), Label(bad, [True] * (artifact.n - 1))]
    with pytest.raises(InputError, match="is about 9 candidates"):
        monitor.label(*labels)
    assert monitor.read_status().labels == 0
    with pytest.warns(CFCWarning, match="1 labels do not fit their results and are left out"):
        assert monitor.label(*labels, leave_out_unfit=True) == 1
    with pytest.warns(CFCWarning, match="1 labels"):
        assert monitor.label(labels[1], leave_out_unfit=True) == 0


def test_monitor_refuses_labels_that_do_not_fit_the_answer(
    monitor: CFCMonitor, results: Sequence[CFCResult]
) -> None:
    answered = monitor.record(next(one for one in results if one.answers))
    with pytest.raises(InputError, match="the set is not empty; say which candidates are correct"):
        monitor.label(Label(answered, None))
    empty = monitor.record(next(one for one in results if not any(it.accepted for it in one.candidates)))
    with pytest.raises(InputError, match="no answer was given, so none can be correct"):
        monitor.label(Label(empty, True))


@pytest.mark.long
def test_monitor_watches_each_certified_rate_separately(tmp_path: Path) -> None:
    """Answers at the strict rate are all right, all others wrong: the loose one alarms."""
    source = load_recording()
    bot = calibrate(source, max_wrong_rate=["0.3", "0.4"], alpha="0.2", features="1")
    answered: Counter[str | None] = Counter()
    with CFCMonitor(bot, tmp_path / "monitor.db") as monitor:
        for promise, right in (("0.3", True), ("0.4", False), (None, False)):
            options = {"alpha": "0.2"} if promise is None else {"max_wrong_rate": promise}
            chain = CFCRunnable(artifact=bot, **options, **make_replay_parts(source))
            for one in list(source)[:120]:
                result = chain.invoke(one.input)
                name = monitor.record(result)
                if not result.abstained:
                    answered[promise] += 1
                    monitor.label(Label(name, right))
        tests = monitor.read_status().tests
    # One word about the best answer says nothing of the set.
    assert not any(one.outcomes for one in tests if one.kind == "kept")
    found = {one.what: one for one in tests if one.kind == "right"}
    strict = found["share of right answers at the 30 % rate"]
    loose = found["share of right answers at the 40 % rate"]
    assert (strict.certified, loose.certified) == (0.7, 0.6)
    assert (strict.seen, loose.seen) == (1.0, 0.0)
    # The certificates speak of the answers of the bot, and not of the answers of sets.
    assert (strict.outcomes, loose.outcomes) == (answered["0.3"], answered["0.4"])
    assert 0 < strict.outcomes <= loose.outcomes
    assert answered[None] > 0
    assert (strict.alarm, loose.alarm) == (False, True)
    said = r"Share of right answers at the 40 % rate, certified at least 60.0 %, observed 0.0 %, is violated"
    assert re.match(said, loose.sentence)

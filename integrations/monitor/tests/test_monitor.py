"""`CFCMonitor` beside a chain on recorded answers of two real models."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label, Limits, parse_label
from langchain_cfc_monitor.page import write_page
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.stores import InMemoryByteStore

from integrations.monitor.tests.watching import (
    Served,
    list_held_out,
    make_weaker_chain,
    run,
    truths,
    write_swapped_records,
)
from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.errors import DrawError, FingerprintWarning, InputError, RecordError
from langchain_cfc.runnable import DecisionStore
from tests.claims.worlds import make_answers
from tests.lengths import mostly_long, repetitions
from tests.runnable.test_withheld import CASES, MARK


def test_monitor_counts_decisions_and_raises_no_alarm_without_drift(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    results = [chain.invoke(one.input, {"callbacks": [monitor]}) for one in served]
    status = monitor.read_status()
    assert status.alarms == ()
    assert status.results == len(served) > repetitions(300, share=0.3)
    assert status.answered == np.mean([any(one.accepted for one in it.candidates) for it in results])
    assert status.flagged == np.mean([it.reason == "not_certifiable" for it in results])
    assert status.seconds is not None
    assert 0.0 < status.seconds[0] <= status.seconds[1]
    assert {one.kind for one in status.tests} == {"drift", "kept", "labelled"}
    assert {one.what for one in status.tests if one.alpha == "0.2"} >= {"decision", "threshold"}
    assert max(one.outcomes for one in status.tests) == len(served)
    assert all(one.since is None for one in status.tests)
    # Asked again, nothing is seen twice.
    assert monitor.read_status().tests == status.tests


def test_monitor_counts_a_decision_that_is_given_again_once(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    callbacks: list[Any] = [monitor, DecisionStore(InMemoryByteStore())]
    for _ in range(2):
        decided = [chain.invoke(one.input, {"callbacks": callbacks}) for one in served[:30]]
    monitor.record(decided[0])
    assert all(one.is_repeated for one in decided)
    status = monitor.read_status()
    assert status.results == max(one.outcomes for one in status.tests) == 30
    # Without a store, each answer is a decision of its own.
    chain.invoke(served[0].input, {"callbacks": [monitor]})
    assert monitor.read_status().results == 31


def test_monitor_counts_raised_abstentions_as_results(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    raising = chain.model_copy(update={"on_abstain": "raise"})
    results = [chain.invoke(one.input) for one in served[:60]]
    someone: Any = RunnableLambda(lambda _: "someone else")
    for one in served[:60]:
        raising.with_fallbacks([someone]).invoke(one.input, {"callbacks": [monitor]})
    status = monitor.read_status()
    assert (status.results, status.failures) == (60, 0)
    assert status.flagged == np.mean([it.reason == "not_certifiable" for it in results]) > 0


def test_monitor_finds_a_weaker_model_without_labels(
    monitor: CFCMonitor, artifact: CalibrationArtifact, seen: Served, tmp_path: Path
) -> None:
    served, results = seen
    records = write_swapped_records(tmp_path)
    weaker = make_weaker_chain(artifact, records)
    known = {one.id for one in records}
    after = [one for one in served if one.id in known]
    for place, result in enumerate(results[:120]):
        if place == 60:
            halfway = time.time()
        monitor.record(result)
    for one in after:
        monitor.record(weaker.invoke(one.input))
    status = monitor.read_status()
    first = status.alarms[0]
    assert first.kind == "drift"
    drift = next(one for one in status.together if one.kind == "drift")
    assert drift.alarm
    assert drift.evidence >= drift.needed == 1.0 / status.level
    assert drift.leading is not None
    assert first.what_name in drift.leading
    # Which way it moved, and how far, in plain words.
    moved = r"look harder by [\w ]+: "
    assert re.search(moved + r"\d+ % of results .* \(expected \d+ %\)", first.sentence)
    assert drift.sentence.startswith("Traffic has changed (")
    assert "since about" in first.sentence
    found = time.mktime(time.strptime(str(first.since)[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    # It began where evidence was lowest, not long before the swap; times are told in seconds.
    assert halfway - 1.0 <= found <= time.time()


def test_monitor_counts_each_result_once_in_any_chain(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    config: Any = {"callbacks": [monitor]}
    prompt = served[0].input
    around = RunnableLambda(lambda one: one) | chain | RunnableLambda(lambda one: one)
    around.invoke(prompt, config)
    asyncio.run(around.ainvoke(prompt, config))
    around.batch([prompt] * 3, config)
    assert monitor.read_status().results == 5
    CFCChatModel(chain=chain).invoke(str(prompt), config)
    assert monitor.read_status().results == 6
    # A copy by a later step is the same result.
    copying: Any = RunnableLambda(lambda result: result.model_copy())
    copying.invoke((chain | copying | copying).invoke(prompt, config), config)
    assert monitor.read_status().results == 7
    assert not monitor._runs


def test_monitor_ignores_results_of_other_artifacts_of_the_same_chain(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    other = artifact.model_copy(update={"certificates": []})
    both = RunnableParallel(first=chain, second=chain.model_copy(update={"artifact": other}))
    both.invoke(served[0].input, {"callbacks": [monitor]})
    assert monitor.read_status().results == 1
    with CFCMonitor(other, monitor.name) as looking:
        assert looking.read_status().results == 0
        # Control: it counts the results of its own artifact.
        both.invoke(served[1].input, {"callbacks": [looking]})
        assert looking.read_status().results == 1


def test_monitor_names_results_by_run_id_and_counts_failures(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    run = uuid4()
    chain.invoke(served[0].input, {"callbacks": [monitor], "run_id": run})
    assert monitor.label(Label(str(run), truths(served[0]))) == 1
    with pytest.raises(DrawError):
        (RunnableLambda(lambda one: one) | chain).invoke("never recorded", {"callbacks": [monitor]})
    status = monitor.read_status()
    assert (status.results, status.labels, status.failures) == (1, 1, 1)


def test_monitor_refuses_invalid_labels_results_and_settings(
    monitor: CFCMonitor, artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord]
) -> None:
    name = monitor.record(chain.invoke(served[0].input))
    with pytest.raises(InputError, match=r"holds no result 'unknown'"):
        monitor.label(Label(name, truths(served[0])), Label("unknown", True))
    assert monitor.read_status().labels == 0
    with pytest.raises(InputError, match="is about 3 candidates, and the result has 10"):
        monitor.label(Label(name, [True] * 3))
    with pytest.raises(InputError, match="which is below least_probability"):
        monitor.label(Label(name, truths(served[0]), probability=0.5))
    with pytest.raises(InputError, match=r"must lie in \(0, 1\]"):
        Label(name, True, probability=0.0)
    with pytest.raises(InputError, match="label: correct: Field required"):
        parse_label({"id": name, "right": True})
    assert parse_label({"id": name, "correct": True}) == Label(name, True)
    other = demo_chain(artifact.model_copy(update={"certificates": []}))
    with pytest.raises(InputError, match="use one monitor per artifact"):
        monitor.record(other.invoke(served[0].input))
    options: list[dict[str, Any]] = [
        *({"level": one} for one in (0.0, 1.0, "0.01", None)),
        *({"every": one} for one in (0.0, "1", float("nan"))),
        {"batch": 0},
        {"keep_days": 0.0},
    ]
    for wrong in options:
        with pytest.raises(InputError):
            CFCMonitor(artifact, monitor._store.name, **wrong)
    for limits in ({"failing": 5}, {"age_days": -1}, {"seconds": "2"}, {"failing": float("nan")}):
        with pytest.raises(InputError, match=r"^limit "):
            Limits(**limits)
    other_form: Any
    for other_form in (None, {}, other):
        with pytest.raises(InputError, match=r"^artifact is "):
            CFCMonitor(other_form, monitor._store.name)
        with pytest.raises(InputError, match="expected the result of an artifact"):
            monitor.record(other_form)
    for untyped in ((5, True), (name, True, "0.5"), (name, True, None)):
        with pytest.raises(InputError, match=r"^label of "):
            Label(*untyped)
    with pytest.raises(InputError, match="since"):
        monitor.read_traffic("2026-11-01")  # type: ignore[arg-type]  # as above


def test_monitor_takes_the_path_of_an_artifact_and_labels_as_mappings(
    artifact: CalibrationArtifact, tmp_path: Path
) -> None:
    artifact.save(tmp_path / "artifact.json")
    with CFCMonitor(tmp_path / "artifact.json", tmp_path / "monitor.db") as monitor:
        name = monitor.record(demo_chain(artifact).invoke(list_held_out(artifact)[0].input))
        assert monitor.label({"id": name, "correct": [True] * artifact.n}) == 1
        with pytest.raises(RecordError, match="correct"):
            monitor.label({"id": name})


def test_monitor_refuses_artifacts_of_claims(tmp_path: Path) -> None:
    answers = make_answers(np.random.default_rng(1), 600)
    for artifact in (
        calibrate(answers, unit="claims", at_most=1, alpha=0.2),
        calibrate(answers, unit="claims", max_wrong_rate="0.5", features="1"),
    ):
        with pytest.raises(InputError, match=r"watches whole answers.*evaluate"):
            CFCMonitor(artifact, tmp_path / "monitor.db")


def test_monitor_stores_no_text(
    monitor: CFCMonitor, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    chain.invoke(served[0].input, {"callbacks": [monitor]})
    monitor.close()
    stored = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    texts = [str(served[0].input), *(str(one.text) for one in served[0].candidates)]
    assert not [one for one in texts if len(one) > 5 and one.encode() in stored]
    assert b"0.2" in stored


def test_monitor_forgets_old_results_and_keeps_test_states(
    artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    with CFCMonitor(artifact, tmp_path / "monitor.db", keep_days=1e-9, label_days=0.0) as monitor:
        for one in served[:20]:
            monitor.record(chain.invoke(one.input))
        time.sleep(0.01)  # until all of them are older than a ten thousandth of a second
        first = monitor.read_status()
        monitor.record(chain.invoke(served[20].input))
        time.sleep(0.01)
        second = monitor.read_status()
    assert (first.results, second.results) == (0, 0)
    assert max(one.outcomes for one in second.tests) == 21


def test_monitor_status_command_exits_with_1_on_an_alarm(
    artifact: CalibrationArtifact, seen: Served, tmp_path: Path
) -> None:
    served, results = seen
    store, saved, sheet = (tmp_path / name for name in ("monitor.db", "artifact.json", "labels.jsonl"))
    artifact.save(saved)
    with CFCMonitor(artifact, store) as monitor:
        names = [monitor.record(result) for result in results]
    quiet = run("status", saved, store)
    assert (quiet.code, quiet.err) == (0, "")
    assert "no alarm" in quiet.out
    assert f"results    {len(served)}" in quiet.out
    lines = [json.dumps({"id": name, "correct": [False] * artifact.n}) for name in names]
    sheet.write_text("\n".join(lines), encoding="utf-8")
    added = run("labels", saved, store, sheet)
    assert added.out == f"{len(names)} labels added to {store}\n"
    assert json.loads(run("labels", saved, store, sheet, "--json").out)["labels"] == 0
    loud = run("status", saved, store)
    assert loud.code == 1
    assert "The rate of kept promises, certified at least" in loud.out
    assert "…" not in loud.out
    data = json.loads(run("status", saved, store, "--json").out)
    assert data["alarms"] >= 1
    assert data["results"] == len(served)
    missing = run("status", saved, tmp_path / "nothing.db")
    assert (missing.code, missing.out) == (2, "")
    assert "there is no monitor at" in missing.err
    sheet.write_text('{"id": 3, "correct": true}', encoding="utf-8")
    run("labels", saved, store, sheet).assert_refused("line 1: id: Input should be a valid string")


def test_monitor_limits_report_breaches(
    artifact: CalibrationArtifact, chain: CFCRunnable, served: Sequence[PromptRecord], tmp_path: Path
) -> None:
    store = tmp_path / "monitor.db"
    config: Any = {"callbacks": []}

    def breaches(**limits: float) -> tuple[str, ...]:
        with CFCMonitor(artifact, store, limits=Limits(**limits)) as looking:
            status = looking.read_status()
        assert status.sound == (not status.breaches)
        return status.breaches

    with CFCMonitor(artifact, store) as monitor:
        config["callbacks"] = [monitor]
        for one in served[:9]:
            chain.invoke(one.input, config)
        with pytest.raises(DrawError):
            chain.invoke("never recorded", config)
        assert monitor.read_status().failing == 0.1
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
    assert run("status", saved, store).code == 0
    page = tmp_path / "page.html"
    limited = run("status", saved, store, "--max-failing", "0.05")
    assert limited.code == 1
    assert "10.0 % of the latest prompts could not be served" in limited.out
    with CFCMonitor(artifact, store, limits=Limits(failing=0.05)) as looking:
        write_page(page, looking.read_status(), [])
    assert "None of" in page.read_text()
    assert "could not be served; at most 5 % are allowed." in page.read_text()


def test_monitor_notes_missing_results_and_refuses_them_once_closed(
    monitor: CFCMonitor, results: Sequence[CFCResult]
) -> None:
    assert any(note.startswith("no results yet") for note in monitor.read_status().notes)
    monitor.record(results[0])
    assert not any(note.startswith("no results yet") for note in monitor.read_status().notes)
    monitor.close()
    with pytest.raises(InputError, match="the monitor is closed, so this result would be lost"):
        monitor.record(results[1])


def test_monitor_reports_a_model_that_was_not_calibrated(tmp_path: Path) -> None:
    records = load_recording()
    assert records.provenance is not None
    generator = {**(records.provenance.generator or {}), "model_version": "facts-1"}
    known = records.provenance.model_copy(update={"generator": generator})
    artifact = calibrate(list(records), alpha="0.3", features="1", provenance=known)
    result = demo_chain(artifact).invoke(next(iter(records)).input)
    with CFCMonitor(artifact, tmp_path / "monitor.db") as monitor:
        monitor.record(result.model_copy(update={"models": ("facts-1",)}))
        assert monitor.read_status().breaches == ()
        monitor.record(result.model_copy(update={"models": ("facts-2",)}))
        status = monitor.read_status()
    assert status.breaches == ("The model facts-2 is served but was not calibrated",)
    assert not status.sound


def test_monitor_notes_parts_that_do_not_identify_themselves(
    artifact: CalibrationArtifact, parts: dict[str, Any], seen: Served, tmp_path: Path
) -> None:
    served, results = seen
    with pytest.warns(FingerprintWarning, match="cannot verify that verifier"):
        unsure = CFCRunnable(artifact=artifact, **{**parts, "verifier": parts["verifier"].__call__})
    with CFCMonitor(artifact, tmp_path / "monitor.db") as monitor:
        for result in results[:3]:
            monitor.record(result)
        assert not [one for one in monitor.read_status().notes if "does not identify itself" in one]
        monitor.record(unsure.invoke(served[3].input))
        (note,) = [one for one in monitor.read_status().notes if "does not identify itself" in one]
    assert note.startswith("25 % of the latest results")


@pytest.mark.parametrize("name", CASES)
def test_store_of_a_monitor_holds_no_withheld_text(name: str, tmp_path: Path) -> None:
    reason, make = CASES[name]
    for shown in (False, True):
        folder = tmp_path / str(shown)
        folder.mkdir()
        chain = make(show_rejected=True) if shown else make()
        result = chain.invoke("x")
        assert result.reason == reason
        with CFCMonitor(chain.artifact, folder / "monitor.db") as monitor:
            monitor.record(result)
        assert not any(MARK.encode() in path.read_bytes() for path in folder.iterdir())


DRAWS = "lead(3, at_most=10)"


@pytest.fixture(scope="module")
def stopping_artifact() -> CalibrationArtifact:
    return calibrate(
        load_recording(), alpha="0.4", features="mean_score", draws=DRAWS, test_fraction=0.4, seed=1
    )


def test_monitor_watches_the_number_of_draws(stopping_artifact: CalibrationArtifact, tmp_path: Path) -> None:
    served = list_held_out(stopping_artifact)[: repetitions(150, share=0.4)]
    chain: CFCRunnable = demo_chain(stopping_artifact)
    with CFCMonitor(stopping_artifact, tmp_path / "monitor.db") as monitor:
        results = [chain.invoke(one.input, {"callbacks": [monitor]}) for one in served]
        sizes = [len(one.candidates) for one in results]
        assert 3 <= min(sizes) < max(sizes) == 10
        status = monitor.read_status()
        assert "number of draws" in {one.what for one in status.tests}
        assert status.alarms == ()


@pytest.mark.long
@mostly_long("fewest", [3, 6], quick=1)
def test_monitor_reports_a_drift_to_more_draws_in_words(
    stopping_artifact: CalibrationArtifact, tmp_path: Path, fewest: int
) -> None:
    """Serve all held-out questions, as the control, or only those that take 6 draws or more."""
    held_out = list_held_out(stopping_artifact)
    counts = tabulate_draws(stopping_artifact, held_out).draws.counts.tolist()
    asked = [one for one, count in zip(held_out, counts, strict=True) if count >= fewest][:100]
    saved, store, page = tmp_path / "artifact.json", tmp_path / "monitor.db", tmp_path / "page.html"
    stopping_artifact.save(saved)
    chain: CFCRunnable = demo_chain(stopping_artifact)
    with CFCMonitor(stopping_artifact, store) as monitor:
        for one in asked:
            monitor.record(chain.invoke(one.input))
        tests = monitor.read_status().tests
    (whole,) = [
        one for one in tests if (one.kind, one.what, one.group) == ("drift", "number of draws", "all prompts")
    ]
    ran = run("status", saved, store, "--report", page)
    drifted = fewest == 6
    assert (ran.code, whole.alarm) == (int(drifted), drifted)
    said = "Number of draws higher"
    shares = "100 % of results took 6 draws or more (expected"
    for shown in (" ".join(ran.out.split()), page.read_text(encoding="utf-8")):
        assert (said in shown, shares in shown) == (drifted, drifted)

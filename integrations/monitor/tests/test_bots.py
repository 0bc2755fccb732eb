"""A monitor of a bot compares how many prompts are answered with those that its cut answered.

The law: tests of prompts that are exchangeable with those of calibration ever alarm in at most a share
`LEVEL` of the streams (Ville's inequality for each test; for their mean see `DriftTest`). Each stream has an
artifact of its own, made without the prompts that it serves.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor
from langchain_cfc_monitor.evidence import Evidence
from langchain_cfc_monitor.sequential_tests import DriftTest
from langchain_cfc_monitor.status import list_curves
from scipy import stats

from integrations.monitor.tests.watching import make_observations, run, swap_model
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.artifact.held_out import tabulate_draws
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import CFCWarning
from langchain_cfc.records import tabulate
from tests.lengths import repetitions
from tests.recordings import list_facts

LEVEL = 0.05
STREAMS = repetitions(200, share=0.05)
RESULTS = repetitions(300, share=0.5)
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "one rate": {"max_wrong_rate": "0.1"},
    "two rates": {"max_wrong_rate": ["0.05", "0.1"]},
    "beside sets": {"max_wrong_rate": "0.2", "alpha": "0.2"},
    "draw rule": {
        "max_wrong_rate": ["0.05", "0.1", "0.2"],
        "features": "hat(mean_score, 5) + group(topic)",
        "draws": "below(0.5, at_most=10)",
    },
    "other features": {"max_wrong_rate": "0.1", "features": "bins(min_score, 4)"},
}


def calibrate_bot(source: LabelledBatch, seed: int, **options: Any) -> CalibrationArtifact:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        return calibrate(
            source, test_fraction=0.3, seed=seed, provenance=load_recording().provenance, **options
        )


def watch(artifact: CalibrationArtifact, served: LabelledBatch, rate: str | None) -> DriftTest:
    """The tests after these prompts, served by the bot of a rate, or with None as sets."""
    certified = None if rate is None else artifact.certified_bot.find_certificate(rate)
    drift = DriftTest.start(artifact, 0.0)
    for one, _ in make_observations(artifact, tabulate_draws(artifact, served), 0, certified):
        drift = drift.update(one)
    return drift


def replace_reference(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """The control: decisions of a bot compared with sets that it does not serve, half of them flagged."""
    wrong = [
        one
        if one.max_wrong_rate is None
        else one.model_copy(
            update={"counts": {name: [sum(counts), 0, sum(counts)] for name, counts in one.counts.items()}}
        )
        for one in artifact.reference
    ]
    return artifact.model_copy(update={"reference": wrong})


def simulate(options: Mapping[str, Any]) -> dict[str, int]:
    """Count the streams that alarm: unchanged, of a weaker model, and with a wrong reference."""
    source, alarms = tabulate(load_recording()), {"unchanged": 0, "weaker model": 0, "wrong reference": 0}
    for seed in range(STREAMS):
        order = np.random.default_rng(seed).permutation(len(source))
        served = source.take(order[:RESULTS])
        artifact = calibrate_bot(source.take(order[RESULTS:]), seed, **options)
        streams = {
            "unchanged": (artifact, served),
            "weaker model": (artifact, swap_model(served)),
            "wrong reference": (replace_reference(artifact), served),
        }
        for name, (known, prompts) in streams.items():
            rate = known.certified_bot.certificates[-1].max_wrong_rate
            alarms[name] += watch(known, prompts, rate).is_alarming(LEVEL)
    return alarms


@pytest.mark.parametrize(
    "name",
    [one if one == "one rate" else pytest.param(one, marks=pytest.mark.long) for one in CONFIGURATIONS],
)
def test_monitor_of_a_bot_alarms_only_after_a_change(name: str) -> None:
    alarms = simulate(CONFIGURATIONS[name])
    # Exceeded with probability 1e-6 if the level is kept.
    assert alarms["unchanged"] <= stats.binom.isf(1e-6, STREAMS, LEVEL)
    assert alarms["weaker model"] == STREAMS
    # The negative control.
    assert alarms["wrong reference"] > 0.9 * STREAMS


def test_status_of_a_bot_states_how_many_are_answered_at_each_rate(tmp_path: Path) -> None:
    bot = calibrate_bot(tabulate(load_recording()), 0, **CONFIGURATIONS["two rates"])
    prompts = [one.input for one in list_facts()[:60]]
    saved, store = tmp_path / "bot.json", tmp_path / "monitor.db"
    bot.save(saved)
    parts = make_replay_parts(load_recording())
    with CFCMonitor(bot, store) as monitor:
        empty = run("status", saved, store)
        assert "no results of this artifact in this store, so nothing is tested" in empty.out
        assert empty.code == 1
        assert "alarm at" not in empty.out
        answered = {}
        for rate in ("0.05", "0.1"):
            chain = CFCRunnable(artifact=bot, max_wrong_rate=rate, **parts)
            results = [chain.invoke(one) for one in prompts]
            for one in results:
                monitor.record(one)
            answered[rate] = np.mean([not one.abstained for one in results])
        status = monitor.read_status()
    assert {one.max_wrong_rate: one.answered for one in status.rates} == answered
    assert status.answered == pytest.approx(np.mean(list(answered.values())))
    assert [one.expected for one in status.rates] == [
        one.groups[0].answered / one.prompts for one in bot.certified_bot.certificates
    ]
    # Each rate is compared with its own decisions, and an error level is not shown.
    decisions = [one for one in status.tests if "questions answered" in one.what and one.kind == "drift"]
    assert {one.outcomes for one in decisions if one.group == "all prompts"} == {60}
    assert {one.alpha for one in status.tests} == {None}
    shown = run("status", saved, store)
    assert "With at most 5 % wrong, " in shown.out
    assert "alpha" not in shown.out
    assert "flagged" not in shown.out


def test_bot_that_answers_less_than_before_is_named_in_the_alarm() -> None:
    source = tabulate(load_recording())
    bot = calibrate_bot(source, 0, max_wrong_rate="0.1")
    served = source.take(bot.calibration.split.list_rows(source)["test"])
    hard = replace(served, draws=replace(served.draws, scores=served.draws.scores**0.2))
    drift = watch(bot, hard, "0.1")
    evidence = replace(Evidence.start(bot, 0.0), drift=drift)
    curve = next(one for one in list_curves(evidence, LEVEL, 99) if "questions answered" in one.name)
    assert curve.test.alarm
    words = curve.test.sentence
    assert re.match(r"Fewer questions answered: \d+ % \(expected \d+ %\), since about", words)
    assert "alpha" not in words

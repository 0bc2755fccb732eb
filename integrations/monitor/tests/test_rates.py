"""Rates that are tested: of a bot, of all questions and in groups, each against what this artifact keeps.

The law: without a change, an alarm has probability at most `LEVEL`, and at most `LEVEL` + 0.05 where rates
are tested against a bound, over calibration and streams (Ville's inequality for each test; for their mean
see `DriftTest`). Against the promised rate itself the tests would alarm for about half the artifacts, sooner
or later. Prompts of an unknown category count among all prompts, and in no group of their term.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_cfc_monitor.e_processes import EProcess
from langchain_cfc_monitor.evidence import Evidence
from langchain_cfc_monitor.sequential_tests import (
    RATE_EXPERT_COUNT,
    CoverageTest,
    DriftTest,
    compute_rate_payoffs,
    list_certified_rates,
)
from langchain_cfc_monitor.status import list_curves
from scipy import stats

from integrations.monitor.tests.watching import list_held_out, make_observations, run, swap_model, truths
from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.artifact.held_out import tabulate_draws
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.certificates.bounds import upper_bound
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import CFCWarning
from langchain_cfc.records import tabulate
from langchain_cfc.support.arrays import BoolArray, FloatArray
from tests.factories import leave_sets_empty
from tests.lengths import repetitions
from tests.recordings import list_facts

LEVEL = 0.05
STREAMS, SIZE, ALPHA = 400, 99, "0.3"
LABELS = repetitions(4000, share=0.5)


def count_alarms(tested: float, times: float = 1.0) -> int:
    """Count the streams that alarm when a rate is tested; questions go wrong `times` as often as before.

    Every answer is wrong and its confidence is U(0, 1), so the rate of an artifact is 1 - its threshold, the
    70th of 99 confidences: the truth is known for every calibration set.
    """
    rng = np.random.default_rng(11)
    rates = times * (1.0 - np.sort(rng.random((STREAMS, SIZE)), axis=1)[:, 69])
    capital = EProcess.start([STREAMS], RATE_EXPERT_COUNT)
    for time in range(LABELS):
        kept = rng.random(STREAMS) >= rates
        capital = capital.update(compute_rate_payoffs(kept, np.array(1.0 - tested)), float(time))
    return int((capital.peak >= np.log(1.0 / LEVEL)).sum())


def test_rate_of_all_alarms_after_a_change_and_seldom_without_one() -> None:
    prompts = LabelledBatch.from_arrays(
        [str(row) for row in range(SIZE)],
        np.arange(SIZE)[:, np.newaxis] / SIZE,
        np.zeros((SIZE, 1), dtype=np.bool_),
        [["x"]] * SIZE,
    )
    (rate,) = list_certified_rates(calibrate(prompts, max_wrong_of_all=ALPHA))
    # Exceeded with probability 1e-6 if false alarms have probability at most LEVEL + 0.05.
    most = stats.binom.isf(1e-6, STREAMS, LEVEL + 0.05)
    assert count_alarms(1.0 - rate.rate) <= most
    assert count_alarms(1.0 - rate.rate, times=2.0) > 0.95 * STREAMS
    # The negative control: about half of all artifacts err more often than is promised on average.
    assert count_alarms(float(ALPHA)) > most


def test_bound_of_a_group_is_that_of_clopper_and_pearson_at_its_rank() -> None:
    artifact = calibrate(list_facts(), max_wrong_of_all=["0.05", "0.1"], features="group(topic)", seed=1)
    rates = list_certified_rates(artifact)
    groups = artifact.calibration.groups[1:]
    assert [(one.group, one.alpha) for one in rates] == [
        (group.name, alpha) for alpha in ("0.05", "0.1") for group in groups
    ]
    size = round(groups[0].size)
    above = size - int(np.ceil(0.95 * (size + 1) - 1e-9))
    assert 1 - rates[0].rate == pytest.approx(upper_bound(above, size, 0.05 / (2 * len(groups))))


def test_status_names_the_rate_of_all_questions(tmp_path: Path) -> None:
    records = load_recording()
    artifact = calibrate(records, max_wrong_of_all="0.1", features="group(topic)", test_fraction=0.4)
    monitor = CFCMonitor(artifact, tmp_path / "monitor.db")
    chain = CFCRunnable(artifact=artifact, **make_replay_parts(records))
    asked = list_held_out(artifact)[:60]
    for one in asked:
        result = chain.invoke(one.input)
        name = monitor.record(result)
        # One truth value for an answer; nothing needs to be known about a question without one.
        monitor.label(Label(name, None if result.abstained else is_right(one)))
    status = monitor.read_status()
    tests = [one for one in status.tests if one.kind == "kept"]
    assert sum(one.outcomes for one in tests) == len(asked)
    assert all("answered rightly or not at all" in one.sentence for one in tests)
    assert all("at max_wrong_of_all = 0.1" in one.sentence for one in tests)
    assert status.sound


def test_batch_is_watched_but_tests_no_rate_or_decision(tmp_path: Path) -> None:
    """Of a batch, at most a share of those answered is wrong: more than may be wrong of all questions.

    The control: as answers under the promise about all questions, the same results are taken for a change.
    """
    records = load_recording()
    artifact = calibrate(records, max_wrong_of_all="0.1", seed=3, test_fraction=0.4)
    chain, asked = CFCRunnable(artifact=artifact, **make_replay_parts(records)), list_held_out(artifact)
    with CFCMonitor(artifact, tmp_path / "monitor.db") as monitor:
        batch = chain.answer_batch(
            [one.input for one in [*asked, asked[0]]], max_wrong_share=0.1, config={"callbacks": [monitor]}
        )
        names = monitor.list_unlabelled()
        monitor.label(*[Label(name, truths(one)) for name, one in zip(names, asked, strict=True)])
        monitor.record(batch.results[0].model_copy(update={"reason": "failed"}))
        status = monitor.read_status()
        traffic = monitor.read_traffic()
    assert (status.results, status.labels, status.failures, status.sound) == (len(asked), len(asked), 1, True)
    seen = {one.what: one.outcomes for one in status.tests if one.kind in {"drift", "kept"}}
    assert seen["mean score"] == len(asked)
    assert (seen["decision"], seen["the rate of questions answered rightly or not at all"]) == (0, 0)
    test = CoverageTest.start(artifact, 0.0)
    for one in traffic.results:
        single = replace(one, alpha="0.1", max_wrong_of_all="0.1")
        test = test.update(single, traffic.labels[one.id], one.at, 1.0)
    assert test.is_alarming(LEVEL)


def is_right(record: PromptRecord) -> bool:
    """Whether the best candidate, the earliest of lowest score, is right."""
    return min(record.candidates, key=lambda one: one.score).correct


TESTED, DELTA = 0.01, 0.01
CERTIFIED = 12
N = 2


def draw_prompts(
    rng: np.random.Generator, size: int, new: float = 0.0, name: str = "served"
) -> LabelledBatch:
    """Draw labelled prompts of topic `a` or, with probability `new`, each of a topic of its own."""
    topics = [f"{name} {row}" if chosen else "a" for row, chosen in enumerate(rng.random(size) < new)]
    correct = rng.random((size, N)) < 0.7
    scores = np.where(correct, rng.beta(1, 3, correct.shape), rng.beta(3, 1, correct.shape))
    return make_batch(scores, correct, topics, name)


def make_batch(
    scores: FloatArray, correct: BoolArray, topics: list[str], name: str = "served"
) -> LabelledBatch:
    return LabelledBatch.from_arrays(
        [f"{name}-{row}" for row in range(len(topics))],
        scores,
        correct,
        [["x", "y"]] * len(topics),
        metadata=[{"topic": topic} for topic in topics],
    )


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """Calibrated on topic `a` alone."""
    prompts = draw_prompts(np.random.default_rng(1), 300, name="calibration")
    return calibrate(prompts, alpha="0.4", features="group(topic)", test_fraction=0.3)


def test_drift_of_scores_is_found_whatever_the_topic(
    artifact: CalibrationArtifact,
) -> None:
    """Ranks of scores over all prompts do not depend on the topic, so the evidence is equal to the bit."""
    scores = np.random.default_rng(2).uniform(0.98, 0.99, (100, N))
    found = {}
    for topic in ("a", "new"):
        batch = make_batch(scores, np.ones(scores.shape, np.bool_), [topic] * 100)
        drift = DriftTest.start(artifact, 0.0)
        for place, (one, _) in enumerate(make_observations(artifact, batch, 0)):
            if place == 50:  # another process goes on from what is stored
                drift = DriftTest.from_data(artifact, json.loads(json.dumps(drift.to_data())))
            drift = drift.update(one)
        over_all = [
            place
            for place, (watched, group) in enumerate(drift.layout.tests)
            if group == "1" and watched.name in {"mean_score", "min_score"}
        ]
        found[topic] = drift.wealth.log[over_all].tolist()
        assert len(over_all) == 2
        assert drift.wealth.outcomes[over_all].tolist() == [100.0, 100.0]
        assert drift.is_alarming(TESTED)
        in_group = [group != "1" for _, group in drift.layout.tests]
        assert set(drift.wealth.outcomes[in_group]) == {100.0 if topic == "a" else 0.0}
    assert found["a"] == found["new"]


def test_coverage_test_counts_prompts_flagged_for_an_unknown_topic(
    artifact: CalibrationArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A true certificate is falsely alarmed on with probability at most level + delta (Ville, Bonferroni).

    Seven of ten prompts are of new topics, flagged, and so keep the promise. Each stream has a certificate
    of its own; the number that alarm is at most binomial, and the bound is exceeded by chance with 1e-6. The
    negative control: without new topics the promise is kept more rarely than certified, and all alarm.
    """
    leave_sets_empty(monkeypatch)  # best candidates alone would keep most promises of the control
    rng = np.random.default_rng(3)
    alarms = {0.7: 0, 0.0: 0}
    for stream in range(CERTIFIED):
        certified = certify(artifact, draw_prompts(rng, 800, 0.7, "held out"), delta=str(DELTA))
        for new in alarms:
            prompts = draw_prompts(rng, 200, new)
            test = CoverageTest.start(certified, 0.0)
            for one, correct in make_observations(certified, prompts, 1000 * stream):
                test = test.update(one, Label(one.id, correct), one.at, 1.0)
                if test.is_alarming(TESTED):
                    break
            alarms[new] += test.is_alarming(TESTED)
    assert alarms[0.7] <= stats.binom.isf(1e-6, CERTIFIED, TESTED + DELTA)
    assert alarms[0.0] == CERTIFIED


SERVED = repetitions(200, share=0.05)
RESULTS = repetitions(300, share=0.5)
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "one rate": {"max_wrong_rate": "0.1"},
    "two rates": {"max_wrong_rate": ["0.05", "0.1"]},
    "beside sets": {"max_wrong_rate": "0.2", "alpha": "0.2"},
    "draw rule": {"max_wrong_rate": ["0.05", "0.1", "0.2"], "draws": "below(0.5, at_most=10)"},
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
    for seed in range(SERVED):
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
    assert alarms["unchanged"] <= stats.binom.isf(1e-6, SERVED, LEVEL)
    assert alarms["weaker model"] == SERVED
    # The negative control.
    assert alarms["wrong reference"] > 0.9 * SERVED


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

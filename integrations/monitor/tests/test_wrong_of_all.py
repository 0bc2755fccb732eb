"""A monitor tests the rate of wrong answers among all questions against a bound on this artifact's own.

The law: without a change, an alarm has probability at most `LEVEL` + 0.05, over calibration and streams.
Against the promised rate itself the tests would alarm for about half the artifacts, sooner or later.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_cfc_monitor.e_processes import EProcess
from langchain_cfc_monitor.sequential_tests import (
    RATE_EXPERT_COUNT,
    compute_rate_payoffs,
    list_certified_rates,
)
from scipy import stats

from integrations.monitor.tests.watching import list_held_out
from langchain_cfc import CFCRunnable, PromptRecord, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates.bounds import upper_bound
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
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


def is_right(record: PromptRecord) -> bool:
    """Whether the best candidate, the earliest of lowest score, is right."""
    return min(record.candidates, key=lambda one: one.score).correct

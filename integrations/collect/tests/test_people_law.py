"""Certificates by people and a judge together: false with probability at most delta, whenever people stop.

In simulated sequences of labels, made by `judged_world.py`, the true probability lies just
below the target. A sequence counts as false if the target is certified after any of its prompts. The law is
Ville's inequality, for every judge; the check is the exact binomial test of `laws.is_too_often`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from langchain_cfc_collect import PeopleSample

from integrations.collect.tests.judged_world import DELTA, World, count_labels
from integrations.collect.tests.test_people import judge
from langchain_cfc import calibrate
from langchain_cfc.certificates.coverage import compute_outcomes
from langchain_cfc.certificates.judged import JudgedEProcess
from langchain_cfc.records import tabulate
from tests.certificates.prompts import prompts
from tests.guarantees.laws import is_too_often, record_figures
from tests.lengths import mostly_long, repetitions

TARGET, BELOW = 0.75, 0.749
SEQUENCES = repetitions(10_000, share=0.05)
PROMPTS = repetitions(3_000, share=0.1)
JUDGES = [(right, biased) for right in (0.6, 0.75, 0.9, 0.95) for biased in (False, True)]


def is_false_too_often(world: World, share: float, seed: int, **options: Any) -> bool:
    """Whether more sequences certify a target just above the truth than delta allows."""
    _, certified = count_labels(
        world, TARGET, sequences=SEQUENCES, prompts=PROMPTS, share=share, seed=seed, **options
    )
    return is_too_often(int(certified.sum()), SEQUENCES, DELTA)


@mostly_long(("right", "biased"), JUDGES, quick=2)
def test_people_certificates_are_false_less_often_than_delta(right: float, *, biased: bool) -> None:
    assert not is_false_too_often(World(BELOW, right, biased), share=0.3, seed=int(100 * right))


@mostly_long("share", [0.02, 0.5], quick=1)
def test_people_certificates_are_valid_for_every_labelled_share(share: float) -> None:
    assert not is_false_too_often(World(BELOW, 0.9, biased=True), share, seed=int(100 * share))


@pytest.mark.parametrize("labels", ["judge as people", "easy ones only"])
def test_biased_or_copied_labels_break_people_certificates(labels: str) -> None:
    assert is_false_too_often(World(BELOW, 0.8, biased=True), share=0.5, seed=7, labels=labels)


@pytest.mark.long
@mostly_long("biased", [False, True], quick=1)
@pytest.mark.parametrize(
    "rate", [pytest.param(0.8, marks=pytest.mark.long), pytest.param(0.85)], ids=lambda rate: f"true {rate}"
)
def test_good_judge_saves_two_of_five_labels_by_people(rate: float, *, biased: bool) -> None:
    """Mean numbers of labels of 400 sequences: standard errors are 3 %, the allowance five of the ratio's."""
    world = World(rate, 0.9, biased)
    both, _ = count_labels(world, TARGET, sequences=400, prompts=12_000, seed=1)
    people, _ = count_labels(world, TARGET, sequences=400, prompts=4_000, labels="people", seed=2)
    record_figures("labels", both=float(both.mean()), people=float(people.mean()))
    assert both.mean() <= 0.6 * people.mean()


@pytest.mark.long
def test_guessing_judge_costs_few_extra_labels() -> None:
    guessed, _ = count_labels(World(0.85, 0.5), TARGET, sequences=200, prompts=8_000, seed=1)
    people, _ = count_labels(World(0.85, 0.5), TARGET, sequences=200, prompts=2_000, labels="people", seed=2)
    assert guessed.mean() <= 1.3 * people.mean()


@pytest.mark.long
def test_people_certificates_of_artifacts_are_false_less_often_than_delta() -> None:
    """The same law through records, decisions and the sample, for a target just above the truth."""
    artifact = calibrate(judge(prompts(0, 600), 2), alpha="0.2", features="1")
    kept = compute_outcomes(artifact, tabulate(prompts(1, 40_000)), "0.2").kept
    # Five standard errors above what is measured on 40,000 prompts.
    target = float(kept.mean() + 5.0 * kept.std() / np.sqrt(len(kept)))
    repeated, false = repetitions(300), 0
    for seed in range(2, 2 + repeated):
        truth = prompts(seed, 600)
        sample = PeopleSample.draw(artifact, judge(truth, seed), until=target, share=0.3)
        judged, state = sample.judged, JudgedEProcess.start(0.3, np.array([target]))
        by_people = compute_outcomes(artifact, tabulate(truth), "0.2").kept
        kept_of = dict(zip((one.id for one in truth), by_people.tolist(), strict=True))
        for row, name in enumerate(judged.ids):
            state = state.update(*judged.prompts.get(row), np.array(kept_of[name]))
        false += bool(state.compute_bound(DELTA) >= target)
    assert not is_too_often(false, repeated, DELTA)

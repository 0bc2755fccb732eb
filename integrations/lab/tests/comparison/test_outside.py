"""Sampling until confident: against plain loops, and its promise.

False alarms: each statistical check fails for a sound rule with probability at most 1e-6, by a bound that is
derived beside it. Seeds are fixed. A negative control is put to the same check, and has to fail it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pytest
from langchain_cfc_lab.baselines import SamplingRule
from scipy import stats

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from tests.guarantees.laws import ROUND_OFF, World
from tests.lengths import repetitions

FALSE_ALARM = 1e-6
Prompts: TypeAlias = tuple[FloatArray, BoolArray, IntArray]
ALPHAS = ("0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.4", "0.5", "0.7")


def draw_candidates(rng: np.random.Generator, size: int, n: int, *, decimals: int = 1) -> Prompts:
    """Scores, labels and answer codes; few different scores and answers, so that much ties and repeats."""
    correct = rng.random((size, n)) < rng.random((size, 1))
    scores = np.where(correct, rng.random((size, n)) ** 2, rng.random((size, n))).round(decimals)
    answers = np.where(correct, 0, rng.integers(1, 4, (size, n)))
    codes = (answers[:, :, np.newaxis] == answers[:, np.newaxis, :]).argmax(axis=2)
    return scores, correct, codes


# Sampling until confident: the rule itself ----------------------------------------------------------------


def make_fixed_rule(accept: float, stop: float) -> SamplingRule:
    """The rule with one configuration, which passes every test."""
    cuts = np.array(sorted({accept, stop, 1.0} - {-math.inf}))
    place = np.searchsorted(cuts, [accept, stop])
    return SamplingRule(
        cuts,
        place[:1],
        place[1:] if stop >= 0.0 else np.array([-1]),
        missed=np.array([0]),
        tested=10**6,
        delta="0.05",
    )


@pytest.mark.parametrize(
    ("scores", "codes", "accept", "stop", "expected"),
    [
        # Stops at the first that is good enough, and keeps what was good before it.
        ([0.6, 0.3, 0.9, 0.1, 0.2], [0, 1, 2, 3, 4], 0.6, 0.1, ([0, 1, 3], 4)),
        ([0.6, 0.3, 0.9, 0.1, 0.2], [0, 1, 2, 3, 4], 0.3, 0.3, ([1], 2)),
        ([0.6, 0.3, 0.9, 0.1, 0.2], [0, 1, 2, 3, 4], 1.0, 1.0, ([0], 1)),
        # Nothing good enough: all are drawn; nothing accepted: the set is empty.
        ([0.6, 0.3, 0.9, 0.7, 0.2], [0, 1, 2, 3, 4], 0.7, 0.1, ([0, 1, 3, 4], 5)),
        ([0.6, 0.3, 0.9, 0.7, 0.2], [0, 1, 2, 3, 4], 0.1, 0.1, ([], 5)),
        ([0.6, 0.3, 0.9, 0.1, 0.2], [0, 1, 2, 3, 4], 0.6, -math.inf, ([0, 1, 3, 4], 5)),
        # A repeat is rejected, and so is its better score: it cannot stop the drawing.
        ([0.5, 0.1, 0.4], [0, 0, 2], 1.0, 0.2, ([0, 2], 3)),
        # A repeat of a rejected candidate can be accepted.
        ([0.5, 0.1, 0.4], [0, 0, 2], 0.4, 0.2, ([1], 2)),
    ],
)
def test_sampling_rule_draws_as_calculated_by_hand(
    scores: list[float], codes: list[int], accept: float, stop: float, expected: tuple[list[int], int]
) -> None:
    rule = make_fixed_rule(accept, stop)
    assert rule.get_configuration("0.5") == (accept, stop)
    found = rule.make_sets(np.array([scores]), np.array([codes]), "0.5")
    assert (np.flatnonzero(found.accepted[0]).tolist(), found.draws[0]) == expected
    assert found.flagged.tolist() == [False]


def draw_plainly(
    scores: Sequence[float], codes: Sequence[int], accept: float, stop: float
) -> tuple[list[int], int]:
    """One prompt as the method is defined: draw, reject, and stop, in loops without arrays."""
    kept: list[int] = []
    for slot, (score, answer) in enumerate(zip(scores, codes, strict=True)):
        if score <= accept and answer not in {codes[one] for one in kept}:
            kept.append(slot)
        if any(scores[one] <= stop for one in kept):
            return kept, slot + 1
    return kept, len(scores)


def count_figures(prompts: Prompts, accept: float, stop: float) -> tuple[int, int]:
    """Number of prompts missed, and number of candidates in all sets."""
    scores, correct, codes = prompts
    sets = [
        draw_plainly(row, answers, accept, stop)[0]
        for row, answers in zip(scores.tolist(), codes.tolist(), strict=True)
    ]
    missed = sum(not labels[kept].any() for kept, labels in zip(sets, correct, strict=True))
    return missed, sum(map(len, sets))


def learn_plainly(
    prompts: Prompts, cuts: Sequence[float], alpha: str, delta: float
) -> tuple[float, float] | None:
    """The configuration by definitions: dominated by none, tested one by one with SciPy's binomial law."""
    scores, correct, codes = prompts
    ordering, testing = (scores[::2], correct[::2], codes[::2]), (scores[1::2], correct[1::2], codes[1::2])
    grid = [(accept, stop) for accept in cuts for stop in (-math.inf, *cuts) if stop <= accept]
    points = {one: count_figures(ordering, *one) for one in grid}

    def dominated(point: tuple[int, int]) -> bool:
        return any(
            other[0] <= point[0] and other[1] <= point[1] and other != point for other in points.values()
        )

    front = sorted({point for point in points.values() if not dominated(point)})
    chosen = None
    for point in front:
        # Of equal configurations the one that stops earliest, then the strictest.
        accept, stop = min(
            (one for one, found in points.items() if found == point), key=lambda one: (-one[1], one[0])
        )
        missed, _ = count_figures(testing, accept, stop)
        if stats.binom.cdf(missed, len(testing[0]), float(Fraction(alpha))) > delta:
            return chosen
        chosen = accept, stop
    return chosen


@pytest.mark.long
@pytest.mark.parametrize("by_answer", [True, pytest.param(False, marks=pytest.mark.long)])
def test_sampling_rule_learns_and_draws_like_plain_loops(by_answer: bool) -> None:
    rng = np.random.default_rng(1 + by_answer)
    chosen = set()
    for number in range(70):
        n = int(rng.integers(1, 5))
        size = int(rng.integers(2, 80))
        scores, correct, codes = draw_candidates(rng, size, n, decimals=1 + number % 2)
        if not by_answer:
            codes = np.tile(np.arange(n), (size, 1))
        known = codes if by_answer else None
        delta = float(rng.choice([0.05, 0.1, 0.3]))
        rule = SamplingRule.learn(scores, correct, known, delta=delta)
        for alpha in ALPHAS[number % 3 :: 3]:
            expected = learn_plainly((scores, correct, codes), rule.cuts.tolist(), alpha, delta)
            assert rule.get_configuration(alpha) == expected
            found = rule.make_sets(scores, known, alpha)
            if expected is None:
                assert found.flagged.all()
                assert not found.accepted.any()
                assert not found.draws.any()
                continue
            assert not found.flagged.any()
            chosen.add(expected)
            for row in range(size):
                kept, draws = draw_plainly(scores[row].tolist(), codes[row].tolist(), *expected)
                assert np.flatnonzero(found.accepted[row]).tolist() == kept
                assert found.draws[row] == draws
    assert len(chosen) > 20  # The cases are not all alike.


def test_sampling_rule_certifies_nothing_on_too_few_prompts() -> None:
    # Without a miss, 0.9^m <= 0.05 from m = 29 testing prompts on.
    for size, passes in ((56, False), (57, False), (58, True)):
        rule = SamplingRule.learn(np.zeros((size, 2)), np.ones((size, 2), np.bool_), None, delta="0.05")
        found = rule.make_sets(np.zeros((3, 2)), None, "0.1")
        assert [rule.get_configuration("0.1") is not None, *(~found.flagged).tolist()] == [passes] * 4
        assert found.draws.tolist() == [int(passes)] * 3
        assert found.accepted.tolist() == [[passes, False]] * 3


# Sampling until confident: the promise --------------------------------------------------------------------


def test_sampling_rule_coverage_is_rarely_too_low() -> None:
    # Prompts of finitely many kinds, so that the coverage of a configuration is a finite sum. Failures of
    # independent repetitions have probability at most delta each; 1e-6 is the exact binomial tail.
    world = World((0.9, 0.75, 0.6, 0.45), told=1.8)
    scores, correct = world.everything.draws.scores, world.everything.correct
    codes = world.everything.draws.answer_codes
    assert codes is not None
    rng = np.random.default_rng(5)
    alpha, delta, size, tried = "0.15", 0.1, 200, repetitions(400, share=0.25)
    sound = careless = certified = 0
    for _ in range(tried):
        rows = rng.choice(len(world.chances), size, p=world.chances)
        rule = SamplingRule.learn(scores[rows], correct[rows], codes[rows], delta=delta)

        def fails(one: SamplingRule) -> bool:
            found = one.make_sets(scores, codes, alpha)
            coverage = float(world.chances @ (found.accepted & correct).any(axis=1))
            return not found.flagged.all() and coverage < 1.0 - float(alpha) - ROUND_OFF

        certified += rule.get_configuration(alpha) is not None
        sound += fails(rule)
        # The control: whatever missed at most alpha of the testing prompts passes, without a p-value.
        enough = np.flatnonzero(rule.missed <= float(alpha) * rule.tested)
        careless += len(enough) > 0 and fails(keep_configuration(rule, int(enough[-1])))

    def too_often(failures: int) -> bool:
        return bool(stats.binom.sf(failures - 1, tried, delta) < FALSE_ALARM)

    assert certified > tried / 2
    assert not too_often(sound)
    assert too_often(careless)


def keep_configuration(rule: SamplingRule, place: int) -> SamplingRule:
    """The same with one of its configurations, which passes every test."""
    chosen = slice(place, place + 1)
    return replace(
        rule,
        accepting=rule.accepting[chosen],
        stopping=rule.stopping[chosen],
        missed=np.array([0]),
        tested=10**6,
    )


def test_sampling_rule_refuses_a_single_calibration_prompt() -> None:
    with pytest.raises(InputError, match=r"at least 2 calibration prompts.*got 1"):
        SamplingRule.learn(np.full((1, 2), 0.5), np.ones((1, 2), np.bool_), None, delta="0.1")

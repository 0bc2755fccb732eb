"""Negative controls: forbidden procedures fail the check that the permitted procedure passes.

Every repetition draws fresh prompts, calibrates, saves and loads; the mean of f (kept - tau) over fresh test
prompts has an expectation of at least 0, and is at most alpha, so it can be bet against
(`compute_log_wealth`). A sound rule reaches the alarm with probability at most `FALSE_ALARM`. Every control
is off by several hundredths; at 200 repetitions and alpha = 0.2 the bets resolve 0.02.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from langchain_core.caches import InMemoryCache

from langchain_cfc import CFCRunnable, FeatureMap, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.demo.replay import RecordedScores, ReplayChatModel
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, Thresholds
from tests.guarantees.promises import compute_log_wealth, measure_promise_gaps
from tests.lengths import repetitions

from .laws import (
    ALARM,
    calibrate_and_reload,
    draw_ids,
    draw_prompts,
    find_kept,
    fit_map,
    is_same_as_served,
    make_records,
    serve_prompts,
)

ALPHA, TAU = "0.2", 0.8
TESTED = 20

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def find_largest_wealth(rounds: Sequence[dict[str, float]]) -> float:
    """The largest log wealth of any weighting."""
    return max(compute_log_wealth([one[name] for one in rounds], 1.0 - TAU) for name in rounds[0])


# A cache at serving, and another number of candidates -------------------------------------------------------


def copy_first_candidate(table: LabelledBatch) -> LabelledBatch:
    """Every prompt's first candidate n times: what a cache returns."""
    first = np.zeros(table.correct.shape, dtype=np.int64)
    scores = np.take_along_axis(table.draws.scores, first, axis=1)
    draws = CandidateBatch(scores, first, None, table.draws.metadata)
    return replace(table, draws=draws, correct=np.take_along_axis(table.correct, first, axis=1))


@pytest.mark.long
def test_repeated_or_fewer_candidates_break_the_promise() -> None:
    rng = np.random.default_rng(1)
    features = fit_map("hat(mean_score, 3)", rng)
    own, from_cache, fewer = [], [], []
    for number in range(repetitions(200, share=0.4)):
        artifact = calibrate_and_reload(
            draw_prompts(rng, 60, hopeless=True), alpha=ALPHA, features=features, allow_unattainable=True
        )
        test = draw_prompts(rng, TESTED, hopeless=True)
        own.append(measure_promise_gaps(artifact, test))
        from_cache.append(measure_promise_gaps(artifact, copy_first_candidate(test)))
        with pytest.raises(InputError, match="n = 4 candidates"):
            decide(artifact, test.keep_first_candidates(2).draws)
        fewer.append(
            measure_promise_gaps(artifact.model_copy(update={"n": 2}), test.keep_first_candidates(2))
        )
        if number < 3:
            assert is_same_as_served(decide(artifact, test.draws), serve_prompts(artifact, test))
            # Serving cannot see it in the candidates.
            assert is_same_as_served(
                decide(artifact, copy_first_candidate(test).draws),
                serve_prompts(artifact, copy_first_candidate(test)),
            )
    assert find_largest_wealth(own) < ALARM
    assert compute_log_wealth([one["1"] for one in from_cache], 1.0 - TAU) > ALARM
    assert compute_log_wealth([one["1"] for one in fewer], 1.0 - TAU) > ALARM


def test_drawing_from_a_model_ignores_its_cache() -> None:
    rng = np.random.default_rng(2)
    artifact = calibrate(draw_prompts(rng, 60), alpha=ALPHA, features="1")
    (record,) = make_records(draw_prompts(rng, 1))
    model = ReplayChatModel.from_records([record]).model_copy(update={"cache": InMemoryCache()})
    assert len({str(model.invoke(str(record.input)).response_metadata) for _ in range(4)}) == 1
    chain = CFCRunnable(generator=model, verifier=RecordedScores(), artifact=artifact)
    drawn = [one.score for one in chain.invoke(record.input, {"max_concurrency": 1}).candidates]
    assert sorted(drawn) == sorted(one.score for one in record.candidates)


# Plain comparisons of floats --------------------------------------------------------------------------------


def apply_cap_plainly(
    cls: type[Thresholds],
    values: FloatArray,
    errors: FloatArray,
    cap: float,
    outside: BoolArray | None = None,
) -> Thresholds:
    """`Thresholds.capped` as if floats were numbers."""
    known = np.zeros(len(values), dtype=np.bool_) if outside is None else outside
    return cls(np.where(values < cap, values, np.inf), np.zeros_like(errors), known)


def find_no_capped_prompt(_: object, __: object, reduced: FloatArray) -> BoolArray:
    """`ConditionalThreshold._surely_capped` as if no prompt's threshold were known beforehand."""
    return np.zeros(len(reduced), dtype=np.bool_)


def draw_certain_prompts(rng: np.random.Generator, size: int) -> LabelledBatch:
    """All candidates are right, so that the success score is the feature `min_score`, and the threshold."""
    scores = rng.random((size, 3))
    answers = [["right"] * 3] * size
    return LabelledBatch.from_arrays(draw_ids(rng, size), scores, np.ones((size, 3), dtype=np.bool_), answers)


def draw_doubtful_prompts(rng: np.random.Generator, size: int) -> LabelledBatch:
    """Four prompts in five are hopeless, whatever they look like, so that every threshold is the cap."""
    table = draw_prompts(rng, size)
    return replace(table, correct=table.correct & (rng.random(size) > 0.8)[:, np.newaxis])


@pytest.mark.long
@pytest.mark.parametrize(
    ("sampled", "features"),
    [
        # Not `min_score` by itself: a fit with coefficients 0 and 1 is exact.
        (draw_certain_prompts, "hat(min_score, 5) + std_score"),
        (draw_doubtful_prompts, "hat(mean_score, 5) + std_score"),
    ],
)
def test_plain_float_comparisons_break_the_promise_at_a_level_or_the_cap(
    sampled: Callable[[np.random.Generator, int], LabelledBatch],
    features: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(4)
    feature_map = FeatureMap.parse(features).fit(sampled(rng, 400).draws)
    options: dict[str, Any] = {"alpha": ALPHA, "features": feature_map}
    options["allow_unattainable"] = True
    own, plain = [], []
    for number in range(repetitions(300, share=0.6)):
        artifact = calibrate_and_reload(sampled(rng, 100), **options)
        test = sampled(rng, TESTED)
        own.append(measure_promise_gaps(artifact, test))
        if number < 3:
            assert is_same_as_served(decide(artifact, test.draws), serve_prompts(artifact, test))
        with monkeypatch.context() as patched:
            patched.setattr(Thresholds, "apply_cap", classmethod(apply_cap_plainly))
            # Asked one by one: the base fit, which answers for many at once, is exact here by luck.
            patched.setattr(ConditionalThreshold, "_find_surely_capped", find_no_capped_prompt)
            plain.append(measure_promise_gaps(artifact, test))
    assert find_largest_wealth(own) < ALARM
    assert compute_log_wealth([one["1"] for one in plain], 1.0 - TAU) > ALARM


# A level chosen after the answer ----------------------------------------------------------------------------
LEVELS = ("0.05", "0.1", "0.2", "0.3", "0.4", "0.5")


@pytest.mark.long
def test_choosing_the_level_after_the_answer_breaks_the_promise() -> None:
    # The loosest level at which there is an answer at all, and the strictest where there is none. Of prompts
    # that end at a level, 1 - alpha should be covered: E 1{level chosen} (kept - tau) >= 0, which holds for
    # levels chosen at random. A gain is at most alpha; at 0.05 the bets resolve 0.006.
    rng = np.random.default_rng(5)
    features = fit_map("hat(meta(difficulty), 3)", rng)
    by_lot: dict[str, list[float]] = {level: [] for level in LEVELS}
    afterwards: dict[str, list[float]] = {level: [] for level in LEVELS}
    for number in range(repetitions(320)):
        artifact = calibrate_and_reload(draw_prompts(rng, 99), alpha=LEVELS, features=features)
        test = draw_prompts(rng, TESTED)
        lots = rng.choice(LEVELS, TESTED)
        undecided = np.ones(TESTED, dtype=np.bool_)
        for level in reversed(LEVELS):
            decisions = decide(artifact, test.draws, level)
            gap = find_kept(decisions, test) - (1.0 - float(level))
            answered = undecided & (decisions.accepted.any(axis=1) | (level == LEVELS[0]))
            undecided &= ~answered
            afterwards[level].append(float(np.mean(answered * gap)))
            by_lot[level].append(float(np.mean((lots == level) * gap)))
        if number == 0:
            # Serving settles the level before it draws, and has no others to offer.
            with pytest.raises(InputError, match="not calibrated at alpha"):
                serve_prompts(artifact, test, alpha="0.15")
    assert all(compute_log_wealth(found, float(level)) < ALARM for level, found in by_lot.items())
    assert max(compute_log_wealth(found, float(level)) for level, found in afterwards.items()) > ALARM


# A penalised constant ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_penalised_constant_breaks_the_marginal_promise() -> None:
    rng = np.random.default_rng(6)
    features = fit_map("mean_score^2", rng)
    found: dict[float, list[float]] = {0.0: [], 0.5: []}
    for number in range(repetitions(300)):
        calibration, test = draw_prompts(rng, 90), draw_prompts(rng, TESTED)
        for ridge, rounds in found.items():
            artifact: CalibrationArtifact = calibrate_and_reload(
                calibration, alpha=ALPHA, features=features, pac=PaperPAC(ridge=ridge)
            )
            rounds.append(measure_promise_gaps(artifact, test)["1"])
            assert (artifact.make_guarantee().kind == "heuristic") == (ridge > 0.0)
            assert number or is_same_as_served(decide(artifact, test.draws), serve_prompts(artifact, test))
    assert compute_log_wealth(found[0.0], 1.0 - TAU) < ALARM
    assert compute_log_wealth(found[0.5], 1.0 - TAU) > ALARM

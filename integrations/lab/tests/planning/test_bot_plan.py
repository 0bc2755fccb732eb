"""Plans of bot mode: brute force over all sizes, and calibrations of the size that a plan names."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab import BotPlan, compare_bot_promises, plan_bot
from scipy import stats

from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate, evaluate
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.certificates.bounds import required_size
from langchain_cfc.certificates.cuts import FIRST_SHARE
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import make_split_plan
from tests.cli.running import run
from tests.factories import change_candidates
from tests.recordings import list_facts


def make_records(seed: int, size: int) -> list[PromptRecord]:
    """Prompts whose best candidate is the more often wrong the larger the scores are."""
    rng = np.random.default_rng(seed)
    hardness = rng.random(size)
    right = rng.random(size) >= np.maximum(0.0, hardness - 0.5)
    return [
        PromptRecord(
            id=f"{seed}-{row}",
            input=f"question {row}",
            candidates=(Candidate(text="an answer", score=float(hardness[row]), correct=bool(right[row])),),
        )
        for row in range(size)
    ]


def find_size_by_search(wrong: int, answered: int, rate: float, delta: float) -> int | None:
    """Return the smallest size from which on the test passes, if the share of wrong ones stays."""
    sizes = np.arange(3000)
    passes = np.asarray(stats.binom.cdf(wrong * sizes // answered, sizes, rate) <= delta)
    return int(np.flatnonzero(~passes).max(initial=-1)) + 1 if passes[-1] else None


def find_answered_share(seed: int, size: int) -> float:
    """Return the share of prompts answered at 10 % by a calibration on a new sample; 0 if it is refused."""
    try:
        artifact = calibrate(make_records(seed, size), max_wrong_rate="0.1", test_fraction=0)
    except UnattainableTargetError:
        return 0.0
    certificate = artifact.certified_bot.certificates[0]
    return certificate.groups[0].answered / certificate.prompts


def test_batches_of_the_pilot_are_replayed() -> None:
    records = list_facts()[:300]
    plan = plan_bot(tabulate(records), max_wrong_rate=["0.05", "0.1"])
    assert [(one.size, one.max_wrong_share, one.labelled) for one in plan.batches] == [
        (20, 0.05, 280),
        (20, 0.1, 280),
    ]
    strict, loose = plan.batches
    assert 0.0 < strict.answered < loose.answered < 1.0
    assert plan_bot(tabulate(records[:30]), max_wrong_rate="0.1").batches == ()


def test_plan_bot_steps_equal_a_search_over_all_sizes() -> None:
    records = make_records(1, 240)
    plan = plan_bot(tabulate(records), max_wrong_rate="0.1", delta="0.2", test_fraction=0.25)
    (rate,), level = plan.rates, 0.2 * 0.8  # the first attempt has 80 % of delta
    ranked = sorted(records, key=lambda one: float(one.candidates[0].score or 0.0))
    labels = [not one.candidates[0].correct for one in ranked]
    assert plan.wrong_rate == sum(labels) / 240
    assert rate.least_abstention == pytest.approx((plan.wrong_rate - 0.1) / 0.9)
    assert [step.answered for step in rate.steps] == pytest.approx(np.arange(1, 21) / 20)
    assert rate.fewest_answered == find_size_by_search(0, 1, 0.1, level)
    needed = []
    for step in rate.steps:
        answered = round(step.answered * 240)
        assert step.wrong_rate == sum(labels[:answered]) / answered
        tested = level * (FIRST_SHARE if step.answered < 0.4 else 1)
        size = find_size_by_search(sum(labels[:answered]), answered, 0.1, tested)
        needed.append(math.inf if size is None else math.ceil(math.ceil(size * 240 / answered) / 0.75))
    # A size that certifies a larger share certifies this one too.
    expected = [min(needed[place:]) for place in range(len(needed))]
    assert [
        math.inf if step.prompts_needed is None else step.prompts_needed for step in rate.steps
    ] == expected
    assert math.inf in expected
    assert expected[0] < math.inf


def test_plan_bot_keeps_prompts_with_equal_scores_together() -> None:
    # 30 of 100 have the smallest mean score, and 20 of 100 the largest.
    rows = np.arange(100)
    scores = np.select([rows < 30, rows < 80], [0.0, 0.4], 0.9)[::-1]
    correct = (scores < 0.9) & (rows % 11 > 0)
    pilot = LabelledBatch(
        CandidateBatch.from_arrays(scores[:, np.newaxis]),
        correct[:, np.newaxis],
        tuple(map(str, rows)),
        (None,) * 100,
    )
    (rate,) = plan_bot(pilot, max_wrong_rate=0.2, test_fraction=0).rates
    assert [step.answered for step in rate.steps] == [0.3, 0.8, 1.0]
    assert [step.wrong_rate for step in rate.steps] == [
        np.mean(~correct[scores <= cut]) for cut in (0.0, 0.4, 0.9)
    ]


@pytest.mark.parametrize("rates", [["0.1"], ["0.05", "0.1"]])
def test_fewest_planned_prompts_are_the_fewest_that_calibrate_certifies(rates: list[str]) -> None:
    """The fewest prompts that certify without a wrong answer: exactly at this size calibration can certify.

    The model is always right, so every calibration of the planned size certifies the largest rate, and none
    of one prompt fewer does. At all of delta for each rate (control) the size would be smaller.
    """
    pilot = [change_candidates(one, correct=True) for one in make_records(2, 200)]
    plan = plan_bot(tabulate(pilot), max_wrong_rate=rates, test_fraction=0)
    size = plan.rates[-1].fewest_answered
    assert size is not None
    assert plan.rates[-1].steps[-1].prompts_needed == size
    assert size > (required_size(0.0, 0.1, 0.05) or 0)

    def calibrate_right(prompts: int) -> CalibrationArtifact:
        records = [change_candidates(one, correct=True) for one in make_records(3, prompts)]
        return calibrate(records, max_wrong_rate=rates, test_fraction=0)

    certificates = calibrate_right(size).certified_bot.certificates
    assert certificates[-1].max_wrong_rate == "0.1"
    with pytest.raises(UnattainableTargetError):
        calibrate_right(size - 1)


def test_half_of_calibrations_of_the_planned_size_certify() -> None:
    """Of 40 calibrations of the size planned for half of the prompts, at least 12 certify it.

    At this size the 31 prompts of smallest mean score must all be right, which has a probability of 0.56 (the
    share that is wrong grows from the half on). At 0.45, 11 or fewer of 40 have a probability of 2 %. With 80
    % of the size (control) fewer do, since too many of the 31 are hard.
    """
    plan = plan_bot(tabulate(make_records(2, 4000)), max_wrong_rate="0.1", test_fraction=0)
    step = next(step for step in plan.rates[0].steps if step.answered >= 0.5)
    assert step.prompts_needed is not None

    def count_certified(size: int) -> int:
        return sum(find_answered_share(100 + seed, size) >= 0.5 for seed in range(40))

    assert count_certified(step.prompts_needed) >= 12
    assert count_certified(round(0.8 * step.prompts_needed)) < 12


def test_plan_bot_says_that_an_always_wrong_model_is_not_possible() -> None:
    records = [change_candidates(one, correct=False) for one in make_records(3, 50)]
    plan = plan_bot(tabulate(records), max_wrong_rate="0.1")
    assert (plan.wrong_rate, plan.rates[0].least_abstention, plan.is_possible) == (1.0, 1.0, False)
    assert BotPlan.model_validate_json(plan.model_dump_json()) == plan


def test_plan_bot_never_answers_with_blank_answers() -> None:
    records = make_records(5, 100)
    blank = [change_candidates(one, text=" ", score=0.0, correct=False) for one in records[:50]]
    plan = plan_bot(tabulate([*blank, *records[50:]]), max_wrong_rate="0.1", test_fraction=0)
    alone = plan_bot(tabulate(records[50:]), max_wrong_rate="0.1", test_fraction=0)
    assert plan.wrong_rate == alone.wrong_rate
    (rate,), (other_rate,) = plan.rates, alone.rates
    assert [step.answered for step in rate.steps] == [step.answered / 2 for step in other_rate.steps]
    for step, other in zip(rate.steps, other_rate.steps, strict=True):
        assert step.prompts_needed == (None if other.prompts_needed is None else 2 * other.prompts_needed)
    with pytest.raises(InputError, match="all answers of the pilot are blank"):
        plan_bot(tabulate(blank), max_wrong_rate="0.1")


def test_plan_bot_refuses_an_empty_pilot_and_an_invalid_rate() -> None:
    empty = LabelledBatch(CandidateBatch.from_arrays(np.zeros((0, 1))), np.zeros((0, 1), dtype=bool), (), ())
    with pytest.raises(InputError, match="the pilot is empty"):
        plan_bot(empty, max_wrong_rate="0.1")
    with pytest.raises(InputError, match="max_wrong_rate must be a decimal number"):
        plan_bot(tabulate(make_records(6, 20)), max_wrong_rate=5)


def make_pilot(size: int, answered_rightly: float) -> LabelledBatch:
    """Prompts of one candidate each, of which those with the larger scores are wrong."""
    scores = np.random.default_rng(0).permutation(size)[:, np.newaxis] / size
    ids = [str(row) for row in range(size)]
    return LabelledBatch.from_arrays(ids, scores, scores < answered_rightly, [["x"]] * size)


def test_promises_answer_what_their_rules_allow_on_the_fit_split() -> None:
    found = compare_bot_promises(make_pilot(2000, 0.8))
    assert len(found) == 9
    for one in found:
        assert abs(one.wrong_of_all - one.answered * one.wrong_of_answered) < 1e-12
        # 80 % are right, and all of the wrong ones look worse than these.
        limit = {"max_wrong_of_all": 0.8 + one.rate}.get(one.promise, 0.8 / (1 - one.rate))
        assert 0.7 < one.answered <= limit + 0.03
    of_all = [one for one in found if one.promise == "max_wrong_of_all"]
    assert all(one.rate - 0.01 < one.wrong_of_all <= one.rate for one in of_all)


def test_promises_read_no_label_outside_the_fit_split() -> None:
    pilot = make_pilot(500, 0.7)
    others = make_split_plan(0, fit=0.2, test=0.2).list_rows(pilot)["calibration"]
    changed = pilot.correct.copy()
    changed[others] = ~changed[others]
    assert compare_bot_promises(replace(pilot, correct=changed)) == compare_bot_promises(pilot)
    assert compare_bot_promises(make_pilot(30, 0.7)) == ()


def test_rate_of_all_answers_about_what_is_estimated() -> None:
    records = list_facts()
    estimated = next(
        one.answered
        for one in compare_bot_promises(tabulate(records))
        if (one.promise, one.rate) == ("max_wrong_of_all", 0.05)
    )
    bot = calibrate(records, max_wrong_of_all="0.05", fit_fraction=0.2, test_fraction=0.2)
    answered = evaluate(bot, records).methods["conditional"].mean_set_size
    # Two shares of some 200 prompts each, within about three standard errors of their difference.
    assert abs(answered - estimated) < 3 * (2 * 0.25 / 195) ** 0.5


def test_plan_shows_the_promises_and_records_a_look_at_the_fit_split(tmp_path: Path) -> None:
    pilot = tmp_path / "facts.jsonl.gz"
    shutil.copy(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"), pilot)
    shown = run("plan", pilot, "--alpha", "0.2")
    assert "to choose from" in shown.out
    assert shown.out.count("% wrong of all, on average") == 3
    assert len(json.loads(run("plan", pilot, "--alpha", "0.2", "--json").out)["promises"]) == 9
    assert list(tmp_path.glob("*.attempts.json"))

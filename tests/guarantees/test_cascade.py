"""A chain for the prompts on which another chain abstains: it must be calibrated on such prompts.

Prompts are easy or hard, half each. Candidates of an easy one are right and score 0.1; those of a hard one
are wrong, and by the luck of the draw all score 0.1 or all 0.9, half each. The first chain flags what scores
0.9 and answers the rest, of which a third is wrong: less than alpha = 0.4. It abstains on hard prompts only,
and on half of these. Asked once more for all its prompts, the same artifact flags half of them again and
answers the others wrongly: it keeps its promise on 0.5 of what it gets, where 0.6 is promised.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.support.arrays import BoolArray

from .laws import FALSE_ALARM, draw_ids, find_kept

N, PROMPTS, ALPHA, TAU = 2, 8000, "0.4", 0.6

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def draw_prompts(rng: np.random.Generator, hard: BoolArray) -> LabelledBatch:
    """Fresh draws for prompts."""
    sure = ~hard | (rng.random(hard.size) < 0.5)
    scores = np.where(sure, 0.1, 0.9)[:, np.newaxis].repeat(N, axis=1)
    correct = np.repeat(~hard[:, np.newaxis], N, axis=1)
    texts = np.where(correct, "right", "wrong").tolist()
    return LabelledBatch.from_arrays(draw_ids(rng, hard.size), scores, correct, texts)


def calibrate_table(table: LabelledBatch) -> CalibrationArtifact:
    return calibrate(table, alpha=ALPHA, features="mean_score", allow_unattainable=True)


def find_escalated(first: CalibrationArtifact, rng: np.random.Generator) -> BoolArray:
    """For the prompts on which the first abstains, whether each is hard."""
    hard = rng.random(PROMPTS) < 0.5
    return hard[~decide(first, draw_prompts(rng, hard).draws).answered]


def is_rarely_kept(second: CalibrationArtifact, hard: BoolArray, rng: np.random.Generator) -> bool:
    """Whether the second keeps its promise on what it gets too rarely for chance: an exact binomial tail."""
    table = draw_prompts(rng, hard)
    kept = int(find_kept(decide(second, table.draws), table).sum())
    return bool(stats.binom.cdf(kept, hard.size, TAU) <= FALSE_ALARM)


def test_escalation_chain_calibrated_on_escalated_prompts_keeps_its_promise() -> None:
    rng = np.random.default_rng(0)
    first = calibrate_table(draw_prompts(rng, rng.random(PROMPTS) < 0.5))
    second = calibrate_table(draw_prompts(rng, find_escalated(first, rng)))
    asked = find_escalated(first, rng)
    assert asked.size > PROMPTS / 8
    assert not is_rarely_kept(second, asked, rng)


def test_escalation_chain_calibrated_on_all_prompts_breaks_its_promise() -> None:
    """The negative control: of 2,000 prompts 0.5 are kept, beyond the tail at 0.6 with all but certainty."""
    rng = np.random.default_rng(0)
    first = calibrate_table(draw_prompts(rng, rng.random(PROMPTS) < 0.5))
    same = calibrate_table(draw_prompts(rng, rng.random(PROMPTS) < 0.5))
    hard = rng.random(PROMPTS) < 0.5
    # Control: by itself it keeps its promise.
    assert not is_rarely_kept(same, hard, rng)
    assert is_rarely_kept(same, find_escalated(first, rng), rng)

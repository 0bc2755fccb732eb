"""Simulated prompts of which a judge labels all and people some, in worlds where the truth is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from langchain_cfc_collect.judged import DOUBTED, JudgedEProcess, assign_strata, compute_inclusion

if TYPE_CHECKING:
    from langchain_cfc.support.arrays import BoolArray, FloatArray

HARD_SHARE = 0.3  # share of hard prompts
HARD_GAP = 0.35  # how much rarer promises are kept there
BIASED_SHARE = 0.8  # share of a biased judge's mistakes that are broken promises of hard prompts
DELTA = 0.05
# Whose labels are used: both; people's alone, each prompt labelled; and, as controls that must be caught, the
# judge's labels as if they were people's, and people's of easy prompts only.
Labels = Literal["both", "people", "judge as people", "easy ones only"]


@dataclass(frozen=True)
class World:
    """Prompts whose promise is kept with a probability `rate`, and a judge."""

    rate: float
    right: float  # how often the judge is right
    # Whether most of its mistakes are on hard prompts: broken promises that it says are kept.
    biased: bool = False

    def draw(self, rng: np.random.Generator, size: int) -> tuple[BoolArray, BoolArray, FloatArray, BoolArray]:
        """Draw prompts: whether the promise is kept, what the judge says, its doubt, and which are hard."""
        hard = rng.random(size) < HARD_SHARE
        easy_rate = min(1.0, self.rate + HARD_SHARE * HARD_GAP)
        hard_rate = (self.rate - (1.0 - HARD_SHARE) * easy_rate) / HARD_SHARE
        kept = rng.random(size) < np.where(hard, hard_rate, easy_rate)
        mistaken = 1.0 - self.right
        flattered = hard & ~kept if self.biased else np.zeros_like(hard)
        often = HARD_SHARE * (1.0 - hard_rate) if self.biased else 0.0
        there = min(1.0, BIASED_SHARE * mistaken / often) if self.biased else 0.0
        elsewhere = (mistaken - often * there) / (1.0 - often)
        judged = kept ^ (rng.random(size) < np.where(flattered, there, elsewhere))
        doubt = np.where(judged, 0.7 * rng.beta(1.0, 4.0, size) + HARD_SHARE * hard, 1.0)
        return kept, judged, doubt, hard


def count_labels(
    world: World,
    target: float,
    *,
    sequences: int,
    prompts: int,
    share: float = 0.1,
    labels: Labels = "both",
    seed: int = 0,
) -> tuple[FloatArray, BoolArray]:
    """Certify a target in many sequences, looking after every prompt.

    Returns:
        (sequences,) people's labels until it was certified, or all where it never was; and whether it was.
    """
    rng = np.random.default_rng(seed)
    alone = labels == "people"
    state = JudgedEProcess.start(1.0 if alone else share, np.array([target]))
    spent, certified = np.zeros(sequences), np.zeros(sequences, dtype=np.bool_)
    for _ in range(prompts):
        kept, judged, doubt, hard = world.draw(rng, sequences)
        strata = assign_strata(judged, doubt, np.zeros_like(judged))
        inclusion = compute_inclusion(share, doubt)
        if alone:
            strata, inclusion = np.full(sequences, DOUBTED), np.ones(sequences)
        sampled = rng.random(sequences) < inclusion
        if labels == "easy ones only":
            sampled &= ~hard
        spent += sampled & ~certified
        state = state.update(strata, inclusion, sampled, judged if labels == "judge as people" else kept)
        certified = state.peak[:, 0] >= math.log(1.0 / DELTA)
        if certified.all():
            break
    return spent, certified

"""A generator of prompts whose truth is known, the path that is served, and a test of an expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from langchain_cfc import Candidate, PromptRecord
from langchain_cfc.artifact import CalibrationArtifact, tabulate_draws
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.set_rules import parse_set_rule, select_candidates
from langchain_cfc.support.arrays import FloatArray

from .laws import record_figures


def make_prompts(
    rng: np.random.Generator,
    size: int,
    *,
    n: int = 5,
    hopeless: bool = True,
    tier: str | None = None,
    decimals: int | None = None,
) -> list[PromptRecord]:
    """Independent prompts by the generator that reproduces the paper's synthetic tables, for few candidates.

    Difficulty T ~ U(0, 1); a candidate is correct with probability 0.3 + 0.65 (1 - T) (the paper's rates suit
    50 candidates); scores are U(0, 1) if wrong and U^(1 / k) if correct, k = 0.686 + 0.237 T.

    Args:
        rng: Source of randomness.
        size: Number of prompts.
        n: Candidates per prompt.
        hopeless: Whether prompts may lack a correct candidate; else one slot is made correct.
        tier: `easy` draws T below 1/2 and `hard` above; both by default.
        decimals: Round scores, to have ties.

    Returns:
        Records with metadata `difficulty` (T) and `tier`; candidates that are right share one answer.
    """
    low, high = {"easy": (0.0, 0.5), "hard": (0.5, 1.0), None: (0.0, 1.0)}[tier]
    t = rng.uniform(low, high, size)
    correct = rng.random((size, n)) < (0.3 + 0.65 * (1.0 - t))[:, None]
    if not hopeless:
        correct[np.arange(size), rng.integers(0, n, size)] = True
    u = rng.random((size, n))
    scores = np.where(correct, u ** (1.0 / (0.686 + 0.237 * t))[:, None], u)
    if decimals is not None:
        scores = scores.round(decimals)
    wrong = rng.integers(0, 3, (size, n))
    # Ids only have to differ within a test; 64 random bits do.
    return [
        PromptRecord(
            id=(name := f"{rng.integers(2**63):x}"),
            input=name,
            metadata={"difficulty": float(t[row]), "tier": "easy" if t[row] < 0.5 else "hard"},
            candidates=tuple(
                Candidate(
                    text="right" if correct[row, slot] else f"wrong {wrong[row, slot]}",
                    score=float(scores[row, slot]),
                    correct=bool(correct[row, slot]),
                )
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]


def measure_promise_gaps(
    artifact: CalibrationArtifact,
    records: Sequence[PromptRecord] | LabelledBatch,
    *,
    alpha: str | None = None,
    marginal: bool = False,
    set_rule: str | None = None,
    stated: float | None = None,
) -> dict[str, float]:
    """The mean of f(X) (kept - stated coverage) over test prompts, for every guaranteed weighting f.

    Args:
        artifact: Decides.
        records: m test prompts.
        alpha: Level, where the artifact holds several.
        marginal: Whether to decide by the marginal rule instead.
        set_rule: Apply the artifact's thresholds to the sets of another rule, which breaks the promise.
        stated: Take this for the coverage that is stated for every prompt.

    Returns:
        By name of the weighting; the promise says that each has expectation >= 0.
    """
    labelled = tabulate_draws(artifact, records)
    decisions = decide(artifact, labelled.draws, alpha, marginal=marginal)
    inside = decisions.accepted
    if set_rule is not None:
        levels = parse_set_rule(set_rule).compute_levels(labelled.draws)
        thresholds = artifact.solve(decisions.features, alpha, marginal=marginal)
        inside = select_candidates(levels, thresholds) & ~decisions.not_certifiable[:, None]
    kept = np.any(inside & labelled.correct, axis=1) | decisions.not_certifiable
    gaps = kept - (1.0 - decisions.stated_alphas if stated is None else stated)
    return {
        weight.name: float(np.mean(weight.compute_values(decisions.features) * gaps))
        for weight in artifact.feature_map.list_guaranteed_weights()
    }


def compute_log_wealth(gains: Sequence[float] | FloatArray, most: float) -> float:
    """Evidence against "independent Z_r <= most, each of expectation >= 0": a gambler's log wealth.

    Who bets b_r >= 0 against Z_r holds W = prod (1 - b_r Z_r). Bets are at most 0.8 / most, so that W > 0,
    and depend on earlier rounds only, so that E (1 - b_r Z_r | past) <= 1 and E W <= 1. By Markov, W reaches
    1 / delta with probability at most delta: exact for every sample size and law, with no variance to know.
    The bets are those of Kelly, mean / mean square of what was lost so far, begun with one round of `most`.
    Against Z_r = -x in every round, W reaches 1 / delta where about log(1 + 0.8 x / most) R = log(1 / delta);
    this x is the resolution stated beside the tests.
    """
    wealth, total, squares = 0.0, 0.0, most**2
    for gain in gains:
        bet = min(0.8 / most, max(0.0, -total / squares))
        wealth += math.log1p(-bet * gain)
        total += gain
        squares += gain**2
    record_figures("log_wealth", wealth=wealth, mean=total / len(gains), tried=len(gains), most=most)
    return wealth

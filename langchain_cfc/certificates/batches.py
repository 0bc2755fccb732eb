"""`replay_batches`: what random batches of labelled prompts would answer, and how much of it wrongly."""

from __future__ import annotations

import numpy as np

from langchain_cfc.artifact import BatchScores
from langchain_cfc.guarantee.certified import Count, GuaranteeData
from langchain_cfc.support.arrays import BoolArray, FloatArray

# Batches that are drawn for each size and share.
REPETITIONS = 200
BATCH_SIZES = (20, 200)
WRONG_SHARES = ("0.02", "0.05", "0.1")
# The spread holds the middle 80 % of batches.
_SPREAD = (0.1, 0.9)


class BatchFigures(GuaranteeData):
    """Answered and wrong shares of random batches, which overlap: the spread is of batches, not of means.

    Attributes:
        max_wrong_share: The largest expected share of wrong answers among those given.
        size: Number of questions in a batch.
        labelled: Number of labelled prompts whose scores decide.
        answered: Mean share of questions answered.
        answered_spread: What the shares answered of the middle 80 % of batches lie between.
        wrong: Mean share of wrong answers among those given; 0 for a batch without answers.
        wrong_spread: The same for the shares of wrong answers.
    """

    max_wrong_share: float
    size: Count
    labelled: Count
    answered: float
    answered_spread: tuple[float, float]
    wrong: float
    wrong_spread: tuple[float, float]


def replay_batches(
    scores: FloatArray, wrong: BoolArray, max_wrong_share: str, size: int, kept: BatchScores | None = None
) -> BatchFigures:
    """Draw random batches of labelled prompts without replacement, with a fixed seed, and answer them.

    Args:
        scores: (N,) mean scores, `inf` without an answer; see `compute_bot_scores`.
        wrong: (N,) whether the best answer is wrong.
        max_wrong_share: The share, as decimal text.
        size: Number of questions in a batch, at most N; without `kept` fewer than N.
        kept: The scores that decide; None to take those of the prompts outside the batch.

    Returns:
        The figures.
    """
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(REPETITIONS):
        order = rng.permutation(len(scores))
        batch, others = order[:size], order[size:]
        deciding = kept or BatchScores.from_scores(len(others), scores[others][wrong[others]])
        answered = scores[batch] <= deciding.select(scores[batch], max_wrong_share)[1]
        given = int(answered.sum())
        shares.append((given / size, int(wrong[batch][answered].sum()) / max(1, given)))
    low, high = np.quantile(np.array(shares), _SPREAD, axis=0, method="nearest").tolist()
    answered_mean, wrong_mean = np.mean(shares, axis=0).tolist()
    return BatchFigures(
        max_wrong_share=float(max_wrong_share),
        size=size,
        labelled=len(scores) - size if kept is None else kept.prompts,
        answered=answered_mean,
        answered_spread=(low[0], high[0]),
        wrong=wrong_mean,
        wrong_spread=(low[1], high[1]),
    )

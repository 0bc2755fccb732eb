"""Prompts whose difficulty is known to depend on a metadata key, or on nothing that is known of them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from langchain_cfc.candidates import LabelledBatch
from tests.guarantees.laws import draw_ids

# Scores are one from each of so many equal steps in random order, so that what they say of a prompt is all
# but the same for every prompt.
CANDIDATES = 20
ODD = 0.3
# What a threshold for all prompts keeps on odd ones at a target of 80 %.
KEPT_ON_ODD = 0.8 / (2.0 - ODD)


def draw_prompts(
    rng: np.random.Generator, size: int, *, depends_on: Literal["kind", "nothing"]
) -> LabelledBatch:
    """Independent prompts of two kinds, with a single correct candidate and no answer given twice.

    The rank of the correct candidate is uniform over all; where difficulty depends on the kind, only for
    prompts of kind `odd`, and over the better half for others. A threshold t for all prompts then covers a
    share min(1, 2 t) of the others and t of the odd ones, at a target of 80 % with 0.7 * 2 t + 0.3 t = 0.8,
    and shows fewer answers than thresholds by kind: 20 t = 9.4, where those show 0.7 * 8 + 0.3 * 16 = 10.4.
    """
    n = CANDIDATES
    step = np.argsort(rng.random((size, n)), axis=1)
    odd = rng.random(size) < ODD
    rank = rng.integers(0, n, size)
    if depends_on == "kind":
        rank = np.where(odd, rank, rank // 2)
    return LabelledBatch.from_arrays(
        draw_ids(rng, size),
        (step + rng.random((size, n))) / n,
        step == rank[:, np.newaxis],
        [[str(slot) for slot in range(n)]] * size,
        metadata=[{"kind": "odd" if one else "plain"} for one in odd],
    )

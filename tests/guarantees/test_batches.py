"""Batches answered by conformal p-values: is the expected share of wrong answers at most q?

The worlds are finite: two mean scores that are right or wrong, and prompts without an answer. Of the labelled
prompts only the numbers of wrong ones at each score matter, and a batch is a multiset of kinds. So the
expectation is a finite sum over both, computed without chance. A control breaks one condition of the theorem,
and its sum is above q; two controls that need many different scores are repeated at random instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import calibrate
from langchain_cfc.artifact import BatchScores
from langchain_cfc.certificates import compute_outcomes
from langchain_cfc.decision import compute_bot_scores
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from tests.factories import make_records
from tests.lengths import repetitions

from .laws import ROUND_OFF, record_figures
from .recordings import NAMES, PATHS, Recording, load_recording

SCORES = np.array([0.2, 0.2, 0.6, 0.6, math.inf])
WRONG = np.array([False, True, False, True, False])
PROMPTS, QUESTIONS = 14, 4
# Probabilities of the kinds. In the first world everything ties.
WORLDS = [
    [0.7, 0.3, 0.0, 0.0, 0.0],
    [0.0, 1.0, 0.0, 0.0, 0.0],
    [0.45, 0.05, 0.25, 0.25, 0.0],
    [0.2, 0.02, 0.4, 0.3, 0.08],
    [0.3, 0.1, 0.0, 0.0, 0.6],
    *np.random.default_rng(1).dirichlet([0.5] * 5, 500).tolist(),
]
RATES = ["0.1", "0.2", "0.35", "0.5", "0.8"]
# (L, 2) numbers of wrong labelled prompts at the two scores, and all batches.
LABELLED = np.array([(a, b) for a in range(PROMPTS + 1) for b in range(PROMPTS + 1 - a)])
BATCHES = [np.array(one) for one in combinations_with_replacement(range(len(SCORES)), QUESTIONS)]
# (L, m) how likely each question of a batch is answered, given the numbers of wrong labelled prompts.
Answering = Callable[[IntArray, str], FloatArray]


def compute_chances(world: list[float]) -> tuple[FloatArray, FloatArray]:
    """Return the multinomial probabilities of the labelled prompts, and of the batches."""
    p = np.array(world)

    def compute_chance(counts: list[int], shares: FloatArray) -> float:
        ways = math.factorial(sum(counts)) // math.prod(map(math.factorial, counts))
        return ways * float(np.prod(shares ** np.array(counts)))

    shares = np.array([p[1], p[3], p[0] + p[2] + p[4]])
    labelled = [compute_chance([a, b, PROMPTS - a - b], shares) for a, b in LABELLED.tolist()]
    batches = [compute_chance(np.bincount(one, minlength=5).tolist(), p) for one in BATCHES]
    return np.array(labelled), np.array(batches)


CHANCES = [compute_chances(one) for one in WORLDS]


def compute_expected_shares(answering: Callable[[IntArray, str], FloatArray], rate: str) -> FloatArray:
    """Return the expected share of wrong answers in each world; all of `answering` is sure or uniform."""
    shares = np.array([answering(batch, rate) for batch in BATCHES])
    return np.array([labelled @ (batches @ shares) for labelled, batches in CHANCES])


def compute_share(answered: BoolArray, batch: IntArray) -> FloatArray:
    """Return (L,) the share of wrong answers where (L, m) questions are answered; 0 if none is."""
    return np.asarray(answered[:, WRONG[batch]].sum(axis=1) / np.maximum(1, answered.sum(axis=1)))


def answer(batch: IntArray, rate: str) -> FloatArray:
    """Answer as the package does."""
    scores = SCORES[batch]
    cuts = [
        BatchScores.from_scores(PROMPTS, np.repeat([0.2, 0.6], wrong)).select(scores, rate)[1]
        for wrong in LABELLED
    ]
    return compute_share(scores <= np.array(cuts)[:, np.newaxis], batch)


def count_wrong(batch: IntArray) -> tuple[IntArray, IntArray]:
    """Count (L, m) the wrong labelled prompts of smaller and of equal score."""
    is_first = SCORES[batch] == SCORES[0]  # (m,)
    below = np.where(is_first, 0, LABELLED[:, :1])
    return below, np.where(is_first, LABELLED[:, :1], LABELLED[:, 1:])


def answer_by_ranks(batch: IntArray, ranks: FloatArray, rate: str) -> BoolArray:
    """Answer by the procedure of Benjamini and Hochberg, written a second time.

    `ranks` are (L, m) p-values times n + 1.
    """
    m = len(batch)
    ranks = np.where(np.isfinite(SCORES[batch]), ranks, math.inf)
    limits = float(rate) * np.arange(1, m + 1) * (PROMPTS + 1) / m + 1e-9
    passing = np.sort(ranks, axis=1) <= limits
    largest = np.where(passing.any(axis=1), limits[m - 1 - passing[:, ::-1].argmax(axis=1)], -1.0)
    return np.asarray(ranks <= largest[:, np.newaxis])


@pytest.mark.parametrize("rate", RATES)
def test_the_expected_share_of_wrong_answers_is_at_most_the_rate(rate: str) -> None:
    expected = compute_expected_shares(answer, rate)
    assert expected.max() <= float(rate) + ROUND_OFF


@pytest.mark.parametrize("rate", RATES)
def test_answers_are_those_of_the_procedure(rate: str) -> None:
    for batch in BATCHES:
        below, equal = count_wrong(batch)
        again = answer_by_ranks(batch, np.asarray(1.0 + below + equal, dtype=np.float64), rate)
        assert answer(batch, rate).tolist() == compute_share(again, batch).tolist()


def share_one_uniform(batch: IntArray, rate: str) -> FloatArray:
    below, equal = count_wrong(batch)
    uniforms = (np.arange(40) + 0.5) / 40
    each = [answer_by_ranks(batch, below + one * (1.0 + equal), rate) for one in uniforms.tolist()]
    return np.asarray(np.mean([compute_share(one, batch) for one in each], axis=0))


def choose_batch_by_scores(batch: IntArray, rate: str) -> FloatArray:
    return answer(batch[SCORES[batch] <= SCORES[batch].min()], rate)


def drop_failed(batch: IntArray, rate: str) -> FloatArray:
    kept = batch[np.isfinite(SCORES[batch])]
    return answer(kept, rate) if len(kept) else np.zeros(len(LABELLED))


@pytest.mark.parametrize(
    "broken", [share_one_uniform, choose_batch_by_scores, drop_failed], ids=lambda one: one.__name__
)
def test_the_law_fails_without_its_conditions(broken: Answering) -> None:
    excess = [(compute_expected_shares(broken, rate) - float(rate)).max() for rate in ("0.35", "0.5")]
    assert max(excess) > 0.02


def repeat_batches(
    prompts: int, questions: int, repeated: int, *, peeks: bool = False, only_if_right: int = 0
) -> list[float]:
    """Return the shares of wrong answers at q = 0.1 where the probability of an error grows with the score.

    With `peeks` the batch's right answers count as labelled prompts. With `only_if_right` a batch is answered
    only if this many labelled prompts of smallest score are right, as if a certified rate depended on them.
    """
    rng, shares = np.random.default_rng(5), []
    for _ in range(repeated):
        scores = rng.random(prompts + questions)
        wrong = rng.random(len(scores)) < 0.04 + 0.3 * scores
        if wrong[:prompts][np.argsort(scores[:prompts])[:only_if_right]].any():
            continue
        counted = prompts + peeks * int((~wrong[prompts:]).sum())
        kept = BatchScores.from_scores(counted, scores[:prompts][wrong[:prompts]])
        answered = scores[prompts:] <= kept.select(scores[prompts:], "0.1")[1]
        shares.append(float(wrong[prompts:][answered].sum()) / max(1, int(answered.sum())))
    return shares


def is_above(shares: list[float], rate: float) -> bool:
    """Whether the mean of independent shares in [0, 1] refutes an expectation of at most the rate.

    False alarms have probability at most 1e-6, by the bound of Bennett (1962) with the largest variance that
    a share in [0, 1] with this expectation has, rate (1 - rate).
    """
    excess, variance = float(np.mean(shares)) - rate, rate * (1.0 - rate)
    u = max(0.0, excess) / variance
    return len(shares) * variance * ((1.0 + u) * math.log1p(u) - u) > math.log(1e6)


def test_looking_at_labels_of_the_batch_breaks_the_law() -> None:
    assert not is_above(repeat_batches(20, 40, 2_000), 0.1)
    assert is_above(repeat_batches(20, 40, 2_000, peeks=True), 0.1)


def test_labels_that_decide_whether_there_is_an_artifact_break_the_law() -> None:
    """So an artifact of a certified rate alone keeps no scores."""
    assert is_above(repeat_batches(100, 40, 40_000, only_if_right=22), 0.1)
    records = make_records(size=400)
    assert calibrate(records, max_wrong_rate="0.9").batch is None
    assert calibrate(records, max_wrong_rate="0.9", max_wrong_of_all="0.2").batch is not None


def test_a_p_value_exactly_at_its_limit_passes() -> None:
    """At q = 0.1 and n + 1 = 10, a p-value of 1 / 10 passes, whatever 0.1 is in binary."""
    kept = BatchScores.from_scores(9, np.array([0.9]))
    scores = np.full(10, 0.5)
    assert kept.select(scores, "0.1")[1] == 0.5
    assert kept.select(scores, "0.0999")[1] < 0.0


# Recordings -----------------------------------------------------------------------------------------------
# Labelled prompts and batches are drawn from a recording without replacement, so they are exchangeable. The
# law is exact for every recording, and splits are independent given it.

SPLITS = repetitions(60)
# (labelled prompts, questions); None for all prompts that are not in the batch.
SIZES: list[tuple[int | None, int]] = [(None, 200), (120, 20)]
SHARES = ["0.02", "0.05", "0.1"]
# Answered at least, on the recording that ships.
LEAST = {(200, "0.05"): 0.57, (200, "0.1"): 0.72, (20, "0.05"): 0.53}


def answer_splits(recording: Recording, labelled: int | None, questions: int, share: str) -> FloatArray:
    """Return (SPLITS, 2) the shares answered and wrong; ten batches of each split are averaged."""
    table, found = recording.table, []
    for seed in range(SPLITS):
        order = np.random.default_rng([7, seed]).permutation(len(table))
        rest = len(table) - (1 if labelled is None else 10) * questions
        own = calibrate(table.take(np.sort(order[: labelled or rest])), max_wrong_of_all="0.2")
        assert own.batch is not None
        batches = order[rest:].reshape(-1, questions)
        each = []
        for rows in batches:
            batch = table.take(rows)
            cut = own.batch.select(compute_bot_scores(own, batch.draws), share)[1]
            outcomes = compute_outcomes(own, batch, None, cut=cut)
            answered, wrong = outcomes.count_answers(outcomes.decisions.answered)
            each.append((answered / questions, wrong / max(1, answered)))
        found.append(np.mean(each, axis=0))
    return np.array(found)


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS, ids=NAMES)
@pytest.mark.parametrize(("labelled", "questions"), SIZES)
@pytest.mark.parametrize("share", SHARES)
def test_batches_of_recordings_keep_the_share(
    path: str, labelled: int | None, questions: int, share: str
) -> None:
    """The mean of SPLITS independent shares is normal enough: one-sided, at 1 % over all cells."""
    recording = load_recording(path)
    answered, wrong = answer_splits(recording, labelled, questions, share).T
    error = float(wrong.std(ddof=1)) / math.sqrt(SPLITS)
    cells = len(PATHS) * len(SIZES) * len(SHARES)
    record_figures("batch", answered=float(answered.mean()), wrong=float(wrong.mean()), error=error)
    assert float(wrong.mean()) <= float(share) + float(stats.norm.isf(0.01 / cells)) * error
    if recording.shipped:
        assert float(answered.mean()) >= LEAST.get((questions, share), 0.0)


def test_digests_at_both_ends_of_64_bits_are_kept_and_recognised() -> None:
    questions = [f"question {number}" for number in range(200)]
    digests = digest_inputs(questions)
    ends = [int(digests.argmin()), int(digests.argmax())]
    assert int(digests[ends[1]]) - int(digests[ends[0]]) > 2**63  # their difference is no 64-bit integer
    kept = BatchScores.from_scores(2, np.array([0.5]), digests[ends])
    _, known = kept.recognise(questions)
    assert np.flatnonzero(known).tolist() == sorted(ends)

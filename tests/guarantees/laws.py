"""Prompts whose truth is known exactly, what is served for them, and checks that say how often they err.

False alarms: a check that every sound rule has to pass fails with probability at most `FALSE_ALARM`, whatever
the prompts are like. The four files that measure with these tools (`test_confidence`, `test_selective`,
`test_exactness`, `test_controls`) hold fewer than a hundred such checks, every weighting and every level
counted as one: together they raise a false alarm with probability at most 1e-4, which leaves as much to the
other files. A negative control is put to the same check, and has to fail it. Seeds are fixed.

`CFC_LONG=1` repeats everything as often as the comments beside the tests say, `CFC_LONG=10` ten times as
often; by default it is less (`tests.lengths`). `CFC_FIGURES=figures.jsonl` writes down what was counted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from langchain_cfc import Candidate, CFCResult, CFCRunnable, FeatureMap, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch, Scalar
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.demo.replay import RecordedMetadata, RecordedScores, ReplayChatModel
from langchain_cfc.guarantee import CoverageCertificate
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from tests.factories import reload_artifact

Evidence = Callable[[Sequence[float] | FloatArray, float], float]
Reloaded = Callable[[CalibrationArtifact], CalibrationArtifact]

FALSE_ALARM = 1e-6
# What a gambler's log wealth reaches for a sound rule with probability at most FALSE_ALARM.
ALARM = -math.log(FALSE_ALARM)
# Sums over all kinds of prompts are off by less.
ROUND_OFF = 1e-12


def calibrate_and_reload(
    records: Iterable[PromptRecord] | LabelledBatch, **options: Any
) -> CalibrationArtifact:
    """An artifact as serving sees it: saved to a file and loaded."""
    return reload_artifact(calibrate(records, **options))


def record_figures(check: str, **figures: float) -> None:
    """Write down what a check counted, where the environment names a file for it."""
    path = os.environ.get("CFC_FIGURES")
    if path is not None:
        seen = {"test": os.environ["PYTEST_CURRENT_TEST"], "check": check, **figures}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(seen) + "\n")


# Checks ---------------------------------------------------------------------------------------------------


def is_too_often(failures: int, tried: int, delta: float) -> bool:
    """Whether failures of independent repetitions refute "each has probability at most delta".

    By the exact binomial test. It resolves a failure probability p as soon as p is above delta by about
    (5.7 + z) sqrt(delta (1 - delta) / R), where z = 2 for a power of 98 %.
    """
    chance = float(stats.binom.sf(failures - 1, tried, delta))
    record_figures("too_often", failures=int(failures), tried=tried, delta=delta, chance=chance)
    return chance < FALSE_ALARM


def agrees_with_chances(failures: int, chances: Sequence[float] | FloatArray) -> bool:
    """Whether a number of independent events agrees with their known probabilities, on both sides.

    Its law is the convolution of theirs (Poisson's binomial); each side has half of the false alarms.
    """
    pmf = np.ones(1)
    for chance in chances:
        pmf = np.convolve(pmf, [1.0 - chance, chance])
    return min(float(pmf[: failures + 1].sum()), float(pmf[failures:].sum())) > FALSE_ALARM / 2


def is_uniform(numbers: Sequence[float] | FloatArray) -> bool:
    """Whether independent numbers agree with the uniform law on (0, 1).

    By the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, which holds for every R:
    Pr(distance > e) <= 2 exp(-2 R e^2). It resolves a distance of twice sqrt(ln(2 / FALSE_ALARM) / (2 R)).
    """
    distance = float(stats.kstest(np.asarray(numbers), "uniform").statistic)
    record_figures("uniform", distance=distance, tried=len(numbers))
    return distance <= math.sqrt(math.log(2.0 / FALSE_ALARM) / (2 * len(numbers)))


def compute_smaller_tail(total: int, repeated: int, law: Any, largest: int) -> float:
    """The smaller of Pr(sum <= total) and Pr(sum >= total) for the sum of independent counts of one law.

    The law of the sum is the `repeated`-fold convolution, a power in Fourier space. Its round-off of about
    1e-13 is far below the probabilities that are asked for.
    """
    size = repeated * largest + 1
    pmf = np.fft.irfft(np.fft.rfft(law.pmf(np.arange(largest + 1)), size) ** repeated, size)
    return float(min(pmf[: total + 1].sum(), pmf[total:].sum()))


def agrees_with_zero(
    gains: Sequence[float] | FloatArray, low: float, high: float, evidence: Evidence
) -> bool:
    """Whether independent gains in [-low, high] agree with expectations of zero: bets on both sides.

    Each side has half of the false alarms; see `compute_log_wealth` for the resolution.
    """
    numbers = np.asarray(gains)
    return max(evidence(numbers, high), evidence(-numbers, low)) < ALARM + math.log(2.0)


# Continuous prompts ---------------------------------------------------------------------------------------
# Difficulty T on a grid, so that every mean over prompts is a finite sum; scores continuous.
GRID = np.arange(9) / 8
EQUAL = np.full(len(GRID), 1 / len(GRID))
TIERS = np.array(["easy", "easy", "easy", "middle", "middle", "middle", "hard", "hard", "hard"])
SLOTS = 4


def _correct_chance(t: FloatArray) -> FloatArray:
    return 0.3 + 0.65 * (1.0 - t)


def _score_exponent(t: FloatArray) -> FloatArray:
    return 0.686 + 0.237 * t


def draw_prompts(
    rng: np.random.Generator, size: int, *, shares: FloatArray = EQUAL, hopeless: bool = False
) -> LabelledBatch:
    """Independent prompts by the generator of the paper's synthetic tables, with few candidates.

    A candidate is correct with probability 0.3 + 0.65 (1 - T); scores are U(0, 1) if wrong and U^(1 / k) if
    correct, k = 0.686 + 0.237 T.

    Args:
        rng: Source of randomness.
        size: Number of prompts.
        shares: Probabilities of the difficulties in `GRID`.
        hopeless: Whether prompts may lack a correct candidate; else one slot is made correct.

    Returns:
        The prompts, with metadata `difficulty` (T) and `tier`.
    """
    place = rng.choice(len(GRID), size, p=shares)
    t = GRID[place]
    correct = rng.random((size, SLOTS)) < _correct_chance(t)[:, None]
    if not hopeless:
        correct[np.arange(size), rng.integers(0, SLOTS, size)] = True
    u = rng.random((size, SLOTS))
    scores = np.where(correct, u ** (1.0 / _score_exponent(t))[:, None], u)
    return label_prompts(rng, place, scores, correct, rng.integers(0, 3, (size, SLOTS)))


def fit_map(text: str, rng: np.random.Generator, size: int = 400) -> FeatureMap:
    """A map fitted on prompts that are used for nothing else."""
    return FeatureMap.parse(text).fit(draw_prompts(rng, size).draws)


def label_prompts(
    rng: np.random.Generator, place: IntArray, scores: FloatArray, correct: BoolArray, wrong: IntArray
) -> LabelledBatch:
    """Prompts of difficulties `GRID[place]`; right candidates share one answer, wrong ones are told apart."""
    size = len(place)
    answers = np.where(correct, "right", np.char.add("wrong ", wrong.astype(str)))
    metadata: list[dict[str, Scalar]] = [
        {"difficulty": float(GRID[one]), "tier": str(TIERS[one])} for one in place
    ]
    return LabelledBatch.from_arrays(
        draw_ids(rng, size), scores, correct, answers.tolist(), metadata=metadata
    )


def draw_ids(rng: np.random.Generator, size: int) -> tuple[str, ...]:
    """Names for prompts; they only have to differ within a test, and 63 random bits do."""
    return tuple(f"{one:x}" for one in rng.integers(2**63, size=size).tolist())


# One prompt of each difficulty, by which thresholds are asked for that depend on the difficulty alone.
PROBES = label_prompts(
    np.random.default_rng(0),
    np.arange(len(GRID)),
    np.full((len(GRID), SLOTS), 0.5),
    np.ones((len(GRID), SLOTS), dtype=np.bool_),
    np.zeros((len(GRID), SLOTS), dtype=np.int64),
).draws


def compute_coverage_at(thresholds: FloatArray) -> FloatArray:
    """(9,) the probability that a threshold covers a prompt of each difficulty that is not hopeless.

    One slot is correct for sure, the others with probability p, and a correct one has a score above s with
    probability 1 - s^k: Pr(S > s) = (1 - s^k) (1 - p s^k)^(n - 1).
    """
    below = np.clip(thresholds, 0.0, 1.0) ** _score_exponent(GRID)
    found: FloatArray = 1.0 - (1.0 - below) * (1.0 - _correct_chance(GRID) * below) ** (SLOTS - 1)
    return found


# Prompts of finitely many kinds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What an artifact does on every kind of prompt there is.

    Attributes:
        chances: (K,) the kinds' probabilities.
        decisions: The decisions on them.
        correct: (K, n) the labels.
    """

    chances: FloatArray
    decisions: Decisions
    correct: BoolArray

    @cached_property
    def covered(self) -> BoolArray:
        """(K,) whether the set holds a correct candidate."""
        return np.asarray((self.decisions.accepted & self.correct).any(axis=1))

    @property
    def kept(self) -> BoolArray:
        """(K,) covered or flagged."""
        return np.asarray(self.covered | self.decisions.not_certifiable)

    @cached_property
    def wrong(self) -> BoolArray:
        """(K,) whether the best candidate of the set, the earliest of lowest score, is wrong."""
        inside, scores = self.decisions.accepted, self.decisions.draws.scores
        # By sorting, not by the code under test.
        order = np.lexsort((np.broadcast_to(np.arange(scores.shape[1]), scores.shape), scores, ~inside))
        first = order[:, 0]
        rows = np.arange(len(first))
        return np.asarray(inside[rows, first] & ~self.correct[rows, first])

    def mean(self, event: BoolArray | IntArray, weights: FloatArray | BoolArray | None = None) -> float:
        """The exact expectation of an event, under a weighting of prompts; 0.0 where nothing has weight."""
        mass = self.chances if weights is None else self.chances * weights
        return float(mass @ event / mass.sum()) if mass.sum() > 0.0 else 0.0


class World:
    """Prompts of finitely many kinds, so that the truth about any artifact is a sum over all of them.

    Difficulty is one of four, each of three candidates has one of five scores and is right or one of two
    wrong answers: 4 x 15^3 kinds. All else is as for continuous prompts, but for ties everywhere.

    Args:
        right: (4,) probability that a candidate is correct, by difficulty.
        told: How well scores tell right from wrong: odds of neighbouring scores.
    """

    n = 3

    def __init__(self, right: Sequence[float], told: float) -> None:
        steps = np.arange(5)
        low, high = told**-steps / (told**-steps).sum(), told**steps / (told**steps).sum()
        kinds = [(score, answer) for score in steps.tolist() for answer in range(3)]
        slots = np.array(list(product(range(len(kinds)), repeat=self.n)))
        score, answer = np.array(kinds).T
        scores, answers = (0.1 + 0.2 * score)[slots], answer[slots]
        rows, places, chances = [], [], []
        for number, p in enumerate(right):
            one = np.where(
                answer == 0, p * low[score], (1 - p) * high[score] * np.array([0, 0.6, 0.4])[answer]
            )
            chances.append(one[slots].prod(axis=1) / len(right))
            places.append(np.full(len(slots), (1, 3, 5, 7)[number]))
            rows.append(number)
        self.chances = np.concatenate(chances)
        count = len(rows)
        self.everything = label_prompts(
            np.random.default_rng(0),
            np.concatenate(places),
            np.tile(scores, (count, 1)),
            np.tile(answers == 0, (count, 1)),
            np.tile(answers, (count, 1)),
        )

    def sample(self, rng: np.random.Generator, size: int) -> LabelledBatch:
        """Independent prompts."""
        rows = rng.choice(len(self.chances), size, p=self.chances)
        return replace(self.everything.take(rows), ids=draw_ids(rng, size))

    def truth(self, artifact: CalibrationArtifact, alpha: str | None = None) -> Outcome:
        """What the artifact does on every kind of prompt."""
        decisions = decide(artifact, self.everything.draws, alpha)
        return Outcome(self.chances, decisions, self.everything.correct)


def has_broken_bound(
    certificate: CoverageCertificate,
    seen: Outcome,
    artifact: CalibrationArtifact,
    bound: Callable[[float, int, int], float] = lambda stated, _successes, _size: stated,
) -> bool:
    """Whether any lower bound, as stated or recomputed from the counts, is above the truth."""
    weights = [
        one.compute_values(seen.decisions.features) for one in artifact.feature_map.list_guaranteed_weights()
    ]
    return any(
        bound(share.kept_at_least, share.kept, share.prompts) > seen.mean(seen.kept, one) + ROUND_OFF
        or bound(share.coverage_at_least, share.covered, share.prompts)
        > seen.mean(seen.covered, one) + ROUND_OFF
        for share, one in zip(certificate.shares, weights, strict=True)
    )


# What is served -------------------------------------------------------------------------------------------


def make_records(table: LabelledBatch) -> list[PromptRecord]:
    """The same prompts as records, the id of each its input."""
    codes = table.draws.answer_codes
    assert codes is not None
    return [
        PromptRecord(
            id=record_id,
            input=record_id,
            metadata=dict(table.draws.metadata[row]),
            candidates=tuple(
                Candidate(
                    text="right" if correct else f"wrong {codes[row, slot]}",
                    score=float(table.draws.scores[row, slot]),
                    correct=bool(correct),
                )
                for slot, correct in enumerate(table.correct[row])
            ),
        )
        for row, record_id in enumerate(table.ids)
    ]


def serve_prompts(artifact: CalibrationArtifact, table: LabelledBatch, **options: Any) -> list[CFCResult]:
    """What `CFCRunnable` returns for recorded prompts."""
    records = make_records(table)
    chain = CFCRunnable(
        generator=ReplayChatModel.from_records(records),
        verifier=RecordedScores(),
        artifact=artifact,
        metadata=RecordedMetadata(records),
        sampling="single_request",
        **options,
    )
    return [chain.invoke(record.input) for record in records]


def is_same_as_served(decisions: Decisions, results: Sequence[CFCResult]) -> bool:
    """Whether what was served is, prompt by prompt, what was decided: then its laws are the same."""
    # A bot has no thresholds.
    thresholds = decisions.thresholds.tolist() or [None] * len(results)
    return all(
        (result.reason, result.threshold) == (decisions.find_reason(row), thresholds[row])
        and [one.accepted for one in result.candidates] == decisions.accepted[row].tolist()
        for row, result in enumerate(results)
    )


def find_kept(decisions: Decisions, table: LabelledBatch) -> BoolArray:
    """(N,) covered or flagged."""
    return np.asarray((decisions.accepted & table.correct).any(axis=1) | decisions.not_certifiable)

"""Coverage with a combination of verifiers, over independent repetitions, from records to the set served.

The law is exact. Given its fit split, a combination is a fixed function of a candidate's raw outputs, so the
success scores of N calibration prompts and a test prompt are exchangeable, and here all different: of m test
prompts BetaBinomial(m, k, N + 1 - k) are covered, k = ceil((N + 1) tau). The hash decides N, so the total
over repetitions follows the convolution of laws with different N. A false alarm has probability at most 1e-8;
seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import Candidate, PromptRecord
from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.calibration.fit import fit_combination
from langchain_cfc.decision import decide
from langchain_cfc.records import tabulate, tabulate_raw
from langchain_cfc.thresholds import compute_conformal_rank, compute_tau
from tests.factories import reload_artifact

from .laws import calibrate, calibrate_and_reload

FALSE_ALARM = 1e-8
ALPHA = "0.2"
REPETITIONS, TESTED = 200, 40
# One verifier tells something; the others are noise, enough of them to learn 30 prompts by heart.
NAMES = ("judge", *(f"noise {number}" for number in range(19)))


def make_noisy_records(rng: np.random.Generator, size: int) -> list[PromptRecord]:
    """Prompts of three candidates, at least one of them correct, so that every prompt can be covered."""
    correct = rng.random((size, 3)) < 0.4
    correct[np.arange(size), rng.integers(0, 3, size)] = True
    raw = rng.normal(size=(size, 3, len(NAMES)))
    raw[..., 0] += correct
    return [
        PromptRecord(
            id=(name := f"{rng.integers(2**63):x}"),
            input=name,
            candidates=tuple(
                Candidate(
                    text=str(slot),
                    score=0.5,
                    correct=bool(correct[row, slot]),
                    scores=dict(zip(NAMES, raw[row, slot].tolist(), strict=True)),
                )
                for slot in range(3)
            ),
        )
        for row in range(size)
    ]


def covered(artifact: CalibrationArtifact, records: list[PromptRecord]) -> int:
    labelled = tabulate(records, combination=artifact.combination)
    return int(np.any(decide(artifact, labelled.draws).accepted & labelled.correct, axis=1).sum())


def compute_law(size: int) -> FloatArray:
    """(TESTED + 1,) the probabilities of the number covered."""
    rank = compute_conformal_rank(size, compute_tau(ALPHA))
    found: FloatArray = stats.betabinom(TESTED, rank, size + 1 - rank).pmf(np.arange(TESTED + 1))
    return found


def compute_tails(total: int, sizes: list[int]) -> tuple[float, float]:
    """Pr(sum <= total) and Pr(sum >= total) for one count of each law."""
    pmf = np.ones(1)
    for size in sizes:
        pmf = np.convolve(pmf, compute_law(size))
    return float(pmf[: total + 1].sum()), float(pmf[total:].sum())


def calibrate_on_fitted_prompts(records: list[PromptRecord]) -> CalibrationArtifact:
    """Forbidden: the combination is fitted to the labels that its scores are calibrated with."""
    labelled, raw = tabulate_raw(records, NAMES)
    combination = fit_combination(NAMES, raw, labelled)
    scores = combination.score_all(raw).tolist()
    rescored = [
        record.model_copy(
            update={
                "candidates": tuple(
                    one.model_copy(update={"score": score})
                    for one, score in zip(record.candidates, row, strict=True)
                )
            }
        )
        for record, row in zip(records, scores, strict=True)
    ]
    return calibrate(rescored, alpha=ALPHA, features="1").model_copy(update={"combination": combination})


@pytest.mark.long
def test_combination_coverage_follows_its_law_if_fitted_on_a_fit_split() -> None:
    rng = np.random.default_rng(1)
    sound = forbidden = 0
    sizes, forbidden_sizes = [], []
    for _ in range(REPETITIONS):
        records, test = make_noisy_records(rng, 60), make_noisy_records(rng, TESTED)
        artifact = calibrate_and_reload(records, alpha=ALPHA, features="1", combine=NAMES, fit_fraction=0.5)
        sound += covered(artifact, test)
        sizes.append(artifact.calibration.size)
        other = reload_artifact(calibrate_on_fitted_prompts(records[:30]))
        forbidden += covered(other, test)
        forbidden_sizes.append(other.calibration.size)
    assert min(compute_tails(sound, sizes)) > FALSE_ALARM / 2
    low, _ = compute_tails(forbidden, forbidden_sizes)
    assert low < FALSE_ALARM

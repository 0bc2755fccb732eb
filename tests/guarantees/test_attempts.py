"""Several attempts on the same labels: any certificate is false with probability at most delta.

Nine looks, after 100, 200, ..., 900 and 1,000 labels. The law is the union bound of `artifact.attempts`: a
repetition in which any attempt certifies a cut whose rate is too high has probability at most delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.artifact import AttemptLedger
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify_mean_score
from langchain_cfc.errors import UnattainableTargetError
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.support.arrays import IntArray
from tests.lengths import mostly_long, repetitions

from .laws import ROUND_OFF, is_too_often
from .test_cuts import DELTA, JUST_ABOVE, RATE, SCALES, Scale, make_scale

LOOKS = (100, 200, 300, 400, 500, 600, 700, 800, 1000)
WORLDS = {
    name: SCALES[name]
    for name in (
        "just above the rate everywhere",
        "just above the rate everywhere, few scores",
        "the safest are wrong",
        "crosses the rate late",
        "candidates that agree, just above the rate",
    )
}
SETTINGS = 200
RATES = ("0.05", "0.1", "0.15", "0.2", "0.25")


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """An artifact for one candidate per prompt; a bot ignores its sets."""
    everyone = make_scale([], [0.3], 50).sample(np.random.default_rng(0), 60)
    return calibrate(everyone, alpha="0.5", features="1")


def attempt(
    artifact: CalibrationArtifact, labelled: LabelledBatch, ledger: AttemptLedger, settings: str
) -> tuple[float | None, AttemptLedger]:
    """Make an attempt; return the cut that is certified, or None."""
    certified, ledger = certify_rates(artifact, labelled, ledger, settings)
    return (certified[0].max_mean_score if certified else None), ledger


def certify_rates(
    artifact: CalibrationArtifact,
    labelled: LabelledBatch,
    ledger: AttemptLedger,
    settings: str,
    *,
    rates: Sequence[str] = (RATE,),
    delta: str = DELTA,
) -> tuple[Sequence[WrongRateCertificate], AttemptLedger]:
    """Make an attempt at several rates; return the certificates."""
    planned = ledger.plan_attempt(labelled, settings, str(len(labelled)))
    try:
        made = certify_mean_score(artifact, planned, max_wrong_rates=rates, delta=delta)
    except UnattainableTargetError as error:
        return [], error.attempts
    return made.certified_bot.certificates, planned.end(certified=True)


def is_ever_false(
    scale: Scale, artifact: CalibrationArtifact, rng: np.random.Generator, *, keeps_ledger: bool
) -> bool:
    """Whether any of nine attempts on growing data certifies a cut whose rate is too high."""
    everything, ledger = scale.sample(rng, LOOKS[-1]), AttemptLedger()
    for size in LOOKS:
        known = ledger if keeps_ledger else AttemptLedger()
        cut, ledger = attempt(artifact, everything.take(np.arange(size)), known, "the same")
        if cut is not None and scale.rate_below(cut) > float(RATE) + ROUND_OFF:
            return True
    return False


# Of 90 repetitions 27 failures refute delta = 0.1; with a fresh delta at each look a third of them fail.
@mostly_long("name", WORLDS, quick=1)
def test_nine_looks_rarely_certify_falsely(name: str, artifact: CalibrationArtifact) -> None:
    rng = np.random.default_rng(sorted(WORLDS).index(name))
    tried = repetitions(300, share=0.3)
    failures = sum(is_ever_false(WORLDS[name], artifact, rng, keeps_ledger=True) for _ in range(tried))
    assert not is_too_often(failures, tried, float(DELTA))


def test_nine_looks_with_a_fresh_delta_certify_falsely_too_often(artifact: CalibrationArtifact) -> None:
    rng, tried = np.random.default_rng(7), repetitions(300, share=0.8)
    scale = SCALES["just above the rate everywhere"]
    failures = sum(is_ever_false(scale, artifact, rng, keeps_ledger=False) for _ in range(tried))
    assert is_too_often(failures, tried, float(DELTA))


def make_steps() -> Scale:
    """A world with five mean scores, where the answers up to the k-th are wrong just above the k-th rate."""
    ends = (3, 6, 10, 16, 25)
    wrong = np.diff([0.0, *(end * (float(rate) + 1e-6) for end, rate in zip(ends, RATES, strict=True))])
    sizes = np.diff([0, *ends])
    return Scale(np.repeat(np.arange(5) / 10, sizes), np.repeat(wrong / sizes, sizes))


def is_any_rate_false(artifact: CalibrationArtifact, rng: np.random.Generator, delta: str) -> bool:
    """Whether any certificate of five rates together is false, at 600 labels or else at 800."""
    scale, ledger = make_steps(), AttemptLedger()
    everything = scale.sample(rng, 800)
    for size in (600, 800):
        known = everything.take(np.arange(size))
        certified, ledger = certify_rates(artifact, known, ledger, "the same", rates=RATES, delta=delta)
        for one in certified:
            if scale.rate_below(one.max_mean_score or 0.0) > float(one.max_wrong_rate) + ROUND_OFF:
                return True
    return False


# Each of R rates is tested at delta w_k / R. Of 30 repetitions 14 failures refute delta = 0.1, of 300 58.
def test_any_of_five_simultaneous_rates_is_rarely_false(artifact: CalibrationArtifact) -> None:
    rng, tried = np.random.default_rng(11), repetitions(300, share=0.1)
    failures = sum(is_any_rate_false(artifact, rng, DELTA) for _ in range(tried))
    assert not is_too_often(failures, tried, float(DELTA))


@pytest.mark.long
def test_five_rates_with_undivided_delta_are_false_too_often(artifact: CalibrationArtifact) -> None:
    # 0.625 x 0.8 / 5 = 0.1 for each rate at the first look.
    rng, tried = np.random.default_rng(12), repetitions(400)
    failures = sum(is_any_rate_false(artifact, rng, "0.625") for _ in range(tried))
    assert is_too_often(failures, tried, float(DELTA))


Choose = Callable[[list[IntArray], LabelledBatch, LabelledBatch], int]


def find_longest_start(orders: list[IntArray], labelled: LabelledBatch) -> int:
    """Return the setting that ranks most right answers before the first wrong one."""
    right = labelled.correct[:, 0]
    return int(np.argmax([int(np.argmin(right[order])) for order in orders]))


def choose_by_other_labels(orders: list[IntArray], _: LabelledBatch, other: LabelledBatch) -> int:
    """Choose among settings by labels that do not certify, as a fit split allows."""
    return find_longest_start(orders, other)


def choose_by_certification_labels(orders: list[IntArray], labelled: LabelledBatch, _: LabelledBatch) -> int:
    """Control: choose among settings by the labels that certify."""
    return find_longest_start(orders, labelled)


def list_settings(rng: np.random.Generator, size: int) -> Iterator[IntArray]:
    """Yield orders of the prompts by verifiers that know nothing: every cut has the same true rate."""
    for _ in range(SETTINGS):
        yield rng.permutation(size)


def is_false_after_choosing(
    artifact: CalibrationArtifact, rng: np.random.Generator, choose: Choose, looks: int
) -> bool:
    """Whether an adversary who picks the best of 200 settings before each further attempt gets a certificate.

    Every answer is wrong with a probability just above the rate, so each certificate is false.
    """
    size = 300
    labelled = make_scale([], [JUST_ABOVE], 500).sample(rng, size)
    other = make_scale([], [JUST_ABOVE], 500).sample(rng, size)
    cut, ledger = attempt(artifact, labelled, AttemptLedger(), "first")
    for _ in range(looks):
        if cut is not None:
            return True
        orders = list(list_settings(rng, size))
        chosen = choose(orders, labelled, other)
        scores = np.empty((size, 1))
        scores[orders[chosen], 0] = (np.arange(size) + 0.5) / size
        scored = replace(labelled, draws=replace(labelled.draws, scores=scores, precomputed={}))
        cut, ledger = attempt(artifact, scored, ledger, f"setting {rng.integers(1 << 60)}")
    return cut is not None


def test_best_of_many_settings_chosen_without_certification_labels_keeps_delta(
    artifact: CalibrationArtifact,
) -> None:
    rng, tried = np.random.default_rng(8), repetitions(400, share=0.2)
    failures = sum(is_false_after_choosing(artifact, rng, choose_by_other_labels, 4) for _ in range(tried))
    assert not is_too_often(failures, tried, float(DELTA))


def test_best_of_many_settings_chosen_by_certification_labels_exceeds_delta(
    artifact: CalibrationArtifact,
) -> None:
    rng, tried = np.random.default_rng(9), repetitions(400, share=0.2)
    failures = sum(
        is_false_after_choosing(artifact, rng, choose_by_certification_labels, 1) for _ in range(tried)
    )
    assert is_too_often(failures, tried, float(DELTA))


def test_settings_chosen_after_a_recorded_look_do_not_certify_on_the_same_labels(
    artifact: CalibrationArtifact,
) -> None:
    # The control above with its figures recorded as a look: the new setting certifies on other labels only.
    rng, tried = np.random.default_rng(10), repetitions(200, share=0.3)
    failures = 0
    for _ in range(tried):
        scale = make_scale([], [JUST_ABOVE], 500)
        labelled = scale.sample(rng, 300)
        ledger = AttemptLedger().with_look(labelled, "compare")
        orders = list(list_settings(rng, 300))
        best = orders[find_longest_start(orders, labelled)]
        right = np.concatenate([labelled.correct[best], scale.sample(rng, 300).correct])
        both = LabelledBatch.from_arrays(
            [*(labelled.ids[row] for row in best), *(f"new {row}" for row in range(300))],
            ((np.arange(600) + 0.5) / 600)[:, np.newaxis],
            right,
            [["a"]] * 600,
        )
        cut, _ = attempt(artifact, both, ledger, "best")
        failures += cut is not None
    assert not is_too_often(failures, tried, float(DELTA))

"""`plan_bot`: estimate from a pilot how many labelled prompts certify a rarely wrong bot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from langchain_cfc.calibration.config import DEFAULT_DELTA, CalibrationConfig
from langchain_cfc.candidates import LabelledBatch, check_unit
from langchain_cfc.certificates import BatchFigures, replay_batches
from langchain_cfc.certificates.batches import BATCH_SIZES
from langchain_cfc.certificates.bounds import clopper_pearson, required_size
from langchain_cfc.certificates.cuts import FIRST_SHARE, SECOND_START, list_shares
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.set_rules import AcceptAll
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds import Level


class BotStep(ReportData):
    """Number of labelled prompts needed to answer at least a given share of the prompts.

    Attributes:
        answered: The share answered, in (0, 1]; these are the prompts with the smallest mean scores.
        wrong_rate: Share of wrong answers among these prompts of the pilot.
        prompts_needed: Number of labelled prompts that certify a cut which answers at least this share, if
            the pilot's figures are right; None if no number does, because too many answers are wrong.
    """

    answered: float
    wrong_rate: float
    prompts_needed: int | None


class BotRatePlan(ReportData):
    """What it takes to certify one wrong-answer rate.

    Attributes:
        max_wrong_rate: Largest share of wrong answers among answered prompts.
        least_abstention: Share of the prompts that every bot must abstain on, if `BotPlan.wrong_rate` is
            right.
        fewest_answered: Fewest answered prompts, none wrong, that certify the rate; None if 10**8 do not.
        steps: The plan for each share answered, ascending.
    """

    max_wrong_rate: float
    least_abstention: float
    fewest_answered: int | None
    steps: list[BotStep]


class BotPlan(ReportData):
    """Number of labelled prompts that certify wrong-answer rates for bot mode, by share of prompts answered.

    Attributes:
        delta: Failure probability of the certificates.
        pilot_size: Number of pilot prompts, one from each cluster.
        wrong_rate: Share of answerable pilot prompts (not all answers blank) whose best candidate is wrong.
        wrong_rate_ci: Two-sided 95 % Clopper-Pearson interval of `wrong_rate`.
        rates: The plan for each wrong-answer rate, ascending.
        batches: What batches would answer at these rates on average, decided by the rest of the pilot; empty
            if the pilot is small. They need no certificate.
    """

    delta: float
    pilot_size: int
    wrong_rate: float
    wrong_rate_ci: tuple[float, float]
    rates: list[BotRatePlan]
    batches: tuple[BatchFigures, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Whether some number of prompts certifies each of the rates for some share of the prompts."""
        return all(any(step.prompts_needed is not None for step in one.steps) for one in self.rates)


def plan_bot(
    labelled: LabelledBatch,
    *,
    max_wrong_rate: Level | Sequence[Level],
    delta: Level = DEFAULT_DELTA,
    test_fraction: float = 0.2,
) -> BotPlan:
    """Plan bot mode from a small file of labelled records.

    The bot planned for is the one that `calibrate(records, max_wrong_rate=...)` makes: it answers with the
    best candidate if the mean score is at most a cut. As in calibration, one hash-chosen prompt of each
    cluster counts, and the first attempt to certify with the labels has 80 % of delta, divided among the
    rates. The numbers are estimates, since they take the pilot's wrong rates for the true ones: about half of
    all calibrations of this size answer that share.

    Args:
        labelled: The pilot, such as `tabulate(read_records(path))`.
        max_wrong_rate: Largest share of wrong answers among answered prompts, in (0, 1), or several that will
            be certified at once.
        delta: Failure probability of the certificates, in (0, 1).
        test_fraction: Share of all prompts that will be held out for evaluation, in [0, 1).

    Returns:
        The plan.

    Raises:
        InputError: If there are no prompts, they have weights, or an argument is out of range.

    Examples:
        >>> import numpy as np
        >>> from langchain_cfc.candidates import CandidateBatch
        >>> scores = np.arange(100)[:, np.newaxis] / 100
        >>> correct = scores < 0.7  # the 30 least certain answers are wrong
        >>> ids = tuple(map(str, range(100)))
        >>> pilot = LabelledBatch(CandidateBatch.from_arrays(scores), correct, ids, (None,) * 100)
        >>> plan = plan_bot(pilot, max_wrong_rate=0.1, test_fraction=0)
        >>> (rate,) = plan.rates
        >>> plan.wrong_rate, round(rate.least_abstention, 3), rate.fewest_answered
        (0.3, 0.222, 31)
        >>> [step.prompts_needed for step in rate.steps if step.answered in (0.5, 0.7, 0.75, 0.8)]
        [45, 45, 343, None]
    """
    if len(labelled) == 0:
        msg = "the pilot is empty: give labelled prompts"
        raise InputError(msg)
    check_unit(labelled)
    config = CalibrationConfig(max_wrong_rate=max_wrong_rate, delta=delta)
    level = config.first_level
    held_out = make_split_plan(0, fit=0.0, test=test_fraction)
    independent = labelled.take(held_out.select_one_per_cluster(labelled))
    means, wrong = rank_answerable(independent)
    size = len(means)
    if not size:
        msg = "all answers of the pilot are blank, so a bot could answer nothing: check the generator"
        raise InputError(msg)
    # All prompts that are not held out certify; prompts with only blank answers are never answered.
    kept = Fraction(size, len(independent)) * (1 - Fraction(str(test_fraction)))
    shares, second = _list_complete_ties(means), math.ceil(size * SECOND_START)

    def plan_rate(rate: Fraction) -> BotRatePlan:
        # The first sequence of tests has a share of the level, the second one all of it if that is passed.
        needed = _project_sizes(wrong, rate, level * FIRST_SHARE, [one for one in shares if one < second])
        needed |= _project_sizes(wrong, rate, level, [one for one in shares if one >= second])
        fewest: int | None = None
        steps: list[BotStep] = []
        for count in reversed(shares):
            if count in needed:
                labelled_needed = math.ceil(needed[count] / kept)
                fewest = labelled_needed if fewest is None else min(fewest, labelled_needed)
            share = int(wrong[count]) / count
            steps.append(BotStep(answered=count / len(independent), wrong_rate=share, prompts_needed=fewest))
        return BotRatePlan(
            max_wrong_rate=float(rate),
            # A bot that abstains on a share a gives at least mu - a wrong answers, out of 1 - a.
            least_abstention=max(0.0, float((Fraction(int(wrong[-1]), size) - rate) / (1 - rate))),
            fewest_answered=required_size(0.0, rate, level),
            steps=steps[::-1],
        )

    return BotPlan(
        delta=float(config.failure_probability),
        pilot_size=len(independent),
        wrong_rate=int(wrong[-1]) / size,
        wrong_rate_ci=clopper_pearson(int(wrong[-1]), size),
        rates=[plan_rate(Fraction(rate)) for rate in config.wrong_rates],
        batches=tuple(_replay_pilot(means, wrong, len(independent), config.wrong_rates)),
    )


def _replay_pilot(
    means: FloatArray, wrong: IntArray, prompts: int, rates: Sequence[str]
) -> Iterator[BatchFigures]:
    """Yield figures for batches of at most half of the pilot; arguments as from `rank_answerable`."""
    scores = np.concatenate([means, np.full(prompts - len(means), np.inf)])
    is_wrong = np.concatenate([np.diff(wrong) > 0, np.zeros(prompts - len(means), dtype=np.bool_)])
    for size in BATCH_SIZES:
        if 2 * size <= prompts:
            yield from (replay_batches(scores, is_wrong, rate, size) for rate in rates)


def rank_answerable(labelled: LabelledBatch) -> tuple[FloatArray, IntArray]:
    """Rank the prompts that a bot could answer by mean score; blank answers are never given.

    Args:
        labelled: The prompts.

    Returns:
        (m,) their mean scores, ascending, and (m + 1,) the number of wrong answers among the first 0 ... m.
    """
    sets = AnswerSets.from_best_candidates(labelled.draws, AcceptAll().compute_levels(labelled.draws))
    answerable = np.flatnonzero(sets.accepted.any(axis=1))
    means = MEAN_SCORE.compute_values(labelled.draws)
    order = answerable[np.argsort(means[answerable], kind="stable")]
    wrong = np.concatenate([[0], np.cumsum(~labelled.correct[order, sets.best[order]])]).astype(np.int64)
    return means[order], wrong


def _list_complete_ties(scores: FloatArray) -> list[int]:
    """Return the sizes of `list_shares`, each enlarged to the end of the tie that it divides.

    Args:
        scores: (m,) mean scores, ascending.

    Examples:
        >>> _list_complete_ties(np.array([0.0] * 90 + [0.1] * 8 + [0.2] * 2))
        [90, 98, 100]
    """
    places = np.array(list_shares(len(scores)), dtype=np.int64) - 1
    return list(dict.fromkeys(np.searchsorted(scores, scores[places], side="right").tolist()))


def _project_sizes(wrong: IntArray, rate: Fraction, delta: float, sizes: Iterable[int]) -> dict[int, int]:
    """Estimate, for each k, how many prompts are needed to certify the cut behind the first k prompts.

    Args:
        wrong: (m + 1,) number of wrong answers among the first 0 ... m prompts by mean score.
        rate: The largest wrong-answer rate.
        delta: Level of the test.
        sizes: Values of k, 1 <= k <= m. If too many of the first k are wrong, k is left out.

    Returns:
        By k, how many prompts are needed in all if the share answered and the wrong rate stay as they are.
    """
    everyone = len(wrong) - 1
    return {
        size: math.ceil(trials * everyone / size)
        for size in sizes
        for trials in [required_size(Fraction(int(wrong[size]), size), rate, delta)]
        if trials is not None
    }

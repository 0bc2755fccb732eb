"""The cost of coverage on labelled records, by difficulty: what decides which rule has the smaller sets.

Prompts are grouped by a statistic of difficulty T, k = 1 (easy) ... K. In each group, empirical distributions
estimate

    F_k(l)  the share of prompts whose success score is at most l,
    c_k(u)  the mean number of answers in a set at the threshold F_k^-1(u), the cost of coverage u.

If candidates are counted, c_k is the paper's M C_k. F_k(infinity), the attainable coverage of a group, is
below 1 if some prompts have no correct candidate.

*The price of coverage.* Let l be the one threshold of coverage u0 = 1 - alpha over all prompts, u_k = F_k(l)
its coverage in group k, v_k the coverage of the oracle's threshold there, and

    price_k = (c_k(u_k) - c_k(v_k)) / (u_k - v_k),

the number of answers per unit of coverage. With group shares w_k,

    E|C| of one threshold - E|C| of the oracle  =  sum_k w_k price_k (u_k - v_k),

where the w_k (u_k - v_k) add up to 0, up to steps and groups out of reach. So one threshold has the smaller
sets if the price rises with difficulty: it covers less where coverage is expensive, and more where it is
cheap. (3) and (4) together say that the price does not rise too much. If u0 is out of a group's reach, the
oracle returns everything there, as in the paper; this package flags such prompts instead.

The bootstrap over the prompts of each group, with the groups held fixed, gives the 95 % percentile interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import computed_field

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import open_records
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import CAP, Level, compute_tau, format_alpha
from langchain_cfc_lab.compare import GROUPS
from langchain_cfc_lab.methods import Pool
from langchain_cfc_lab.metrics import make_groups

RESAMPLES = 400
CONFIDENCE = 0.95
_MIN_GROUP_SIZE = 20


class RecordedGroup(ReportData):
    """The cost of coverage in one group of prompts.

    Attributes:
        words: The group, in words.
        n: Number of prompts in the group.
        attainable: Share of its prompts with a correct candidate.
        marginal_coverage: Coverage of the one threshold for all prompts.
        oracle_coverage: Coverage of the group's own threshold, at most what is attainable.
        marginal_size: Mean number of answers under the one threshold.
        oracle_size: Mean number of answers under the group's own threshold.
        price: Answers per unit of coverage between the two thresholds; None if they cover the same.
    """

    words: str
    n: int
    attainable: float
    marginal_coverage: float
    oracle_coverage: float
    marginal_size: float
    oracle_size: float
    price: float | None


class RecordedEfficiency(ReportData):
    """Results of the efficiency analysis on records.

    Attributes:
        alpha: Error level as decimal text.
        counted: Unit of set sizes: `distinct answers`, or `candidates` if answers are unknown.
        prompts: Number of prompts, one from each cluster.
        largest_atom: Largest share of prompts with the same success score, not counting hopeless prompts.
        hopeless: Share of prompts without a correct candidate.
        groups: The groups from easy to hard.
        saved: E|C| of one threshold minus that of the oracle; negative if the oracle's sets are larger.
        saved_interval: 95 % interval of `saved`.
    """

    alpha: str
    counted: Literal["distinct answers", "candidates"]
    prompts: int
    largest_atom: float
    hopeless: float
    groups: list[RecordedGroup]
    saved: float
    saved_interval: tuple[float, float]

    @computed_field  # type: ignore[prop-decorator] # mypy knows no decorated properties
    @property
    def account(self) -> list[str]:
        """What was found, in words."""
        return list(_write_account(self))


@dataclass(frozen=True, eq=False)
class GroupCurves:
    """Empirical curves of the n prompts of one group."""

    success: FloatArray  # (n,) success scores; `CAP` or more without a correct candidate
    levels: FloatArray  # (n, M) entry levels of all answers, infinite for those that never enter

    def compute_coverage(self, threshold: float) -> float:
        """Return F at a threshold; one at the cap accepts everything, and covers what is attainable."""
        return float(((self.success <= threshold) & (self.success < CAP)).mean())

    def compute_size(self, threshold: float) -> float:
        """Return the mean number of answers in a set at a threshold."""
        return float((np.isfinite(self.levels) & (self.levels <= threshold)).sum() / len(self.levels))

    def find_quantile(self, coverage: float) -> float:
        """Return the smallest threshold that reaches a coverage; `CAP` if it is out of reach."""
        return find_threshold(self.success, np.ones(len(self.success)), coverage)


def find_threshold(success: FloatArray, weights: FloatArray, coverage: float) -> float:
    """Return the smallest of (N,) weighted success scores that covers a share; `CAP` if none does."""
    order = np.argsort(success, kind="stable")
    reached = np.cumsum(weights[order]) >= (coverage - 1e-12) * weights.sum()
    return min(float(success[order][reached.argmax()]), CAP)


def analyse_recording(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level = "0.2",
    groups: str = GROUPS,
    seed: int = 0,
    provenance: Provenance | None = None,
) -> RecordedEfficiency:
    """Estimate what coverage costs by difficulty on labelled records, and which rule has the smaller sets.

    Args:
        records: Labelled records.
        alpha: Error level.
        groups: Groups from easy to hard, such as `bins(mean_score, 5)`.
        seed: Seed of the resamples.
        provenance: Header of the records; by default the one that they carry.

    Returns:
        The estimates.

    Raises:
        InputError: If a group has fewer than 20 prompts, or a record cannot be used.
        FeatureError: If the groups do not suit the records.
    """
    records, provenance = open_records(records, provenance)
    table = tabulate(records, provenance=provenance)
    # The same prompts as in `compare`: one from each cluster.
    pool = Pool(table.take(make_split_plan(str(seed), fit=0.0, test=0.0).select_one_per_cluster(table)))
    with name_records_in_errors(pool.labelled.ids):
        grouped = make_groups(groups, pool.draws, pool.draws)
    distinct = pool.draws.answer_codes is not None
    rule = "unique(all)" if distinct else "all"
    success, levels = pool.compute_success_scores(rule), pool.compute_levels(rule)
    members = [np.flatnonzero(column) for column in grouped.member.T]
    for words, rows in zip(grouped.words, members, strict=True):
        if len(rows) < _MIN_GROUP_SIZE:
            msg = (
                f"the group {words!r} has {len(rows)} prompts; use fewer groups, each of at least "
                f"{_MIN_GROUP_SIZE}"
            )
            raise InputError(msg)
    tau = float(compute_tau(alpha))
    curves = [GroupCurves(success[rows], levels[rows]) for rows in members]
    shares = grouped.sizes / grouped.sizes.sum()
    rng = np.random.default_rng([seed, 3])
    resampled = [
        _compute_saved(
            [
                GroupCurves(success[one], levels[one])
                for one in (rng.choice(rows, len(rows)) for rows in members)
            ],
            shares,
            tau,
        )
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(resampled, [(1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0]).tolist()
    one = _find_common_threshold(curves, shares, tau)
    atoms = np.unique(success[success < CAP], return_counts=True)[1]
    return RecordedEfficiency(
        alpha=format_alpha(alpha),
        counted="distinct answers" if distinct else "candidates",
        prompts=len(success),
        largest_atom=float(atoms.max(initial=0)) / len(success),
        hopeless=float((success >= CAP).mean()),
        groups=[_describe_group(*pair, one, tau) for pair in zip(curves, grouped.words, strict=True)],
        saved=_compute_saved(curves, shares, tau),
        saved_interval=(low, high),
    )


def _find_common_threshold(curves: Sequence[GroupCurves], shares: FloatArray, tau: float) -> float:
    """Return the threshold that covers the target over all prompts."""
    weights = np.concatenate(
        [np.full(len(c.success), w / len(c.success)) for c, w in zip(curves, shares, strict=True)]
    )
    return find_threshold(np.concatenate([curve.success for curve in curves]), weights, tau)


def _compute_saved(curves: Sequence[GroupCurves], shares: FloatArray, tau: float) -> float:
    """Return E|C| of one threshold minus that of the oracle."""
    one = _find_common_threshold(curves, shares, tau)
    saved = [curve.compute_size(one) - curve.compute_size(curve.find_quantile(tau)) for curve in curves]
    return float(shares @ np.array(saved))


def _describe_group(curve: GroupCurves, words: str, one: float, tau: float) -> RecordedGroup:
    own = curve.find_quantile(tau)
    covered, own_covered = curve.compute_coverage(one), curve.compute_coverage(own)
    marginal_size, oracle_size = curve.compute_size(one), curve.compute_size(own)
    return RecordedGroup(
        words=words,
        n=len(curve.success),
        attainable=curve.compute_coverage(CAP),
        marginal_coverage=covered,
        oracle_coverage=own_covered,
        marginal_size=marginal_size,
        oracle_size=oracle_size,
        price=(marginal_size - oracle_size) / (covered - own_covered) if covered != own_covered else None,
    )


def _write_account(found: RecordedEfficiency) -> Iterator[str]:
    easy, hard = found.groups[0], found.groups[-1]
    low, high = found.saved_interval
    direction = "more" if found.saved < 0.0 else "fewer"
    ends = sorted((abs(low), abs(high)))
    sure = f"{ends[0]:.2f} to {ends[1]:.2f}" if low > 0.0 or high < 0.0 else "within chance"
    yield (
        f"(1) fails: {100 * found.hopeless:.1f} % of prompts have no correct candidate, so that F_t ends "
        f"below 1; the largest atom of success scores holds {100 * found.largest_atom:.1f} %."
    )
    yield (
        f"With the target {float(compute_tau(found.alpha)):g} in every group, sets hold "
        f"{abs(found.saved):.2f} {found.counted} {direction} ({sure}) than under one threshold for all."
    )
    yield (
        f"Under one threshold, coverage is {100 * easy.marginal_coverage:.0f} % in the easiest "
        f"group and {100 * hard.marginal_coverage:.0f} % in the hardest. Moving to the target "
        f"saves {easy.marginal_size - easy.oracle_size:.2f} {found.counted} a prompt in the "
        f"easiest group; moving to {100 * hard.oracle_coverage:.0f} % in the hardest, the closest "
        f"attainable coverage, costs {hard.oracle_size - hard.marginal_size:.2f}."
    )
    if easy.price is not None and hard.price is not None:
        yield (
            f"Ten points of coverage are worth {easy.price / 10:.2f} {found.counted} in the easiest group "
            f"and {hard.price / 10:.2f} in the hardest."
        )

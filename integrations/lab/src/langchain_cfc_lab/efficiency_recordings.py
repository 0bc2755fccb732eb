"""The assumptions of the paper's efficiency analysis, checked on labelled records.

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

*Intervals.* The bootstrap over the prompts of each group, with the groups held fixed, gives 95 % percentile
intervals. An assumption is q inequalities, theta_j >= 0. With se_j the bootstrap's standard deviation of
theta_j and c the 95 % quantile of max_j |theta*_j - theta_j| / se_j, the intervals theta_j +- c se_j hold
simultaneously with confidence 95 %, approximately; an inequality is violated if its interval lies below 0 and
shown if it lies above. (Romano and Wolf 2005, "Exact and approximate stepdown methods for multiple hypothesis
testing", in its single-step form.) An estimate that is the same in all resamples counts as neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from pydantic import computed_field

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.files import find_provenance
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import CAP, Level, compute_tau, format_alpha
from langchain_cfc_lab.compare import GROUPS
from langchain_cfc_lab.methods import Pool
from langchain_cfc_lab.metrics import make_groups

RESAMPLES = 400
CONFIDENCE = 0.95
_SHOWN_COVERAGES = np.linspace(0.1, 0.9, 9)
# Number of thresholds at which curves are compared; on a finer grid the differences are noise.
COMPARED_THRESHOLDS = 9
_CHECKED_COVERAGES = np.linspace(0.2, 0.8, 4)
_MIN_GROUP_SIZE = 20
STATEMENTS = {
    "2": "F_k(l) does not rise with difficulty",
    "3": "the cost of coverage is convex in every group",
    "4": "coverage costs no more on harder prompts",
}


class AssumptionCheck(ReportData):
    """Numbers of inequalities of one assumption that the records show, and that they violate."""

    assumption: Literal["2", "3", "4"]
    statement: str
    inequalities: int
    shown: int
    violated: int

    @property
    def verdict(self) -> str:
        """The conclusion in words: `violated`, `holds` or `not refuted`."""
        if self.violated:
            return "violated"
        return "holds" if self.shown == self.inequalities else "not refuted"


class CostPoint(ReportData):
    """The cost of a coverage in a group: the mean number of answers in a set, with its interval."""

    coverage: float
    size: float
    interval: tuple[float, float]


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
        curve: Cost of coverage, at coverages within reach.
    """

    words: str
    n: int
    attainable: float
    marginal_coverage: float
    oracle_coverage: float
    marginal_size: float
    oracle_size: float
    price: float | None
    curve: list[CostPoint]


class RecordedEfficiency(ReportData):
    """Results of the efficiency analysis on records.

    Attributes:
        alpha: Error level as decimal text.
        counted: Unit of set sizes: `distinct answers`, or `candidates` if answers are unknown.
        prompts: Number of prompts, one from each cluster.
        largest_atom: Largest share of prompts with the same success score, not counting hopeless prompts.
        hopeless: Share of prompts without a correct candidate.
        groups: The groups from easy to hard.
        checks: Checks of assumptions 2 to 4.
        saved: E|C| of one threshold minus that of the oracle; negative if the oracle's sets are larger.
        saved_interval: 95 % interval of `saved`.
    """

    alpha: str
    counted: Literal["distinct answers", "candidates"]
    prompts: int
    largest_atom: float
    hopeless: float
    groups: list[RecordedGroup]
    checks: list[AssumptionCheck]
    saved: float
    saved_interval: tuple[float, float]

    @computed_field  # type: ignore[prop-decorator] # mypy knows no decorated properties
    @property
    def account(self) -> list[str]:
        """What was found, in words."""
        return list(_write_account(self))


@dataclass(frozen=True, eq=False)
class _GroupCurves:
    """Estimated curves of one group: row 0 from its prompts, the other B rows from resamples."""

    success: FloatArray  # (n,) success scores, ascending
    covered: FloatArray  # (1 + B, n) F at these success scores
    levels: FloatArray  # (L,) entry levels of all answers, ascending
    entered: FloatArray  # (1 + B, L) mean number of answers in a set at these levels

    @classmethod
    def estimate(cls, success: FloatArray, levels: FloatArray, weights: FloatArray) -> _GroupCurves:
        """Estimate the curves from (n,) success scores, (n, M) levels, and (1 + B, n) weights of sum 1."""
        order = np.argsort(success, kind="stable")
        rows, slots = np.nonzero(np.isfinite(levels))
        ascending = np.argsort(levels[rows, slots], kind="stable")
        return cls(
            success[order],
            np.cumsum(weights[:, order], axis=1),
            levels[rows, slots][ascending],
            np.cumsum(weights[:, rows[ascending]], axis=1),
        )

    @property
    def attainable(self) -> FloatArray:
        """(1 + B,) share of prompts with a correct candidate."""
        return self.compute_coverage(np.full(len(self.covered), np.nextafter(CAP, 0.0)))

    def compute_coverage(self, threshold: FloatArray) -> FloatArray:
        """Return F at (1 + B,) thresholds, one per row."""
        return _look_up(self.success, self.covered, threshold)

    def compute_size(self, threshold: FloatArray) -> FloatArray:
        """Return the mean number of answers in a set at (1 + B,) thresholds, one per row."""
        return _look_up(self.levels, self.entered, threshold)

    def find_quantile(self, coverage: float) -> FloatArray:
        """Return each row's smallest threshold that reaches a coverage; `CAP` if it is out of reach."""
        reached = self.covered >= coverage - 1e-12
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), len(self.success) - 1)
        return np.where(reached.any(axis=1), self.success[first], CAP)

    def compute_cost(self, coverage: float) -> FloatArray:
        """Return the cost c of a coverage, for each row."""
        return self.compute_size(self.find_quantile(coverage))


def _look_up(at: FloatArray, values: FloatArray, threshold: FloatArray) -> FloatArray:
    """Return each row's value at the last point of `at` that is <= its threshold; 0 if there is none."""
    place = np.searchsorted(at, threshold, side="right")
    padded = np.concatenate([np.zeros((len(values), 1)), values], axis=1)
    return np.asarray(padded[np.arange(len(values)), place], dtype=np.float64)


def analyse_recording(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    alpha: Level = "0.2",
    groups: str = GROUPS,
    seed: int = 0,
    provenance: Provenance | None = None,
) -> RecordedEfficiency:
    """Estimate the paper's F_t, G_t and C_t on labelled records, and check its assumptions.

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
    table = tabulate(records, provenance=find_provenance(records, provenance))
    alpha = format_alpha(alpha)
    # The same prompts as in `compare`: one from each cluster.
    pool = Pool(table.take(make_split_plan(str(seed), fit=0.0, test=0.0).select_one_per_cluster(table)))
    with name_records_in_errors(pool.labelled.ids):
        grouped = make_groups(groups, pool.draws, pool.draws)
    distinct = pool.draws.answer_codes is not None
    rule = "unique(all)" if distinct else "all"
    success, levels = pool.compute_success_scores(rule), pool.compute_levels(rule)
    rng = np.random.default_rng([seed, 3])
    curves = []
    for place, words in enumerate(grouped.words):
        rows = np.flatnonzero(grouped.member[:, place])
        if len(rows) < _MIN_GROUP_SIZE:
            msg = (
                f"the group {words!r} has {len(rows)} prompts; use fewer groups, each of at least "
                f"{_MIN_GROUP_SIZE}"
            )
            raise InputError(msg)
        resampled = rng.multinomial(len(rows), np.full(len(rows), 1.0 / len(rows)), RESAMPLES) / len(rows)
        weights = np.concatenate([np.full((1, len(rows)), 1.0 / len(rows)), resampled])
        curves.append(_GroupCurves.estimate(success[rows], levels[rows], weights))
    shares = grouped.sizes / grouped.sizes.sum()
    target = float(compute_tau(alpha))
    one = _find_common_threshold(curves, shares, target)
    described = [_describe_group(*pair, one, target) for pair in zip(curves, grouped.words, strict=True)]
    saved = shares @ np.array([curve.compute_size(one) - curve.compute_cost(target) for curve in curves])
    atoms = np.unique(success[success < CAP], return_counts=True)[1]
    return RecordedEfficiency(
        alpha=alpha,
        counted="distinct answers" if distinct else "candidates",
        prompts=len(success),
        largest_atom=float(atoms.max(initial=0)) / len(success),
        hopeless=float((success >= CAP).mean()),
        groups=described,
        checks=_check_assumptions(curves),
        saved=float(saved[0]),
        saved_interval=_make_interval(saved),
    )


def _find_common_threshold(curves: list[_GroupCurves], shares: FloatArray, target: float) -> FloatArray:
    """Return the (1 + B,) thresholds, one per row, that cover the target over all prompts."""
    at = np.unique(np.concatenate([curve.success for curve in curves]))
    total = np.zeros((len(curves[0].covered), len(at)))
    for share, curve in zip(shares, curves, strict=True):
        place = np.searchsorted(curve.success, at, side="right")
        total += share * np.concatenate([np.zeros((len(total), 1)), curve.covered], axis=1)[:, place]
    thresholds: FloatArray = at[np.argmax(total >= target - 1e-12, axis=1)]
    return thresholds


def _describe_group(curve: _GroupCurves, words: str, one: FloatArray, target: float) -> RecordedGroup:
    own = curve.find_quantile(target)
    marginal_size, oracle_size = curve.compute_size(one), curve.compute_size(own)
    # A threshold at the cap accepts everything, and covers no more than is attainable.
    covered, own_covered = (
        np.minimum(curve.compute_coverage(threshold), curve.attainable) for threshold in (one, own)
    )
    difference = float(covered[0] - own_covered[0])
    return RecordedGroup(
        words=words,
        n=len(curve.success),
        attainable=float(curve.attainable[0]),
        marginal_coverage=float(covered[0]),
        oracle_coverage=float(own_covered[0]),
        marginal_size=float(marginal_size[0]),
        oracle_size=float(oracle_size[0]),
        price=float(marginal_size[0] - oracle_size[0]) / difference if difference else None,
        curve=[
            CostPoint(coverage=round(u, 9), size=float(cost[0]), interval=_make_interval(cost))
            for u in _list_reachable(curve, _SHOWN_COVERAGES)
            for cost in [curve.compute_cost(u)]
        ],
    )


def _list_reachable(curve: _GroupCurves, coverages: FloatArray) -> list[float]:
    """Return the coverages that are within the group's reach with 97.5 % confidence."""
    return [float(u) for u in coverages if u <= np.quantile(curve.attainable, 0.025)]


def _make_interval(rows: FloatArray) -> tuple[float, float]:
    """Return the percentile interval of an estimate's (1 + B,) values, of which the first is the estimate."""
    low, high = np.quantile(rows[1:], [(1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0])
    return float(low), float(high)


def _check_assumptions(curves: list[_GroupCurves]) -> list[AssumptionCheck]:
    """Check assumptions 2 to 4 over pairs of groups and coverages within reach."""
    pooled = np.concatenate([curve.success for curve in curves])
    at = np.quantile(pooled[pooled < CAP], np.arange(1, COMPARED_THRESHOLDS + 1) / (COMPARED_THRESHOLDS + 1))
    rows = len(curves[0].covered)
    coverage = np.array([[curve.compute_coverage(np.full(rows, one)) for one in at] for curve in curves])
    costs = [
        np.array([curve.compute_cost(u) for u in _list_reachable(curve, _CHECKED_COVERAGES)]).reshape(
            -1, rows
        )
        for curve in curves
    ]
    steps = [np.diff(cost, axis=0) for cost in costs]
    differences = [easy[: len(hard)] - hard[: len(easy)] for easy, hard in combinations(steps, 2)]
    inequalities = {
        "2": np.concatenate([easy - hard for easy, hard in combinations(coverage, 2)]),
        "3": np.concatenate([np.diff(step, axis=0).reshape(-1, rows) for step in steps]),
        "4": np.concatenate(differences),
    }
    return [
        AssumptionCheck.model_validate(
            {"assumption": number, "statement": STATEMENTS[number], **count_inequalities(theta)}
        )
        for number, theta in inequalities.items()
    ]


def count_inequalities(theta: FloatArray) -> dict[str, int]:
    """Count the inequalities theta >= 0 that simultaneous bootstrap intervals show or find violated.

    Args:
        theta: (q, 1 + B) estimates: column 0 from the prompts, the others from B resamples.

    Returns:
        The counts `inequalities`, `shown` and `violated`.
    """
    value, resampled = theta[:, 0], theta[:, 1:]
    spread = resampled.std(axis=1)
    varies = spread > 1e-12  # noqa: PLR2004 - round-off
    value, resampled, spread = value[varies], resampled[varies], spread[varies]
    counts = {"inequalities": len(theta), "shown": 0, "violated": 0}
    if len(value):
        largest = np.abs((resampled - value[:, None]) / spread[:, None]).max(axis=0)
        half = np.quantile(largest, CONFIDENCE) * spread
        counts |= {"shown": int((value > half).sum()), "violated": int((value < -half).sum())}
    return counts


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
    for check in found.checks:
        yield (
            f"({check.assumption}) {check.statement}: {check.verdict} ({check.inequalities} inequalities: "
            f"{check.shown} shown, {check.violated} violated)."
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

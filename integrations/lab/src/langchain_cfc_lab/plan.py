"""Plan how many labelled prompts a calibration needs, from a pilot or from assumptions."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc.calibration.checks import compute_smallest_size
from langchain_cfc.candidates import LabelledBatch, check_unit
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.features import FeatureMap
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import BoolArray
from langchain_cfc.support.suggestions import suggest_share
from langchain_cfc.support.text import format_percent, join_names
from langchain_cfc.thresholds import Level, compute_conformal_rank, compute_tau, format_alpha
from langchain_cfc_lab.bot_promises import BotPromiseFigures

Verdict: TypeAlias = Literal["attainable", "uncertain", "out of reach"]
ALL_PROMPTS = "all prompts"
# For smaller gaps to the target, sizes run into the millions.
_MIN_GAP = 0.001


class GroupPlan(ReportData):
    """Requirements of a target in one group of prompts; a cluster counts as one prompt.

    Attributes:
        name: `all prompts`, or the group's name as in calibration and evaluation, such as
            `group(topic)=capital`.
        share: Share of the prompts that belong to the group, in (0, 1].
        pilot_size: Number of its pilot prompts; None for stated assumptions.
        attainable: Share of its prompts with a correct candidate among n: the estimate, or the assumption.
        attainable_ci: Two-sided 95 % Clopper-Pearson interval of `attainable`; None for stated assumptions.
        smallest_alpha_expected: 1 - attainable; by the estimate, error levels above it are attainable.
        smallest_alpha_certain: 1 - the one-sided lower Clopper-Pearson bound; error levels above it are
            attainable with 95 % confidence. None for stated assumptions.
        verdict: `attainable` (the one-sided 95 % lower bound exceeds the target, so alpha >
            smallest_alpha_certain), `out of reach` (the upper bound is below the target) or `uncertain`. An
            assumption counts as both bounds; at the target itself it is out of reach.
        smallest_n: Smallest number of candidates whose estimate exceeds the target; None if no recorded
            number does, and for stated assumptions.
        minimum_calibration: Smallest number of its calibration prompts at which a threshold below the cap is
            to be expected. This and the following fields are None if the estimate does not exceed the target.
        recommended_calibration: For this number and every larger one, with probability 1 - delta, coverage
            given the calibration prompts is at least target - slack; likewise the threshold is below the cap,
            unless the verdict is `uncertain`.
        certifiable_chance: Probability that its threshold stays below the cap, so that its prompts are
            answered, with the recommended number of calibration prompts and if the estimate is right.
        prompts_needed: Number of labelled prompts of all groups that on average gives this group the
            recommended number of calibration prompts.
    """

    name: str
    share: float
    pilot_size: int | None
    attainable: float
    attainable_ci: tuple[float, float] | None
    smallest_alpha_expected: float
    smallest_alpha_certain: float | None
    verdict: Verdict
    smallest_n: int | None
    minimum_calibration: int | None
    recommended_calibration: int | None
    certifiable_chance: float | None
    prompts_needed: int | None


class AttainableAt(ReportData):
    """Attainable coverage for one number of candidates.

    Attributes:
        n: Number of candidates per prompt.
        attainable: Estimated share of all prompts with a correct candidate among n.
        groups: The same share for each group, by name.
    """

    n: int
    attainable: float
    groups: dict[str, float]


class Plan(ReportData):
    """Number of labelled prompts that a target needs, their cost, and whether the target is within reach.

    Attributes:
        alpha: Error level.
        target_coverage: 1 - alpha.
        n: Planned number of candidates per prompt.
        slack: Amount by which coverage, given the calibration prompts, may fall short of the target.
        delta: Probability with which it may fall shorter.
        groups: All prompts first, then the groups.
        by_n: Attainable coverage by number of candidates; empty for stated assumptions.
        labelled_prompts: The maximum of `prompts_needed` over all prompts and the groups; groups that by the
            estimate cannot reach the target are ignored. None if all prompts together cannot reach it.
        expected_cost: Cost of labelling that number, in the unit of the given costs; None likewise.
        advice: Recommendations, in sentences.
        promises: What a bot would answer under each of its promises; see `compare_bot_promises`.
    """

    alpha: float
    target_coverage: float
    n: int
    slack: float
    delta: float
    groups: list[GroupPlan]
    by_n: list[AttainableAt]
    labelled_prompts: int | None
    expected_cost: float | None
    advice: list[str]
    promises: tuple[BotPromiseFigures, ...] = ()


def estimate_pass_at(correct: BoolArray, k: int) -> Fraction:
    """Return an unbiased estimate of attainable coverage with k candidates, from (N, m) labels.

    N >= 1 and m >= k >= 1. A random choice of k candidates misses all c correct ones among a prompt's m with
    probability C(m - c, k) / C(m, k); the estimate is one minus the mean of that over prompts ("pass@k", Chen
    et al. 2021, "Evaluating large language models trained on code", equation 1), as an exact fraction.

    Examples:
        >>> correct = np.array([[True, False, False], [False, False, False]])
        >>> [str(estimate_pass_at(correct, k)) for k in (1, 2, 3)]
        ['1/6', '1/3', '1/2']
    """
    size, drawn = correct.shape
    prompts_with = np.bincount(correct.sum(axis=1), minlength=drawn + 1).tolist()
    missed = sum(prompts * math.comb(drawn - right, k) for right, prompts in enumerate(prompts_with))
    return 1 - Fraction(missed, size * math.comb(drawn, k))


def find_fewest_candidates(correct: BoolArray, tau: Fraction) -> int | None:
    """Return the fewest candidates whose estimated attainable coverage exceeds tau; None if m do not."""
    numbers = range(1, correct.shape[1] + 1)
    place = bisect_right(numbers, tau, key=lambda k: estimate_pass_at(correct, k))
    return numbers[place] if place < len(numbers) else None


def compute_chance_below(size: int, tau: Fraction, coverage: float) -> float:
    """Return the probability that a threshold calibrated on N prompts covers less than a share x.

    N is `size` and x is `coverage`. Given the calibration set, the order statistic of rank k = ceil((N + 1)
    tau) covers a share B ~ Beta(k, N + 1 - k) of all prompts (Vovk 2012, "Conditional validity of inductive
    conformal predictors", for continuous scores; with ties it covers at least as much). B < x means that at
    least k of N calibration prompts fall into a set of probability x, so the result is the binomial tail
    P(Binomial(N, x) >= k), and 0 if N is so small that k = N + 1. If x is the attainable coverage, it is the
    probability that the threshold stays below the cap.

    Examples:
        >>> round(compute_chance_below(100, Fraction(9, 10), 0.87), 4)
        0.1477
    """
    rank = compute_conformal_rank(size, tau)
    if rank > size:
        return 0.0
    from scipy.special import betainc  # late: SciPy takes long to import

    return float(betainc(rank, size + 1 - rank, min(1.0, max(0.0, coverage))))


def find_settled_size(tau: Fraction, coverage: Fraction, delta: float) -> int:
    """Return the number of calibration prompts from which on the threshold settles on one side of a coverage.

    For this number and every larger one, the probability of that side is at least 1 - delta. If `coverage` is
    below the target, such as tau - slack, the threshold then covers at least as much; if it is above, such as
    the attainable coverage, the threshold stays below the cap. Smaller numbers may suffice by luck, because
    the rank is rounded up (for 0.87 at tau = 0.9, 17 suffices, 19 to 97 do not, and 169 still does not), but
    they are of no use, since the hash split decides the size. The time grows with 1 / (coverage - tau)^2.

    Examples:
        >>> tau = Fraction("0.9")
        >>> [find_settled_size(tau, Fraction(coverage), 0.1) for coverage in ("0.87", "0.93", "1")]
        [170, 199, 9]
    """
    gap, share = float(abs(coverage - tau)), float(coverage)
    # Hoeffding (1963): N draws of probability `coverage` deviate by more than gap - 1/N from it with
    # probability at most exp(-2 N (gap - 1/N)^2), so that no N above this one can fail.
    size = math.ceil(math.log(1.0 / delta) / (2.0 * gap**2) + 2.0 / gap)

    def is_settled(size: int) -> bool:
        below = compute_chance_below(size, tau, share)
        return (below if coverage < tau else 1.0 - below) <= delta

    while size > 0 and is_settled(size):
        size -= 1
    return size + 1


def _list_advice(plan: Plan) -> Iterator[str]:
    overall, *others = plan.groups
    for group in plan.groups:
        flagged = "its prompts would be flagged as not certifiable"
        then = "calibration would refuse it" if group is overall else flagged
        attained = f"n = {plan.n} candidates attain {format_percent(group.attainable, '.3g')} coverage"
        chance = group.certifiable_chance
        if group.verdict == "out of reach":
            problem = f"is out of reach, however many prompts are labelled, and {then}: {attained}"
        elif chance is None:
            problem = f"is estimated to be out of reach, and {then}: {attained}"
        elif chance < 1.0 - plan.delta:
            problem = (
                f"is borderline: {attained}. With {group.recommended_calibration} calibration prompts it is "
                f"missed with probability {1.0 - chance:.2f}, and {then}"
            )
        else:
            continue
        yield f"{group.name}: alpha = {plan.alpha:g} {problem}. {_describe_ways_out(plan, group)}"
    if plan.labelled_prompts is not None and plan.labelled_prompts != overall.prompts_needed:
        largest = max(others, key=lambda group: group.prompts_needed or 0)
        yield (
            f"{largest.name} decides how many prompts to label: it is "
            f"{format_percent(largest.share, '.3g')} of them, so it needs {largest.prompts_needed} in all; "
            f"without groups {overall.prompts_needed} would be enough. Merge rare groups to need fewer."
        )
    if overall.pilot_size is None:
        yield "The attainable coverage is an assumption; a few dozen labelled prompts would measure it."
    elif uncertain := [group.name for group in plan.groups if group.verdict == "uncertain"]:
        yield (
            f"The pilot of {overall.pilot_size} prompts is too small to tell whether alpha = {plan.alpha:g} "
            f"is within reach for {join_names(uncertain)}: label more."
        )


def _describe_ways_out(plan: Plan, group: GroupPlan) -> str:
    certain = group.smallest_alpha_certain
    alpha = group.smallest_alpha_expected if certain is None else certain
    more = "Draw more candidates"
    if group.smallest_n is not None and group.smallest_n > plan.n:
        more += f" (n = {group.smallest_n} is estimated to exceed the target)"
    # Rounded up, because a smaller alpha is not attainable; 1000 * 0.07 is 70.00000000000001.
    larger = math.ceil(round(1000 * alpha, 6)) / 1000
    return f"{more}, improve the model, or choose alpha above {larger:g}."


@dataclass(frozen=True)
class _GroupFacts:
    """What is known about a group, in exact fractions so that sizes at a boundary are right."""

    name: str
    share: Fraction  # share of the prompts that belong to the group
    attainable: Fraction  # attainable coverage of the group
    pilot_size: int | None = None  # number of its pilot prompts; None for an assumption
    smallest_n: int | None = None  # fewest candidates that exceed the target; None if unknown


def plan_calibration(
    pilot: LabelledBatch | None = None,
    *,
    alpha: Level,
    group: str | None = None,
    n: int | None = None,
    attainable: float | None = None,
    slack: float = 0.03,
    delta: float = 0.1,
    fit_fraction: float = 0.2,
    test_fraction: float = 0.2,
    cost_per_candidate: float = 0.0,
    cost_per_prompt: float = 0.0,
) -> Plan:
    """Plan a calibration from a few labelled records, or from an assumption in their place.

    Coverage counts as attainable for a prompt with any correct candidate, which is exact for the set rules
    `all`, `rank` and `unique` of them, and optimistic for `best_prefix`. As in calibration, one hash-chosen
    prompt of each cluster counts. Bounds hold for each group separately, not for all simultaneously; for an n
    below the recorded one they are approximate, and wider than necessary. Do not calibrate on the pilot's
    prompts: alpha and n would then be chosen from calibration data, not fixed in advance.

    Args:
        pilot: Prompts with m candidates each, such as `tabulate(read_records(path))`. Without a pilot, the
            plan has neither intervals nor groups.
        alpha: Error level, 0 < alpha < 1.
        group: A metadata key; the plan has a group for each of its values, as a calibration by `group(KEY)`.
        n: Planned number of candidates per prompt, 1 <= n <= m; m by default.
        attainable: Without a pilot, the assumed share of prompts with a correct candidate among n, in [0, 1].
        slack: Amount by which coverage, given the calibration prompts, may fall short of the target, in
            [0.001, 1).
        delta: Probability over calibration sets with which it may fall shorter, in (0, 1).
        fit_fraction: Share of the prompts not held out that will fit the feature map, in [0, 1).
        test_fraction: Share of all prompts that will be held out for evaluation, in [0, 1).
        cost_per_candidate: Cost of drawing, scoring and labelling one candidate, in any unit.
        cost_per_prompt: Cost of one prompt without its candidates, such as writing a reference answer.

    Returns:
        The plan.

    Raises:
        InputError: If there are no prompts, they have weights, or an argument is out of range.
        FeatureError: If a prompt's metadata lacks the key, or holds a number with decimals under it.

    Examples:
        >>> import numpy as np
        >>> from langchain_cfc.candidates import CandidateBatch
        >>> correct = np.arange(60)[:, np.newaxis] >= np.array([6, 30])  # 54 of 60 prompts have a correct one
        >>> draws = CandidateBatch.from_arrays(np.full((60, 2), 0.5))
        >>> pilot = LabelledBatch(draws, correct, tuple(map(str, range(60))), (None,) * 60)
        >>> plan = plan_calibration(pilot, alpha=0.2, cost_per_candidate=0.01, cost_per_prompt=0.5)
        >>> overall = plan.groups[0]
        >>> overall.verdict, overall.attainable, round(overall.smallest_alpha_certain, 3)
        ('attainable', 0.9, 0.188)
        >>> overall.minimum_calibration, overall.recommended_calibration, plan.labelled_prompts
        (9, 295, 461)
        >>> round(plan.expected_cost, 2), [(one.n, one.attainable) for one in plan.by_n]
        (239.72, [(1, 0.7), (2, 0.9)])
        >>> plan_calibration(alpha=0.1, n=10, attainable=0.95).labelled_prompts
        266
    """
    make_split_plan(0, fit=fit_fraction, test=test_fraction)
    in_range = _MIN_GAP <= slack < 1.0
    _check_argument(in_range, "slack", f"in [{_MIN_GAP}, 1){suggest_share(slack)}", slack)
    _check_argument(0.0 < delta < 1.0, "delta", f"strictly between 0 and 1{suggest_share(delta)}", delta)
    for name, cost in (("cost_per_candidate", cost_per_candidate), ("cost_per_prompt", cost_per_prompt)):
        _check_argument(0.0 <= cost < math.inf, name, "a finite number, at least 0", cost)
    tau, by_n = compute_tau(alpha), list[AttainableAt]()
    if pilot is None:
        if n is None or attainable is None or group is not None:
            msg = "give a pilot file, or state n and attainable without groups"
            raise InputError(msg)
        n, in_range = _check_candidates(n, None), 0.0 <= attainable <= 1.0
        _check_argument(in_range, "attainable", f"in [0, 1]{suggest_share(attainable)}", attainable)
        known = [_GroupFacts(ALL_PROMPTS, Fraction(1), Fraction(str(attainable)))]
    else:
        if attainable is not None:
            msg = "attainable coverage is measured on the pilot: leave out attainable"
            raise InputError(msg)
        if len(pilot) == 0:
            msg = "the pilot is empty: give labelled prompts, or state n and attainable"
            raise InputError(msg)
        check_unit(pilot)
        n = pilot.draws.n if n is None else _check_candidates(n, pilot.draws.n)
        by_group = _group_labels(pilot, group)
        by_n = list(_list_attainable(by_group, pilot.draws.n))
        known = [
            _GroupFacts(
                name,
                Fraction(len(correct), len(by_group[ALL_PROMPTS])),
                estimate_pass_at(correct, n),
                len(correct),
                find_fewest_candidates(correct, tau),
            )
            for name, correct in by_group.items()
        ]
    calibrating = (1 - Fraction(str(test_fraction))) * (1 - Fraction(str(fit_fraction)))
    settled = find_settled_size(tau, tau - Fraction(str(slack)), delta)
    groups = [_plan_group(one, alpha, settled, delta, calibrating) for one in known]
    total = groups[0].prompts_needed and max(one.prompts_needed or 0 for one in groups)
    plan = Plan(
        alpha=float(format_alpha(alpha)),
        target_coverage=float(tau),
        n=n,
        slack=slack,
        delta=delta,
        groups=groups,
        by_n=by_n,
        labelled_prompts=total,
        expected_cost=None if total is None else total * (n * cost_per_candidate + cost_per_prompt),
        advice=[],
    )
    return plan.model_copy(update={"advice": list(_list_advice(plan))})


def _list_attainable(by_group: dict[str, BoolArray], drawn: int) -> Iterator[AttainableAt]:
    """Yield attainable coverage with 1, 2, 3, 5, 10, 20, 30, 50, ... and all candidates."""
    ladder = (digit * 10**power for power in range(len(str(drawn))) for digit in (1, 2, 3, 5))
    for number in (*(number for number in ladder if number < drawn), drawn):
        shares = {name: float(estimate_pass_at(correct, number)) for name, correct in by_group.items()}
        yield AttainableAt(n=number, attainable=shares.pop(ALL_PROMPTS), groups=shares)


def _plan_group(
    known: _GroupFacts, alpha: Level, settled: int, delta: float, calibrating: Fraction
) -> GroupPlan:
    tau, attainable = compute_tau(alpha), float(known.attainable)
    target = float(tau)
    low = high = attainable
    interval = None
    if known.pilot_size is not None:
        reached = float(known.attainable * known.pilot_size)
        # The ends of a 90 % interval are the one-sided 95 % bounds.
        low, high = clopper_pearson(reached, known.pilot_size, 0.90)
        interval = clopper_pearson(reached, known.pilot_size)
    verdict: Verdict = "attainable" if low > target else "out of reach"
    if interval is not None and low <= target <= high:
        verdict = "uncertain"
    minimum = compute_smallest_size(alpha, attainable)
    size = chance = prompts = None
    if minimum is not None:
        size = max(minimum, settled)
        # With this size the threshold is below the cap. An uncertain estimate may lie arbitrarily close to
        # the target, which would make the size arbitrarily large; `certifiable_chance` is reported instead.
        if verdict != "uncertain" and known.attainable - tau >= _MIN_GAP:
            size = max(size, find_settled_size(tau, known.attainable, delta))
        chance = compute_chance_below(size, tau, attainable)
        prompts = math.ceil(size / (known.share * calibrating))
    return GroupPlan(
        name=known.name,
        share=float(known.share),
        pilot_size=known.pilot_size,
        attainable=attainable,
        attainable_ci=interval,
        smallest_alpha_expected=float(1 - known.attainable),
        smallest_alpha_certain=None if interval is None else 1.0 - low,
        verdict=verdict,
        smallest_n=known.smallest_n,
        minimum_calibration=minimum,
        recommended_calibration=size,
        certifiable_chance=chance,
        prompts_needed=prompts,
    )


def _group_labels(labelled: LabelledBatch, group: str | None) -> dict[str, BoolArray]:
    """Return the (N_g, m) labels of all prompts and of each group, by name, with one prompt per cluster."""
    independent = labelled.take(make_split_plan(0, fit=0.0, test=0.0).select_one_per_cluster(labelled))
    parts = {ALL_PROMPTS: independent.correct}
    if group is not None:
        # Groups and their names come from the feature map that calibration will use.
        features = FeatureMap.parse(f"group({json.dumps(group, ensure_ascii=False)})").fit(independent.draws)
        values = features.transform(independent.draws)
        parts |= {
            weight.name: independent.correct[weight.compute_values(values) > 0.0]
            for weight in features.list_guaranteed_weights()[1:]
        }
    return parts


def _check_candidates(value: int, most: int | None) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    expected = ", at least 1" if most is None else f" in 1 ... {most}, as recorded"
    _check_argument(whole and 1 <= value <= (most or value), "n", f"a whole number{expected}", value)
    return int(value)


def _check_argument(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        msg = f"{name} is {value!r}; expected {expected}"
        raise InputError(msg)

"""`plan_from_pilot` and `plan_from_assumptions`: two ways to know a model, one plan."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from langchain_cfc._arrays import BoolArray
from langchain_cfc.calibration.attainability import smallest_size
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.draws import LabelledDraws, check_alike
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap
from langchain_cfc.planning.advice import advise
from langchain_cfc.planning.estimates import chance_below, fewest_candidates, pass_at, settled_size
from langchain_cfc.planning.model import AttainableAt, GroupPlan, Plan, Verdict
from langchain_cfc.splits import split_plan
from langchain_cfc.thresholds import Level, alpha_text, exact_tau

ALL = "all prompts"
# Closer to the target, sizes run into the millions.
_SMALLEST_GAP = 0.001
# Stated shares are rounded by whoever states them.
_ROUNDING = Fraction(1, 100)


@dataclass(frozen=True)
class _Terms:
    """What is asked for, checked.

    Attributes:
        alpha: Error level.
        n: Candidates per prompt.
        slack: By how much coverage may fall short.
        delta: How often it may fall shorter.
        fit: Share of the prompts not held out that fits feature maps.
        test: Share held out.
        cost_per_candidate: Cost of one candidate.
        cost_per_prompt: Cost of one prompt beside its candidates.
    """

    alpha: Level
    n: int
    slack: float
    delta: float
    fit: float
    test: float
    cost_per_candidate: float
    cost_per_prompt: float

    def __post_init__(self) -> None:
        """Refuse what no plan can be made for."""
        alpha_text(self.alpha)
        split_plan(0, fit=self.fit, test=self.test)
        _require(_SMALLEST_GAP <= self.slack < 1.0, "slack", f"in [{_SMALLEST_GAP}, 1)", self.slack)
        _require(0.0 < self.delta < 1.0, "delta", "strictly between 0 and 1", self.delta)
        for name in ("cost_per_candidate", "cost_per_prompt"):
            cost = getattr(self, name)
            _require(0.0 <= cost < math.inf, name, "a finite number, at least 0", cost)

    @property
    def tau(self) -> Fraction:
        """The target coverage."""
        return exact_tau(self.alpha)

    @property
    def calibration_share(self) -> Fraction:
        """The share of the labelled prompts that calibrates."""
        return (1 - Fraction(str(self.test))) * (1 - Fraction(str(self.fit)))


@dataclass(frozen=True)
class _Known:
    """What is known of a group, exact so that sizes at a boundary are right.

    Attributes:
        name: Its name.
        share: Share of the prompts that belong to it.
        attainable: Its attainable coverage.
        pilot_size: Number of pilot prompts behind that, None for an assumption.
        smallest_n: Fewest candidates that exceed the target, None if unknown.
    """

    name: str
    share: Fraction
    attainable: Fraction
    pilot_size: int | None = None
    smallest_n: int | None = None

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Two-sided bounds on the attainable coverage; an assumption is its own bounds."""
        if self.pilot_size is None:
            return float(self.attainable), float(self.attainable)
        return clopper_pearson(float(self.attainable * self.pilot_size), self.pilot_size, confidence)


def plan_from_pilot(
    labelled: LabelledDraws,
    *,
    alpha: Level,
    group: str | None = None,
    n: int | None = None,
    n_values: Sequence[int] | None = None,
    slack: float = 0.03,
    delta: float = 0.1,
    fit_fraction: float = 0.2,
    test_fraction: float = 0.2,
    cost_per_candidate: float = 0.0,
    cost_per_prompt: float = 0.0,
) -> Plan:
    """Plan a calibration from a small file of labelled records.

    Coverage counts as attainable for a prompt with any correct candidate, which is exact for the set rules
    `all`, `rank` and `unique` of them and optimistic for `best_prefix`. As in calibration, one hash-chosen
    prompt of each cluster counts. Bounds hold for each group by itself, not for all at once; for an n below
    the recorded one they are approximate, and wider than need be. Calibrate on other prompts than the
    pilot's: alpha and n chosen by looking at calibration data are not fixed in advance.

    Args:
        labelled: The pilot with m candidates per prompt, such as `tabulate(read_records(path))`.
        alpha: Error level, 0 < alpha < 1.
        group: A metadata key; each of its values is planned for as a group, as `group(KEY)` calibrates it.
        n: Candidates per prompt to plan with, 1 <= n <= m; m by default.
        n_values: Candidates per prompt to list in `by_n`, each in 1 ... m; by default 1, 2, 3, 5, 10, 20,
            30, 50, ... and m.
        slack: By how much coverage, given the calibration prompts, may fall short of the target, in
            [0.001, 1).
        delta: How often it may fall shorter, over calibration sets, in (0, 1).
        fit_fraction: Share of the prompts not held out that will fit the feature map, in [0, 1).
        test_fraction: Share of all prompts that will be held out for evaluation, in [0, 1).
        cost_per_candidate: Cost of drawing, scoring and labelling one candidate, in any unit.
        cost_per_prompt: Cost of one prompt beside its candidates, such as writing a reference answer.

    Returns:
        The plan.

    Raises:
        InputError: If there are no prompts, they have weights, or an argument is out of range.
        FeatureError: If a prompt's metadata lacks the key, or holds a number with decimals under it.
        MissingExtraError: If SciPy is not installed.

    >>> import numpy as np
    >>> from langchain_cfc.draws import Draws
    >>> correct = np.arange(60)[:, np.newaxis] >= np.array([6, 30])  # 54 of 60 prompts have a correct one
    >>> draws = Draws.of(np.full((60, 2), 0.5))
    >>> pilot = LabelledDraws(draws, correct, tuple(map(str, range(60))), (None,) * 60)
    >>> plan = plan_from_pilot(pilot, alpha=0.2, cost_per_candidate=0.01, cost_per_prompt=0.5)
    >>> overall = plan.groups[0]
    >>> overall.verdict, overall.attainable, round(overall.smallest_alpha_certain, 3)
    ('attainable', 0.9, 0.188)
    >>> overall.minimum_calibration, overall.recommended_calibration, plan.labelled_prompts
    (9, 295, 461)
    >>> round(plan.expected_cost, 2), [(one.n, one.attainable) for one in plan.by_n]
    (239.72, [(1, 0.7), (2, 0.9)])
    """
    if len(labelled) == 0:
        msg = "a pilot of 0 prompts says nothing: bring labelled prompts, or plan from assumptions"
        raise InputError(msg)
    check_alike(labelled)
    drawn = labelled.draws.n
    n = drawn if n is None else _candidates("n", n, drawn)
    terms = _Terms(alpha, n, slack, delta, fit_fraction, test_fraction, cost_per_candidate, cost_per_prompt)
    numbers = _default_numbers(drawn) if n_values is None else n_values
    numbers = sorted({_candidates("n_values", one, drawn) for one in numbers})
    by_group = _labels_by_group(labelled, group)
    size = len(by_group[ALL])
    known = [
        _Known(
            name,
            Fraction(len(correct), size),
            pass_at(correct, n),
            len(correct),
            fewest_candidates(correct, terms.tau),
        )
        for name, correct in by_group.items()
    ]
    return _plan(terms, known, [_attainable_at(by_group, number) for number in numbers])


def plan_from_assumptions(
    *,
    alpha: Level,
    n: int,
    attainable: float,
    groups: Mapping[str, tuple[float, float]] | None = None,
    slack: float = 0.03,
    delta: float = 0.1,
    fit_fraction: float = 0.2,
    test_fraction: float = 0.2,
    cost_per_candidate: float = 0.0,
    cost_per_prompt: float = 0.0,
) -> Plan:
    """Plan a calibration from what is believed about the model.

    Args:
        alpha: Error level, 0 < alpha < 1.
        n: Candidates per prompt, at least 1.
        attainable: Share of prompts with a correct candidate among n, in [0, 1].
        groups: By name, the share of prompts in (0, 1] and their attainable coverage; no prompt is in two.
        slack: As in `plan_from_pilot`, like all that follows.
        delta: See there.
        fit_fraction: See there.
        test_fraction: See there.
        cost_per_candidate: See there.
        cost_per_prompt: See there.

    Returns:
        The plan, without intervals and without other numbers of candidates.

    Raises:
        InputError: If an argument is out of range, or the groups contradict each other or `attainable`.
        MissingExtraError: If SciPy is not installed.

    >>> plan = plan_from_assumptions(alpha=0.1, n=10, attainable=0.95, groups={"rare": (0.05, 0.97)})
    >>> [(one.name, one.recommended_calibration, one.prompts_needed) for one in plan.groups]
    [('all prompts', 170, 266), ('rare', 170, 5313)]
    """
    n = _candidates("n", n, None)
    terms = _Terms(alpha, n, slack, delta, fit_fraction, test_fraction, cost_per_candidate, cost_per_prompt)
    overall = _Known(ALL, Fraction(1), _exact("attainable", attainable))
    members = [
        _Known(name, _exact(f"share of {name!r}", share), _exact(f"attainable coverage of {name!r}", reached))
        for name, (share, reached) in (groups or {}).items()
    ]
    _check_consistent(overall, members)
    return _plan(terms, [overall, *members], [])


def _plan(terms: _Terms, known: Sequence[_Known], by_n: list[AttainableAt]) -> Plan:
    settled = settled_size(terms.tau, terms.tau - Fraction(str(terms.slack)), terms.delta)
    groups = [_group(terms, one, settled) for one in known]
    possible = groups[0].prompts_needed is not None
    total = max(one.prompts_needed or 0 for one in groups) if possible else None
    each = terms.n * terms.cost_per_candidate + terms.cost_per_prompt
    plan = Plan(
        alpha=float(alpha_text(terms.alpha)),
        target_coverage=float(terms.tau),
        n=terms.n,
        slack=terms.slack,
        delta=terms.delta,
        calibration_share=float(terms.calibration_share),
        groups=groups,
        by_n=by_n,
        labelled_prompts=total,
        expected_cost=None if total is None else total * each,
        advice=[],
    )
    return plan.model_copy(update={"advice": advise(plan)})


def _group(terms: _Terms, known: _Known, settled: int) -> GroupPlan:
    measured = known.pilot_size is not None
    # The ends of a 90 % interval are the one-sided 95 % bounds.
    low, high = known.bounds(0.90)
    verdict = _verdict(terms.tau, low, high, measured=measured)
    attainable = float(known.attainable)
    minimum = smallest_size(terms.alpha, attainable)
    size = chance = prompts = None
    if minimum is not None:
        size = max(minimum, settled, _reaching_size(terms, known, verdict))
        chance = chance_below(size, terms.tau, attainable)
        prompts = math.ceil(size / (known.share * terms.calibration_share))
    return GroupPlan(
        name=known.name,
        share=float(known.share),
        pilot_size=known.pilot_size,
        attainable=attainable,
        attainable_ci=known.bounds(0.95) if measured else None,
        smallest_alpha_expected=float(1 - known.attainable),
        smallest_alpha_certain=1.0 - low if measured else None,
        verdict=verdict,
        smallest_n=known.smallest_n,
        minimum_calibration=minimum,
        recommended_calibration=size,
        certifiable_chance=chance,
        prompts_needed=prompts,
    )


def _reaching_size(terms: _Terms, known: _Known, verdict: Verdict) -> int:
    """Calibration prompts that bring the threshold below the cap; 0 where no number is worth planning for.

    An uncertain estimate may lie as close above the target as chance has it, and the number would be as
    large as chance has it; the chance of an uncertain group is reported instead.
    """
    if verdict == "uncertain" or known.attainable - terms.tau < _SMALLEST_GAP:
        return 0
    return settled_size(terms.tau, known.attainable, terms.delta)


def _verdict(tau: Fraction, low: float, high: float, *, measured: bool) -> Verdict:
    target = float(tau)
    if low > target:
        return "attainable"
    return "uncertain" if measured and high >= target else "out of reach"


def _labels_by_group(labelled: LabelledDraws, group: str | None) -> dict[str, BoolArray]:
    """The (N_g, m) labels of all prompts, then of each group, one prompt per cluster."""
    independent = labelled.take(split_plan(0, fit=0.0, test=0.0).one_per_cluster(labelled))
    parts = {ALL: independent.correct}
    if group is not None:
        # The feature map that will calibrate the groups also tells them apart and names them here.
        features = FeatureMap.parse(f"group({json.dumps(group, ensure_ascii=False)})").fit(independent.draws)
        values = features.transform(independent.draws)
        parts |= {
            weight.name: independent.correct[weight.values(values) > 0.0]
            for weight in features.guaranteed_weights()[1:]
        }
    return parts


def _attainable_at(by_group: Mapping[str, BoolArray], number: int) -> AttainableAt:
    shares = {name: float(pass_at(correct, number)) for name, correct in by_group.items()}
    return AttainableAt(n=number, attainable=shares.pop(ALL), groups=shares)


def _default_numbers(most: int) -> list[int]:
    ladder = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 3, 5))
    return [*(number for number in ladder if number < most), most]


def _check_consistent(overall: _Known, members: Sequence[_Known]) -> None:
    """Refuse groups that cannot be parts of these prompts."""
    empty = [one.name for one in members if one.share == 0 or one.name == ALL]
    if empty:
        msg = f"group {empty[0]!r}: expected a share of prompts above 0 and a name other than {ALL!r}"
        raise InputError(msg)
    total = sum((one.share for one in members), Fraction(0))
    if total > 1 + _ROUNDING:
        msg = f"the groups' shares sum to {float(total):g}; expected at most 1, no prompt being in two groups"
        raise InputError(msg)
    low = sum((one.share * one.attainable for one in members), Fraction(0))
    high = low + 1 - min(total, Fraction(1))
    if not low - _ROUNDING <= overall.attainable <= high + _ROUNDING:
        msg = (
            f"attainable is {float(overall.attainable):g}, but these groups make it {float(low):.3g} to "
            f"{float(high):.3g} for all prompts"
        )
        raise InputError(msg)


def _candidates(name: str, value: int, most: int | None) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if most is None:
        _require(whole and value >= 1, name, "a whole number, at least 1", value)
    else:
        _require(whole and 1 <= value <= most, name, f"a whole number in 1 ... {most}, as recorded", value)
    return int(value)


def _exact(name: str, value: float) -> Fraction:
    _require(0.0 <= value <= 1.0, name, "in [0, 1]", value)
    return Fraction(str(value))


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        msg = f"{name} is {value!r}; expected {expected}"
        raise InputError(msg)

"""The calibration split in numbers, and the rules fitted on it.

Fitting a combination of verifiers: logistic regression of `correct` on their raw outputs.

With standardised raw outputs x_ij of candidate j of prompt i, log-odds z_ij = b + c'x_ij and labels y_ij in
{0, 1}, the fit minimises

    sum_i v_i mean_j [log(1 + exp(z_ij)) - y_ij z_ij] + RIDGE / 2 |c|^2,

where v_i is 1, shared out among the prompts of a cluster. So every prompt weighs the same, and every cluster
like a prompt that stands alone: the promise is about such prompts, one of each cluster, and a conversation of
a hundred turns shall not decide for all others. The intercept is free, which keeps the mean probability equal
to the share of correct candidates.

The penalty is a hundredth of a prompt. It does not shrink what thousands of prompts say, and it keeps
coefficients finite where the outputs separate right from wrong, and unique where two verifiers say the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._internal.optional import require
from langchain_cfc.artifact import AttainableGroup, CalibrationFacts, LevelState, PackedArray, SelfCheck
from langchain_cfc.calibration.checks import attainable_groups
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.calibration.request import Request
from langchain_cfc.candidates import LabelledBatch, list_ids_and_clusters
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.features import FeatureMap, GuaranteedWeight, name_records_in_errors
from langchain_cfc.records import PromptRecord, Provenance, tabulate, tabulate_raw, with_scores
from langchain_cfc.scoring import Combination
from langchain_cfc.splits import Part, SplitPlan, digest_ids
from langchain_cfc.thresholds import WINDOW, ConditionalThreshold, MarginalThreshold, ThresholdRule

# Calibration prompts that a fitted rule is asked, and how much wider its window becomes if it refuses one.
ASKED, WIDER = 1_000, 4
RuleT = TypeVar("RuleT", bound=ThresholdRule[Any])


@dataclass(frozen=True)
class Calibration:
    """The calibration split in numbers.

    Attributes:
        labelled: N labelled prompts.
        feature_map: The fitted map.
        features: (N, d) their features.
        success_scores: (N,) their success scores, `cap` where none can be covered.
        ratios: (N,) how much likelier each is where it is served; None where there is no shift.
        units_of: (M, d) features of the fit split, from which a ridge takes its units; None without one.
        cap: Number above 1.
    """

    labelled: LabelledBatch
    feature_map: FeatureMap
    features: FloatArray
    success_scores: FloatArray
    ratios: FloatArray | None
    units_of: FloatArray | None
    cap: float

    @property
    def reachable(self) -> BoolArray:
        """(N,) whether a threshold below the cap can cover the prompt."""
        return np.asarray(self.success_scores < self.cap, dtype=np.bool_)

    @property
    def weights(self) -> FloatArray | None:
        """(N,) how much each counts; None where all count as one.

        Prompts that were chosen to be labelled with unequal probabilities count for less than one each. A
        prompt to come counts as one, which is the most it could: thresholds never fall as its weight grows,
        so that no promise is broken by that.
        """
        return self.labelled.weights if self.ratios is None else self.ratios

    @property
    def counts(self) -> tuple[float, float]:
        """As how many prompts they count, and as how many those that are reachable."""
        counted = np.ones(len(self.labelled)) if self.labelled.weights is None else self.labelled.weights
        # Sums that do not depend on the order, so that all of them are as many as all.
        return math.fsum(counted), math.fsum(counted[self.reachable])

    @property
    def weightings(self) -> tuple[GuaranteedWeight, ...]:
        """The weightings that the feature map spans and that have a name, the constant first."""
        return self.feature_map.guaranteed_weights()

    @cached_property
    def groups(self) -> list[AttainableGroup]:
        """Attainable coverage of all prompts first, then of every guaranteed weighting."""
        weights = self.labelled.weights
        if self.ratios is not None:
            # In the unit in which they are one on average, sums of them are numbers of prompts again.
            weights = self.ratios / self.ratios.mean()
        return attainable_groups(self.weightings, self.features, self.reachable, weights)


def fitted_map(feature_map: FeatureMap, fit_split: LabelledBatch, calibration: LabelledBatch) -> FeatureMap:
    """The map, fitted on the fit split if it did not come fitted."""
    if feature_map.fitted:
        return feature_map
    if feature_map.needs_fit and len(fit_split) == 0:
        msg = (
            f"features {feature_map.text!r} must be fitted on prompts that calibration never sees, but the "
            "fit split is empty: raise fit_fraction, or bring more records (a cluster is never split, so "
            "many clusters are needed)"
        )
        raise CalibrationError(msg)
    with name_records_in_errors(fit_split.ids):
        fitted = feature_map.fit(fit_split.draws)
    with name_records_in_errors(calibration.ids):
        return fitted.with_categories_of(calibration.draws)


def units(feature_map: FeatureMap, fit_split: LabelledBatch) -> FloatArray:
    """(M, d) features of the fit split, from which a ridge takes its units."""
    if len(fit_split) == 0:
        msg = (
            "a ridge takes its units from prompts that calibration never sees, but the fit split is empty: "
            "raise fit_fraction, or bring more records"
        )
        raise CalibrationError(msg)
    with name_records_in_errors(fit_split.ids):
        return feature_map.transform(fit_split.draws)


def fit_levels(
    data: Calibration, request: Request, alphas: Sequence[str], fair: BoolArray
) -> tuple[list[LevelState], dict[str, PackedArray]]:
    """The fitted rules at every level, and the arrays that they refer to, equal ones stored once."""
    arrays: dict[str, PackedArray] = {}

    def stored(state: Mapping[str, FloatArray]) -> dict[str, str]:
        packed = {key: PackedArray.pack(array) for key, array in state.items()}
        arrays.update({array.name: array for array in packed.values()})
        return {key: array.name for key, array in packed.items()}

    levels = []
    for alpha in alphas:
        effective = None
        if request.stability is not None:
            effective = request.stability.effective_alpha(alpha, len(data.labelled))
        rule = request.threshold_rule(alpha, effective)
        fitted = None if effective == "0" else _fit(rule, data)
        check = None
        if isinstance(fitted, ConditionalThreshold):
            fitted, check = _widened(fitted, data)
        marginal = MarginalThreshold(alpha, request.cap)
        compared = marginal.fit(data.features[fair], data.success_scores[fair]) if fair.any() else None
        levels.append(
            LevelState(
                alpha=alpha,
                rule=stored(_state(fitted, data)),
                marginal=stored(_state(compared, data)),
                effective_alpha=effective,
                slack=_slack(fitted, data),
                self_check=check,
            )
        )
    return levels, arrays


def _fit(rule: RuleT, data: Calibration) -> RuleT:
    if not isinstance(rule, ConditionalThreshold):
        return rule.fit(data.features, data.success_scores)
    return rule.fit(data.features, data.success_scores, data.weights, units_of=data.units_of)


def _widened(fitted: ConditionalThreshold, data: Calibration) -> tuple[ConditionalThreshold, SelfCheck]:
    """A fitted rule that refuses none of its own prompts, as far as a sample tells, and what it answers them.

    Fitting has asked a few of them already and kept what they need; here more are asked, and the window is
    widened until all are answered.
    """
    chosen = np.unique(np.linspace(0, len(data.features) - 1, ASKED).astype(np.int64))
    weights = None if data.ratios is None else data.ratios[chosen]
    while True:
        refused = int(fitted.solve(data.features[chosen], weights).outside.sum())
        if refused == 0 or fitted.window is None:
            break
        wider = WIDER * fitted.window
        fitted = _fit(replace(fitted, window=wider if wider < len(data.features) else None), data)
    kept = len(fitted.state_data()["success_scores"])
    return fitted, SelfCheck(asked=len(chosen), refused=refused, kept=kept)


def _state(fitted: ThresholdRule[Any] | None, data: Calibration) -> dict[str, FloatArray]:
    """The state of a rule; of None that of one that flags every prompt."""
    if fitted is not None:
        return fitted.state_data()
    return {"quantile": np.empty(0), "dimension": np.array([float(data.feature_map.dimension)])}


def _slack(fitted: ThresholdRule[Any] | None, data: Calibration) -> dict[str, float]:
    """By name of a weighting, what a ridge is estimated to cost.

    A category that the fit split lacks has no units: the ridge leaves its column out, with nothing to
    estimate.
    """
    if not isinstance(fitted, ConditionalThreshold) or fitted.ridge == 0.0:
        return {}
    slack = {
        one.name: fitted.ridge_slack(np.array(one.coefficients), data.features, data.weights)
        for one in data.weightings
        if fitted.penalised == "all" or data.units_of is None or one.values(data.units_of).any()
    }
    # The constant pays nothing but round-off where it is left out of the penalty.
    return slack if fitted.penalised == "all" else {**slack, data.weightings[0].name: 0.0}


RIDGE = 0.01
# The largest slope of the objective, per prompt, at which it counts as minimal.
_FLAT = 1e-12
_NEWTON_STEPS = 100


def fit_combination(names: Sequence[str], raw: FloatArray, fit_split: LabelledBatch) -> Combination:
    """Fit a combination of k verifiers."""
    _check_both_kinds(fit_split)
    shares = _weights(fit_split.clusters)
    weights = np.repeat(shares / fit_split.draws.n, fit_split.draws.n)
    outputs = raw.reshape(-1, raw.shape[2])
    centres, scales = _units(names, outputs, weights)
    x = np.column_stack([np.ones(len(outputs)), (outputs - centres) / scales])
    intercept, *coefficients = _minimum(_Logistic(x, fit_split.correct.ravel(), weights)).tolist()
    return Combination(
        names=tuple(names),
        centres=tuple(centres.tolist()),
        scales=tuple(scales.tolist()),
        coefficients=tuple(coefficients),
        intercept=intercept,
    )


def _check_both_kinds(fit_split: LabelledBatch) -> None:
    correct = fit_split.correct
    if correct.size and correct.any() and not correct.all():
        return
    found = "no prompt" if not correct.size else f"no {'wrong' if correct.any() else 'correct'} candidate"
    msg = (
        f"a combination of verifiers is fitted on prompts that calibration never sees, but the fit split "
        f"holds {found}: raise fit_fraction, or bring more records (a cluster is never split, so many "
        "clusters are needed)"
    )
    raise CalibrationError(msg)


def _weights(clusters: Sequence[str | None]) -> FloatArray:
    """(N,) weights of the prompts: 1, shared out among the prompts of a cluster."""
    sizes = Counter(clusters)
    return np.array([1.0 if name is None else 1.0 / sizes[name] for name in clusters])


def _units(names: Sequence[str], outputs: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(k,) means and standard deviations."""
    low, high = outputs.min(axis=0), outputs.max(axis=0)
    # A constant is left alone: the mean of equal numbers may miss them by round-off, which a deviation of the
    # same size would blow up. Its column is zero, and so is its coefficient.
    constant = low == high
    with np.errstate(over="ignore", invalid="ignore"):
        span = np.where(constant, 1.0, high - low)
        shares = (outputs - low) / span
        means = np.average(shares, axis=0, weights=weights)
        deviations = np.sqrt(np.average((shares - means) ** 2, axis=0, weights=weights))
        centres = np.where(constant, low, low + span * means)
        scales = np.where(constant, 1.0, span * deviations)
    unusable = ~(np.isfinite(centres) & np.isfinite(scales) & (scales > 0.0))
    if unusable.any():
        column = int(np.flatnonzero(unusable)[0])
        msg = (
            f"the raw outputs of {names[column]!r} run from {low[column]} to {high[column]}, too far "
            "apart, or too near each other, to be standardised"
        )
        raise InputError(msg)
    return centres, scales


@dataclass(frozen=True)
class _Logistic:
    """The objective above, divided by the number of prompts and clusters.

    Attributes:
        x: (M, k + 1) a constant and the standardised outputs.
        correct: (M,) labels.
        weights: (M,) weights of the candidates.
    """

    x: FloatArray
    correct: BoolArray
    weights: FloatArray

    @property
    def size(self) -> float:
        """The number of prompts, each cluster counting as one."""
        return float(self.weights.sum())

    @property
    def penalties(self) -> FloatArray:
        """(k + 1,) penalties: none on the intercept."""
        return np.array([0.0] + [RIDGE] * (self.x.shape[1] - 1))

    def value(self, theta: FloatArray) -> float:
        """The objective."""
        z = self.x @ theta
        losses = np.logaddexp(0.0, z) - self.correct * z
        return float(self.weights @ losses + self.penalties @ theta**2 / 2.0) / self.size

    def gradient(self, theta: FloatArray) -> FloatArray:
        """(k + 1,) its slope."""
        surprise = _expit(self.x @ theta) - self.correct
        return np.asarray((self.x.T @ (self.weights * surprise) + self.penalties * theta) / self.size)

    def hessian(self, theta: FloatArray) -> FloatArray:
        """(k + 1, k + 1) its curvature."""
        p = _expit(self.x @ theta)
        curvature = (self.x.T * (self.weights * p * (1.0 - p))) @ self.x
        return np.asarray((curvature + np.diag(self.penalties)) / self.size)


def _minimum(objective: _Logistic) -> FloatArray:
    optimize = require("scipy.optimize", "calibrate", "fitting a combination of verifiers")
    found = optimize.minimize(
        objective.value,
        np.zeros(objective.x.shape[1]),
        method="trust-exact",
        jac=objective.gradient,
        hess=objective.hessian,
        options={"gtol": 1e-6, "maxiter": 1000},
    )
    # The solver compares values, which round-off makes equal at a distance of its square root from the
    # minimum. Newton's own steps go by the slope, and reach the last digits.
    theta, slope = np.asarray(found.x, dtype=np.float64), np.inf
    for _ in range(_NEWTON_STEPS):
        gradient = objective.gradient(theta)
        slope = float(np.abs(gradient).max())
        if slope <= _FLAT:
            return theta
        theta = theta - np.linalg.solve(objective.hessian(theta), gradient)
    msg = (
        f"the combination of verifiers could not be fitted: the slope is still {slope:.1e} "
        f"({found.message}); look for outliers among the raw outputs"
    )
    raise CalibrationError(msg)


def _expit(values: FloatArray) -> FloatArray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))


@dataclass(frozen=True)
class Prompts:
    """The labelled prompts of a calibration.

    Attributes:
        plan: What assigns prompts to parts.
        labelled: All of them, scored.
        combination: What made the scores out of several verifiers' raw outputs; None where one gave them.
        weighs: Whether those that calibrate keep their weights, where prompts have any. Of all other parts,
            and of that one otherwise, a fair sample is taken.
    """

    plan: SplitPlan
    labelled: LabelledBatch
    combination: Combination | None
    weighs: bool = False

    @classmethod
    def of(
        cls,
        records: Iterable[PromptRecord] | LabelledBatch,
        combine: Sequence[str] | None,
        plan: SplitPlan,
        *,
        n: int | None,
        provenance: Provenance | None,
        weighs: bool,
    ) -> Prompts:
        """Read records, scored by one verifier or by a combination that the fit split makes."""
        if combine is None:
            return cls(plan, tabulate(records, n=n, provenance=provenance, weighted=True), None, weighs)
        labelled, raw = tabulate_raw(records, combine, n=n, provenance=provenance, weighted=True)
        fit = cls(plan, labelled, None).rows["fit"]
        combination = fit_combination(combine, raw[fit], labelled.take(fit))
        # The raw outputs have done their part, and would be copied with every part of the table.
        scored = replace(with_scores(labelled, combination.score_all(raw)), raw={})
        return cls(plan, scored, combination, weighs)

    @cached_property
    def rows(self) -> dict[Part, IntArray]:
        """Rows of each part that are used, by id: rounding follows the order, and no file's changes a bit."""
        ids = self.labelled.ids
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        fair = self.plan.stays(self.labelled)
        parts = self.plan.rows(self.labelled)
        used = {name: rows if self._weighs(name) else rows[fair[rows]] for name, rows in parts.items()}
        return {name: rows[np.argsort(place[rows])] for name, rows in used.items()}

    def part(self, name: Part) -> LabelledBatch:
        """The prompts of a part."""
        used = self.labelled.take(self.rows[name])
        return used if self._weighs(name) else replace(used, weights=None)

    def _weighs(self, name: Part) -> bool:
        return self.weighs and name == "calibration"

    def calibration(self, within_clusters: str) -> LabelledBatch:
        """The prompts that calibrate: `one` of each cluster, or `all`."""
        if within_clusters not in {"one", "all"}:
            msg = f"within_clusters must be 'one' or 'all', got {within_clusters!r}"
            raise InputError(msg)
        part = self.part("calibration")
        if len(part) == 0:
            msg = (
                "the calibration split is empty: lower fit_fraction, certification_fraction and "
                "test_fraction, or bring more records"
            )
            raise CalibrationError(msg)
        return self.one_per_cluster(part) if within_clusters == "one" else part

    def certification(self) -> LabelledBatch:
        """The prompts of the third split, one of each cluster."""
        part = self.part("certification")
        if len(part) == 0:
            msg = "the split for certificates is empty: raise certification_fraction, or bring more records"
            raise CalibrationError(msg)
        return self.one_per_cluster(part)

    def one_per_cluster(self, prompts: LabelledBatch) -> LabelledBatch:
        """One hash-chosen prompt of each cluster."""
        rows = self.plan.one_per_cluster(prompts)
        return prompts if len(rows) == len(prompts) else prompts.take(rows)

    def facts(
        self,
        data: Calibration,
        config: CalibrationConfig,
        *,
        came_fitted: bool,
        recognised: bool,
    ) -> CalibrationFacts:
        """What an artifact says of them."""
        used = [cluster for cluster in data.labelled.clusters if cluster is not None]
        labelled = self.labelled
        ids = {name: [labelled.ids[row] for row in rows.tolist()] for name, rows in self.rows.items()}
        known: tuple[Part, ...] = ("fit", "calibration")
        if recognised:
            known = (*known, "certification")
        clusters = [labelled.clusters[row] for name in known for row in self.rows[name].tolist()]
        sketched = list_ids_and_clusters([one for name in known for one in ids[name]], clusters)
        return CalibrationFacts(
            size=len(data.labelled),
            sampled=labelled.weights is not None,
            weight=None if data.labelled.weights is None else float(data.labelled.weights.sum()),
            recorded_candidates=labelled.recorded or labelled.draws.n,
            extracted_answers=labelled.extracted,
            map_came_fitted=came_fitted,
            fit_size=len(ids["fit"]),
            held_out_size=len(ids["test"]),
            within_clusters=config.within_clusters,
            exchangeable=len(set(used)) == len(used),
            split=self.plan,
            digests={
                name: digest_ids(members)
                for name, members in ids.items()
                if members or name != "certification"
            },
            sketch=list(self.plan.sketch(sketched)),
            attainable_coverage=float(np.average(data.reachable, weights=data.labelled.weights)),
            groups=data.groups,
            certification_size=len(ids["certification"]),
            window=None if config.window == WINDOW else config.window or 0,
            allow_unattainable=config.allow_unattainable,
            prompt_kinds=None if labelled.prompt_kinds is None else sorted(labelled.prompt_kinds),
        )

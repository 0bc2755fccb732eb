"""The prompts of a calibration, and everything that is fitted on them.

`CalibrationPrompts` splits the labelled prompts, `CalibrationData` holds the calibration split as arrays, and
`fit_levels` fits the threshold rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from langchain_cfc.artifact import (
    AttainableGroup,
    CalibrationFacts,
    LevelState,
    PackedArray,
    SelfCheck,
    check_first_candidates,
    replay_prefixes,
)
from langchain_cfc.calibration.checks import compute_attainable_groups
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.candidates import LabelledBatch, list_ids_and_clusters
from langchain_cfc.errors import CalibrationError
from langchain_cfc.features import FeatureMap, GuaranteedWeight, name_records_in_errors
from langchain_cfc.records import LabelledRecord, Provenance, tabulate
from langchain_cfc.records.splits import Part, SplitPlan, digest_ids
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.support.normalisation import NORMALISATION
from langchain_cfc.thresholds import CAP, ConditionalThreshold, GroupedThreshold

# Number of calibration prompts that test a fitted rule.
SELF_CHECK_SIZE = 1_000
# Factor by which the window of a rule grows if one of them fails.
WINDOW_GROWTH = 4
Rule: TypeAlias = ConditionalThreshold | GroupedThreshold


@dataclass(frozen=True)
class CalibrationData:
    """The prompts of the calibration split, as arrays.

    Attributes:
        labelled: N labelled prompts.
        feature_map: The fitted map.
        features: (N, d) features of these prompts.
        success_scores: (N,) success scores; `cap` if the prompt cannot be covered.
    """

    labelled: LabelledBatch
    feature_map: FeatureMap
    features: FloatArray
    success_scores: FloatArray

    @property
    def reachable(self) -> BoolArray:
        """(N,) whether a threshold below the cap can cover the prompt."""
        return np.asarray(self.success_scores < CAP, dtype=np.bool_)

    @property
    def weights(self) -> FloatArray | None:
        """(N,) weight of each prompt; None if all count as one.

        Prompts that were sampled for labelling with unequal probabilities have weights of at most one. A new
        prompt counts as one, the largest possible weight: thresholds never fall as its weight grows, so the
        guarantee holds.
        """
        return self.labelled.weights

    @property
    def counts(self) -> tuple[float, float]:
        """Total weight of the prompts, and total weight of the reachable ones."""
        counted = np.ones(len(self.labelled)) if self.labelled.weights is None else self.labelled.weights
        # `fsum` does not depend on the order, so both sums agree if all prompts are reachable.
        return math.fsum(counted), math.fsum(counted[self.reachable])

    @property
    def weightings(self) -> tuple[GuaranteedWeight, ...]:
        """The named weightings in the span of the feature map, the constant first."""
        return self.feature_map.list_guaranteed_weights()

    @cached_property
    def groups(self) -> list[AttainableGroup]:
        """Attainable coverage of all prompts, then of every guaranteed weighting."""
        return compute_attainable_groups(self.weightings, self.features, self.reachable, self.weights)


def require_fit_split(fit_split: LabelledBatch, what: str) -> None:
    """Raise a CalibrationError that begins with `what` if the fit split is empty."""
    if len(fit_split) == 0:
        msg = (
            f"{what} prompts that calibration never sees, but the fit split is empty: raise fit_fraction, or "
            "add more records (a cluster is never split, so many clusters are needed)"
        )
        raise CalibrationError(msg)


def fit_feature_map(
    feature_map: FeatureMap, fit_split: LabelledBatch, calibration: LabelledBatch
) -> FeatureMap:
    """Fit a feature map on the fit split, unless it came fitted.

    The categories of calibration prompts are added, since the fit split may miss a rare one (`Group` says why
    that is sound).
    """
    if feature_map.fitted:
        return feature_map
    if feature_map.needs_fit:
        require_fit_split(fit_split, f"features {feature_map.text!r} must be fitted on")
    with name_records_in_errors(fit_split.ids):
        fitted = feature_map.fit(fit_split.draws)
    with name_records_in_errors(calibration.ids):
        return fitted.with_categories_of(calibration.draws)


def fit_levels(
    data: CalibrationData,
    config: CalibrationConfig,
    alphas: Sequence[str],
    fair: BoolArray,
    *,
    delta: str | None = None,
) -> tuple[list[LevelState], dict[str, PackedArray]]:
    """Fit the rules at every level, and return their states with the arrays these refer to.

    Order statistics with confidence fail with probability at most `delta` at each level.

    The one threshold for all prompts, for comparison, supports no weights: it is fitted on the prompts that
    `fair` (N,) marks as a fair sample. If there are none, it flags every prompt.
    """
    arrays: dict[str, PackedArray] = {}

    def store(state: Mapping[str, FloatArray]) -> dict[str, str]:
        packed = {key: PackedArray.pack(array) for key, array in state.items()}
        arrays.update({array.name: array for array in packed.values()})
        return {key: array.name for key, array in packed.items()}

    levels = []
    for alpha in alphas:
        effective = None
        if config.pac is not None:
            effective = config.pac.effective_alpha(alpha, len(data.labelled))
        adaptive = data.feature_map.adaptive_alpha
        stated = None if adaptive is None else adaptive.read_alphas(data.features, alpha)
        stated_levels = () if adaptive is None else adaptive.list_levels(alpha)
        rule = config.make_rule(alpha, effective, stated_levels, delta=delta)
        fitted: Rule | None = None
        check = None
        if isinstance(rule, ConditionalThreshold):
            fitted, check = _widen_window(_fit_rule(rule, data, stated), data, stated)
        elif effective != "0":
            fitted = rule.fit(data.features, data.success_scores)
        alike = data.success_scores[fair] if fair.any() else np.full(1, CAP)
        compared = GroupedThreshold(alpha).fit(np.ones((len(alike), 1)), alike)
        levels.append(
            LevelState(
                alpha=alpha,
                rule=store(_get_state(fitted, data)),
                marginal=store(compared.get_state_data()),
                effective_alpha=effective,
                self_check=check,
            )
        )
    return levels, arrays


def _fit_rule(
    rule: ConditionalThreshold, data: CalibrationData, stated: FloatArray | None
) -> ConditionalThreshold:
    """Fit a conditional rule; `stated` are the (N,) error levels of prompts if these are adaptive."""
    return rule.fit(data.features, data.success_scores, data.weights, alphas=stated)


def _widen_window(
    fitted: ConditionalThreshold, data: CalibrationData, stated: FloatArray | None
) -> tuple[ConditionalThreshold, SelfCheck]:
    """Widen a rule's window until it has a threshold for every prompt in a sample of its own prompts.

    Fitting itself tests only a few prompts and keeps what they need; this tests more.
    """
    chosen = np.unique(np.linspace(0, len(data.features) - 1, SELF_CHECK_SIZE).astype(np.int64))
    alphas = None if stated is None else stated[chosen]
    while True:
        refused = int(fitted.solve(data.features[chosen], alphas=alphas).outside.sum())
        if refused == 0 or fitted.window is None:
            break
        wider = WINDOW_GROWTH * fitted.window
        window = wider if wider < len(data.features) else None
        fitted = _fit_rule(replace(fitted, window=window), data, stated)
    kept = len(fitted.get_state_data()["success_scores"])
    return fitted, SelfCheck(asked=len(chosen), refused=refused, kept=kept)


def _get_state(fitted: Rule | None, data: CalibrationData) -> dict[str, FloatArray]:
    """Return the state of a rule; for None, the state of a rule that flags every prompt."""
    if fitted is not None:
        return fitted.get_state_data()
    return {"quantiles": np.full(data.feature_map.dimension, CAP)}


@dataclass(frozen=True)
class CalibrationPrompts:
    """The labelled prompts of a calibration and their split.

    Attributes:
        plan: The plan that assigns prompts to parts.
        labelled: All prompts.
        uses_weights: Whether the calibration part keeps the weights of its prompts; if not, and in all other
            parts, a fair sample is taken.
    """

    plan: SplitPlan
    labelled: LabelledBatch
    uses_weights: bool

    @classmethod
    def from_records(
        cls,
        records: Iterable[LabelledRecord] | LabelledBatch,
        config: CalibrationConfig,
        plan: SplitPlan,
        provenance: Provenance | None,
    ) -> CalibrationPrompts:
        """Read records, and apply the draw rule to them."""
        rule = config.draw_rule
        labelled = tabulate(
            records,
            provenance=provenance,
            weighted=True,
            shortened=rule is not None,
            claims=True,
        )
        if rule is None:
            check_first_candidates(labelled, provenance)
        else:
            labelled = replay_prefixes(rule, labelled, provenance)
        return cls(plan, labelled, config.uses_weights)

    @cached_property
    def rows(self) -> dict[Part, IntArray]:
        """Rows of each part that are used, sorted by id, so that round-off does not depend on file order."""
        ids = self.labelled.ids
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        fair = self.plan.flag_fair_sample(self.labelled)
        parts = self.plan.list_rows(self.labelled)
        used = {name: rows if self._keeps_weights(name) else rows[fair[rows]] for name, rows in parts.items()}
        return {name: rows[np.argsort(place[rows])] for name, rows in used.items()}

    def get_part(self, name: Part) -> LabelledBatch:
        """Return the prompts of a part."""
        used = self.labelled.take(self.rows[name])
        return used if self._keeps_weights(name) else replace(used, weights=None)

    def _keeps_weights(self, name: Part) -> bool:
        return self.uses_weights and name == "calibration"

    def get_calibration_prompts(self) -> LabelledBatch:
        """Return the prompts that calibrate, one of each cluster."""
        part = self.get_part("calibration")
        if len(part) == 0:
            msg = "the calibration split is empty: lower fit_fraction and test_fraction, or add more records"
            raise CalibrationError(msg)
        return self.select_one_per_cluster(part)

    def count_candidates(self, provenance: Provenance | None) -> int:
        """Return the number of candidates, or of answers with claims, drawn for each prompt."""
        if self.labelled.unit == "answers":
            return self.labelled.draws.n
        return 1 if provenance is None else provenance.n

    def get_labelled_but_test(self) -> LabelledBatch:
        """Return all prompts but those held out for evaluation."""
        rows = self.plan.list_rows(self.labelled)
        return self.labelled.take(np.sort(np.concatenate([rows[one] for one in rows if one != "test"])))

    def get_fit_and_calibration_prompts(self) -> LabelledBatch:
        """Return a fair sample of the prompts of the fit and the calibration split."""
        rows = np.sort(np.concatenate([self.rows["fit"], self.rows["calibration"]]))
        return self.plan.draw_fair_sample(self.labelled.take(rows))

    def get_certification_prompts(self) -> LabelledBatch:
        """Return the prompts of the certification part, one of each cluster."""
        part = self.get_part("certification")
        if len(part) == 0:
            msg = "the split for certificates is empty: add more records"
            raise CalibrationError(msg)
        return self.select_one_per_cluster(part)

    def select_one_per_cluster(self, prompts: LabelledBatch) -> LabelledBatch:
        """Return one hash-chosen prompt of each cluster."""
        rows = self.plan.select_one_per_cluster(prompts)
        return prompts if len(rows) == len(prompts) else prompts.take(rows)

    def make_facts(
        self,
        data: CalibrationData,
        config: CalibrationConfig,
        *,
        provenance: Provenance | None,
        came_fitted: bool,
        needs_answers: bool,
    ) -> CalibrationFacts:
        """Return the facts that an artifact states about its prompts."""
        labelled = self.labelled
        ids = {name: [labelled.ids[row] for row in rows.tolist()] for name, rows in self.rows.items()}
        known: tuple[Part, ...] = ("fit", "calibration", "certification")
        clusters = [labelled.clusters[row] for name in known for row in self.rows[name].tolist()]
        sketched = list_ids_and_clusters([one for name in known for one in ids[name]], clusters)
        return CalibrationFacts(
            size=len(data.labelled),
            sampled=labelled.weights is not None,
            weight=None if data.labelled.weights is None else float(data.labelled.weights.sum()),
            recorded_candidates=labelled.recorded or self.count_candidates(provenance),
            extracted_answers=labelled.extracted,
            normalised=NORMALISATION if needs_answers else None,
            map_came_fitted=came_fitted,
            fit_size=len(ids["fit"]),
            held_out_size=len(ids["test"]),
            split=self.plan,
            digests={
                name: digest_ids(members)
                for name, members in ids.items()
                if members or name != "certification"
            },
            sketch=list(self.plan.compute_sketch(sketched)),
            attainable_coverage=float(np.average(data.reachable, weights=data.labelled.weights)),
            groups=data.groups,
            certification_size=len(ids["certification"]),
            allow_unattainable=config.allow_unattainable,
            prompt_kinds=None if labelled.prompt_kinds is None else sorted(labelled.prompt_kinds),
        )

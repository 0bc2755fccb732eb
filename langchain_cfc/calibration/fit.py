"""The prompts of a calibration, and everything that is fitted on them.

`split_prompts` splits the labelled prompts, `CalibrationData` holds the parts and the calibration part as
arrays, and `fit_levels` fits the threshold rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from langchain_cfc.artifact import (
    AttainableGroup,
    CalibrationFacts,
    LevelState,
    PackedArray,
    make_threshold_rule,
)
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, UnattainableTargetError
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.records import Provenance
from langchain_cfc.records.splits import Part, SplitPlan, digest_ids
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.support.normalisation import NORMALISATION
from langchain_cfc.support.units import UNITS
from langchain_cfc.thresholds import CAP, ConditionalThreshold, GroupedThreshold

# Number of calibration prompts that test a fitted rule.
SELF_CHECK_SIZE = 1_000
# Factor by which the window of a rule grows if one of them fails.
WINDOW_GROWTH = 4


@dataclass(frozen=True)
class CalibrationData:
    """The options and prompts of a calibration, their parts, and the calibration part as arrays.

    Attributes:
        config: The options.
        provenance: Where the prompts come from, if it is known.
        plan: The plan that assigns prompts to parts.
        prompts: All prompts.
        parts: The prompts of each part; see `split_prompts`.
        labelled: The N prompts that calibrate, one of each cluster.
        feature_map: The fitted map.
        features: (N, d) features of these prompts.
        success_scores: (N,) success scores; `cap` if the prompt cannot be covered.
    """

    config: CalibrationConfig
    provenance: Provenance | None
    plan: SplitPlan
    prompts: LabelledBatch
    parts: Mapping[Part, LabelledBatch]
    labelled: LabelledBatch
    feature_map: FeatureMap
    features: FloatArray
    success_scores: FloatArray

    @cached_property
    def known(self) -> LabelledBatch:
        """The prompts that fit and calibrate, in their given order, clusters whole."""
        held_out = set(self.parts["test"].ids)
        rows = [row for row, one in enumerate(self.prompts.ids) if one not in held_out]
        return self.prompts.take(np.array(rows)) if held_out else self.prompts

    @property
    def n(self) -> int:
        """Number of answers drawn for each prompt."""
        if UNITS[self.config.unit].is_fixed_count:
            return self.prompts.draws.n
        return 1 if self.provenance is None else self.provenance.n

    @property
    def is_drawn_by_rule(self) -> bool:
        """Whether the prompts were drawn by a draw rule, which was then fixed before any label."""
        return self.provenance is not None and self.provenance.draws is not None

    @property
    def reachable(self) -> BoolArray:
        """(N,) whether a threshold below the cap can cover the prompt."""
        return np.asarray(self.success_scores < CAP, dtype=np.bool_)

    @cached_property
    def groups(self) -> list[AttainableGroup]:
        """Attainable coverage of all prompts, then of every guaranteed weighting."""
        groups = []
        for weight in self.feature_map.list_guaranteed_weights():
            values = weight.compute_values(self.features)
            size, reached = float(values.sum()), float(values[self.reachable].sum())
            groups.append(
                AttainableGroup(
                    name=weight.name,
                    words=weight.words,
                    size=size,
                    attainable=min(1.0, reached / size) if size > 0.0 else 0.0,
                    smallest_alpha=max(0.0, 1.0 - reached / (size + 1.0)),
                )
            )
        return groups


def split_prompts(prompts: LabelledBatch, plan: SplitPlan) -> dict[Part, LabelledBatch]:
    """Return the prompts of each part, sorted by id, so that round-off does not depend on file order."""
    parts = plan.list_rows(prompts)
    by_id = {name: sorted(rows.tolist(), key=prompts.ids.__getitem__) for name, rows in parts.items()}
    return {name: prompts.take(np.array(rows, dtype=np.int64)) for name, rows in by_id.items()}


def select_independent(part: LabelledBatch, plan: SplitPlan) -> LabelledBatch:
    """Return one hash-chosen prompt of each cluster of the part that calibrates."""
    if len(part) == 0:
        msg = "the calibration split is empty: lower fit_fraction and test_fraction, or add more records"
        raise CalibrationError(msg)
    return part.take(plan.select_one_per_cluster(part))


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


def fit_levels(data: CalibrationData, delta: str | None) -> tuple[list[LevelState], dict[str, PackedArray]]:
    """Fit the rules at every level, and return their states with the arrays these refer to.

    Order statistics with confidence fail with probability at most `delta` at each level.
    """
    arrays: dict[str, PackedArray] = {}

    def store(state: Mapping[str, FloatArray]) -> dict[str, str]:
        packed = {key: PackedArray.pack(array) for key, array in state.items()}
        arrays.update({array.name: array for array in packed.values()})
        return {key: array.name for key, array in packed.items()}

    config, levels = data.config, []
    for alpha in config.alphas:
        effective = None
        if config.pac is not None:
            effective = config.pac.effective_alpha(alpha, len(data.labelled))
            if effective == "0":
                msg = (
                    f"pac: its slack leaves nothing of alpha = {alpha} with {len(data.labelled)} calibration "
                    "prompts: add records, or choose a larger alpha"
                )
                raise UnattainableTargetError(msg)
        adaptive = data.feature_map.adaptive_alpha
        stated = None if adaptive is None else adaptive.read_alphas(data.features, alpha)
        rule = make_threshold_rule(alpha, effective, delta=delta, pac=config.pac, adaptive=adaptive)
        if isinstance(rule, ConditionalThreshold):
            rule = _fit_rule(rule, data, stated)
        else:
            rule = rule.fit(data.features, data.success_scores)
        everyone = np.ones((len(data.labelled), 1))
        compared = GroupedThreshold(alpha).fit(everyone, data.success_scores).threshold([1.0])
        levels.append(
            LevelState(
                alpha=alpha,
                rule=store(rule.get_state_data()),
                marginal=min(CAP, compared),
                effective_alpha=effective,
            )
        )
    return levels, arrays


def _fit_rule(
    rule: ConditionalThreshold, data: CalibrationData, stated: FloatArray | None
) -> ConditionalThreshold:
    """Fit a rule, widening its window until a sample of its own prompts all have a threshold.

    Fitting itself tests only a few prompts and keeps what they need; this tests more. `stated` are the (N,)
    error levels of prompts if these are adaptive.
    """
    chosen = np.unique(np.linspace(0, len(data.features) - 1, SELF_CHECK_SIZE).astype(np.int64))
    alphas = None if stated is None else stated[chosen]
    while True:
        fitted = rule.fit(data.features, data.success_scores, alphas=stated)
        if fitted.window is None or not fitted.solve(data.features[chosen], alphas=alphas).outside.any():
            return fitted
        wider = WINDOW_GROWTH * fitted.window
        rule = replace(fitted, window=wider if wider < len(data.features) else None)


def make_facts(data: CalibrationData) -> CalibrationFacts:
    """Return the facts that an artifact states about its prompts."""
    given, prompts, parts = data.config.feature_map, data.prompts, data.parts
    return CalibrationFacts(
        size=len(data.labelled),
        recorded_candidates=prompts.recorded or data.n,
        extracted_answers=prompts.extracted,
        normalised=NORMALISATION if data.config.needs_answers else None,
        map_came_fitted=given.needs_fit and given.fitted,
        fit_size=len(parts["fit"]),
        held_out_size=len(parts["test"]),
        split=data.plan,
        digests={name: digest_ids(part.ids) for name, part in parts.items()},
        sketch=list(data.plan.compute_sketch(data.known.names)),
        attainable_coverage=float(np.mean(data.reachable)),
        groups=data.groups,
        allow_unattainable=data.config.allow_unattainable,
        prompt_kinds=None if prompts.prompt_kinds is None else sorted(prompts.prompt_kinds),
    )

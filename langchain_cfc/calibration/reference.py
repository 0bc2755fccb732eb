"""Histograms of the prompts at calibration, which a monitor compares with traffic to detect drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from langchain_cfc.artifact import (
    CalibrationArtifact,
    Promise,
    ReferenceHistogram,
)
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.features import name_records_in_errors
from langchain_cfc.records.splits import Part
from langchain_cfc.support.arrays import BoolArray, FloatArray

# Number of bins; each holds about the same share of the fit split.
BIN_COUNT = 16
# Edges between the decisions flagged (0), empty (1) and answered (2).
_DECISION_EDGES = np.array([0.5, 1.5])


def make_reference_histograms(
    artifact: CalibrationArtifact, parts: Mapping[Part, LabelledBatch], calibration: LabelledBatch
) -> list[ReferenceHistogram]:
    """Count the reference histograms of an artifact that is otherwise finished.

    Bins are chosen on the fit split. Features and scores are counted over the calibration prompts, with which
    new prompts are exchangeable unless something changes. Thresholds and decisions are counted over the
    prompts held out for evaluation, because the calibration prompts shaped the thresholds and cuts: once
    for each promise that the artifact can serve.
    """
    plan = artifact.calibration.split
    fit, test = (one.take(plan.select_one_per_cluster(one)) for one in (parts["fit"], parts["test"]))
    fit_values, fit_within = _measure_prompts(artifact, fit)
    values_by_name, within = _measure_prompts(artifact, calibration)
    histograms = []
    for name, values in values_by_name.items():
        edges = _choose_edges(fit_values[name])
        if len(edges):
            # Skip groups within which the quantity is constant, such as a group's own indicator.
            varying = {
                group: members
                for group, members in within.items()
                if not len(fit) or len(np.unique(fit_values[name][fit_within[group]])) > 1
            }
            histograms.append(_make_histogram(name, edges, values, varying))
    if len(test):
        _, test_within = _measure_prompts(artifact, test)
        for promise in artifact.promises:
            histograms += _make_promise_histograms(artifact, promise, fit, test, test_within)
    return histograms


def _measure_prompts(
    artifact: CalibrationArtifact, prompts: LabelledBatch
) -> tuple[Mapping[str, FloatArray], Mapping[str, BoolArray]]:
    """Return monitored values by name, and by weighting which prompts count (weight = probability)."""
    with name_records_in_errors(prompts.ids):
        features = artifact.feature_map.transform(prompts.draws, allow_unknown=True)
    uniforms = artifact.calibration.split.draw_uniforms("watch", prompts.ids)
    return (
        artifact.compute_monitored_values(features, prompts.draws),
        {
            one.name: uniforms < one.compute_values(features)
            for one in artifact.feature_map.list_guaranteed_weights()
        },
    )


def _make_promise_histograms(
    artifact: CalibrationArtifact,
    promise: Promise,
    fit: LabelledBatch,
    test: LabelledBatch,
    within: Mapping[str, BoolArray],
) -> Iterator[ReferenceHistogram]:
    """Count the decisions under a promise, and the thresholds if the fit split can choose their bins."""
    alpha, rate = promise.level, promise.max_wrong_rate
    cut = None if rate is None else artifact.certified_bot.find_certificate(rate).cut
    decisions = decide(artifact, test.draws, alpha, cut=cut)
    if rate is None and len(fit):
        chosen = decide(artifact, fit.draws, alpha).thresholds
        edges = _choose_edges(chosen[np.isfinite(chosen)])
        if len(edges):
            yield _make_histogram("threshold", edges, decisions.thresholds, within, alpha=alpha)
    kinds = np.where(decisions.not_certifiable, 0.0, 1.0 + decisions.answered)
    yield _make_histogram("decision", _DECISION_EDGES, kinds, within, alpha=alpha, rate=rate)


def _choose_edges(values: FloatArray) -> FloatArray:
    """Return lower ends of bins with equal shares of the values, or with equal widths if there are none."""
    if len(values) == 0:
        return np.arange(1, BIN_COUNT) / BIN_COUNT
    ends: FloatArray = np.unique(np.quantile(values, np.arange(1, BIN_COUNT + 1) / BIN_COUNT, method="lower"))
    above: FloatArray = ends[ends > values.min()]
    return above


def _make_histogram(
    name: str,
    edges: FloatArray,
    values: FloatArray,
    within: Mapping[str, BoolArray],
    *,
    alpha: str | None = None,
    rate: str | None = None,
) -> ReferenceHistogram:
    """Count one quantity under every weighting."""
    histogram = ReferenceHistogram(
        name=name, edges=edges.tolist(), counts={}, alpha=alpha, max_wrong_rate=rate
    )
    bins = histogram.find_bins(values)
    counts = {
        group: np.bincount(bins[members], minlength=len(edges) + 1).tolist()
        for group, members in within.items()
    }
    return histogram.model_copy(update={"counts": counts})

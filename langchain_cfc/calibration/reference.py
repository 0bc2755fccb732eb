"""What prompts looked like at calibration, counted for those who watch for drift later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc.artifact import CalibrationArtifact, Watched, quantities
from langchain_cfc.calibration.fit import Prompts
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.decision import decide
from langchain_cfc.features import name_records_in_errors

# Each holds about this share of the prompts that fix the bins.
BINS = 16
# Between flagged, empty and answered.
_OUTCOMES = [0.5, 1.5]


@dataclass(frozen=True)
class _Seen:
    """Some prompts: what is watched of them, and in which weightings they are counted."""

    values: Mapping[str, FloatArray]
    within: Mapping[str, BoolArray]

    @classmethod
    def of(cls, artifact: CalibrationArtifact, prompts: LabelledBatch) -> _Seen:
        """Prompts with their weights as probabilities to be counted."""
        with name_records_in_errors(prompts.ids):
            features = artifact.feature_map.transform(prompts.draws, allow_unknown=True)
        luck = artifact.calibration.split.uniforms("watch", prompts.ids)
        return cls(
            quantities(artifact.feature_map, features, prompts.draws.scores),
            {one.name: luck < one.values(features) for one in artifact.feature_map.guaranteed_weights()},
        )


def reference(artifact: CalibrationArtifact, prompts: Prompts, calibration: LabelledBatch) -> list[Watched]:
    """Count what the prompts of an artifact looked like.

    Bins are fixed on the fit split. Features and scores are counted over the prompts that calibrated: as long
    as nothing changes, those to come are exchangeable with them. Thresholds and decisions are not, since the
    calibration prompts shaped the thresholds; they are counted over the prompts held out for evaluation.
    """
    if artifact.shift is not None:
        return []
    fit, test = (prompts.one_per_cluster(prompts.part(name)) for name in ("fit", "test"))
    # Prompts of one cluster are alike, and so are not exchangeable with those to come.
    known, seen = (_Seen.of(artifact, part) for part in (fit, prompts.one_per_cluster(calibration)))
    watched = []
    for name, values in seen.values.items():
        edges = _edges(known.values[name])
        if len(edges):
            # Within a group, its own indicator says nothing.
            groups = [one for one, inside in known.within.items() if _vary(known.values[name][inside])]
            within = {one: inside for one, inside in seen.within.items() if one in groups or not len(fit)}
            watched.append(_counted(name, edges, values, within))
    if len(test):
        held_out = _Seen.of(artifact, test).within
        for alpha in artifact.alphas:
            watched += _decided(artifact, alpha, fit, test, held_out)
    return watched


def _decided(
    artifact: CalibrationArtifact,
    alpha: str,
    fit: LabelledBatch,
    test: LabelledBatch,
    within: Mapping[str, BoolArray],
) -> list[Watched]:
    """The thresholds and decisions of a level."""
    decisions = decide(artifact, test.draws, alpha, uniforms=artifact.uniforms(test))
    met = np.where(decisions.not_certifiable, 0.0, 1.0 + decisions.accepted.any(axis=1))
    watched = [_counted("decision", np.array(_OUTCOMES), met, within, alpha)]
    if len(fit):
        thresholds = decide(artifact, fit.draws, alpha, uniforms=artifact.uniforms(fit)).thresholds
        edges = _edges(thresholds[np.isfinite(thresholds)])
        if len(edges):
            watched.append(_counted("threshold", edges, decisions.thresholds, within, alpha))
    return watched


def _edges(values: FloatArray) -> FloatArray:
    """Lower ends of bins of equal shares, equal values never apart; of equal widths where there are none."""
    if len(values) == 0:
        return np.arange(1, BINS) / BINS
    ends: FloatArray = np.unique(np.quantile(values, np.arange(1, BINS + 1) / BINS, method="lower"))
    above: FloatArray = ends[ends > values.min()]
    return above


def _vary(values: FloatArray) -> bool:
    return len(values) > 0 and bool(values.min() < values.max())


def _counted(
    name: str,
    edges: FloatArray,
    values: FloatArray,
    within: Mapping[str, BoolArray],
    alpha: str | None = None,
) -> Watched:
    """A quantity with its counts in every weighting."""
    watched = Watched(name=name, edges=edges.tolist(), counts={}, alpha=alpha)
    bins = watched.bins(values)
    counts = {
        one: np.bincount(bins[inside], minlength=len(edges) + 1).tolist() for one, inside in within.items()
    }
    return watched.model_copy(update={"counts": counts})

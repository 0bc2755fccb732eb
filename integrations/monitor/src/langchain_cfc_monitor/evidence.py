"""`Evidence`: the state of all tests of an artifact, and the curves of their wealth over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc_monitor.observed import Label, ObservedResult
from langchain_cfc_monitor.sequential_tests import CoverageTest, DriftTest, LabelSamplingTest

# Most points of a curve; beyond that, half of them are dropped.
MAX_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Logarithms of the wealth of m tests, recorded every `step` outcomes."""

    step: int = 1  # number of outcomes between two points; doubled whenever there are too many points
    outcomes: int = 0  # number of outcomes so far
    # Number of outcomes, time, and the m logarithms to three decimals
    points: Sequence[Sequence[Any]] = ()

    def update(self, log: FloatArray, now: float) -> Curve:
        """Return the curve after one more outcome."""
        outcomes, step, points = self.outcomes + 1, self.step, self.points
        if outcomes % step == 0:
            points = (*points, (outcomes, now, log.round(3).tolist()))
        if len(points) > MAX_POINTS:
            step *= 2
            points = [one for one in points if one[0] % step == 0]
        return Curve(step, outcomes, points)


@dataclass(frozen=True)
class Evidence:
    """The state of the tests of an artifact."""

    drift: DriftTest  # do prompts look as they did?
    kept: CoverageTest  # do certified rates hold?
    sampled: LabelSamplingTest  # do labelled results look like the others?
    last_result: int  # number of the last result that `drift` has seen
    last_label: int  # number of the last label that `kept` has seen
    last_sampled: int  # number of the last result that `sampled` has seen
    drifted: Curve  # wealth of the drift tests over time
    broken: Curve  # wealth of the tests of certified rates over time

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> Evidence:
        """Return the state before any result."""
        drift, kept = DriftTest.start(artifact, now), CoverageTest.start(artifact, now)
        return cls(drift, kept, LabelSamplingTest.start(artifact, now), 0, 0, 0, Curve(), Curve())

    def add_result(self, one: ObservedResult) -> Evidence:
        """Return the state after one more result."""
        drift = self.drift.update(one)
        return replace(self, drift=drift, drifted=self.drifted.update(drift.wealth.log, one.at))

    def add_label(self, one: ObservedResult, label: Label, now: float, least: float) -> Evidence:
        """Return the state after one more label; for `least` see `Label.is_sampled`."""
        kept = self.kept.update(one, label, now, least)
        return replace(self, kept=kept, broken=self.broken.update(kept.wealth.log, now))

    def to_data(self) -> dict[str, Any]:
        """Return the state as plain data."""
        tests = {name: getattr(self, name).to_data() for name in ("drift", "kept", "sampled")}
        lasts = {name: getattr(self, name) for name in ("last_result", "last_label", "last_sampled")}
        return {**tests, **lasts, "drifted": vars(self.drifted), "broken": vars(self.broken)}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Evidence:
        """Restore what `to_data` returned."""
        return cls(
            DriftTest.from_data(artifact, data["drift"]),
            CoverageTest.from_data(artifact, data["kept"]),
            LabelSamplingTest.from_data(artifact, data["sampled"]),
            data["last_result"],
            data["last_label"],
            data["last_sampled"],
            Curve(**data["drifted"]),
            Curve(**data["broken"]),
        )

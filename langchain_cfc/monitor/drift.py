"""Drift without labels: do prompts still look like those that the artifact was calibrated on?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact, Watched, quantities
from langchain_cfc.monitor.betting import RANK_EXPERTS, Capital, MeanCapital, rank_factors
from langchain_cfc.monitor.observed import Observed
from langchain_cfc.monitor.ranks import counted, ranks


@dataclass(frozen=True)
class Drift:
    """Tests of whether results are exchangeable with calibration prompts, one for each quantity and group.

    Each ranks what comes among calibration prompts and what came before, and bets on the ranks. Under no
    drift, ranks of one test are independent of each other, so that its capital alone ever turns 1 into
    1/level with probability at most level (Ville).

    The mean of the capital of all m tests alarms at 1/level. At any number of results that is fixed
    beforehand it is an e-value, whatever the dependence between the tests (Vovk and Wang 2021). Over all
    numbers of results at once that is a theorem only if ranks of each test cannot be told from those of the
    others before them. They almost cannot: the ranks of several tests together say a little about where the
    calibration sample departs from the population, the less the larger it is. What that does is measured, not
    proven: see `tests/monitor/test_false_alarms.py`, where such streams alarm more rarely than the level.

    Attributes:
        artifact: The artifact.
        counts: (m, b) how often each bin of each quantity was met, calibration prompts included.
        capital: Of the m tests.
        mean: Of the capital of all m tests, which is what alarms.
    """

    artifact: CalibrationArtifact
    counts: Any
    capital: Capital
    mean: MeanCapital

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> Drift:
        """Nothing seen yet."""
        rows = [watched.counts[group] for watched, group in _tests(artifact)]
        width = max(map(len, rows), default=1)
        counts = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)
        capital = Capital.stakes([len(rows)], RANK_EXPERTS, now)
        return cls(artifact, counts.reshape(-1, width), capital, MeanCapital.stakes(now=now))

    def without_calibration(self) -> Drift:
        """The same tests among results alone: have they changed since the first of them?"""
        return replace(self, counts=np.zeros_like(self.counts))

    def observed(self, place: int) -> list[int]:
        """Return how many results fell into each bin of a test, calibration prompts not included."""
        watched, group = self.tests[place]
        expected = watched.counts[group]
        return [int(all_) - own for all_, own in zip(self.counts[place], expected, strict=False)]

    @property
    def tests(self) -> list[tuple[Watched, str]]:
        """The m tests: a quantity, and the name of the weighting in which it is watched."""
        return self._layout.tests

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.artifact)

    def after(self, one: Observed) -> Drift:
        """With one more result."""
        layout = self._layout
        if not layout.tests:
            return self
        bins, seen = layout.placed(one)
        luck = one.uniforms("rank", len(bins))
        factors = rank_factors(ranks(self.counts, bins, luck))
        capital = self.capital.after(factors, one.at, seen)
        mean = self.mean.after(capital, one.at)
        after = Drift(self.artifact, counted(self.counts, bins, seen), capital, mean)
        after.__dict__["_layout"] = layout
        return after

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored; the artifact is not in it."""
        return {
            "counts": self.counts.tolist(),
            "capital": self.capital.to_data(),
            "mean": self.mean.to_data(),
        }

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Drift:
        """What `to_data` was made of."""
        counts = np.array(data["counts"], dtype=np.int64)
        capital, mean = Capital.from_data(data["capital"]), MeanCapital.from_data(data["mean"])
        return cls(artifact, counts, capital, mean)


@dataclass(frozen=True)
class Layout:
    """Where each of m tests finds its quantity, its group and its level; the same for all results.

    Attributes:
        artifact: The artifact.
        tests: A quantity, and the name of the weighting in which it is watched.
        coefficients: (g, d) the weightings in the columns of the features.
        quantity: (m,) place of each test's quantity in the artifact's reference.
        group: (m,) place of its weighting among the g.
    """

    artifact: CalibrationArtifact
    tests: list[tuple[Watched, str]]
    coefficients: FloatArray
    quantity: Any
    group: Any

    @classmethod
    def of(cls, artifact: CalibrationArtifact) -> Layout:
        """The layout of an artifact's tests."""
        tests = list(_tests(artifact))
        weights = artifact.feature_map.guaranteed_weights()
        groups = tuple(one.name for one in weights)
        place = {id(watched): number for number, watched in enumerate(artifact.reference)}
        return cls(
            artifact=artifact,
            tests=tests,
            coefficients=np.array([one.coefficients for one in weights]),
            quantity=np.array([place[id(watched)] for watched, _ in tests], dtype=np.int64),
            group=np.array([groups.index(name) for _, name in tests], dtype=np.int64),
        )

    def placed(self, one: Observed) -> tuple[Any, Any]:
        """(m,) bins of a result, and whether each test sees it."""
        features = np.array(one.features)[np.newaxis]
        told = quantities(self.artifact.feature_map, features, np.array(one.scores)[np.newaxis])
        decided = {"threshold": one.threshold, "decision": float(one.outcome)}
        reference = self.artifact.reference
        values = [
            decided[watched.name] if watched.alpha is not None else float(told[watched.name][0])
            for watched in reference
        ]
        bins = [
            int(watched.bins(np.array([value]))[0]) for watched, value in zip(reference, values, strict=True)
        ]
        of_level = [watched.alpha in {None, one.alpha} for watched in reference]
        within = one.uniforms("group", 1) < self.coefficients @ features[0]
        return (
            np.array(bins, dtype=np.int64)[self.quantity],
            np.array(of_level)[self.quantity] & within[self.group],
        )


def _tests(artifact: CalibrationArtifact) -> Iterator[tuple[Watched, str]]:
    for watched in artifact.reference:
        for group in watched.counts:
            yield watched, group

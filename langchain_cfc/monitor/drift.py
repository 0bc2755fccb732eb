"""Drift without labels: do prompts still look like those that the artifact was calibrated on?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact, Watched, quantities
from langchain_cfc.monitor.betting import RANK_EXPERTS, Capital, rank_factors
from langchain_cfc.monitor.observed import Observed
from langchain_cfc.monitor.ranks import counted, ranks


@dataclass(frozen=True)
class Drift:
    """Tests of whether results are exchangeable with calibration prompts, one for each quantity and group.

    Each ranks what comes among calibration prompts and what came before, and bets on the ranks. Under no
    drift, the probability that any of m tests ever turns 1 into m/level is at most the level (Ville, and
    Bonferroni over the tests: they look at the same prompts, so that their capital may not be added up).

    Attributes:
        artifact: The artifact.
        counts: (m, b) how often each bin of each quantity was met, calibration prompts included.
        capital: Of the m tests.
    """

    artifact: CalibrationArtifact
    counts: Any
    capital: Capital

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> Drift:
        """Nothing seen yet."""
        rows = [watched.counts[group] for watched, group in _tests(artifact)]
        width = max(map(len, rows), default=1)
        counts = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)
        return cls(artifact, counts.reshape(-1, width), Capital.stakes([len(rows)], RANK_EXPERTS, now))

    def without_calibration(self) -> Drift:
        """The same tests among results alone: have they changed since the first of them?"""
        return Drift(self.artifact, np.zeros_like(self.counts), self.capital)

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
        after = Drift(
            self.artifact, counted(self.counts, bins, seen), self.capital.after(factors, one.at, seen)
        )
        after.__dict__["_layout"] = layout
        return after

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored; the artifact is not in it."""
        return {"counts": self.counts.tolist(), "capital": self.capital.to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Drift:
        """What `to_data` was made of."""
        counts = np.array(data["counts"], dtype=np.int64)
        return cls(artifact, counts, Capital.from_data(data["capital"]))


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

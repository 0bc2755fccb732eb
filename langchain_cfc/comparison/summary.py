"""From the figures of many splits to a report."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc._extras import require
from langchain_cfc.comparison.groups import Groups
from langchain_cfc.comparison.measuring import Measured
from langchain_cfc.comparison.methods import Method
from langchain_cfc.comparison.metrics import FIGURES
from langchain_cfc.comparison.report import (
    AttainableComparison,
    Gap,
    GroupComparison,
    LevelComparison,
    MethodComparison,
    Spread,
)
from langchain_cfc.thresholds import exact_tau


def spread(values: FloatArray, overlap: float, *, share: bool = False) -> Spread | None:
    """A figure over splits.

    Args:
        values: (J,) one number per split, NaN where the split does not define it.
        overlap: The larger of test / development and development / test prompts, where splits divide one pool
            of prompts; 0 where each split was drawn anew.
        share: Whether the figure lies in [0, 1].

    Returns:
        Its spread; None where no split defines it.

    Raises:
        MissingExtraError: If SciPy is not installed.
    """
    known = values[~np.isnan(values)]
    count = len(known)
    if count == 0:
        return None
    mean, sd = float(known.mean()), float(known.std())
    if count == 1:
        return Spread(mean=mean, sd=sd, interval=None, splits=1)
    quantile = require("scipy.special", "calibrate", "intervals over splits").stdtrit(count - 1, 0.975)
    half = float(quantile) * standard_error(known, overlap)
    low, high = mean - half, mean + half
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    return Spread(mean=mean, sd=sd, interval=(low, high), splits=count)


def standard_error(values: FloatArray, overlap: float) -> float:
    """Approximate standard error of a mean over splits; see `Spread` for where it comes from.

    Args:
        values: (J,) one number per split, NaN where the split does not define it.
        overlap: As in `spread`.

    Returns:
        sqrt(1 / J + overlap) s; 0 where a single split defines it.
    """
    known = values[~np.isnan(values)]
    if len(known) < 2:  # noqa: PLR2004 - a deviation takes two
        return 0.0
    return float(known.std(ddof=1)) * math.sqrt(1.0 / len(known) + overlap)


@dataclass(frozen=True, eq=False)
class Summary:
    """All splits together.

    Attributes:
        measured: J splits.
        methods: The methods.
        alphas: The levels.
        groups: The groups.
        properties: The groups along every property.
        candidates: Number of candidates per prompt.
        overlap: See `spread`.
    """

    measured: Sequence[Measured]
    methods: Sequence[Method]
    alphas: Sequence[str]
    groups: Groups
    properties: Sequence[Groups]
    candidates: int
    overlap: float

    def levels(self) -> list[LevelComparison]:
        """The comparison at every level."""
        return [self._level(place) for place in range(len(self.alphas))]

    def attainable(self) -> list[AttainableComparison]:
        """Attainable coverage of all prompts, and of every group that there always is."""
        foretold = np.array([one.foretold for one in self.measured])
        seen = np.array([one.attainable for one in self.measured])
        found = []
        for place, words in enumerate(("all prompts", *self.groups.words)):
            before, after = self._share(foretold[:, place]), self._share(seen[:, place])
            if before is not None and after is not None:
                found.append(AttainableComparison(words=words, foretold=before, seen=after))
        return found

    def _level(self, place: int) -> LevelComparison:
        return LevelComparison(
            alpha=float(self.alphas[place]),
            target_coverage=float(exact_tau(self.alphas[place])),
            n_calibration=round(np.mean([one.calibrated for one in self.measured])),
            n_test=round(np.mean([one.tested for one in self.measured])),
            n_candidates=self.candidates,
            attainable_coverage=float(np.mean([one.attainable[0] for one in self.measured])),
            methods={
                method.name: self._method(method, number * len(self.alphas) + place, self.alphas[place])
                for number, method in enumerate(self.methods)
            },
        )

    def _method(self, method: Method, run: int, alpha: str) -> MethodComparison:
        names = self.measured[0].figures
        found = {
            name: self._figure(name, np.array([one.figures[name][run] for one in self.measured]))
            for name in names
        }
        groups = self._groups(run)
        if groups:
            # One group, not each split's: the smallest of several shares is below all of them by chance.
            worst = min(groups, key=lambda group: group.kept_promise)
            found["worst_group_kept_promise"] = worst.figures["kept_promise"]
        known = {name: one for name in FIGURES if (one := found.get(name)) is not None}
        return MethodComparison(
            family=method.family,
            words=method.words,
            promise=method.promise,
            aims_at_coverage=method.aims_at_coverage,
            coverage=known["coverage"].mean,
            coverage_ci=_interval(known["coverage"]),
            kept_promise=known["kept_promise"].mean,
            kept_promise_ci=_interval(known["kept_promise"]),
            not_certifiable_rate=known["not_certifiable_rate"].mean,
            abstention_rate=known["abstention_rate"].mean,
            mean_set_size=known["mean_set_size"].mean,
            mean_distinct_answers=known["mean_distinct_answers"].mean,
            groups=groups,
            figures=known,
            gaps=self._gaps(run, float(exact_tau(alpha))),
        )

    def _groups(self, run: int) -> list[GroupComparison]:
        """Every group that some split tests a prompt of."""
        found = (self._group(run, number) for number in range(len(self.groups.names)))
        return [one for one in found if one is not None]

    def _group(self, run: int, number: int) -> GroupComparison | None:
        """One group; None where no split tests a prompt of it."""
        names = self.measured[0].groups
        found = {
            name: self._figure(name, np.array([one.groups[name][run, number] for one in self.measured]))
            for name in names
        }
        known = {name: one for name, one in found.items() if one is not None}
        if "coverage" not in known:
            return None
        return GroupComparison(
            name=self.groups.names[number],
            words=self.groups.words[number],
            n=float(np.mean([one.group_sizes[number] for one in self.measured])),
            coverage=known["coverage"].mean,
            kept_promise=known["kept_promise"].mean,
            kept_promise_ci=_interval(known["kept_promise"]),
            not_certifiable_rate=known["not_certifiable_rate"].mean,
            mean_set_size=known["mean_set_size"].mean,
            figures=known,
        )

    def _gaps(self, run: int, tau: float) -> dict[str, Gap]:
        """By property, the group that is worst on average over splits: the worst of each split is noise."""
        kept = np.array([one.properties[run] for one in self.measured])
        gaps: dict[str, Gap] = {}
        start = 0
        for groups in self.properties:
            block = kept[:, start : start + len(groups.names)]
            start += len(groups.names)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a group that no split tests
                means = np.nanmean(block, axis=0)
            if np.isnan(means).all():
                continue
            worst = int(np.nanargmin(means))
            shortfall = spread(tau - block[:, worst], self.overlap)
            if shortfall is not None:
                gaps[_property(groups)] = Gap(group=groups.words[worst], shortfall=shortfall)
        return gaps

    def _figure(self, name: str, values: FloatArray) -> Spread | None:
        """A figure of `FIGURES` or of groups; all but means of counts are shares."""
        return spread(values, self.overlap) if name.startswith("mean_") else self._share(values)

    def _share(self, values: FloatArray) -> Spread | None:
        return spread(values, self.overlap, share=True)


def _interval(found: Spread) -> tuple[float, float]:
    """Its interval; all shares where a single split says nothing of how others differ."""
    return found.interval or (0.0, 1.0)


def _property(groups: Groups) -> str:
    """`mean_score` for `bins(mean_score, 5)`, and the text of anything else."""
    kind, _, rest = groups.text.partition("(")
    return rest.rpartition(",")[0] if kind == "bins" else groups.text

"""Thresholds from the neighbourhood of the fit: nested windows, each answer proven.

A prompt is asked of the 64 nearest rows first, then of 256, 1024, ... up to all that were kept, until the
neighbourhood's radius proves an answer. Where many rows lie on the base fit, these are asked in clusters
first (see `clusters`), in smaller and smaller ones; in the last window all rows stand by themselves. If the
largest window proves no answer, the prompt is outside the certified region.

*No history.* An answer does not depend, in any bit, on which prompts were asked before.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.errors import ThresholdError
from langchain_cfc.thresholds.certificate import Certificate, Problem
from langchain_cfc.thresholds.clusters import COARSEST, FINER, Clusters
from langchain_cfc.thresholds.growing import bounded
from langchain_cfc.thresholds.neighbourhood import Centre, Neighbourhood
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.simplex import Endless
from langchain_cfc.thresholds.vertex import EPS, Vertex

SMALLEST, FACTOR = 64, 4
# Rows on the base fit for each feature from which on they are taken together in clusters.
CROWD = 32
# Rows in the smallest window for each feature.
ROOM = 10
# Answers that are remembered, a few kilobytes each.
MEMORY = 2048
# Parts of a prompt's weight that are tried where all of it leads outside the certified region.
SHARES = (0.0, 0.25, 0.5)


class Start(NamedTuple):
    """Where a search may start: a vertex, and the coefficients that it was found with."""

    vertex: Vertex
    beta: FloatArray


class Found(Protocol):
    """An optimal fit."""

    @property
    def vertex(self) -> Vertex:
        """The rows that it goes through, and the sides of the others."""

    @property
    def beta(self) -> FloatArray:
        """(d,) coefficients."""

    @property
    def blur(self) -> FloatArray:
        """(d,) bound on their round-off."""

    def value(self, phi: FloatArray) -> tuple[float, float]:
        """The fit at (d,) features and a bound on its round-off."""

    def values(self, phis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same for (m, d) features, bit by bit."""


# The optimal fit, a direction in which the problem is unbounded, or None outside the certified region.
Answer: TypeAlias = Found | Endless | None


class Regression(Protocol):
    """Regressions on one data set that differ in their linear term only."""

    def minimise(self, phi: FloatArray) -> Found | Endless:
        """The minimiser with the smallest phi' beta."""


R = TypeVar("R", bound=Regression)


@dataclass(frozen=True)
class Window(Generic[R]):
    """The nearest rows, solved by themselves.

    Attributes:
        regression: Their regression, the others' sums included.
        rows: The k rows.
        rest: Sums of the others.
        tau: Target coverage.
        distances: (k,) distances of the rows from the base fit.
        radius: The smallest distance among the rows left out; `inf` if there are none.
        centre: The base fit.
        clusters: The rows on the base fit that the first of the rows stand for; None if each row stands for
            itself.
    """

    regression: R
    rows: Rows
    rest: Rest
    tau: float
    distances: FloatArray
    radius: float
    centre: Centre
    clusters: Clusters | None = None

    def proves(self, found: Found | Endless, phi: FloatArray) -> bool:
        """Whether what was found for the window and a prompt holds for all rows."""
        if self.clusters is not None and not self._leaves_whole(self.clusters, found):
            return False
        if self.radius == np.inf:
            return True
        if isinstance(found, Endless):
            return self._falls_forever(found.ray, phi)
        if self.centre.way(found.beta, found.blur) < self.radius:
            return True
        # The base fit itself, near which there may be rows at any distance, or more on it than were kept.
        basis = found.vertex.basis
        return len(basis) == len(phi) and not self.distances[basis].any()

    def _leaves_whole(self, clusters: Clusters, found: Found | Endless) -> bool:
        """Whether a fit or a ray leads no two rows of a cluster to different sides."""
        if isinstance(found, Endless):
            return clusters.are_whole(found.ray, 8 * EPS * float(np.abs(found.ray).sum()))
        size = np.abs(found.beta).sum() + np.abs(self.centre.beta).sum() + np.abs(self.rows.scores).max()
        tolerance = 4 * (len(found.beta) + 2) * EPS * float(size) + float(found.blur.sum())
        return clusters.are_whole(found.beta - self.centre.beta, tolerance)

    def _falls_forever(self, ray: FloatArray, phi: FloatArray) -> bool:
        """Whether the objective over all rows falls along a ray, wherever the rows left out come to lie.

        Far out row i adds rho_tau(-x_i' ray). For the rows left out that is known where all of them move to
        the same side, as they do if every column on the way has one sign and the ray agrees with it.
        """
        total = self.rest.total * ray
        one_sign = np.abs(self.rest.total) == self.rest.mass
        if not (one_sign | (ray == 0.0)).all() or ((total > 0.0).any() and (total < 0.0).any()):
            return False
        moves = np.append(-self.rows.features @ ray, -total.sum())
        costs = np.append(self.rows.weights, 1.0) * np.maximum(self.tau * moves, (self.tau - 1.0) * moves)
        gain = self.tau * float(phi @ ray)
        return bool(costs.sum() - gain < -64 * EPS * (costs.sum() + abs(gain)))


class Windows(ABC, Generic[R]):
    """Answers to prompts; safe to ask from many threads.

    Args:
        near: The neighbourhood.
        tau: Target coverage.

    Attributes:
        shares: Parts of a linear term at which the fit bounds that at all of it from below.
        endless: What an unbounded problem makes of the fit at the prompt.
    """

    shares: ClassVar[tuple[float, ...]] = SHARES
    endless: ClassVar[float] = np.inf

    def __init__(self, near: Neighbourhood, tau: Fraction) -> None:
        self._near, self._tau = near, tau
        self._made: dict[int, Window[R]] = {}
        self._answers: dict[bytes, Answer] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Windows[R]], tuple[object, ...]]:
        """Copies start anew: nothing that was found changes an answer, and a lock cannot be copied."""
        return type(self), (self._near, self._tau)

    def find(self, phi: FloatArray) -> Answer:
        """The proven answer to one prompt of (d,) features.

        Raises:
            ThresholdError: If no fit could be proven optimal.
        """
        prompt, answers = phi.tobytes(), self._answers
        if prompt in answers:
            return answers[prompt]
        answer = self._search(phi)
        with self._lock:
            if len(self._answers) >= MEMORY:  # the first half is forgotten
                self._answers = dict(list(self._answers.items())[len(self._answers) // 2 + 1 :])
            self._answers[prompt] = answer
        return answer

    def find_each(self, phis: FloatArray) -> tuple[list[Answer], IntArray]:
        """The proven answers to (m, d) prompts.

        Returns:
            Different answers, and for each prompt the number of its own.

        Raises:
            ThresholdError: If no fit could be proven optimal.
        """
        prompts: dict[bytes, int] = {}
        which = [prompts.setdefault(phi.tobytes(), len(prompts)) for phi in phis]
        _, first = np.unique(np.array(which, dtype=np.int64), return_index=True)
        return [self.find(phi) for phi in phis[first]], np.array(which, dtype=np.int64)

    def unproven(self, phi: FloatArray) -> Found | Endless:
        """What the rows kept say of a prompt outside the certified region, right or wrong.

        Raises:
            ThresholdError: If no fit could be proven optimal for them.
        """
        return self._window(len(self._sizes) - 1).regression.minimise(phi)

    def at_least(self, linear: FloatArray, phi: FloatArray) -> float:
        """A lower bound on the fit at a prompt outside the certified region, `linear` its weighted features.

        The optimal value is concave in theta and has slope -phi' beta, so phi' beta never falls as theta
        grows from 0 to tau: the fit at the prompt with a part of its weight bounds that with all of it.
        """
        bounds = [-np.inf]
        for share in self.shares:
            found = self.find(share * linear)
            if isinstance(found, Endless):
                return np.inf
            if found is not None:
                value, error = found.value(phi)
                bounds.append(value - error)
        return max(bounds)

    @abstractmethod
    def certificate(self, phi: FloatArray) -> Certificate | None:
        """What proves the answer to one prompt; None unless that is a fit."""

    @abstractmethod
    def _regression(self, rows: Rows, rest: Rest, start: Start | None) -> R:
        """The regression on some rows and the sums of all others."""

    def _search(self, phi: FloatArray) -> Answer:
        """What the first window to prove anything says."""
        failed: ThresholdError | None = None
        for number in range(len(self._sizes)):
            try:
                found = self._ask(number, phi)
            except ThresholdError as error:  # more rows may be easier
                failed = error
                continue
            if found is not None:
                return found
        if failed is not None and self._near.radius == np.inf:
            raise failed
        return None  # with more of the calibration prompts it might be known

    def _ask(self, number: int, phi: FloatArray) -> Answer:
        """What one window can prove."""
        window = self._window(number)
        found = window.regression.minimise(phi)
        return found if window.proves(found, phi) else None

    @cached_property
    def _sizes(self) -> list[int]:
        """Rows in each window, those on the base fit not counted where they are in clusters."""
        kept, sizes = len(self._near.rows), [max(SMALLEST, ROOM * len(self._near.centre.root))]
        while sizes[-1] < kept:
            sizes.append(FACTOR * sizes[-1])
        return [*sizes[:-1], kept]

    @cached_property
    def _crowd(self) -> int:
        """How many rows lie on the base fit, if so many that they are taken together; they come first."""
        rows, d = self._base[0], len(self._near.centre.root)
        on = int(np.count_nonzero(self._near.centre.distances(rows) == 0.0))
        return on if on > CROWD * d and len(self._sizes) > 1 else 0

    @cached_property
    def _base(self) -> tuple[Rows, Start]:
        """All rows, those first that the base fit goes through, and the base fit."""
        rows, d = self._near.rows, len(self._near.centre.root)
        regression = self._regression(rows, self._near.rest, self._first(rows))
        found = bounded(regression.minimise(np.zeros(d)))
        basis, below = found.vertex
        # By distance, so that those on the fit come next.
        nearest = np.argsort(self._near.centre.distances(rows), kind="stable")
        order = np.concatenate([basis, nearest[~np.isin(nearest, basis)]])
        return rows.take(order), Start(Vertex(np.arange(len(basis)), below[order]), found.beta)

    def _first(self, rows: Rows) -> Start | None:  # noqa: ARG002 - of use where rows make a fit
        """Where to find the base fit from."""
        return None

    def _window(self, number: int) -> Window[R]:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Window[R]:
        if self._crowd and number < len(self._sizes) - 1:
            return self._clustered(number)
        (rows, ((basis, below), beta)), size = self._base, self._sizes[number]
        centre, inside, beyond = self._near.centre, slice(size), slice(size, None)
        distances = centre.distances(rows)
        radius = float(min(self._near.radius, distances[beyond].min(initial=np.inf)))
        rest = self._near.rest + Rest.of(rows.take(beyond), below[beyond])
        part, start = rows.take(inside), Start(Vertex(basis, below[inside]), beta)
        regression = self._from_mean(part, rest, start)
        return Window(regression, part, rest, float(self._tau), distances[inside], radius, centre)

    def _clustered(self, number: int) -> Window[R]:
        """A window with the rows on the base fit in clusters, and the nearest of the others one by one."""
        (rows, ((_, below), _)), centre = self._base, self._near.centre
        clusters = Clusters.of(rows.take(slice(self._crowd)), COARSEST * FINER**number)
        end = self._crowd + self._sizes[number]
        inside, beyond = slice(self._crowd, end), slice(end, None)
        distances = centre.distances(rows)
        radius = float(min(self._near.radius, distances[beyond].min(initial=np.inf)))
        rest = self._near.rest + Rest.of(rows.take(beyond), below[beyond])
        part = clusters.means + rows.take(inside)
        away = np.concatenate([np.zeros(len(clusters.means)), distances[inside]])
        regression = self._from_mean(part, rest, None)
        return Window(regression, part, rest, float(self._tau), away, radius, centre, clusters)

    def _from_mean(self, part: Rows, rest: Rest, start: Start | None) -> R:
        """The regression on some rows, started where most prompts are near: at the mean of the rows."""
        mean = self._regression(part, rest, start).minimise(part.mean())
        if not isinstance(mean, Endless):
            start = Start(mean.vertex, mean.beta)
        return self._regression(part, rest, start)

    def _problem(self, phi: FloatArray) -> Problem:
        """What a certificate for a prompt is about."""
        rest, tau = self._near.rest, float(self._tau)
        return Problem(self._base[0], rest, tau, self._penalty, phi)

    @property
    def _penalty(self) -> FloatArray:
        """(d,) ridge penalties."""
        return np.zeros(len(self._near.centre.root))

    def _sides(self, found: Found) -> BoolArray:
        """(K,) which of the kept rows lie below a fit: those beyond its window have not changed sides."""
        below = self._base[1].vertex.below
        return np.concatenate([found.vertex.below, below[len(found.vertex.below) :]])

"""Thresholds from the neighbourhood of the fit: nested windows, each answer proven, proven vertices shared.

A prompt is answered by the first of these that can prove its answer:

0. what the same prompt was answered before;
1. a vertex that answered another prompt before (`Box`): the optimal value is concave and piecewise linear in
   phi, one piece per vertex, so the smallest piece at phi tells which vertex to try;
2. windows of the 64, 256, 1024, ... nearest rows, up to all that were kept, each solved by pivots from the
   nearest vertex known and proven by the neighbourhood's radius.

If the largest window proves nothing, the prompt is outside the certified region.

*No history.* An answer does not depend, in any bit, on which prompts were asked before. A vertex is shared
only with prompts for which it is the only optimal one, and its numbers follow from its basis alone; where
there are several, the search starts where it always starts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds.certificate import Certificate, certificate_of
from langchain_cfc.thresholds.growing import bounded
from langchain_cfc.thresholds.neighbourhood import Centre, Neighbourhood
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.simplex import Endless, QuantileSimplex
from langchain_cfc.thresholds.vertex import Box, Fit, Solution, Vertex

SMALLEST, FACTOR = 64, 4
# Vertices and answers that are remembered; a few kilobytes each.
MEMORY = 2048
# Parts of a prompt's weight that are tried where all of it leads outside the certified region.
SHARES = (0.0, 0.25, 0.5)
# Products of prompts and vertices held at a time when many prompts are looked up.
LOOKUPS = 1 << 20


# The optimal vertex, a direction in which the problem is unbounded, or None outside the certified region.
Answer: TypeAlias = Fit | Endless | None


class Proven(NamedTuple):
    """A vertex that may answer other prompts: its numbers, its prompts, and the window it was found in."""

    fit: Fit
    box: Box
    window: int


class Memory:
    """Answers to prompts, proven vertices, and which of these has the smallest value at a prompt.

    Safe to read while another thread adds: entries are written before the count that covers them.

    Attributes:
        answers: Answers by the bytes of the prompt; the first are forgotten first.
    """

    def __init__(self, d: int) -> None:
        self.answers: dict[bytes, Answer] = {}
        self._lock = threading.Lock()
        self._proven: list[Proven] = []
        self._slopes = np.empty((SMALLEST, d))
        self._losses = np.empty(SMALLEST)
        self._known: set[tuple[int, ...]] = set()
        self._view = self._slopes[:0], self._losses[:0]

    def __reduce__(self) -> tuple[type[Memory], tuple[int]]:
        """Copies start empty: what is remembered changes no answer, and a lock cannot be copied."""
        return type(self), (self._slopes.shape[1],)

    def __len__(self) -> int:
        """How many vertices are remembered."""
        return len(self._view[1])

    def __getitem__(self, number: int) -> Proven:
        """One of them."""
        return self._proven[number]

    def nearest(self, phi: FloatArray) -> Proven | None:
        """The vertex with the smallest value at one prompt."""
        slopes, losses = self._view
        return self._proven[int((losses - slopes.dot(phi)).argmin())] if len(losses) else None

    def nearest_each(self, phis: FloatArray) -> IntArray:
        """Numbers of the vertices with the smallest value at (m, d) prompts; none may be missing."""
        slopes, losses = self._view
        size = max(1, LOOKUPS // len(losses))
        parts = [
            (losses - phis[start : start + size] @ slopes.T).argmin(axis=1)
            for start in range(0, len(phis), size)
        ]
        return np.concatenate(parts)

    def keep(self, prompt: bytes, answer: Answer) -> None:
        """Keep the answer to a prompt."""
        with self._lock:
            if len(self.answers) >= MEMORY:
                self.answers = dict(list(self.answers.items())[MEMORY // 2 :])
            self.answers[prompt] = answer

    def add(self, proven: Proven, tau: float, loss: float) -> None:
        """Remember a vertex, unless it is known or there is no room."""
        key = tuple(proven.fit.vertex.basis.tolist())
        with self._lock:
            count = len(self._proven)
            if count == MEMORY or key in self._known:
                return
            if count == len(self._losses):
                self._slopes = np.vstack([self._slopes, np.empty_like(self._slopes)])
                self._losses = np.concatenate([self._losses, np.empty_like(self._losses)])
            self._slopes[count], self._losses[count] = tau * proven.fit.beta, loss
            self._known.add(key)
            self._proven.append(proven)
            self._view = self._slopes[: count + 1], self._losses[: count + 1]


@dataclass(frozen=True)
class Window:
    """The nearest rows, solved by themselves.

    Attributes:
        simplex: Their regression, the others' sums included.
        distances: (k,) their distances from the base fit.
        mass: (d,) weighted sum of absolute features of the rows left out.
        radius: The smallest distance among the rows left out; `inf` if there are none.
        centre: The base fit.
    """

    simplex: QuantileSimplex
    distances: FloatArray
    mass: FloatArray
    radius: float
    centre: Centre

    def proves(self, found: Fit | Endless) -> bool:
        """Whether what was found for the window holds for all rows."""
        if self.radius == np.inf:
            return True
        if isinstance(found, Endless):
            return not self.mass[found.ray != 0.0].any()
        on_base_fit = not self.distances[found.vertex.basis].any()
        return on_base_fit or self.centre.way(found) < self.radius


class Windows:
    """Answers to prompts.

    Args:
        near: The neighbourhood.
        tau: Target coverage.
    """

    def __init__(self, near: Neighbourhood, tau: Fraction) -> None:
        self._near, self._tau = near, tau
        self._made: dict[int, Window] = {}
        self._memory = Memory(len(near.root))

    def find(self, phi: FloatArray) -> Answer:
        """The proven answer to one prompt of (d,) features.

        Raises:
            ThresholdError: If no vertex could be proven optimal.
        """
        prompt = phi.tobytes()
        answers = self._memory.answers
        if prompt in answers:
            return answers[prompt]
        answer = self._search(phi)
        self._memory.keep(prompt, answer)
        return answer

    def _search(self, phi: FloatArray) -> Answer:
        known = self._memory.nearest(phi)
        if known is not None and known.box.holds(phi):
            return known.fit
        for number in range(len(self._sizes)):
            near = known is not None and known.window == number
            found = self._solve(number, phi, known.fit.vertex if known is not None and near else None)
            if found is not None:
                return found
        return None

    def certificate(self, phi: FloatArray) -> Certificate | None:
        """What proves the answer to one prompt; None unless that is a fit."""
        fit = self.find(phi)
        if not isinstance(fit, Fit):
            return None
        rows, below, centre = self._base
        # Rows beyond the window that the fit was found in have not changed sides.
        inside = len(fit.vertex.below)
        known = replace(
            fit, vertex=Vertex(fit.vertex.basis, np.concatenate([fit.vertex.below, below[inside:]]))
        )
        way, radius = centre.way(fit), self._near.radius
        return certificate_of(known, phi, self._tau, rows, self._near.rest, distance=way, radius=radius)

    def at_least(self, phi: FloatArray) -> float:
        """A lower bound on the threshold of a prompt that lies outside the certified region.

        The optimal value is concave in theta and has slope -phi' beta, so phi' beta never falls as theta
        grows from 0 to tau: the fit at the prompt with a part of its weight bounds that with all of it.
        """
        bounds = [-np.inf]
        for share in SHARES:
            found = self.find(share * phi)
            if isinstance(found, Fit):
                value, error = found.value(phi)
                bounds.append(value - error)
            elif isinstance(found, Endless):
                bounds.append(np.inf)
        return max(bounds)

    def find_each(self, phis: FloatArray) -> tuple[list[Answer], IntArray]:
        """The proven answers to (m, d) prompts.

        Returns:
            Different answers, and for each prompt the number of its own.

        Raises:
            ThresholdError: If no vertex could be proven optimal.
        """
        answers: list[Answer] = []
        which = np.full(len(phis), -1, dtype=np.int64)
        asked: dict[bytes, int] = {}
        pending, turn = np.arange(len(phis)), 1
        while len(pending):
            for known, rows in self._recall_each(phis, pending):
                which[rows] = len(answers)
                answers.append(known)
            pending = pending[which[pending] < 0]
            # A few are solved one by one, then all others are looked up among the vertices found.
            for row in pending[:turn]:
                key = phis[row].tobytes()
                if key not in asked:
                    asked[key] = len(answers)
                    answers.append(self.find(phis[row]))
                which[row] = asked[key]
            pending, turn = pending[turn:], 2 * turn
        return answers, which

    def _recall_each(self, phis: FloatArray, pending: IntArray) -> Iterator[tuple[Fit, IntArray]]:
        """Known vertices with the pending prompts that they answer."""
        if len(self._memory) == 0 or len(pending) == 0:
            return
        numbers = self._memory.nearest_each(phis[pending])
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order])) + 1
        for part in np.split(order, ends):
            known, rows = self._memory[int(numbers[part[0]])], pending[part]
            held = rows[known.box.holds_each(phis[rows])]
            if len(held):
                yield known.fit, held

    def _solve(self, number: int, phi: FloatArray, start: Vertex | None) -> Answer:
        """What one window can prove."""
        window = self._window(number)
        found = window.simplex.minimise(phi, start)
        if isinstance(found, Fit) and found.alone and window.proves(found):
            box = window.simplex.box(found)
            if box.holds(phi):
                self._memory.add(Proven(found, box, number), float(self._tau), window.simplex.loss(found))
                return found
        if start is not None:
            found = window.simplex.minimise(phi)
        return found if window.proves(found) else None

    @cached_property
    def _sizes(self) -> list[int]:
        """Rows in each window."""
        kept, sizes = len(self._near.rows), [max(SMALLEST, 10 * len(self._near.root))]
        while sizes[-1] < kept:
            sizes.append(FACTOR * sizes[-1])
        return [*sizes[:-1], kept]

    @cached_property
    def _base(self) -> tuple[Rows, BoolArray, Centre]:
        """All rows, the basis of the base fit first, with their sides at the base fit."""
        rows, rest, d = self._near.rows, self._near.rest, len(self._near.root)
        start = Vertex(np.arange(d), np.zeros(len(rows), dtype=np.bool_))
        vertex = bounded(QuantileSimplex(rows, self._tau, rest, start).minimise(np.zeros(d))).vertex
        others = np.setdiff1d(np.arange(len(rows)), vertex.basis)
        order = np.concatenate([vertex.basis, others])
        rows = rows.take(order)
        solution = Solution.through(rows.features[:d], rows.scores[:d])
        return rows, vertex.below[order], Centre(solution, self._near.root)

    def _window(self, number: int) -> Window:
        if number not in self._made:
            self._made[number] = self._make(self._sizes[number])
        return self._made[number]

    def _make(self, size: int) -> Window:
        rows, below, centre = self._base
        inside, beyond = slice(size), slice(size, None)
        distances = centre.distances(rows)
        radius = float(min(self._near.radius, distances[beyond].min(initial=np.inf)))
        rest = self._near.rest + Rest.of(rows.take(beyond), below[beyond])
        part = rows.take(inside)
        start = Vertex(np.arange(len(self._near.root)), below[inside])
        # Most prompts are nearer to the mean of these rows than to none at all.
        mean = QuantileSimplex(part, self._tau, rest, start).minimise(part.mean())
        simplex = QuantileSimplex(part, self._tau, rest, mean.vertex if isinstance(mean, Fit) else start)
        return Window(simplex, distances[inside], rest.mass, radius, centre)

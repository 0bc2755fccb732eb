"""Windows without a penalty: proven vertices are shared between prompts.

A vertex answers every prompt in its `Box`. The optimal value is concave and piecewise linear in phi, one
piece for each vertex, so the smallest piece at phi tells which of the known vertices to try, and the search
starts from that one if it fails.

A vertex is shared only with prompts for which it is the only optimal one, and its numbers follow from its
basis alone, so that answers have no history. Where there are several, the search starts where it always does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.errors import ThresholdError
from langchain_cfc.thresholds import windows
from langchain_cfc.thresholds.certificate import Certificate, certificate_of
from langchain_cfc.thresholds.neighbourhood import Neighbourhood
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.simplex import Endless, QuantileSimplex
from langchain_cfc.thresholds.vertex import Box, Fit, Vertex
from langchain_cfc.thresholds.windows import SMALLEST, Answer, Start, Windows

# Products of prompts and vertices held at a time when many prompts are looked up.
LOOKUPS = 1 << 20


class Proven(NamedTuple):
    """A vertex that may answer other prompts: its numbers, its prompts, and the window it was found in."""

    fit: Fit
    box: Box
    window: int


class Vertices:
    """Proven vertices, and which of them has the smallest value at a prompt.

    Safe to read while another thread adds: entries are written before the view that covers them.
    """

    def __init__(self, d: int) -> None:
        self._lock = threading.Lock()
        self._proven: list[Proven] = []
        self._slopes = np.empty((SMALLEST, d))
        self._losses = np.empty(SMALLEST)
        self._known: set[tuple[int, ...]] = set()
        self._view = self._slopes[:0], self._losses[:0]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._view[1])

    @property
    def full(self) -> bool:
        """Whether there is no room for another."""
        return len(self._proven) >= windows.MEMORY

    def __getitem__(self, number: int) -> Proven:
        """One of them."""
        return self._proven[number]

    def nearest(self, phi: FloatArray) -> Proven | None:
        """The vertex with the smallest value at one prompt."""
        slopes, losses = self._view
        return self._proven[int((losses - slopes.dot(phi)).argmin())] if len(losses) else None

    def nearest_each(self, phis: FloatArray) -> IntArray:
        """Numbers of the vertices with the smallest value at (m, d) prompts, where there is a vertex."""
        slopes, losses = self._view
        size = max(1, LOOKUPS // len(losses))
        parts = [
            (losses - phis[start : start + size] @ slopes.T).argmin(axis=1)
            for start in range(0, len(phis), size)
        ]
        return np.concatenate(parts)

    def add(self, proven: Proven, slope: FloatArray, loss: float) -> None:
        """Add a vertex with value loss - slope' phi, unless it is known or there is no room."""
        basis = tuple(proven.fit.vertex.basis.tolist())
        with self._lock:
            count = len(self._proven)
            if self.full or basis in self._known:
                return
            if count == len(self._losses):
                self._slopes = np.vstack([self._slopes, np.empty_like(self._slopes)])
                self._losses = np.concatenate([self._losses, np.empty_like(self._losses)])
            self._slopes[count], self._losses[count] = slope, loss
            self._known.add(basis)
            self._proven.append(proven)
            self._view = self._slopes[: count + 1], self._losses[: count + 1]


class PlainWindows(Windows[QuantileSimplex]):
    """Answers to prompts from quantile regression without a penalty."""

    solver: ClassVar[type[QuantileSimplex]] = QuantileSimplex

    def __init__(self, near: Neighbourhood, tau: Fraction) -> None:
        super().__init__(near, tau)
        self._vertices = Vertices(len(near.centre.root))

    def find_each(self, phis: FloatArray) -> tuple[list[Answer], IntArray]:
        """The proven answers to (m, d) prompts: different ones, and for each prompt the number of its own."""
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
                prompt = phis[row].tobytes()
                if prompt not in asked:
                    asked[prompt] = len(answers)
                    answers.append(self.find(phis[row]))
                which[row] = asked[prompt]
            pending, turn = pending[turn:], 2 * turn
        return answers, which

    def certificate(self, phi: FloatArray) -> Certificate | None:
        """What proves the answer to one prompt; None unless that is a fit."""
        fit = self.find(phi)
        if not isinstance(fit, Fit):
            return None
        problem, vertex = self._problem(phi), Vertex(fit.vertex.basis, self._sides(fit))
        others = problem.pull(problem.eta(vertex, np.zeros(len(phi))))
        on_basis: FloatArray = np.asarray(np.linalg.solve(fit.solution.rows.T, -others), dtype=np.float64)
        return certificate_of(problem, vertex, on_basis, fit.beta, fit.value(phi))

    def _regression(self, rows: Rows, rest: Rest, start: Start | None) -> QuantileSimplex:
        return self.solver(rows, self._tau, rest, None if start is None else start.vertex)

    def _first(self, rows: Rows) -> Start:
        d = rows.features.shape[1]
        return Start(Vertex(np.arange(d), np.zeros(len(rows), dtype=np.bool_)), np.zeros(d))

    def _search(self, phi: FloatArray) -> Answer:
        known = self._vertices.nearest(phi)
        return known.fit if known is not None and known.box.holds(phi) else super()._search(phi)

    def _ask(self, number: int, phi: FloatArray) -> Answer:
        window, known = self._window(number), self._vertices.nearest(phi)
        simplex = window.regression
        start = known.fit.vertex if known is not None and known.window == number else None
        try:
            found: Fit | Endless | None = simplex.minimise(phi, start)
        except ThresholdError:
            if start is None:
                raise
            found = None  # from elsewhere it may be proven
        if isinstance(found, Fit) and found.alone and window.proves(found, phi):
            if start is None and self._vertices.full:
                return found
            box = simplex.box(found)
            if box.holds(phi):
                slope = float(self._tau) * found.beta
                self._vertices.add(Proven(found, box, number), slope, simplex.loss(found))
                return found
        if start is not None:
            found = simplex.minimise(phi)
        return found if found is not None and window.proves(found, phi) else None

    def _recall_each(self, phis: FloatArray, pending: IntArray) -> Iterator[tuple[Fit, IntArray]]:
        """Known vertices with the pending prompts that they answer."""
        if len(self._vertices) == 0 or len(pending) == 0:
            return
        numbers = self._vertices.nearest_each(phis[pending])
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order])) + 1
        for part in np.split(order, ends):
            known, rows = self._vertices[int(numbers[part[0]])], pending[part]
            held = rows[known.box.holds_each(phis[rows])]
            if len(held):
                yield known.fit, held

"""Windows without a penalty: proven vertices are shared between prompts.

A vertex answers every prompt in its `Box`. The optimal value is concave and piecewise linear in phi, one
piece for each vertex, so the smallest piece at phi tells which of the known vertices to try, and the search
starts from that one if it fails.

A vertex is shared only with prompts for which its fit is the only one that counts, and the numbers follow
from that fit alone (see `simplex`), so that answers have no history. Elsewhere the search starts where it
always does. Each window has vertices of its own, and remembers those that it cannot prove, too: what they
answer is left to the next window at once.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.errors import ThresholdError
from langchain_cfc.thresholds import windows
from langchain_cfc.thresholds.certificate import Certificate, certificate_of
from langchain_cfc.thresholds.growing import bounded
from langchain_cfc.thresholds.neighbourhood import Neighbourhood
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.simplex import Endless, QuantileSimplex
from langchain_cfc.thresholds.vertex import Box, Fit, Vertex
from langchain_cfc.thresholds.windows import SMALLEST, Answer, Start, Windows

# Products of prompts and vertices held at a time when many prompts are looked up.
LOOKUPS = 1 << 20


class Known(NamedTuple):
    """A vertex that may answer other prompts: its numbers, its prompts, and whether it holds for all rows."""

    fit: Fit
    box: Box
    is_proven: bool


class Vertices:
    """Known vertices, and which of them has the smallest value at a prompt.

    Safe to read while another thread adds: entries are written before the view that covers them.
    """

    def __init__(self, d: int) -> None:
        self._lock = threading.Lock()
        self._known: list[list[Known]] = []
        self._numbers: dict[bytes, int] = {}
        self._slopes = np.empty((SMALLEST, d))
        self._losses = np.empty(SMALLEST)
        self._bases: set[bytes] = set()
        self._view = self._slopes[:0], self._losses[:0]

    def __len__(self) -> int:
        """How many different fits there are."""
        return len(self._view[1])

    @property
    def full(self) -> bool:
        """Whether there is no room for another."""
        return len(self._bases) >= windows.MEMORY

    def __getitem__(self, number: int) -> Sequence[Known]:
        """The vertices of one fit: several where more rows than a basis lie on it."""
        return self._known[number]

    def nearest(self, phi: FloatArray) -> Sequence[Known]:
        """The vertices of the fit with the smallest value at one prompt."""
        slopes, losses = self._view
        return self._known[int((losses - slopes.dot(phi)).argmin())] if len(losses) else ()

    def nearest_each(self, phis: FloatArray) -> IntArray:
        """Numbers of the vertices with the smallest value at (m, d) prompts, where there is a vertex."""
        slopes, losses = self._view
        size = max(1, LOOKUPS // len(losses))
        parts = [
            (losses - phis[start : start + size] @ slopes.T).argmin(axis=1)
            for start in range(0, len(phis), size)
        ]
        return np.concatenate(parts)

    def add(self, known: Known, slope: FloatArray, loss: float) -> None:
        """Add a vertex with value loss - slope' phi, unless it is known or there is no room."""
        basis, beta = known.fit.vertex.basis.tobytes(), known.fit.beta.tobytes()
        with self._lock:
            if self.full or basis in self._bases:
                return
            self._bases.add(basis)
            if beta in self._numbers:
                self._known[self._numbers[beta]].append(known)
                return
            count = len(self._known)
            if count == len(self._losses):
                self._slopes = np.vstack([self._slopes, np.empty_like(self._slopes)])
                self._losses = np.concatenate([self._losses, np.empty_like(self._losses)])
            self._slopes[count], self._losses[count] = slope, loss
            self._numbers[beta] = count
            self._known.append([known])
            self._view = self._slopes[: count + 1], self._losses[: count + 1]


class PlainWindows(Windows[QuantileSimplex]):
    """Answers to prompts from quantile regression without a penalty."""

    solver: ClassVar[type[QuantileSimplex]] = QuantileSimplex

    def __init__(self, near: Neighbourhood, tau: Fraction) -> None:
        super().__init__(near, tau)
        # Edges cost time, and continuous features never come to lie on them. No answer depends on this.
        self._has_ties = False
        self._vertices = defaultdict[int, Vertices](lambda: Vertices(len(near.centre.root)))

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
        value = fit.value(phi)
        if self._crowd:
            fit = bounded(self._window(len(self._sizes) - 1).regression.minimise(phi))
        problem, vertex = self._problem(phi), Vertex(fit.vertex.basis, self._sides(fit))
        others = problem.pull(problem.eta(vertex, np.zeros(len(phi))))
        basis = problem.rows.features[fit.vertex.basis]
        on_basis: FloatArray = np.asarray(np.linalg.solve(basis.T, -others), dtype=np.float64)
        return certificate_of(problem, vertex, on_basis, fit.beta, value)

    def _regression(self, rows: Rows, rest: Rest, start: Start | None) -> QuantileSimplex:
        return self.solver(rows, self._tau, rest, None if start is None else start.vertex)

    def _first(self, rows: Rows) -> Start:
        d = rows.features.shape[1]
        return Start(Vertex(np.arange(d), np.zeros(len(rows), dtype=np.bool_)), np.zeros(d))

    def _of_larger_windows(self) -> Iterator[Vertices]:
        """Vertices of all windows but the first, where a fit without further rows on it is of every window.

        Smaller windows that cannot answer need not be asked then. What a smaller one can prove is the same
        fit, on edges as well: who owns an edge follows from the basis and from sums over all rows. Clusters
        differ from window to window.
        """
        for number in range(1, 0 if self._crowd else len(self._sizes)):
            if len(self._vertices[number]):
                yield self._vertices[number]

    def _ask(self, number: int, phi: FloatArray) -> Answer:
        nearest = self._vertices[number].nearest(phi)
        for known in nearest:
            if self._is_held(known.box, phi):
                return known.fit if known.is_proven else None
        for vertices in self._of_larger_windows() if number == 0 else ():
            for known in vertices.nearest(phi):
                if known.is_proven and known.fit.alone and self._is_held(known.box, phi):
                    return known.fit
        return self._solve(number, phi, nearest[0].fit.vertex if nearest else None)

    def _solve(self, number: int, phi: FloatArray, start: Vertex | None) -> Answer:
        """What one window can prove, by a search from a vertex that may be near."""
        window, vertices = self._window(number), self._vertices[number]
        simplex = window.regression
        try:
            found: Fit | Endless | None = simplex.minimise(phi, start)
        except ThresholdError:
            if start is None:
                raise
            found = None  # from elsewhere it may be proven
        if isinstance(found, Fit) and found.shared and not (start is None and vertices.full):
            box = simplex.box(found)
            if box.owns(phi):
                is_proven = window.proves(found, phi)
                slope = float(self._tau) * found.beta
                vertices.add(Known(found, box, is_proven), slope, simplex.loss(found))
                return found if is_proven else None
        if start is not None:
            found = simplex.minimise(phi)
        return found if found is not None and window.proves(found, phi) else None

    def _is_held(self, box: Box, phi: FloatArray) -> bool:
        """Whether a prompt lies inside a vertex's box, or on an edge that the vertex owns."""
        if box.holds(phi):
            return True
        tied = box.owns(phi)
        self._has_ties |= tied
        return tied

    def _recall_each(self, phis: FloatArray, pending: IntArray) -> Iterator[tuple[Fit, IntArray]]:
        """Known vertices with the pending prompts that they answer."""
        for vertices in self._of_larger_windows():
            unanswered = np.ones(len(pending), dtype=np.bool_)
            for fit, held in self._held_alone(vertices, phis[pending]):
                unanswered[held] = False
                if len(held):
                    yield fit, pending[held]
            pending = pending[unanswered]
        for number in range(len(self._sizes)):
            vertices = self._vertices[number]
            if len(vertices) == 0 or len(pending) == 0:
                return
            numbers = vertices.nearest_each(phis[pending])
            order = np.argsort(numbers, kind="stable")
            ends = np.flatnonzero(np.diff(numbers[order])) + 1
            further = [pending[:0]]
            for part in np.split(order, ends):
                rows = pending[part]
                for known in vertices[int(numbers[part[0]])]:
                    inside = self._are_held(known.box, phis[rows])
                    if inside.any() and known.is_proven:
                        yield known.fit, rows[inside]
                    elif inside.any():
                        further.append(rows[inside])
                    rows = rows[~inside]
            pending = np.concatenate(further)

    def _held_alone(self, vertices: Vertices, phis: FloatArray) -> Iterator[tuple[Fit, IntArray]]:
        """Proven fits without further rows on them, with the numbers of (m, d) prompts that they answer."""
        if len(phis) == 0:
            return
        numbers = vertices.nearest_each(phis)
        for number in np.unique(numbers):
            rows = np.flatnonzero(numbers == number)
            for known in vertices[int(number)]:
                if known.is_proven and known.fit.alone:
                    held = self._are_held(known.box, phis[rows])
                    yield known.fit, rows[held]
                    rows = rows[~held]

    def _are_held(self, box: Box, phis: FloatArray) -> BoolArray:
        """The same as `_is_held` for (m, d) prompts; edges are looked at once a prompt has lain on one."""
        return (box.owns_each if self._has_ties else box.holds_each)(phis)

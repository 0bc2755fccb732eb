"""Thresholds from the neighbourhood of the fit: nested windows of rows, with a proof for every answer.

A prompt is solved with the 64 nearest rows first (10 per feature if that is more), then with 4 times as many,
and so on up to all that were kept, until the radius of a window proves its answer. If many rows lie on the
base fit, clusters replace them, smaller ones in each further window; in the last window all rows are
separate. If the last window proves no answer, the prompt is outside the certified region.

*No history.* No bit of an answer depends on which prompts were solved before.

*Clusters.* `_clusters` shows when an answer of the problem with clusters is one of the problem itself.

*Shared vertices.* Without a penalty a vertex answers every prompt in its `Box`. The optimal value is concave
and piecewise linear in phi, one piece for each vertex. So the known vertex whose piece is smallest at phi is
tried first; if it does not answer phi, the search starts from it. A vertex is shared only with prompts for
which its fit is the only one that counts, and the numbers follow from that fit alone (see `_simplex`), so
answers have no history. Otherwise the search runs again from its usual start. Each window has its own
vertices. It also stores those that it cannot prove: prompts that they answer go directly to the next window.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from langchain_cfc.errors import ThresholdError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds._clusters import Clusters
from langchain_cfc.thresholds._locality import Centre, Neighbourhood
from langchain_cfc.thresholds._ridge import RidgeFit, RidgeRegression
from langchain_cfc.thresholds._rows import Rows, RowSums
from langchain_cfc.thresholds._simplex import EPS, Box, Fit, QuantileSimplex, Unbounded, Vertex
from langchain_cfc.thresholds._warm_start import Start, require_bounded
from langchain_cfc.thresholds.certificate import Certificate, Problem

# Clusters per set of non-zero features in the coarsest division, and the factor to the next division.
COARSEST_CLUSTERS, CLUSTER_FACTOR = 16, 16
# Rows in the smallest window, and the factor from each window to the next.
SMALLEST_WINDOW, WINDOW_FACTOR = 64, 4
# Rows per feature in the smallest window.
ROWS_PER_FEATURE = 10
# Rows on the base fit, per feature, above which they are clustered.
MIN_CLUSTERED = 32
# Answers and vertices in a cache, a few kilobytes each.
CACHE_SIZE = 2048
# Products of prompts and vertices held at a time when many prompts are looked up.
LOOKUP_SIZE = 1 << 20
# Shares of a prompt's weight to try if its full weight leads outside the certified region.
WEIGHT_SHARES = (0.0, 0.25, 0.5)

OptimalFit: TypeAlias = Fit | RidgeFit
# The optimal fit, a direction in which the problem is unbounded, or None outside the certified region.
Answer: TypeAlias = OptimalFit | Unbounded | None
R = TypeVar("R", bound=QuantileSimplex | RidgeRegression)


@dataclass(frozen=True)
class Window(Generic[R]):
    """The regression on the nearest rows, which the other rows enter only through their sums."""

    regression: R  # The regression on the rows, including the sums of the others
    rows: Rows  # The k rows
    rest: RowSums  # Sums of the others
    tau: float  # Target coverage
    distances: FloatArray  # (k,) distances of the rows from the base fit
    radius: float  # The smallest distance among the rows left out; `inf` if there are none
    centre: Centre  # The base fit
    clusters: Clusters | None = None  # Clusters whose means are the first rows; None without clusters

    def proves(self, found: OptimalFit | Unbounded, phi: FloatArray) -> bool:
        """Return whether the solution of the window for a prompt is optimal for all rows."""
        if self.clusters is not None and not self._leaves_whole(self.clusters, found):
            return False
        if self.radius == np.inf:
            return True
        if isinstance(found, Unbounded):
            return self._is_unbounded_along(found.ray, phi)
        if self.centre.bound_move(found.beta, found.rounding_error) < self.radius:
            return True
        # The base fit itself is proven, even if rows that were left out lie on it or arbitrarily near.
        basis = found.vertex.basis
        return len(basis) == len(phi) and not self.distances[basis].any()

    def _leaves_whole(self, clusters: Clusters, found: OptimalFit | Unbounded) -> bool:
        """Return whether a fit or a ray leaves all rows of every cluster on one side."""
        if isinstance(found, Unbounded):
            return clusters.are_whole(found.ray, 8 * EPS * float(np.abs(found.ray).sum()))
        size = np.abs(found.beta).sum() + np.abs(self.centre.beta).sum() + np.abs(self.rows.scores).max()
        tolerance = 4 * (len(found.beta) + 2) * EPS * float(size) + float(found.rounding_error.sum())
        return clusters.are_whole(found.beta - self.centre.beta, tolerance)

    def _is_unbounded_along(self, ray: FloatArray, phi: FloatArray) -> bool:
        """Return whether the sums of the rows left out show that the objective over all rows falls on a ray.

        Far out, row i adds its pinball loss at -x_i' ray. For the rows left out this is known if all of them
        move to the same side, which is so if x_ij ray_j has the same sign for all of them and all j.
        """
        total = self.rest.total * ray
        one_sign = np.abs(self.rest.total) == self.rest.mass
        if not (one_sign | (ray == 0.0)).all() or ((total > 0.0).any() and (total < 0.0).any()):
            return False
        moves = np.append(-self.rows.features @ ray, -total.sum())
        weighted = np.append(self.rows.weights, 1.0) * moves
        aimed = self.tau * np.append(self.rows.targets * moves[:-1], -(self.rest.target * ray).sum())
        costs = np.maximum(aimed, aimed - weighted)
        gain = self.tau * float(phi @ ray)
        return bool(costs.sum() - gain < -64 * EPS * (costs.sum() + abs(gain)))


class Windows(ABC, Generic[R]):
    """Proven answers to prompts, or to negative multiples of prompts; safe to use from many threads.

    Attributes:
        unbounded_value: The value of the fit at the prompt if the problem is unbounded.
    """

    def __init__(
        self, near: Neighbourhood, tau: Fraction, penalty: FloatArray | None = None, negative: bool = False
    ) -> None:
        self._near, self._tau, self._is_negative = near, tau, negative
        self.unbounded_value = -np.inf if negative else np.inf
        self._penalty = np.zeros(len(near.centre.root)) if penalty is None else penalty
        self._get_window: Callable[[int], Window[R]] = cache(self._build_window)
        self._find_by_bytes = lru_cache(CACHE_SIZE)(lambda phi: self._find_proven(np.frombuffer(phi)))

    def __reduce__(self) -> tuple[type[Windows[R]], tuple[object, ...]]:
        """Copy without the caches, which change no answer."""
        return type(self), (self._near, self._tau, self._penalty, self._is_negative)

    def find(self, phi: FloatArray) -> Answer:
        """Find the proven answer to one prompt of (d,) features."""
        return self._find_by_bytes(phi.tobytes())

    def find_each(self, phis: FloatArray) -> tuple[list[Answer], IntArray]:
        """Find the distinct proven answers to (m, d) prompts, and the index of each prompt's answer."""
        distinct, which = np.unique(phis, axis=0, return_inverse=True)
        return [self.find(phi) for phi in distinct], which.ravel()

    def solve_unproven(self, phi: FloatArray) -> OptimalFit | Unbounded:
        """Solve for a prompt outside the certified region on all kept rows, without a proof."""
        return self._get_window(len(self._window_sizes) - 1).regression.minimise(phi)

    def bound_below(self, linear: FloatArray, phi: FloatArray) -> float:
        """Return a lower bound on the fit at a prompt outside the certified region.

        `linear` are its features `phi` times its weight. The optimal value is concave in theta and has slope
        -phi' beta, so phi' beta never falls as theta grows from 0 to tau: the fit with a part of the prompt's
        weight is a lower bound for the fit with all of it. No such bound is known for negative multiples.
        """
        bounds = [-np.inf]
        for share in () if self._is_negative else WEIGHT_SHARES:
            found = self.find(share * linear)
            if isinstance(found, Unbounded):
                return np.inf
            if found is not None:
                value, error = found.compute_value(phi)
                bounds.append(value - error)
        return max(bounds)

    def certify(self, linear: FloatArray, phi: FloatArray) -> Certificate | None:
        """Build the certificate of the answer for a linear term at a prompt; None if it is not a fit."""
        found = fit = self.find(linear)
        if self._n_clustered:  # its vertex may consist of clusters, and in the last window of rows only
            fit = self.solve_unproven(linear)
        if found is None or fit is None or isinstance(found, Unbounded) or isinstance(fit, Unbounded):
            return None
        rows, start = self._base
        # Rows beyond its window keep their sides.
        below = np.concatenate([fit.vertex.below, start.vertex.below[len(fit.vertex.below) :]])
        problem = Problem(rows, self._near.rest, float(self._tau), self._penalty, linear)
        return problem.certify(Vertex(fit.vertex.basis, below), fit.beta, found.compute_value(phi))

    @abstractmethod
    def _build_regression(self, rows: Rows, rest: RowSums, start: Start | None) -> R:
        """Build the regression on some rows and the sums of all others."""

    @abstractmethod
    def _fit_base(self, rows: Rows, nothing: FloatArray) -> OptimalFit:
        """Compute the base fit from all kept rows and a linear term of (d,) zeros."""

    def _find_proven(self, phi: FloatArray) -> Answer:
        """Find the answer of the first window that proves one."""
        failed: ThresholdError | None = None
        for number in range(len(self._window_sizes)):
            try:
                found = self._find_in_window(number, phi)
            except ThresholdError as error:  # a larger window may succeed
                failed = error
                continue
            if found is not None:
                return found
        if failed is not None and self._near.radius == np.inf:
            raise failed
        return None

    def _find_in_window(self, number: int, phi: FloatArray) -> Answer:
        """Solve one window; None if it proves nothing."""
        window = self._get_window(number)
        found = window.regression.minimise(phi)
        return found if window.proves(found, phi) else None

    @cached_property
    def _window_sizes(self) -> list[int]:
        """The number of rows in each window, not counting clustered rows on the base fit."""
        kept, sizes = (
            len(self._near.rows),
            [max(SMALLEST_WINDOW, ROWS_PER_FEATURE * len(self._near.centre.root))],
        )
        while sizes[-1] < kept:
            sizes.append(WINDOW_FACTOR * sizes[-1])
        return [*sizes[:-1], kept]

    @cached_property
    def _n_clustered(self) -> int:
        """The number of rows on the base fit, which come first, if there are enough for clusters; else 0."""
        rows, d = self._base[0], len(self._near.centre.root)
        on = int(np.count_nonzero(self._near.centre.compute_distances(rows) == 0.0))
        return on if on > MIN_CLUSTERED * d and len(self._window_sizes) > 1 else 0

    @cached_property
    def _base(self) -> tuple[Rows, Start]:
        """All kept rows, with the basis of the base fit first, and the base fit."""
        rows = self._near.rows
        found = self._fit_base(rows, np.zeros(len(self._near.centre.root)))
        basis, below = found.vertex
        # By distance, so that other rows on the fit come next.
        nearest = np.argsort(self._near.centre.compute_distances(rows), kind="stable")
        order = np.concatenate([basis, nearest[~np.isin(nearest, basis)]])
        return rows.take(order), Start(Vertex(np.arange(len(basis)), below[order]), found.beta)

    def _build_window(self, number: int) -> Window[R]:
        """Build a window; rows on the base fit are clustered unless they are few or it is the last window."""
        (rows, ((basis, below), beta)), centre = self._base, self._near.centre
        first = self._n_clustered if number < len(self._window_sizes) - 1 else 0
        inside = slice(first, first + self._window_sizes[number])
        beyond = slice(inside.stop, None)
        distances = centre.compute_distances(rows)
        radius = float(min(self._near.radius, distances[beyond].min(initial=np.inf)))
        rest = self._near.rest + RowSums.from_rows(rows.take(beyond), below[beyond])
        part, distances = rows.take(inside), distances[inside]
        clusters: Clusters | None = None
        start: Start | None = None
        if first:
            clusters = Clusters.build(rows.take(slice(first)), COARSEST_CLUSTERS * CLUSTER_FACTOR**number)
            part = Rows.concatenate([clusters.means, part])
            distances = np.concatenate([np.zeros(len(clusters.means)), distances])
        else:
            start = Start(Vertex(basis, below[inside]), beta)
        # Most prompts are near the mean of the rows, so the regression starts from its solution there.
        mean = self._build_regression(part, rest, start).minimise(part.mean())
        if not isinstance(mean, Unbounded):
            start = Start(mean.vertex, mean.beta)
        regression = self._build_regression(part, rest, start)
        return Window(regression, part, rest, float(self._tau), distances, radius, centre, clusters)


class KnownVertex(NamedTuple):
    """A vertex that may answer other prompts: its fit, its box, and whether it is proven for all rows."""

    fit: Fit
    box: Box
    is_proven: bool


class VertexCache:
    """A cache of vertices that finds the one with the smallest value at a prompt.

    Safe to read while another thread adds: entries are written before the view that covers them.
    """

    def __init__(self, d: int) -> None:
        self._lock = threading.Lock()
        self._known: list[list[KnownVertex]] = []
        self._numbers: dict[bytes, int] = {}
        self._slopes, self._losses = np.empty((CACHE_SIZE, d)), np.empty(CACHE_SIZE)
        self._bases: set[bytes] = set()
        self._view = self._slopes[:0], self._losses[:0]

    def __len__(self) -> int:
        """The number of distinct fits."""
        return len(self._view[1])

    @property
    def is_full(self) -> bool:
        """Whether no further vertex is stored."""
        return len(self._bases) >= CACHE_SIZE

    def __getitem__(self, number: int) -> Sequence[KnownVertex]:
        """The vertices of one fit; several if more rows than a basis lie on it."""
        return self._known[number]

    def find_nearest(self, phi: FloatArray) -> Sequence[KnownVertex]:
        """Find the vertices of the fit with the smallest value at one prompt."""
        slopes, losses = self._view
        return self._known[int((losses - slopes.dot(phi)).argmin())] if len(losses) else ()

    def find_nearest_each(self, phis: FloatArray) -> IntArray:
        """Find the indices of the fits with the smallest value at (m, d) prompts, in a non-empty cache."""
        slopes, losses = self._view
        size = max(1, LOOKUP_SIZE // len(losses))
        parts = [
            (losses - phis[start : start + size] @ slopes.T).argmin(axis=1)
            for start in range(0, len(phis), size)
        ]
        return np.concatenate(parts)

    def add(self, known: KnownVertex, slope: FloatArray, loss: float) -> None:
        """Add a vertex with value loss - slope' phi, unless it is known or the cache is full."""
        basis, beta = known.fit.vertex.basis.tobytes(), known.fit.beta.tobytes()
        with self._lock:
            if self.is_full or basis in self._bases:
                return
            self._bases.add(basis)
            if beta in self._numbers:
                self._known[self._numbers[beta]].append(known)
                return
            count = len(self._known)
            self._slopes[count], self._losses[count] = slope, loss
            self._numbers[beta] = count
            self._known.append([known])
            self._view = self._slopes[: count + 1], self._losses[: count + 1]


class PlainWindows(Windows[QuantileSimplex]):
    """Proven answers from quantile regression without a penalty."""

    # Checking edges costs time, and continuous features never lie on one. No answer depends on this.
    _has_ties = False

    @cached_property
    def _vertices(self) -> defaultdict[int, VertexCache]:
        """The vertices found in each window."""
        return defaultdict(lambda: VertexCache(len(self._near.centre.root)))

    def find_each(self, phis: FloatArray) -> tuple[list[Answer], IntArray]:
        """Find the distinct proven answers to (m, d) prompts, and the index of each prompt's answer."""
        answers: list[Answer] = []
        which = np.full(len(phis), -1, dtype=np.int64)
        solved: dict[bytes, int] = {}
        pending, turn = np.arange(len(phis)), 1
        while len(pending):
            for known, rows in self._find_cached_each(phis, pending):
                which[rows] = len(answers)
                answers.append(known)
            pending = pending[which[pending] < 0]
            # A few prompts are solved one by one, then all others are looked up among the vertices found.
            for row in pending[:turn]:
                prompt = phis[row].tobytes()
                if prompt not in solved:
                    solved[prompt] = len(answers)
                    answers.append(self.find(phis[row]))
                which[row] = solved[prompt]
            pending, turn = pending[turn:], 2 * turn
        return answers, which

    def _build_regression(self, rows: Rows, rest: RowSums, start: Start | None) -> QuantileSimplex:
        vertex = None if start is None else start.vertex
        return QuantileSimplex(rows, self._tau, rest, vertex, negative=self._is_negative)

    def _fit_base(self, rows: Rows, nothing: FloatArray) -> Fit:
        # The basis of the base fit comes first.
        start = Start(Vertex(np.arange(len(nothing)), np.zeros(len(rows), dtype=np.bool_)), nothing)
        return require_bounded(self._build_regression(rows, self._near.rest, start).minimise(nothing))

    def _iterate_larger_windows(self) -> Iterator[VertexCache]:
        """Iterate over the non-empty caches of all windows but the first; over none if there are clusters.

        A fit with no rows on it but its basis is a fit of every window, so smaller windows need not be
        solved. This holds on edges too, because the owner of an edge follows from the basis and from sums
        over all rows. It does not hold for clusters, which differ from window to window.
        """
        for number in range(1, 0 if self._n_clustered else len(self._window_sizes)):
            if len(self._vertices[number]):
                yield self._vertices[number]

    def _find_in_window(self, number: int, phi: FloatArray) -> Answer:
        nearest = self._vertices[number].find_nearest(phi)
        for known in nearest:
            if self._is_held(known.box, phi):
                return known.fit if known.is_proven else None
        for vertices in self._iterate_larger_windows() if number == 0 else ():
            for known in vertices.find_nearest(phi):
                if known.is_proven and known.fit.is_isolated and self._is_held(known.box, phi):
                    return known.fit
        return self._solve(number, phi, nearest[0].fit.vertex if nearest else None)

    def _solve(self, number: int, phi: FloatArray, start: Vertex | None) -> Answer:
        """Solve one window, starting from a vertex if one is given; None if it proves nothing."""
        window, vertices = self._get_window(number), self._vertices[number]
        simplex = window.regression
        try:
            found: Fit | Unbounded | None = simplex.minimise(phi, start)
        except ThresholdError:
            if start is None:
                raise
            found = None  # another start may succeed
        if isinstance(found, Fit) and found.is_shared and not (start is None and vertices.is_full):
            box = simplex.build_box(found)
            if box.owns(phi):
                is_proven = window.proves(found, phi)
                slope = float(self._tau) * found.beta
                vertices.add(KnownVertex(found, box, is_proven), slope, simplex.compute_loss(found))
                return found if is_proven else None
        if start is not None:
            found = simplex.minimise(phi)
        return found if found is not None and window.proves(found, phi) else None

    def _is_held(self, box: Box, phi: FloatArray) -> bool:
        """Return whether a prompt lies inside a vertex's box, or on an edge that the vertex owns."""
        if box.holds(phi):
            return True
        tied = box.owns(phi)
        self._has_ties |= tied
        return tied

    def _find_cached_each(self, phis: FloatArray, pending: IntArray) -> Iterator[tuple[Fit, IntArray]]:
        """Iterate over cached fits with the pending prompts that they answer."""
        for vertices in self._iterate_larger_windows():
            for known, rows in self._find_holding(vertices, phis, pending):
                if known.is_proven and known.fit.is_isolated:
                    pending = pending[~np.isin(pending, rows)]
                    yield known.fit, rows
        for number in range(len(self._window_sizes)):
            vertices = self._vertices[number]
            if len(vertices) == 0:
                return
            further = [pending[:0]]
            for known, rows in self._find_holding(vertices, phis, pending):
                if known.is_proven:
                    yield known.fit, rows
                else:
                    further.append(rows)
            pending = np.concatenate(further)

    def _find_holding(
        self, vertices: VertexCache, phis: FloatArray, pending: IntArray
    ) -> Iterator[tuple[KnownVertex, IntArray]]:
        """Iterate over cached vertices with the pending prompts that they hold."""
        if len(pending) == 0:
            return
        numbers = vertices.find_nearest_each(phis[pending])
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order])) + 1
        for part in np.split(order, ends):
            rows = pending[part]
            for known in vertices[int(numbers[part[0]])]:
                inside = self._are_held(known.box, phis[rows])
                if inside.any():
                    yield known, rows[inside]
                rows = rows[~inside]

    def _are_held(self, box: Box, phis: FloatArray) -> BoolArray:
        """Apply `_is_held` to (m, d) prompts; edges are checked only once a prompt was found on one."""
        return (box.owns_each if self._has_ties else box.holds_each)(phis)


class RidgeWindows(Windows[RidgeRegression]):
    """Proven answers from quantile regression with a ridge penalty."""

    def _build_regression(self, rows: Rows, rest: RowSums, start: Start | None) -> RidgeRegression:
        return RidgeRegression(rows, self._tau, self._penalty, rest, start)

    def _fit_base(self, rows: Rows, nothing: FloatArray) -> RidgeFit:
        return self._build_regression(rows, self._near.rest, None).minimise(nothing)

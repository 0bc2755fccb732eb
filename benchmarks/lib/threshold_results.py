"""What a run of `thresholds.py` finds, as strict data, and whether two sets of thresholds agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.lib.problems import CAP, FloatArray
from benchmarks.lib.timing import Data, Times

TOLERANCE = 1e-6  # a larger difference is a wrong answer, not round-off


class Agreement(Data):
    """A peer's thresholds against ours, both `inf` from the cap on.

    Attributes:
        compared: Number of prompts that both answered.
        largest: Largest difference where both are finite.
        beyond: How many differ by more than 1e-6, infinities included.
        infinities: How many are infinite for one and finite for the other.
        unanswered: How many the peer failed to answer.
    """

    compared: int
    largest: float
    beyond: int
    infinities: int
    unanswered: int


class PeerFigures(Data):
    """The figures of one peer on one problem.

    Attributes:
        prepare: Seconds to build the model and solve the base regression, or to fit.
        query: One threshold after that.
        agreement: Its thresholds against ours.
        stopped: Why something is missing: a limit, a package that is not there, an error.
        at_least: Seconds that the step took at which it was stopped.
    """

    prepare: float | None = None
    query: Times | None = None
    agreement: Agreement | None = None
    stopped: str | None = None
    at_least: float | None = None


class OwnFigures(Data):
    """The figures of this package on one problem.

    Attributes:
        calibrate: `fit` and a first threshold, so that no work can hide in the first question.
        fit: `fit` alone.
        sort: `np.sort` on the scores.
        restore: A rule from the saved state.
        first: One threshold by a rule just restored, which prepares its windows then.
        cold: One threshold by a search from the base fit: by a rule that remembers no answer and no vertex.
        fresh: One threshold for a new prompt by a rule that has answered many others.
        warm: One threshold for a prompt seen before.
        reference: The least that a threshold could cost: `asarray`, one d x d product, a box check, a dot
            product.
        batch: Prompts in a batch.
        batch_cold: Seconds of the batch by a rule just restored.
        batch_again: Seconds of the same batch asked again.
        batch_agreement: The batch's thresholds against those of single prompts.
        refused: How many prompts of the batch (of the single ones, if there was no batch) got no threshold,
            for the calibration prompts kept did not decide it.
        artifact: Bytes of the state in an artifact's file.
        differ_restored: How many thresholds of restored rules were not bit for bit those of the fitted one.
        peak_traced: Peak of what Python and NumPy allocated while fitting, input arrays not counted.
        peak_resident: Peak growth of resident memory while fitting, where the system tells.
        input: Bytes of the input arrays.
        stopped: What was left out because it would take too long.
    """

    calibrate: Times
    fit: Times
    sort: Times
    restore: Times
    first: Times
    cold: Times
    fresh: Times
    warm: Times
    reference: Times
    batch: int
    batch_cold: float | None
    batch_again: float | None
    batch_agreement: Agreement | None
    refused: int
    artifact: int
    differ_restored: int
    peak_traced: int | None
    peak_resident: int | None
    input: int
    stopped: str | None = None


class Cell(Data):
    """One problem: ours and every peer.

    Attributes:
        kind: One of `problems.KINDS`.
        d: Number of features.
        n: Number of calibration prompts N.
        ridge: Penalty; 0 for the linear programme.
        ours: Ours.
        peers: Peers by name.
    """

    kind: str
    d: int
    n: int
    ridge: float
    ours: OwnFigures
    peers: dict[str, PeerFigures]


class Exactness(Data):
    """Answers of one method on many small problems against HiGHS.

    Attributes:
        kind: One of `problems.KINDS`.
        n: Number of calibration prompts; (N + 1) tau is an integer for 199 and not for 200.
        method: `ours` or a peer's name.
        agreement: Against HiGHS with theta just below tau.
        outside: How many are not even between the smallest and the largest value over the optimal face.
        errors: What went wrong, by type of error.
    """

    kind: str
    n: int
    method: str
    agreement: Agreement
    outside: int
    errors: dict[str, int]


class Results(Data):
    """The results of one run on all problems.

    Attributes:
        versions: Python and packages here.
        peer_versions: Python and packages in the peers' own environment.
        cores: Number of cores.
        limit: Seconds that one step of a peer might take.
        cells: The grid.
        exactness: The small problems.
        failures: Problems of the grid that our own rule raised an error on.
    """

    versions: dict[str, str]
    peer_versions: dict[str, str]
    cores: int
    limit: float
    cells: list[Cell]
    exactness: list[Exactness]
    failures: list[str]

    def select_cells(self, *, n: int, d: int | None = None) -> list[Cell]:
        """Select the cells of a size without ridge, of every kind; of one dimension if it is given."""
        return [one for one in self.cells if one.n == n and d in {None, one.d} and one.ridge == 0]


def cap_thresholds(values: Sequence[float | None] | FloatArray) -> FloatArray:
    """Return thresholds as an array: `inf` from the cap on, where nothing is certified; NaN for no answer."""
    numbers = np.array([np.nan if value is None else value for value in values], dtype=float)
    return np.where(numbers >= CAP - 1e-7, np.inf, numbers)  # peers know the cap only by its neighbours


def compare_thresholds(ours: FloatArray, peer: Sequence[float | None] | FloatArray) -> Agreement:
    """Compare as many thresholds as both gave; ours are NaN where our rule refused."""
    theirs, mine = cap_thresholds(peer)[: len(ours)], cap_thresholds(ours)[: len(peer)]
    unanswered = int(np.isnan(theirs).sum())
    both = ~np.isnan(theirs) & ~np.isnan(mine)
    mine, theirs = mine[both], theirs[both]
    finite = np.isfinite(mine) & np.isfinite(theirs)
    differences = np.abs(mine[finite] - theirs[finite])
    mismatches = int((np.isfinite(mine) != np.isfinite(theirs)).sum())
    return Agreement(
        compared=len(mine),
        largest=float(differences.max(initial=0.0)),
        beyond=int((differences > TOLERANCE).sum()) + mismatches,
        infinities=mismatches,
        unanswered=unanswered,
    )


def count_outside(answers: Sequence[float | None], low: FloatArray, high: FloatArray) -> int:
    """Count the answers that lie beyond both ends of the optimal face."""
    values, low, high = cap_thresholds(answers), cap_thresholds(low), cap_thresholds(high)
    answered = ~np.isnan(values) & ~np.isnan(low) & ~np.isnan(high)
    wrong = (values < low - TOLERANCE) | (values > high + TOLERANCE)
    return int((wrong & answered).sum())

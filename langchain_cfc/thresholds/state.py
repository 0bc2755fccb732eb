"""What a fitted conditional rule knows, and its form as named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc.errors import InputError, ThresholdError
from langchain_cfc.thresholds._locality import Centre, Neighbourhood
from langchain_cfc.thresholds._randomized import NegativePlainWindows, NegativeRidgeWindows
from langchain_cfc.thresholds._ridge import RidgeWindows, penalised_base
from langchain_cfc.thresholds._rows import DEPENDENT, NEGLIGIBLE, Columns, Penalised, Rest, Rows, Standardised
from langchain_cfc.thresholds._simplex import inverted
from langchain_cfc.thresholds._warm_start import base_regression
from langchain_cfc.thresholds._widening import sample_prompts, wide_neighbourhood
from langchain_cfc.thresholds._windows import PlainWindows
from langchain_cfc.thresholds.base import check_state

AXES = {
    "features": 2,
    "success_scores": 1,
    "weights": 1,
    "rest": 2,
    "rest_scores": 1,
    "centre": 1,
    "root": 2,
    "radius": 1,
    "kept": 1,
    "scale": 1,
    "mixture": 2,
}
RIDGE_AXES = {"shift": 1, "spread": 1, "penalty": 1}


@dataclass(frozen=True)
class Ridge:
    """A penalty on coefficients.

    Attributes:
        strength: lambda > 0; the objective holds (N + 1) lambda / 2 times each squared coefficient.
        penalised: `slopes` of standardised features, or `all` coefficients of the features as they are.
        units_of: (M, d) features that the units come from; None for those of the calibration prompts.
    """

    strength: float
    penalised: Penalised
    units_of: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a fitted conditional rule knows."""

    columns: Columns  # Independent columns of the features, which say what prompts are within reach
    units: Standardised | None  # Features as a ridge wants them; None without one
    near: Neighbourhood  # The neighbourhood of the fit, in independent columns or in these units
    tau: Fraction  # Target coverage

    @classmethod
    def on(
        cls, prompts: Rows, tau: Fraction, cap: float, window: int | None, ridge: Ridge | None
    ) -> Calibrated:
        """Calibrate on prompts, keeping at least `window` of them; None for all."""
        columns, root = Columns.of(prompts.features)
        if ridge is None:
            rows = replace(prompts, features=columns.reduce(prompts.features)[0])
            lean = _lean(rows)
            base = base_regression(lean, tau)
            asked = sample_prompts(rows, base.beta, cap)
            near = wide_neighbourhood(
                lean, base, root, window, asked=asked, windows_of=lambda near: PlainWindows(near, tau)
            )
            return cls(columns, None, near, tau)
        size = float(prompts.weights.sum())
        penalty = (size + 1.0) * ridge.strength
        units = Standardised.of(prompts.features, penalty, ridge.penalised, ridge.units_of)
        rows = replace(prompts, features=units.apply(prompts.features))
        lean = _lean(rows)
        base, root = penalised_base(lean, tau, units.penalty / (size + 1.0)), units.root(lean.features)
        asked = sample_prompts(rows, base.beta, cap)
        near = wide_neighbourhood(
            lean,
            base,
            root,
            window,
            asked=asked,
            windows_of=lambda near: RidgeWindows(near, tau, units.penalty),
        )
        return cls(columns, units, near, tau)

    def reduce(self, features: FloatArray) -> tuple[FloatArray, BoolArray]:
        """(m, r) features as the neighbourhood has them, and (m,) which of them are within reach."""
        reduced, inside = self.columns.reduce(features)
        return (reduced if self.units is None else self.units.apply(features)), inside

    def reduce_one(self, phi: FloatArray) -> FloatArray | None:
        """The same for one prompt; None if it is no row of finite numbers, or out of reach."""
        reduced = self.columns.reduce_one(phi)
        if reduced is None or self.units is None:
            return reduced
        return np.asarray(self.units.apply(phi[np.newaxis])[0], dtype=np.float64)

    @cached_property
    def windows(self) -> PlainWindows | RidgeWindows:
        """The solver."""
        if self.units is None:
            return PlainWindows(self.near, self.tau)
        return RidgeWindows(self.near, self.tau, self.units.penalty)

    @cached_property
    def negative(self) -> PlainWindows | RidgeWindows:
        """The solver for negative multiples of prompts, see `randomised`."""
        if self.units is None:
            return NegativePlainWindows(self.near, self.tau)
        return NegativeRidgeWindows(self.near, self.tau, self.units.penalty)

    def slack(self, coefficients: FloatArray, prompts: Rows) -> float:
        """By how much a ridge moves the coverage under f = features' coefficients, see `ridge_slack`.

        The parts below the fit balance the penalty: summed over all N + 1 prompts, f_i eta_i makes gamma' D
        beta, D = (N + 1) lambda up to the powers of two in the units of gamma and beta.
        """
        f, total = prompts.features @ coefficients, float(prompts.weights.sum())
        size = float((np.abs(prompts.features) @ np.abs(coefficients)).max(initial=0.0))
        if (f < -NEGLIGIBLE * size).any():
            msg = "a weighting must not be negative: the promise speaks of f >= 0 only"
            raise InputError(msg)
        if self.units is None or f.max() <= DEPENDENT * size:
            return 0.0
        gamma = self.units.coordinates(f, prompts.features)
        pull = float(gamma @ (self.units.penalty * self.near.centre.beta)) / (total + 1.0)
        return pull / (float(prompts.weights @ np.maximum(f, 0.0)) / total)

    def to_arrays(self) -> dict[str, FloatArray]:
        """As named arrays; see `ConditionalThreshold.state_data`."""
        columns, rows, rest = self.columns, self.near.rows, self.near.rest
        arrays = {
            "features": rows.features,
            "success_scores": rows.scores,
            "weights": rows.weights if (rows.weights != 1.0).any() else np.empty(0),
            "rest": np.stack([rest.low, rest.total, rest.mass]),
            "rest_scores": np.array([rest.below_scores, rest.all_scores]),
            "centre": self.near.centre.beta,
            "root": self.near.centre.root,
            "radius": np.array([self.near.radius] if np.isfinite(self.near.radius) else []),
            "kept": columns.kept.astype(np.float64),
            "scale": columns.scale,
            "mixture": columns.mixture,
        }
        return arrays if self.units is None else {**arrays, **self.units.to_arrays()}

    @classmethod
    def from_arrays(
        cls, data: Mapping[str, FloatArray], tau: Fraction, cap: float, *, ridge: bool
    ) -> Calibrated:
        """From named arrays, which may come from a file that anyone wrote."""
        check_state(data, {**AXES, **RIDGE_AXES} if ridge else AXES)
        units = Standardised.from_arrays(data, len(data["scale"])) if ridge else None
        impossible = _impossible(data, cap, units)
        if impossible is not None:
            msg = (
                f"array {impossible!r} of a conditional threshold's state, of shape "
                f"{data[impossible].shape}, does not fit the others or holds an impossible value"
            )
            raise InputError(msg)
        kept = data["kept"].astype(np.int64)
        dropped = np.setdiff1d(np.arange(len(data["scale"])), kept)
        columns = Columns(kept, dropped, data["scale"], data["mixture"])
        scores = data["success_scores"]
        weights = data["weights"] if len(data["weights"]) else np.ones(len(scores))
        low, total, mass = data["rest"]
        rest = Rest(low, total, mass, *data["rest_scores"].tolist())
        radius = float(data["radius"][0]) if len(data["radius"]) else np.inf
        rows, centre = Rows(data["features"], scores, weights), Centre(data["centre"], data["root"])
        return cls(columns, units, Neighbourhood(rows, rest, centre, radius), tau)


def _regular(matrix: FloatArray) -> bool:
    """Whether a matrix is square and has an inverse in floating point."""
    try:
        return matrix.shape[0] == matrix.shape[1] and bool(np.isfinite(inverted(matrix)).all())
    except ThresholdError:
        return False


def _lean(rows: Rows) -> Rows:
    """The same calibration data in few rows where there are many equal ones."""
    return rows.merged() if rows.repetitive else rows


def _impossible(data: Mapping[str, FloatArray], cap: float, units: Standardised | None) -> str | None:
    """The name of an array that cannot be part of a state; None if all can."""
    size, d, r = len(data["success_scores"]), len(data["scale"]), len(data["kept"])
    width = r if units is None else len(units.penalty)
    kept, features, root = data["kept"], data["features"], data["root"]
    shapes = {
        "features": (size, width),
        "rest": (3, width),
        "rest_scores": (2,),
        "centre": (width,),
        "root": (width, width),
        "mixture": (r, d - r),
    }
    for name, shape in shapes.items():
        if data[name].shape != shape:
            return name
    possible = {
        "success_scores": size >= 1 and bool((data["success_scores"] <= cap).all()),
        "weights": len(data["weights"]) in {0, size} and bool((data["weights"] > 0.0).all()),
        "scale": d >= 1 and bool((data["scale"] > 0.0).all()),
        "kept": bool(np.isin(kept, np.arange(d)).all()) and bool((np.diff(kept) > 0.0).all()),
        "radius": len(data["radius"]) <= 1 and bool((data["radius"] >= 0.0).all()),
        "root": not np.tril(root, -1).any() and _regular(root),
        "features": units is not None or _regular(features[:r]),
    }
    return next((name for name, fits in possible.items() if not fits), None)

"""What a fitted conditional rule knows, and its form as named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds.columns import Columns, independent_columns
from langchain_cfc.thresholds.growing import base_regression
from langchain_cfc.thresholds.neighbourhood import Centre, Neighbourhood
from langchain_cfc.thresholds.plain import PlainWindows
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.rule import check_state

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


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Independent columns of the features, and the neighbourhood of the fit in these columns."""

    columns: Columns
    near: Neighbourhood
    tau: Fraction

    @classmethod
    def on(cls, features: FloatArray, scores: FloatArray, tau: Fraction, window: int | None) -> Calibrated:
        """Calibrate on (N, d) features and (N,) success scores, keeping `window` prompts."""
        columns, root = Columns.of(features)
        reduced, _ = columns.reduce(features)
        rows = Rows.unweighted(reduced, scores)
        return cls(columns, Neighbourhood.of(rows, base_regression(rows, tau), root, window), tau)

    @cached_property
    def windows(self) -> PlainWindows:
        """The solver."""
        return PlainWindows(self.near, self.tau)

    def to_arrays(self) -> dict[str, FloatArray]:
        """As named arrays; see `ConditionalThreshold.state_data`."""
        columns, rows, rest = self.columns, self.near.rows, self.near.rest
        return {
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

    @classmethod
    def from_arrays(cls, data: Mapping[str, FloatArray], tau: Fraction, cap: float) -> Calibrated:
        """From named arrays, which may come from a file that anyone wrote.

        Raises:
            InputError: If an array is missing or has an impossible shape or value.
        """
        check_state(data, AXES)
        impossible = _impossible(data, cap)
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
        return cls(columns, Neighbourhood(rows, rest, centre, radius), tau)


def _impossible(data: Mapping[str, FloatArray], cap: float) -> str | None:
    """The name of an array that cannot be part of a state; None if all can."""
    size, d, r = len(data["success_scores"]), len(data["scale"]), len(data["kept"])
    kept, features, root = data["kept"], data["features"], data["root"]
    shapes = {
        "features": (size, r),
        "rest": (3, r),
        "rest_scores": (2,),
        "centre": (r,),
        "root": (r, r),
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
        "root": bool((np.diag(root) != 0.0).all()),
        "features": len(independent_columns(features[:r].T)) == r,
    }
    return next((name for name, fits in possible.items() if not fits), None)

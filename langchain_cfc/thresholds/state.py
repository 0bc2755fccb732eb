"""The state of a fitted conditional rule, and its form as named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds._locality import Centre, Neighbourhood
from langchain_cfc.thresholds._ridge import fit_penalised_base
from langchain_cfc.thresholds._rows import (
    Columns,
    Rows,
    RowSums,
    compute_penalties,
    compute_regular_root,
    is_in_range,
)
from langchain_cfc.thresholds._warm_start import fit_base_regression
from langchain_cfc.thresholds._widening import build_wide_neighbourhood, sample_prompts
from langchain_cfc.thresholds._windows import PlainWindows, RidgeWindows
from langchain_cfc.thresholds.base import check_state


@dataclass(frozen=True, eq=False)
class ConditionalState:
    """The state of a fitted conditional rule."""

    columns: Columns  # Independent columns of the features, which determine which prompts are within reach
    penalty: FloatArray | None  # (d,) penalties of a ridge on the scaled columns; None without one
    near: Neighbourhood  # The neighbourhood of the fit, in independent columns; with a ridge in all columns
    tau: Fraction  # Coverage of which targets are multiples

    @classmethod
    def fit(
        cls,
        prompts: Rows,
        tau: Fraction,
        cap: float,
        window: int | None,
        *,
        ridge: float,
    ) -> ConditionalState:
        """Calibrate on prompts with `ridge` >= 0, and keep at least `window` of them; all of them if None."""
        columns, root = Columns.choose(prompts.features)
        size = float(prompts.weights.sum())
        penalty = compute_penalties(columns.scale, (size + 1.0) * ridge) if ridge > 0.0 else None
        features = (
            columns.reduce(prompts.features)[0] if penalty is None else prompts.features / columns.scale
        )
        rows = replace(prompts, features=features)
        lean = rows.merge_equal() if rows.is_repetitive else rows
        if penalty is None:
            base = fit_base_regression(lean, tau)
        else:
            base = fit_penalised_base(lean, tau, penalty / (size + 1.0))
            root = compute_regular_root(lean.features)
        linear_terms = sample_prompts(rows, base.beta, cap)
        near = build_wide_neighbourhood(
            lean,
            base,
            root,
            window,
            linear_terms=linear_terms,
            build_windows=lambda near: _build_windows(near, tau, penalty),
        )
        return cls(columns, penalty, near, tau)

    def reduce(self, features: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return (m, r) features as in the neighbourhood, and (m,) whether each row is within reach."""
        reduced, inside = self.columns.reduce(features)
        return (reduced if self.penalty is None else features / self.columns.scale), inside

    def reduce_one(self, phi: FloatArray) -> FloatArray | None:
        """Return the reduced features of one prompt; None if they are invalid or out of reach."""
        reduced = self.columns.reduce_one(phi)
        if reduced is None or self.penalty is None:
            return reduced
        return np.asarray(phi / self.columns.scale, dtype=np.float64)

    @cached_property
    def windows(self) -> PlainWindows | RidgeWindows:
        """The solver for prompts, and for positive multiples of them."""
        return _build_windows(self.near, self.tau, self.penalty)

    @cached_property
    def negative(self) -> PlainWindows | RidgeWindows:
        """The solver for negative multiples of prompts (see `_randomized`)."""
        return _build_windows(self.near, self.tau, self.penalty, negative=True)

    def to_arrays(self, *, has_levels: bool) -> dict[str, FloatArray]:
        """Return the state as named arrays; see `ConditionalThreshold.get_state_data`."""
        rows, rest = self.near.rows, self.near.rest
        return {
            "features": rows.features,
            "success_scores": rows.scores,
            "weights": rows.weights if (rows.weights != 1.0).any() else np.empty(0),
            "rest": np.stack([rest.low, rest.total, rest.mass]),
            "rest_scores": np.array([rest.below_scores, rest.target_scores]),
            "centre": self.near.centre.beta,
            "root": self.near.centre.root,
            "radius": np.array([self.near.radius] if np.isfinite(self.near.radius) else []),
            **self.columns.to_arrays(),
            **({} if self.penalty is None else {"penalty": self.penalty}),
            **({"targets": rows.targets, "rest_target": rest.target} if has_levels else {}),
        }

    @classmethod
    def from_arrays(
        cls, data: Mapping[str, FloatArray], tau: Fraction, cap: float, *, ridge: bool, has_levels: bool
    ) -> ConditionalState:
        """Rebuild the state from named, maybe untrusted arrays; raise an InputError if they do not fit."""
        size, rank, d, n_weights, n_radii = (
            np.size(data.get(name, ())) for name in ("success_scores", "kept", "scale", "weights", "radius")
        )
        width = d if ridge else rank
        shapes = {
            "features": (size, width),
            "success_scores": (size,),
            "weights": (size if n_weights else 0,),
            "rest": (3, width),
            "rest_scores": (2,),
            "centre": (width,),
            "root": (width, width),
            "radius": (min(1, n_radii),),
            "kept": (rank,),
            "scale": (d,),
            "mixture": (rank, d - rank),
            **({"penalty": (d,)} if ridge else {}),
            **({"targets": (size,), "rest_target": (width,)} if has_levels else {}),
        }
        check_state(data, shapes)
        columns, scores = Columns.from_arrays(data), data["success_scores"]
        if size == 0 or (scores > cap).any() or not is_in_range(data.get("penalty", np.ones(1))):
            msg = "the state of a conditional threshold has no prompts, or an impossible score or penalty"
            raise InputError(msg)
        weights = data["weights"] if n_weights else np.ones(size)
        low, total, mass = data["rest"]
        rest = RowSums(low, total, mass, data.get("rest_target", total), *data["rest_scores"].tolist())
        radius = float(data["radius"][0]) if n_radii else np.inf
        rows = Rows(data["features"], scores, weights, data.get("targets", weights))
        centre = Centre(data["centre"], data["root"])
        return cls(columns, data.get("penalty"), Neighbourhood(rows, rest, centre, radius), tau)


def _build_windows(
    near: Neighbourhood, tau: Fraction, penalty: FloatArray | None, *, negative: bool = False
) -> PlainWindows | RidgeWindows:
    """Build the solver for a neighbourhood; `negative` for negative multiples of prompts."""
    if penalty is None:
        return PlainWindows(near, tau, negative=negative)
    return RidgeWindows(near, tau, penalty, negative)

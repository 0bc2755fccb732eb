"""The curve of a bot: the share of wrong answers against the share of questions answered.

Each point is a cut on the score: what scores at most this is answered. A curve is drawn with matplotlib, or
as lines of text for a terminal.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.support.display import Displayed
from langchain_cfc.support.imports import require
from langchain_cfc.support.text import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 200
_WIDTH, _HEIGHT = 60, 9
_LINE, _BOUND = "#0072B2", "#D55E00"
_MARKERS = "osD^v"


class RiskCurve(Displayed, BaseModel):
    """Shares of wrong answers, or of unsupported claims, if only those of low score are shown.

    Attributes:
        answered: Shares of questions answered, or of claims shown, in [0, 1], ascending.
        wrong: Share of these with a wrong best answer, or that are unsupported, at each point.
        at_most: Upper bounds on `wrong` at each point; empty if there are none.
        certified: Certified points, each as the share answered, the share of these that is wrong, and the
            certified limit on it.
        labels: What the horizontal and the vertical axis show.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    answered: list[float]
    wrong: list[float]
    at_most: list[float] = []
    certified: list[tuple[float, float, float]] = []
    labels: tuple[str, str] = ("questions answered", "wrong, of those answered")

    @classmethod
    def from_scores(cls, scores: FloatArray, wrong: BoolArray, **fields: Any) -> RiskCurve:
        """Compute the curve of (N,) scores, smaller is better, and (N,) wrong ones; ties enter together.

        What has an infinite score is never answered. Of more than 200 points, 200 are kept, evenly spaced.
        `fields` are further fields of the curve.
        """
        order = np.argsort(scores, kind="stable")
        ascending = scores[order]
        is_last = np.append(ascending[1:] > ascending[:-1], True)
        places = np.flatnonzero(is_last & np.isfinite(ascending))
        if len(places) > _MOST_POINTS:
            kept = np.linspace(0, len(places) - 1, _MOST_POINTS).round().astype(np.int64)
            places = places[np.unique(kept)]
        shares = np.cumsum(wrong[order])[places] / (places + 1)
        return cls(answered=((places + 1) / len(scores)).tolist(), wrong=shares.tolist(), **fields)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the curve, the bounds, and the certified points with their limits.

        Args:
            ax: The matplotlib axis to draw on; by default that of a new figure.

        Returns:
            The axis; `ax.figure.savefig("curve.pdf")` writes the figure.

        Raises:
            InputError: If the curve has no points.
            MissingExtraError: If matplotlib is not installed.
        """
        self._require_points()
        if ax is None:
            # Notebooks show only figures that pyplot made.
            pyplot = require("matplotlib.pyplot", "lab", "a plot")
            _, ax = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
        ink = str(ax.xaxis.label.get_color())
        ax.plot(self.answered, self.wrong, color=_LINE, linewidth=1.8, label="seen")
        if self.at_most:
            ax.plot(self.answered, self.at_most, "--", color=_BOUND, linewidth=1.2, label="upper bound")
        for (answered, wrong, limit), marker in zip(self.certified, cycle(_MARKERS), strict=False):
            ax.axhline(limit, color=ink, linestyle=":", linewidth=1.0)
            label = f"certified: at most {format_percent(limit, 'g')}"
            ax.plot([answered], [wrong], marker, color=ink, fillstyle="none", markersize=10.0, label=label)
        ax.set_xlabel(self.labels[0])
        ax.set_ylabel(self.labels[1])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda share, _: format_percent(share, ".4g"))
        top = max(ax.get_ylim()[1], 0.01)
        ax.set_ylim(-0.03 * top, top)  # a marker at zero is not cut off
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(loc="upper left", frameon=False)
        return ax

    def draw_text(self) -> list[str]:
        """Return the curve as ten lines and a line for its axis, at most 72 characters wide, in ASCII."""
        self._require_points()
        top = max(*self.wrong, *(limit for *_, limit in self.certified), 0.01)
        rows = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]

        def mark(answered: float, wrong: float, sign: str) -> None:
            rows[_HEIGHT - round(_HEIGHT * wrong / top)][round(_WIDTH * answered)] = sign

        for _, _, limit in self.certified:
            for place in range(0, _WIDTH + 1, 2):
                mark(place / _WIDTH, limit, "-")
        for place in range(_WIDTH + 1):
            if place / _WIDTH >= self.answered[0]:
                mark(place / _WIDTH, float(np.interp(place / _WIDTH, self.answered, self.wrong)), ".")
        for answered, wrong, _ in self.certified:
            mark(answered, wrong, "O")
        lines = []
        for place, row in enumerate(rows):
            share = format_percent(top * (_HEIGHT - place) / _HEIGHT) if place % 3 == 0 else ""
            lines.append(f"{share:>6} |{''.join(row).rstrip()}")
        ends = f"0 %{self.labels[0]:^{_WIDTH - 8}}100 %"
        return [self.labels[1], *lines, f"{'':7}+{'-' * _WIDTH}", f"{'':8}{ends}"]

    def _require_points(self) -> None:
        if not self.answered:
            msg = "nothing to draw: the curve has no points"
            raise InputError(msg)

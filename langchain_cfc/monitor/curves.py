"""How the capital of tests went over time, in few points however long that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_cfc._arrays import FloatArray

# Of a curve; half of them are dropped when there are more.
MOST = 400


@dataclass(frozen=True)
class Curve:
    """Logarithms of the capital of m tests, after every so many outcomes.

    Attributes:
        step: Number of outcomes from one point to the next; doubled whenever there are too many points.
        outcomes: Number of outcomes so far.
        points: Of each, the number of outcomes, the time, and the m logarithms to three decimals.
    """

    step: int = 1
    outcomes: int = 0
    points: tuple[tuple[int, float, list[float]], ...] = ()

    def after(self, log: FloatArray, now: float) -> Curve:
        """With one more outcome."""
        outcomes, step, points = self.outcomes + 1, self.step, self.points
        if outcomes % step == 0:
            points = (*points, (outcomes, now, log.round(3).tolist()))
        if len(points) > MOST:
            step *= 2
            points = tuple(one for one in points if one[0] % step == 0)
        return Curve(step, outcomes, points)

    def to_data(self) -> dict[str, Any]:
        """All of it, to be stored."""
        return {"step": self.step, "outcomes": self.outcomes, "points": [list(one) for one in self.points]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Curve:
        """What `to_data` was made of."""
        points = tuple((int(outcomes), float(at), list(logs)) for outcomes, at, logs in data["points"])
        return cls(int(data["step"]), int(data["outcomes"]), points)

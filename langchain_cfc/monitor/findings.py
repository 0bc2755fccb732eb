"""What one test of a monitor found, and what the tests of one kind show together."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict

from langchain_cfc.features import in_short

_FEW, _MANY = 10, 1_000_000
_KINDS = {
    "drift": "Drift",
    "rates": "Certified rates",
    "labelled": "Labelled results beside the others",
}


class Data(BaseModel):
    """Base of what a monitor says: plain data that does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Test(Data):
    """One test, and what it has found.

    Attributes:
        kind: `drift` of what prompts look like; `kept` and `right`: a certified rate that is not kept;
            `labelled`: results with a label that do not look like the others.
        what: The quantity, or the rate, for people.
        group: The prompts in which it is watched, for people.
        alpha: The level it is of; None for what does not depend on one.
        outcomes: Number of results or labels that it has seen.
        evidence: The largest value that its capital ever had, from a stake of 1.
        needed: The value from which on it alarms by itself, whatever the other tests of its kind show;
            together with others it alarms earlier, see `Together`.
        alarm: Whether the tests of its kind alarm together and this is one of those that make them do so.
        since: When what it found seems to have begun, in ISO 8601, UTC; None without an alarm.
        seen: The observed share, for rates; None for drift.
        certified: The certified one; None for drift.
        shift: For drift, which way results moved and how far: the observed share beside the expected one,
            over all results so far. None for other kinds, and before the first result.
    """

    kind: Literal["drift", "kept", "right", "labelled"]
    what: str
    group: str
    alpha: str | None
    outcomes: int
    evidence: float
    needed: float
    alarm: bool
    since: str | None
    seen: float | None = None
    certified: float | None = None
    shift: str | None = None

    @property
    def progress(self) -> float:
        """How far it is on the way from a stake of 1 to an alarm, by orders of magnitude: in [0, 1]."""
        return min(1.0, math.log(max(self.evidence, 1.0)) / math.log(self.needed))

    def sentence(self) -> str:
        """What it found, in a line."""
        level = "" if self.alpha is None else f" at alpha = {self.alpha}"
        since = "" if self.since is None else f", since about {self.since[:16].replace('T', ' ')} UTC"
        group = in_short(self.group)
        where = f"{f'over {group}' if group == self.group else f'where {group}'}{level}{since}"
        # Features keep the names that their text gives them.
        what = self.what if "(" in self.what else f"{self.what[0].upper()}{self.what[1:]}"
        if self.kind == "labelled":
            verdict = "differs" if self.alarm else "shows no difference"
            return f"{what} {verdict} between labelled results and the others {where}"
        if self.kind == "drift":
            if not self.alarm:
                return f"{what} shows no change {where}"
            return f"{what} has changed {where}" + (f"; {self.shift}" if self.shift else "")
        certified = f"{100 * (self.certified or 0.0):.1f} %"
        observed = "" if self.seen is None else f", observed {100 * self.seen:.1f} %"
        verdict = "is broken" if self.alarm else "stands"
        return f"{what}, certified at least {certified}{observed}, {verdict} {where}"


class Together(Data):
    """What all tests of one kind show together, by the mean of their capital; see `MeanCapital`.

    Attributes:
        kind: `drift`; `rates`: certified rates, of kept promises and right answers; `labelled`.
        tests: Number of tests.
        evidence: The largest value that the mean ever had, from 1.
        needed: The value from which on it alarms, 1 / level.
        alarm: Whether it does.
        since: When what it found seems to have begun, in ISO 8601, UTC; None without an alarm.
        leading: The test with the largest share of the evidence, for people; None without any outcome.
    """

    kind: Literal["drift", "rates", "labelled"]
    tests: int
    evidence: float
    needed: float
    alarm: bool
    since: str | None
    leading: str | None

    @property
    def progress(self) -> float:
        """How far it is on the way to an alarm, by orders of magnitude: in [0, 1]."""
        return min(1.0, math.log(max(self.evidence, 1.0)) / math.log(self.needed))

    def sentence(self) -> str:
        """What they show, in a line."""
        led = f", most of it from {self.leading}" if self.leading and self.evidence > 1.0 else ""
        tests = f"{self.tests} test{'' if self.tests == 1 else 's'} together"
        evidence = f"evidence {amount(self.evidence)}, alarm at {amount(self.needed)}"
        return f"{_KINDS[self.kind]}: {tests} show {evidence}{led}"


def amount(evidence: float) -> str:
    """Evidence, short enough for a column."""
    if evidence >= _MANY:
        return f"{evidence:.0e}"
    return f"{evidence:,.0f}" if evidence >= _FEW else f"{evidence:.1f}"

"""What a monitor shows, as numbers by name, for whoever collects them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from langchain_cfc.errors import CFCError
from langchain_cfc.monitor.monitor import CFCMonitor
from langchain_cfc.monitor.status import MonitorStatus


@dataclass(frozen=True)
class Measure:
    """One number.

    Attributes:
        name: What it is called.
        words: What it says.
        value: The number.
        labels: What it is of.
    """

    name: str
    words: str
    value: float
    labels: Mapping[str, str]


UP = "cfc_monitor_up"
WORDS = {
    UP: "Whether the monitor's store could be read.",
    "cfc_monitor_sound": "Whether no test alarms and no limit is exceeded.",
    "cfc_monitor_results": "Results that are kept.",
    "cfc_monitor_labels": "Labels that are kept.",
    "cfc_monitor_failures": "Prompts that could not be served, as far as they are kept.",
    "cfc_monitor_breaches": "Limits that are exceeded.",
    "cfc_monitor_alarms": "Tests that alarm.",
    "cfc_monitor_artifact_age_days": "Days since the artifact was made.",
    "cfc_monitor_answered_ratio": "Share of results whose answer set is not empty.",
    "cfc_monitor_flagged_ratio": "Share of results that are not certifiable.",
    "cfc_monitor_failing_ratio": "Share of the latest prompts that could not be served.",
    "cfc_monitor_seconds": "How long the latest results took.",
    "cfc_monitor_test_progress_ratio": "How far a test is on its way to an alarm, by orders of magnitude.",
    "cfc_monitor_test_alarm": "Whether a test alarms.",
}


class Measured:
    """The numbers of monitors, looked up at most every so often.

    Args:
        monitors: The monitors, each of another artifact.
        every: Seconds for which numbers are told again, at least 0: to look them up reads the stores.
    """

    def __init__(self, monitors: Sequence[CFCMonitor], every: float) -> None:
        self._monitors = tuple(monitors)
        self._every = every
        self._at: float | None = None
        self._known: list[Measure] = []
        self._renew()
        if hasattr(os, "register_at_fork"):
            # Or a child that was forked in the middle of a look would wait for its end for ever.
            apart = weakref.WeakMethod(self._renew)
            os.register_at_fork(after_in_child=lambda: (renew := apart()) and renew())

    def _renew(self) -> None:
        self._turn = threading.Lock()

    def all(self) -> list[Measure]:
        """All numbers; where the store cannot be read, that alone."""
        with self._turn:
            now = time.monotonic()
            if self._at is None or now - self._at >= self._every:
                self._known = [one for monitor in self._monitors for one in _read(monitor)]
                self._at = now
            return self._known


def _read(monitor: CFCMonitor) -> list[Measure]:
    artifact = {"artifact": monitor.artifact.digest}
    try:
        status = monitor.status()
    except CFCError:
        return [_measure(UP, 0.0, artifact)]
    return [_measure(UP, 1.0, artifact), *_measures(status)]


def _measures(status: MonitorStatus) -> Iterator[Measure]:
    numbers = {
        "sound": float(status.sound),
        "results": status.results,
        "labels": status.labels,
        "failures": status.failures,
        "breaches": len(status.breaches),
        "alarms": len(status.alarms),
        "artifact_age_days": status.age_days,
        "answered_ratio": status.answered,
        "flagged_ratio": status.flagged,
        "failing_ratio": status.failing,
    }
    artifact = {"artifact": status.artifact}
    for name, value in numbers.items():
        if value is not None:
            yield _measure(f"cfc_monitor_{name}", value, artifact)
    if status.seconds is not None:
        for quantile, seconds in zip(("0.5", "0.99"), status.seconds, strict=True):
            yield _measure("cfc_monitor_seconds", seconds, {**artifact, "quantile": quantile})
    for one in status.tests:
        of = {**artifact, "kind": one.kind, "what": one.what, "group": one.group, "alpha": one.alpha or ""}
        yield _measure("cfc_monitor_test_progress_ratio", one.progress, of)
        yield _measure("cfc_monitor_test_alarm", float(one.alarm), of)


def _measure(name: str, value: float, labels: Mapping[str, str]) -> Measure:
    return Measure(name, WORDS[name], float(value), labels)

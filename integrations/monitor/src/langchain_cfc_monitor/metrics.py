"""Export the metrics of monitors to Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_cfc.errors import CFCError
from langchain_cfc.support.imports import require
from langchain_cfc_monitor.monitor import CFCMonitor, call_after_fork
from langchain_cfc_monitor.status import MonitorStatus


@dataclass(frozen=True)
class Metric:
    """One value of a metric, with its name, description and labels."""

    name: str
    description: str
    value: float
    labels: Mapping[str, str]


_UP = "cfc_monitor_up"
DESCRIPTIONS = {
    _UP: "Whether the monitor's store could be read.",
    "cfc_monitor_sound": "Whether no test alarms and no limit is exceeded.",
    "cfc_monitor_results": "Number of stored results.",
    "cfc_monitor_labels": "Number of stored labels.",
    "cfc_monitor_failures": "Number of stored prompts that could not be served.",
    "cfc_monitor_breaches": "Number of exceeded limits.",
    "cfc_monitor_alarms": "Number of tests that alarm.",
    "cfc_monitor_artifact_age_days": "Days since the artifact was made.",
    "cfc_monitor_answered_ratio": "Share of results that were answered.",
    "cfc_monitor_flagged_ratio": "Share of results that are not certifiable.",
    "cfc_monitor_failing_ratio": "Share of the latest prompts that could not be served.",
    "cfc_monitor_seconds": "Time that the latest results took.",
    "cfc_monitor_test_progress_ratio": "Progress of a test towards an alarm, on a logarithmic scale.",
    "cfc_monitor_test_alarm": "Whether a test alarms.",
}


class MetricsReader:
    """Reads the metrics of monitors and caches them for `every` seconds: each read queries the stores."""

    def __init__(self, monitors: Sequence[CFCMonitor], every: float) -> None:
        self._monitors = tuple(monitors)
        self._every = every
        self._at: float | None = None
        self._known: list[Metric] = []
        self._reset_lock()
        # A child process forked while the lock is held would wait for it forever.
        call_after_fork(self._reset_lock)

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def read(self) -> list[Metric]:
        """Return all metrics; for a store that cannot be read, only `cfc_monitor_up` with value 0."""
        with self._lock:
            now = time.monotonic()
            if self._at is None or now - self._at >= self._every:
                self._known = [one for monitor in self._monitors for one in _read_monitor(monitor)]
                self._at = now
            return self._known


def _read_monitor(monitor: CFCMonitor) -> list[Metric]:
    artifact = {"artifact": monitor.artifact.digest}
    try:
        status = monitor.read_status()
    except CFCError:
        return [_make_metric(_UP, 0.0, artifact)]
    return [_make_metric(_UP, 1.0, artifact), *_list_metrics(status)]


def _list_metrics(status: MonitorStatus) -> Iterator[Metric]:
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
            yield _make_metric(f"cfc_monitor_{name}", value, artifact)
    if status.seconds is not None:
        for quantile, seconds in zip(("0.5", "0.99"), status.seconds, strict=True):
            yield _make_metric("cfc_monitor_seconds", seconds, {**artifact, "quantile": quantile})
    for one in status.tests:
        of = {**artifact, "kind": one.kind, "what": one.what, "group": one.group, "alpha": one.alpha or ""}
        yield _make_metric("cfc_monitor_test_progress_ratio", one.progress, of)
        yield _make_metric("cfc_monitor_test_alarm", float(one.alarm), of)


def _make_metric(name: str, value: float, labels: Mapping[str, str]) -> Metric:
    return Metric(name, DESCRIPTIONS[name], float(value), labels)


class PrometheusCollector:
    """Prometheus collector for the metrics of monitors: `REGISTRY.register(PrometheusCollector(monitor))`.

    All metrics are gauges named `cfc_monitor_...`, with the artifact's digest as a label. If a store cannot
    be read, its `cfc_monitor_up` is 0 and its other metrics are missing.

    Args:
        *monitors: All monitors of the registry; a second collector would export the same metric names.
        every: Seconds for which metrics are cached, at least 0; each read queries the stores.

    Raises:
        MissingExtraError: If `prometheus_client` is not installed.
    """

    def __init__(self, *monitors: CFCMonitor, every: float = 15.0) -> None:
        self._core: Any = require("prometheus_client.core", "prometheus", "figures for Prometheus")
        self._reader = MetricsReader(monitors, every)

    def describe(self) -> list[Any]:
        """Return nothing, so that registering the collector reads no store."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as gauge families."""
        families: dict[str, Any] = {}
        for one in self._reader.read():
            family = families.get(one.name)
            if family is None:
                family = self._core.GaugeMetricFamily(one.name, one.description, labels=list(one.labels))
                families[one.name] = family
            family.add_metric(list(one.labels.values()), one.value)
        yield from families.values()


def observe(*monitors: CFCMonitor, meter: Any = None, every: float = 15.0) -> None:
    """Register the metrics of monitors with an OpenTelemetry meter, as gauges named `cfc_monitor_...`.

    Args:
        *monitors: All monitors of the meter; a second call would register the same metric names.
        meter: The meter; by default one from the global provider.
        every: Seconds for which metrics are cached, at least 0; each read queries the stores.

    Raises:
        MissingExtraError: If `opentelemetry-api` is not installed.
    """
    api: Any = require("opentelemetry.metrics", "opentelemetry", "figures for OpenTelemetry")
    reader = MetricsReader(monitors, every)
    if meter is None:
        meter = api.get_meter("langchain_cfc_monitor")

    def make_callback(name: str) -> Callable[[Any], Iterator[Any]]:
        def observe_metric(_: Any) -> Iterator[Any]:
            for one in reader.read():
                if one.name == name:
                    yield api.Observation(one.value, dict(one.labels))

        return observe_metric

    for name, description in DESCRIPTIONS.items():
        meter.create_observable_gauge(name, callbacks=[make_callback(name)], description=description)

"""Export the metrics of monitors to Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_cfc.errors import CFCError
from langchain_cfc.support.imports import require
from langchain_cfc_monitor.monitor import CFCMonitor, call_after_fork
from langchain_cfc_monitor.status import MonitorStatus


class Metric(NamedTuple):
    """One value of a metric, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str]


# What is read from each status: description and value by name; None where there is no value yet.
_GAUGES: dict[str, tuple[str, Callable[[MonitorStatus], float | None]]] = {
    "sound": ("Whether no test alarms and no limit is exceeded.", lambda status: status.sound),
    "results": ("Number of stored results.", lambda status: status.results),
    "labels": ("Number of stored labels.", lambda status: status.labels),
    "failures": ("Number of stored prompts that could not be served.", lambda status: status.failures),
    "breaches": ("Number of exceeded limits.", lambda status: len(status.breaches)),
    "alarms": ("Number of tests that alarm.", lambda status: len(status.alarms)),
    "artifact_age_days": ("Days since the artifact was made.", lambda status: status.age_days),
    "answered_ratio": ("Share of results that were answered.", lambda status: status.answered),
    "flagged_ratio": ("Share of results that are not certifiable.", lambda status: status.flagged),
    "failing_ratio": (
        "Share of the latest prompts that could not be served.",
        lambda status: status.failing,
    ),
}
DESCRIPTIONS = {
    **{f"cfc_monitor_{name}": description for name, (description, _) in _GAUGES.items()},
    "cfc_monitor_up": "Whether the monitor's store could be read.",
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


def _read_monitor(monitor: CFCMonitor) -> Iterator[Metric]:
    artifact = {"artifact": monitor.artifact.digest}
    try:
        status = monitor.read_status()
    except CFCError:
        yield Metric("cfc_monitor_up", 0.0, artifact)
        return
    yield Metric("cfc_monitor_up", 1.0, artifact)
    for name, (_, read) in _GAUGES.items():
        if (value := read(status)) is not None:
            yield Metric(f"cfc_monitor_{name}", float(value), artifact)
    for quantile, seconds in zip(("0.5", "0.99"), status.seconds or (), strict=False):
        yield Metric("cfc_monitor_seconds", seconds, {**artifact, "quantile": quantile})
    for one in status.tests:
        of = {**artifact, "kind": one.kind, "what": one.what, "group": one.group, "alpha": one.alpha or ""}
        yield Metric("cfc_monitor_test_progress_ratio", one.progress, of)
        yield Metric("cfc_monitor_test_alarm", float(one.alarm), of)


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
                family = self._core.GaugeMetricFamily(
                    one.name, DESCRIPTIONS[one.name], labels=list(one.labels)
                )
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

"""Metrics of monitors for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_cfc._internal.optional import require
from langchain_cfc.monitor.metrics import DESCRIPTIONS, MetricsReader
from langchain_cfc.monitor.monitor import CFCMonitor


def observe(*monitors: CFCMonitor, meter: Any = None, every: float = 15.0) -> None:
    """Register the metrics of monitors with a meter of OpenTelemetry, as gauges named `cfc_monitor_...`.

    Args:
        *monitors: All monitors of the meter; in several calls their names would clash.
        meter: The meter; that of the global provider if left out.
        every: Seconds for which metrics are reused, at least 0, because reading them reads the stores.

    Raises:
        MissingExtraError: If `opentelemetry-api` is not installed.
    """
    api: Any = require("opentelemetry.metrics", "opentelemetry", "figures for OpenTelemetry")
    reader = MetricsReader(monitors, every)
    if meter is None:
        meter = api.get_meter("langchain_cfc.monitor")

    def make_callback(name: str) -> Callable[[Any], Iterator[Any]]:
        def observe_metric(_: Any) -> Iterator[Any]:
            for one in reader.read():
                if one.name == name:
                    yield api.Observation(one.value, dict(one.labels))

        return observe_metric

    for name, description in DESCRIPTIONS.items():
        meter.create_observable_gauge(name, callbacks=[make_callback(name)], description=description)

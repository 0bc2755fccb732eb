"""Metrics of monitors for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_cfc._internal.optional import require
from langchain_cfc.monitor.metrics import MetricsReader
from langchain_cfc.monitor.monitor import CFCMonitor


class PrometheusCollector:
    """Collector of the metrics of monitors: `REGISTRY.register(PrometheusCollector(monitor))`.

    All are gauges whose names begin with `cfc_monitor_`, with the artifact's digest as a label. If a store
    cannot be read, `cfc_monitor_up` is 0 and its other metrics are missing.

    Args:
        *monitors: All monitors of the registry; in several collectors their names would clash.
        every: Seconds for which metrics are reused, at least 0, because reading them reads the stores.

    Raises:
        MissingExtraError: If `prometheus_client` is not installed.
    """

    def __init__(self, *monitors: CFCMonitor, every: float = 15.0) -> None:
        self._core: Any = require("prometheus_client.core", "prometheus", "figures for Prometheus")
        self._reader = MetricsReader(monitors, every)

    def describe(self) -> list[Any]:
        """Return nothing, so that registration reads no store."""
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

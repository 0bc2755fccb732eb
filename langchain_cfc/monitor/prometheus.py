"""A monitor's numbers for Prometheus, by its own library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_cfc._internal.optional import require
from langchain_cfc.monitor.metrics import Measured
from langchain_cfc.monitor.monitor import CFCMonitor


class PrometheusCollector:
    """What monitors show, to be registered: `REGISTRY.register(PrometheusCollector(monitor))`.

    All are gauges whose names begin with `cfc_monitor_`, with the artifact's digest as a label; where a store
    cannot be read, `cfc_monitor_up` is 0 and nothing else is told of it.

    Args:
        *monitors: The monitors; all of a registry in one collector, or their names would clash.
        every: Seconds for which numbers are told again, at least 0: to look them up reads the stores.

    Raises:
        MissingExtraError: If `prometheus_client` is not installed.
    """

    def __init__(self, *monitors: CFCMonitor, every: float = 15.0) -> None:
        self._core: Any = require("prometheus_client.core", "prometheus", "figures for Prometheus")
        self._measured = Measured(monitors, every)

    def describe(self) -> list[Any]:
        """Nothing, so that to be registered reads no store."""
        return []

    def collect(self) -> Iterator[Any]:
        """All numbers of now."""
        families: dict[str, Any] = {}
        for one in self._measured.all():
            family = families.get(one.name)
            if family is None:
                family = self._core.GaugeMetricFamily(one.name, one.words, labels=list(one.labels))
                families[one.name] = family
            family.add_metric(list(one.labels.values()), one.value)
        yield from families.values()

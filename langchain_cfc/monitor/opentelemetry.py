"""A monitor's numbers for OpenTelemetry, by its own library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_cfc._internal.optional import require
from langchain_cfc.monitor.metrics import WORDS, Measured
from langchain_cfc.monitor.monitor import CFCMonitor


def observe(*monitors: CFCMonitor, meter: Any = None, every: float = 15.0) -> None:
    """Let a meter of OpenTelemetry observe what monitors show, in gauges named `cfc_monitor_...`.

    Args:
        *monitors: The monitors; all of a meter at once, or their names would clash.
        meter: The meter; that of the global provider if left out.
        every: Seconds for which numbers are told again, at least 0: to look them up reads the stores.

    Raises:
        MissingExtraError: If `opentelemetry-api` is not installed.
    """
    api: Any = require("opentelemetry.metrics", "opentelemetry", "figures for OpenTelemetry")
    measured = Measured(monitors, every)
    if meter is None:
        meter = api.get_meter("langchain_cfc.monitor")

    def told(name: str) -> Callable[[Any], Iterator[Any]]:
        def observations(_: Any) -> Iterator[Any]:
            for one in measured.all():
                if one.name == name:
                    yield api.Observation(one.value, dict(one.labels))

        return observations

    for name, words in WORDS.items():
        meter.create_observable_gauge(name, callbacks=[told(name)], description=words)

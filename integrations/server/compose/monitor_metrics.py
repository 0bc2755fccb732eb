"""Serves the metrics of a monitor on port 9108: python monitor_metrics.py ARTIFACT.

The monitor of the served chain writes what it observes into the store that CFC_MONITOR_STORE names, from
every worker; this process reads it, so that each figure is reported once.
"""

from __future__ import annotations

import os
import sys
import threading

from langchain_cfc_monitor import CFCMonitor
from langchain_cfc_monitor.metrics import PrometheusCollector
from prometheus_client import CollectorRegistry, start_http_server

from langchain_cfc import CalibrationArtifact


def main(path: str, port: int = 9108) -> None:
    """Serve the metrics until the process is stopped."""
    monitor = CFCMonitor(CalibrationArtifact.load(path), os.environ["CFC_MONITOR_STORE"])
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(monitor))
    start_http_server(port, registry=registry)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])

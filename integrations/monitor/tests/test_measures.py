"""Metrics of a monitor, as Prometheus and OpenTelemetry read them."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_monitor import CFCMonitor, Limits
from langchain_cfc_monitor.metrics import MetricsReader, PrometheusCollector, observe
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.errors import StoreError
from tests.recordings import list_facts

SERVED = 20


@pytest.fixture
def monitor(artifact: CalibrationArtifact, chain: CFCRunnable, tmp_path: Path) -> Iterator[CFCMonitor]:
    limits = Limits(age_days=0.0)
    with CFCMonitor(artifact, tmp_path / "monitor.db", limits=limits) as opened:
        for one in list_facts()[:SERVED]:
            chain.invoke(one.input, {"callbacks": [opened]})
        yield opened


@pytest.fixture
def registry(monitor: CFCMonitor) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(PrometheusCollector(monitor, every=0.0))
    return made


@pytest.fixture
def endpoint(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def scrape(address: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(address) as response:  # noqa: S310 - the one just started
        return parse_metrics(response.read().decode())


def parse_metrics(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(one.labels, one.value) for one in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_prometheus_metrics_equal_the_monitor_status(monitor: CFCMonitor, endpoint: str) -> None:
    status = monitor.read_status()
    found = scrape(endpoint)
    of = {"artifact": monitor.artifact.digest}
    assert found["cfc_monitor_up"] == [(of, 1.0)]
    assert found["cfc_monitor_results"] == [(of, SERVED)]
    assert found["cfc_monitor_answered_ratio"] == [(of, status.answered)]
    assert found["cfc_monitor_failing_ratio"] == [(of, 0.0)]
    # The artifact is older than allowed, and no test alarms.
    assert found["cfc_monitor_breaches"] == [(of, 1.0)]
    assert found["cfc_monitor_sound"] == [(of, 0.0)]
    assert found["cfc_monitor_alarms"] == [(of, 0.0)]
    assert {labels["quantile"] for labels, _ in found["cfc_monitor_seconds"]} == {"0.5", "0.99"}
    told = {(one.kind, one.what, one.group): one.progress for one in status.tests}
    progress = found["cfc_monitor_test_progress_ratio"]
    assert {(it["kind"], it["what"], it["group"]): value for it, value in progress} == told


def test_prometheus_collector_reports_an_unreadable_monitor_as_down(
    monitor: CFCMonitor, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        msg = "the disk is full"
        raise StoreError(msg)

    monkeypatch.setattr(monitor, "read_status", broken)
    found = parse_metrics(generate_latest(registry).decode())
    assert found["cfc_monitor_up"] == [({"artifact": monitor.artifact.digest}, 0.0)]
    assert [name for name in found if name.startswith("cfc_")] == ["cfc_monitor_up"]


def test_opentelemetry_metrics_equal_prometheus_metrics(
    monitor: CFCMonitor, registry: CollectorRegistry
) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe(monitor, meter=provider.get_meter("test"), every=0.0)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    points: Any = {one.name: one.data.data_points for one in metrics}
    collected = {
        name: sorted((sorted(dict(it.attributes).items()), it.value) for it in held)
        for name, held in points.items()
        # Days pass between two looks, and seconds are measured alike.
        if name != "cfc_monitor_artifact_age_days"
    }
    expected = {
        name: sorted((sorted(labels.items()), value) for labels, value in samples)
        for name, samples in parse_metrics(generate_latest(registry).decode()).items()
        if name.startswith("cfc_") and name != "cfc_monitor_artifact_age_days"
    }
    assert collected == expected
    provider.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are not known here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_metrics_reader_works_in_a_forked_child(monitor: CFCMonitor) -> None:
    reader = MetricsReader([monitor], 3600.0)
    assert reader.read()
    with reader._lock:  # as while another thread looks
        child = os.fork()
        if child == 0:
            os._exit(0 if reader.read() else 1)
        deadline = time.monotonic() + 20.0
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == (child, 0)

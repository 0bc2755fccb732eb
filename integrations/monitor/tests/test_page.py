"""What a monitor shows: its page with curves, and metrics as Prometheus and OpenTelemetry read them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor, Label, Limits
from langchain_cfc_monitor.evidence import MAX_POINTS, Curve
from langchain_cfc_monitor.metrics import MetricsReader, PrometheusCollector, observe
from langchain_cfc_monitor.page import write_page
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from integrations.monitor.tests.watching import run
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.errors import InputError, StoreError
from tests.recordings import list_facts


@pytest.fixture(scope="module")
def promised() -> CalibrationArtifact:
    made = calibrate(load_recording(), alpha="0.4", features="mean_score", test_fraction=0.4)
    return certify(made, load_recording())


@pytest.fixture(scope="module")
def alarming_store(promised: CalibrationArtifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose results are all alike, and whose labels say that nothing was right."""
    store = tmp_path_factory.mktemp("loud") / "monitor.db"
    chain = demo_chain(promised)
    result = chain.invoke(next(iter(load_recording())).input)
    with CFCMonitor(promised, store) as monitor:
        names = [monitor.record(result) for _ in range(120)]
        monitor.label(*(Label(name, [False] * promised.n) for name in names))
    return store


def test_curve_keeps_few_points_and_the_last_ones() -> None:
    curve = Curve()
    for number in range(1, 5001):
        curve = curve.update(np.array([number / 10.0]), float(number))
    assert MAX_POINTS / 2 <= len(curve.points) <= MAX_POINTS
    assert curve.outcomes == 5000
    assert curve.points[-1][0] > 5000 - curve.step
    assert all(logs == [outcomes / 10.0] and at == outcomes for outcomes, at, logs in curve.points)
    assert {later[0] - one[0] for one, later in zip(curve.points, curve.points[1:], strict=False)} == {
        curve.step
    }
    restored = Curve(**json.loads(json.dumps(vars(curve))))
    assert list(map(tuple, restored.points)) == list(map(tuple, curve.points))


def test_monitor_curves_show_the_tests_with_most_evidence(
    promised: CalibrationArtifact, alarming_store: Path
) -> None:
    with CFCMonitor(promised, alarming_store) as monitor:
        curves, status = monitor.read_curves(2), monitor.read_status()
    assert [one.test.kind for one in curves] == ["drift", "drift", "kept", "kept"]
    for curve in curves:
        assert curve.test in status.tests
        peak = max(log for _, log in curve.points)
        assert peak == pytest.approx(math.log(curve.test.evidence), abs=1e-3)
        assert curve.points[-1][0] == 120


def test_monitor_page_shows_alarms_and_steps_and_loads_nothing(
    promised: CalibrationArtifact, alarming_store: Path, tmp_path: Path
) -> None:
    saved, written = tmp_path / "promised.json", tmp_path / "monitor.html"
    promised.save(saved)
    ran = run("status", saved, alarming_store, "--report", written)
    assert (ran.code, ran.err) == (1, "")
    assert f"page written to {written}" in " ".join(ran.out.split())
    html = written.read_text(encoding="utf-8")
    assert '<div class="verdict bad">' in html
    assert "tests alarm." in html
    steps = re.findall(r"<h3>(.*?)</h3>", html[html.index('class="steps"') :])
    assert steps[:2] == ["Stop relying on the promise", "Find what changed, and label"]
    assert html.count("<figure") == html.count("<svg") == 2
    assert "default-src 'none'" in html
    assert not re.search(r'(?:src|href)="(?!#)', html)


def test_monitor_page_without_alarms_does_not_claim_that_all_is_well(
    promised: CalibrationArtifact, tmp_path: Path
) -> None:
    with CFCMonitor(promised, tmp_path / "monitor.db") as monitor:
        write_page(tmp_path / "page.html", monitor.read_status(), [])
        assert "No test alarms." not in (tmp_path / "page.html").read_text(encoding="utf-8")
        monitor.record(demo_chain(promised).invoke(next(iter(load_recording())).input))
        status = monitor.read_status()
        write_page(tmp_path / "page.html", status, [])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No test alarms." in text
    assert "This does not prove that neither happened." in text
    assert "<figure" not in text
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is not a report"):
        write_page(tmp_path / "notes.txt", status, [])


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


def parse_metrics(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(one.labels, one.value) for one in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_prometheus_metrics_equal_the_monitor_status(monitor: CFCMonitor, endpoint: str) -> None:
    status = monitor.read_status()
    with urllib.request.urlopen(endpoint) as response:  # noqa: S310 - the one just started
        found = parse_metrics(response.read().decode())
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
    expected = {(one.kind, one.what, one.group): one.progress for one in status.tests}
    progress = found["cfc_monitor_test_progress_ratio"]
    assert {(it["kind"], it["what"], it["group"]): value for it, value in progress} == expected


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

"""The compose file and the files that it mounts agree with the code, as far as no container is needed."""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # which langchain-core brings
from langchain_cfc_monitor.metrics import DESCRIPTIONS
from langchain_cfc_server.metrics import Metrics
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic

from integrations.server.tests.bots import EASY, UNSURE
from integrations.server.tests.parts import COMMAND, ROOT, make_request, run_server, wait_for_value

FOLDER = Path(__file__).parents[1] / "compose"
METRIC_NAMES = re.compile(r"cfc_[a-z_]+")


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def read_dashboard() -> dict[str, Any]:
    path = FOLDER / "grafana/dashboards/langchain-cfc.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def list_panel_expressions() -> list[str]:
    """Return the dashboard's Prometheus expressions."""
    return [target["expr"] for panel in read_dashboard()["panels"] for target in panel["targets"]]


def list_expressions() -> list[str]:
    """All that is asked of Prometheus, by the dashboard and by the alerts."""
    rules = [rule["expr"] for group in load("alerts.yml")["groups"] for rule in group["rules"]]
    return list_panel_expressions() + rules


def test_compose_file_has_no_default_secret_and_no_public_port() -> None:
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"\$\{(\w*(?:PASSWORD|TOKEN)\w*)(.)", text):
        assert name[1] == ":", name
    assert not re.findall(r"\$\{\w*(?:PASSWORD|TOKEN)\w*:[^?]", text)
    for service in load("compose.yaml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_compose_file_uses_existing_server_options() -> None:
    options = [
        word for word in load("compose.yaml")["services"]["server"]["command"] if word.startswith("--")
    ]
    shown = subprocess.run(
        [*COMMAND, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert options
    assert all(option in shown.stdout for option in options)


def test_dashboard_and_alerts_use_existing_metrics() -> None:
    metrics = Metrics(Traffic(1, 1), ClientTokens(), {})
    described = {
        line.split()[2] for line in metrics.text().decode().splitlines() if line.startswith("# HELP")
    }
    known = {
        *described,
        *DESCRIPTIONS,
        *(f"{name}_{part}" for name in described for part in ("bucket", "count")),
    }
    asked = {name for expression in list_expressions() for name in METRIC_NAMES.findall(expression)}
    assert asked <= known, asked - known
    for expression in list_expressions():
        assert expression.count("(") == expression.count(")"), expression
    # What the dashboard is for.
    titles = [panel["title"] for panel in read_dashboard()["panels"]]
    assert titles[:4] == ["Answered", "Abstained", "Promised", "Drift"]
    assert len({panel["id"] for panel in read_dashboard()["panels"]}) == len(titles)


def test_dashboard_uses_existing_metric_labels(bots: dict[str, str]) -> None:
    with run_server(bots) as server:
        for question in (EASY, UNSURE):
            server.ask(make_request(question))
        found = server.get("/metrics").text
    labels: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^(cfc_\w+)\{(.*?)\} ", found, flags=re.MULTILINE):
        labels[name] = set(re.findall(r'(\w+)="', inside))
    for expression in list_expressions():
        [name, *_] = METRIC_NAMES.findall(expression)
        wanted = {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
        }
        if name.startswith("cfc_server"):
            assert wanted <= labels.get(name, set()), expression
    assert 'cfc_server_promised_ratio{level="0.2",model="bot",promise="coverage"}' in found


def test_monitor_program_serves_its_metrics(artifact_path: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = f"import runpy; runpy.run_path({str(FOLDER / 'monitor_metrics.py')!r})['main']"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}({str(artifact_path)!r}, {port})"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CFC_MONITOR_STORE": str(tmp_path / "monitor.db")},
    )

    def read() -> str:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        except httpx.TransportError:
            return ""

    try:
        assert "cfc_monitor_up{" in wait_for_value(read, 60)
    finally:
        process.kill()
        process.wait()


def test_monitor_program_accepts_only_the_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(load("compose.yaml")["services"]["monitor"]["command"]) == 1
    monkeypatch.delenv("CFC_MONITOR_STORE", raising=False)
    monkeypatch.setattr(sys, "argv", ["monitor_metrics.py"])
    with pytest.raises(IndexError):
        runpy.run_path(str(FOLDER / "monitor_metrics.py"), run_name="__main__")

"""The compose file and what it mounts: they agree with the code, and its services run as processes."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # which langchain-core brings
from langchain_cfc_monitor.metrics import DESCRIPTIONS
from langchain_cfc_server.metrics import Metrics
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic

from integrations.collect.tests.postgres import postgres
from integrations.server.tests.bots import EASY, UNSURE
from integrations.server.tests.parts import (
    COMMAND,
    ROOT,
    TOKEN,
    Server,
    make_request,
    run_server,
    wait_for_value,
)

FOLDER = Path(__file__).parents[1] / "compose"
METRIC_NAMES = re.compile(r"cfc_[a-z_]+")


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def read_dashboard() -> dict[str, Any]:
    path = FOLDER / "grafana/dashboards/langchain-cfc.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def list_panel_expressions() -> list[str]:
    return [target["expr"] for panel in read_dashboard()["panels"] for target in panel["targets"]]


def list_expressions() -> list[str]:
    """All that is asked of Prometheus, by the dashboard and by the alerts."""
    rules = [rule["expr"] for group in load("alerts.yml")["groups"] for rule in group["rules"]]
    return list_panel_expressions() + rules


def test_compose_file_has_no_default_secret_no_public_port_and_no_moving_image() -> None:
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"\$\{(\w*(?:PASSWORD|TOKEN)\w*)(.)", text):
        assert name[1] == ":", name
    assert not re.findall(r"\$\{\w*(?:PASSWORD|TOKEN)\w*:[^?]", text)
    for service in load("compose.yaml")["services"].values():
        assert "build" in service or re.fullmatch(r"[a-z/]+:[\w.-]+@sha256:[0-9a-f]{64}", service["image"])
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


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def run_process(*command: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the block ends."""
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT), **env})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def run_monitor_program(artifact: str, store: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the monitor's service of the compose file, on a port that is free."""
    port = find_free_port()
    program = f"import runpy; runpy.run_path({str(FOLDER / 'monitor_metrics.py')!r})['main']"
    command = [sys.executable, "-c", f"{program}({artifact!r}, {port})"]
    with run_process(*command, CFC_MONITOR_STORE=store) as process:
        yield process, port


def test_monitor_program_serves_its_metrics(artifact_path: Path, tmp_path: Path) -> None:
    def read() -> str:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        except httpx.TransportError:
            return ""

    with run_monitor_program(str(artifact_path), str(tmp_path / "monitor.db")) as (_, port):
        assert "cfc_monitor_up{" in wait_for_value(read, 60)


def test_monitor_program_accepts_only_the_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(load("compose.yaml")["services"]["monitor"]["command"]) == 1
    monkeypatch.delenv("CFC_MONITOR_STORE", raising=False)
    monkeypatch.setattr(sys, "argv", ["monitor_metrics.py"])
    with pytest.raises(IndexError):
        runpy.run_path(str(FOLDER / "monitor_metrics.py"), run_name="__main__")


CONTAINERFILE = Path(__file__).parents[1] / "Containerfile"


def read_instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines if line.strip()]


def list_arguments(kind: str) -> list[str]:
    return [arguments for name, arguments in read_instructions() if name == kind]


@pytest.mark.long
def test_packages_of_containerfile_serve_in_new_environment(tmp_path: Path) -> None:
    build = tmp_path / "build"
    for line in list_arguments("COPY"):
        *sources, target = line.split()
        (build / target).mkdir(parents=True, exist_ok=True)
        for source in sources:
            into = build / target if (ROOT / source).is_file() else build / target / ".."
            subprocess.run(["cp", "-r", str(ROOT / source), str(into)], check=True)
    venv.create(tmp_path / "venv", with_pip=True)
    for install in list_arguments("RUN")[0].split(" && ")[:2]:
        words = shlex.split(install)
        assert words[:2] == ["pip", "install"]
        pip = [str(tmp_path / "venv/bin/python"), "-m", *words]
        subprocess.run(pip, check=True, cwd=build, stdout=subprocess.DEVNULL)
    command = [str(tmp_path / "venv/bin/langchain-cfc"), "serve", "--demo", "--port", "0"]
    with (tmp_path / "log").open("wb") as log:
        env = {**os.environ, "LANGCHAIN_CFC_SERVER_TOKENS": TOKEN, "NO_PROXY": "127.0.0.1"}
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=log)
    try:
        wait_for_value(lambda: '"serving"' in (tmp_path / "log").read_text(encoding="utf-8"), 120)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


METRICS_READER = "a-token-that-reads-metrics-only"


@dataclass
class Prometheus:
    """A running Prometheus.

    Attributes:
        url: Its address.
    """

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """Return a response of its API, or nothing while it does not answer."""
        try:
            found = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, trust_env=False)
        except httpx.TransportError:
            return None
        return found.json()["data"] if found.status_code == 200 else None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression as a panel of the last minute asks for it."""
        for variable in ("$__range", "$__rate_interval"):
            expression = expression.replace(variable, "1m")
        answer = self.get("query", query=expression)
        assert answer is not None, expression
        found: list[dict[str, Any]] = answer["result"]
        return found

    def alerts(self) -> dict[str, str]:
        """The state of each alert; all of them are evaluated without an error."""
        rules = [rule for group in (self.get("rules") or {"groups": ()})["groups"] for rule in group["rules"]]
        return {rule["name"]: rule["state"] for rule in rules if rule["health"] == "ok"}


def write_config(folder: Path, targets: dict[str, int]) -> Path:
    """The mounted configuration, with the ports of this machine and scrapes every second."""
    given = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    given["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    given["rule_files"] = [str(FOLDER / Path(file).name) for file in given["rule_files"]]
    for job in given["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(folder / "metrics-token")
    (folder / "metrics-token").write_text(METRICS_READER, encoding="utf-8")
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    return path


@contextmanager
def run_prometheus(folder: Path, server: Server, monitor_port: int) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (Debian: apt-get install prometheus)")
    port = find_free_port()
    config = write_config(folder, {"server": server.port, "monitor": monitor_port})
    options = {
        "config.file": config,
        "storage.tsdb.path": folder / "tsdb",
        "web.listen-address": f"127.0.0.1:{port}",
        "log.level": "error",
    }
    with run_process(program, *(f"--{name}={value}" for name, value in options.items())):
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        wait_for_value(lambda: prometheus.get("targets"), 30)
        yield prometheus


@pytest.mark.long
def test_prometheus_answers_dashboard_and_alert_queries(bots: dict[str, str], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(
        f"{TOKEN} name=client\n{METRICS_READER} name=prometheus only=metrics\n", encoding="utf-8"
    )
    tokens.chmod(0o600)
    with postgres() as database:
        store = database.database()
        env = {**bots, "CFC_MONITOR_STORE": store}
        models = "integrations.server.tests.bots:watched"
        options = ("--token-file", str(tokens), "--workers", "2")
        with (
            run_server(env, *options, models=models, tokens=None, command=COMMAND) as server,
            run_monitor_program(bots["BOTS_ARTIFACT"], store) as (monitor, port),
            run_prometheus(tmp_path, server, port) as prometheus,
        ):
            # A rate needs two scrapes, and something that happened between them.
            def list_empty() -> list[str]:
                for question in (EASY, EASY, UNSURE):
                    assert server.ask(make_request(question, "watched")).status_code == 200
                return [
                    expression for expression in list_panel_expressions() if not prometheus.query(expression)
                ]

            wait_for_value(lambda: len(prometheus.alerts()) == 4, 30)
            wait_for_value(lambda: not list_empty(), 60)
            [answered] = prometheus.query(list_panel_expressions()[0])
            assert 0 < float(answered["value"][1]) < 1
            assert set(prometheus.alerts().values()) == {"inactive"}
            # And a monitor that is gone is noticed.
            monitor.kill()
            wait_for_value(lambda: prometheus.alerts()["MonitorBlind"] == "pending", 60)

"""The services of compose.yaml as processes, and Prometheus with the files that compose.yaml mounts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # which langchain-core brings

from integrations.collect.tests.postgres import postgres
from integrations.server.tests.bots import EASY, UNSURE
from integrations.server.tests.parts import (
    COMMAND,
    TOKEN,
    Server,
    make_request,
    run_server,
    wait_for_value,
)
from integrations.server.tests.test_compose import (
    FOLDER,
    find_free_port,
    list_panel_expressions,
    run_monitor_program,
    run_process,
)

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

"""Figures for Prometheus. No label takes a value that a client makes up."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from langchain_cfc_server.traffic import Traffic

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts what a server does, apart from other metrics of the process.

    Args:
        traffic: The requests of the moment.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "cfc_server_requests",
            "Requests by what became of them.",
            ["route", "status", "outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "cfc_server_request_seconds",
            "Seconds from a request to the end of its response.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._decisions = Counter(
            "cfc_server_decisions",
            "Decisions by their reason; `fallback` where a fallback answered.",
            ["model", "reason"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "cfc_server_tokens",
            "Tokens that draws cost, as far as models say.",
            ["model", "kind"],
            registry=self._registry,
        )
        for name, text, number in (
            ("working", "Requests that are worked on.", lambda: traffic.working),
            ("waiting", "Requests that wait for their turn.", lambda: traffic.waiting),
            ("connections", "Connections that are open.", lambda: len(traffic.connections)),
            ("connections_refused", "Connections refused so far.", lambda: traffic.connections.refused),
        ):
            Gauge(f"cfc_server_{name}", text, registry=self._registry).set_function(number)

    def count(self, route: str, status: int, outcome: str, seconds: float) -> None:
        """Count a request that has ended."""
        self._requests.labels(route, str(status), outcome).inc()
        self._seconds.labels(route).observe(seconds)

    def count_decision(self, model: str, reason: str, usage: Mapping[str, int] | None) -> None:
        """Count a decision and what it cost."""
        self._decisions.labels(model, reason).inc()
        if usage is not None:
            self._tokens.labels(model, "input").inc(usage["prompt_tokens"])
            self._tokens.labels(model, "output").inc(usage["completion_tokens"])

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self._registry)

"""Metrics for Prometheus. Labels never take values that clients can invent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from langchain_cfc_server.cooldown import Cooldown
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic

CONTENT_TYPE = CONTENT_TYPE_LATEST
# The folder in which prometheus_client shares metrics between processes, so that each can report all.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Name, description, and how the values of several workers are combined.
_Mode: TypeAlias = Literal["livesum", "livemax", "sum"]
_GAUGES: tuple[tuple[str, str, _Mode], ...] = (
    ("working", "Number of requests being processed.", "livesum"),
    ("waiting", "Number of waiting requests.", "livesum"),
    ("connections", "Number of open connections.", "livesum"),
    ("connections_refused", "Number of refused connections so far.", "sum"),
    ("client_tokens", "Number of valid tokens.", "livemax"),
    (
        "client_tokens_stale",
        "Whether the token file cannot be used and earlier tokens stay valid.",
        "livemax",
    ),
    ("client_tokens_replaced", "Number of times that tokens were replaced so far.", "livemax"),
    (
        "client_tokens_refused",
        ("Number of times that a changed token file could not be used so far."),
        "livemax",
    ),
)
_MODEL_GAUGES: tuple[tuple[str, str, _Mode], ...] = (
    ("cooling_down", "Whether a model is cooling down after failures of its upstream.", "livemax"),
    ("cooldowns", "Number of cooldowns of a model so far.", "sum"),
)


class Metrics:
    """The metrics of a server, in their own registry, apart from other metrics of the process.

    Args:
        traffic: The current requests.
        tokens: The valid tokens.
        cooldowns: The cooldown of each model, by name.
    """

    def __init__(self, traffic: Traffic, tokens: ClientTokens, cooldowns: Mapping[str, Cooldown]) -> None:
        self._traffic = traffic
        self._client_tokens = tokens
        self._cooldowns = cooldowns
        registry = self._exposed_registry = CollectorRegistry()
        if SHARED_FOLDER in os.environ:
            self._exposed_registry = CollectorRegistry()
            MultiProcessCollector(self._exposed_registry)  # type: ignore[no-untyped-call]
        self._requests = Counter(
            "cfc_server_requests",
            "Requests by outcome.",
            ["route", "status", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "cfc_server_request_seconds",
            "Seconds from a request to the end of its response.",
            ["route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._client_requests = Counter(
            "cfc_server_client_requests",
            "Requests with a valid token, by the name of its client.",
            ["client", "status"],
            registry=registry,
        )
        self._decisions = Counter(
            "cfc_server_decisions",
            "Decisions by their reason; `fallback` where a fallback answered.",
            ["model", "reason"],
            registry=registry,
        )
        self._promised = Gauge(
            "cfc_server_promised_ratio",
            "What the latest decision at a level promised: coverage of the answer set, or the share of right "
            "answers among those given.",
            ["model", "promise", "level"],
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._tokens = Counter(
            "cfc_server_tokens",
            "Tokens used by draws, as reported by models.",
            ["model", "kind"],
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"cfc_server_{name}", text, labels, registry=registry, multiprocess_mode=mode)
            for labels, gauges in (((), _GAUGES), (("model",), _MODEL_GAUGES))
            for name, text, mode in gauges
        }
        self.refresh()

    def count(self, route: str, status: int, outcome: str, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(route, str(status), outcome).inc()
        self._seconds.labels(route).observe(seconds)

    def count_client(self, client: str, status: int) -> None:
        """Count a finished request for the client that made it."""
        self._client_requests.labels(client, str(status)).inc()

    def count_decision(self, model: str, reason: str, usage: Mapping[str, int] | None) -> None:
        """Count a decision and the tokens that it used."""
        self._decisions.labels(model, reason).inc()
        if usage is not None:
            self._tokens.labels(model, "input").inc(usage["prompt_tokens"])
            self._tokens.labels(model, "output").inc(usage["completion_tokens"])

    def set_promise(self, model: str, promise: tuple[str, str, float]) -> None:
        """Set the promise of the latest decision: its kind, its level and its share."""
        kind, level, share = promise
        self._promised.labels(model, kind, level).set(share)

    def refresh(self) -> None:
        """Update the gauges to the current values, so that other workers can report them as well."""
        traffic, tokens = self._traffic, self._client_tokens
        for name, number in (
            ("working", traffic.working),
            ("waiting", traffic.waiting),
            ("connections", len(traffic.connections)),
            ("connections_refused", traffic.connections.refused),
            ("client_tokens", len(tokens)),
            ("client_tokens_stale", tokens.is_stale),
            ("client_tokens_replaced", tokens.replaced),
            ("client_tokens_refused", tokens.refused),
        ):
            self._gauges[name].set(number)
        for model, cooldown in self._cooldowns.items():
            self._gauges["cooling_down"].labels(model).set(cooldown.is_active)
            self._gauges["cooldowns"].labels(model).set(cooldown.times)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        self.refresh()
        return generate_latest(self._exposed_registry)

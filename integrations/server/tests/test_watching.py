"""Health, metrics and logs."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from langchain_cfc_server.logs import JsonLines
from prometheus_client.parser import text_string_to_metric_families

from integrations.server.tests.bots import EASY, UNSURE
from integrations.server.tests.parts import HEADERS, Server, make_request, run_server


def read_metrics(server: Server) -> dict[tuple[str, ...], float]:
    """All metrics, by name and values of labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(server.get("/metrics").text)
        for sample in family.samples
    }


def test_metrics_count_requests_decisions_and_tokens(bots: dict[str, str]) -> None:
    with run_server(bots) as server:
        for question in (EASY, EASY, UNSURE):
            server.ask(make_request(question))
        server.ask(make_request(UNSURE, "helped"))
        server.ask(make_request(EASY, "broken"))
        server.ask(make_request(EASY, cfc={"alpha": "0.3"}))
        server.get("/v1/models", {})
        found = read_metrics(server)
        requests, route = "cfc_server_requests_total", "/v1/chat/completions"
        counted = {key[1:]: value for key, value in found.items() if key[0] == requests}
        assert {tuple(sorted(key)): value for key, value in counted.items() if route in key} == {
            tuple(sorted((route, "200", "answered"))): 2,
            tuple(sorted((route, "200", "only_blank_answers"))): 1,
            tuple(sorted((route, "200", "fallback"))): 1,
            tuple(sorted((route, "500", "internal_error"))): 1,
            tuple(sorted((route, "400", "level_not_calibrated"))): 1,
        }
        decisions = {key[1:]: value for key, value in found.items() if key[0] == "cfc_server_decisions_total"}
        assert {tuple(sorted(key)): value for key, value in decisions.items()} == {
            ("answered", "bot"): 2,
            ("bot", "only_blank_answers"): 1,
            ("fallback", "helped"): 1,
        }
        tokens = {
            tuple(sorted(key[1:])): value
            for key, value in found.items()
            if key[0] == "cfc_server_tokens_total"
        }
        assert tokens == {("bot", "input"): 99.0, ("bot", "output"): 18.0}
        assert found["cfc_server_working",] == found["cfc_server_waiting",] == 0
        assert found["cfc_server_request_seconds_count", route] == 6


def test_clients_cannot_create_metric_labels(server: Server) -> None:
    def ask(numbers: range) -> int:
        for number in numbers:
            server.get(f"/made/up/{number}")
            server.get(f"/v1/models/{number}")
            server.ask(make_request(EASY, f"model-{number}"))
            server.get("/v1/models", {"Authorization": f"Bearer {number}"})
            server.request(f"MADEUP{number}", "/v1/models")
        return len(read_metrics(server))

    ask(range(2))
    assert ask(range(2, 4)) == ask(range(4, 30))


def test_unverifiable_model_is_logged_before_serving(bots: dict[str, str]) -> None:
    with run_server(bots, models="integrations.server.tests.bots:unverified") as server:
        warned, serving, *_ = server.log
    assert (warned["level"], warned["logger"]) == ("warning", "langchain_cfc")
    assert warned["message"].startswith("cannot verify that generator ")
    assert serving["message"] == "serving"


def test_every_request_is_logged_as_a_line_of_json(server: Server) -> None:
    response = server.ask(make_request(EASY))
    line = server.logged(response.headers["x-request-id"])
    assert line["level"] == "info"
    assert line["message"] == "request"
    assert (line["route"], line["model"], line["status"]) == ("/v1/chat/completions", "bot", 200)
    assert line["outcome"] == "answered"
    assert line["usage"] == {"prompt_tokens": 33, "completion_tokens": 6, "total_tokens": 39}
    assert 0 < line["milliseconds"] < 20_000
    assert {"prompt", "answer", "detail"}.isdisjoint(line)
    refused = server.get("/v1/models", {})
    assert server.logged(refused.headers["x-request-id"])["outcome"] == "invalid_api_key"


def test_requests_cannot_forge_log_lines(server: Server) -> None:
    forged = '\n{"level": "error", "message": "forged"}\n'
    before = len(server.log)
    server.ask(make_request(forged, forged))
    server.ask({forged: 1})
    server.get("/%0A%7B%22message%22:%22forged%22%7D%0A")
    server.say(b'GET / HTTP/1.1\n{"message": "forged"}\n\n')
    server.get("/v1/models", {**HEADERS, "User-Agent": "forged"})
    assert not [line for line in server.log if line["message"] == "forged" or "forged" in str(line)]
    assert len(server.log) >= before + 4


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b[2J", "\u2028", "\x85", "\x00", "\ud800"])
def test_log_formatter_keeps_any_character_on_one_line(character: str) -> None:
    record = logging.LogRecord(
        "langchain_cfc_server", logging.INFO, __file__, 1, f"one{character}two", (), None
    )
    record.fields = {character: character}
    line = JsonLines().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"one{character}two"
    # Where a plain formatter writes it as it is.
    assert character in logging.Formatter().format(record)


def test_log_formatter_omits_exception_texts() -> None:
    try:
        raise ValueError("a prompt")  # noqa: EM101, TRY003, TRY301 - as user code does
    except ValueError:
        record = logging.LogRecord(
            "langchain_cfc_server", logging.ERROR, __file__, 1, "failed", (), sys.exc_info()
        )
    line = json.loads(JsonLines().format(record))
    assert line["error"] == ["ValueError"]
    assert "test_watching.py" in line["where"][0]
    assert "a prompt" not in str(line)
    assert "a prompt" in logging.Formatter().format(record)

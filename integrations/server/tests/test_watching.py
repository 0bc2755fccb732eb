"""Health, metrics and logs, also below a path of another application, and what none of them may show."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_server import Settings, create_app
from langchain_cfc_server.logs import JsonLines
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from integrations.server.tests.bots import EASY, EMOJI, GOOD, HARD, HIDDEN_TEXT, MARK, UNSURE, chain
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, TOKEN, Server, make_request, run_server
from tests.serving.openai_server import Fault, Script


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


@pytest.mark.parametrize(("mount", "root"), [("", ""), ("/cfc", ""), ("/a/b", ""), ("", "/api")])
@pytest.mark.usefixtures("bots_here")
def test_paths_are_relative_to_the_mount(mount: str, root: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(f"{TOKEN} name=app\n{OTHER_TOKEN} name=prometheus only=metrics\n", encoding="utf-8")
    settings = Settings(token_file=str(tokens), per_token=1, body_limit=500)
    app = inner = create_app({"bot": chain()}, settings)
    if mount:
        app = Starlette()
        app.mount(mount, inner)

    with TestClient(app, root_path=root) as client:

        def get(path: str, token: str = "") -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            status: int = client.get(mount + path, headers=headers).status_code
            assert client.head(mount + path, headers=headers).status_code == status
            return status

        assert [get("/health/live"), get("/health/ready")] == [200, 200]
        assert [get("/metrics"), get("/metrics", TOKEN), get("/metrics", OTHER_TOKEN)] == [401, 403, 200]
        assert [get("/v1/models"), get("/v1/models", TOKEN), get("/v1/models", OTHER_TOKEN)] == [
            401,
            200,
            403,
        ]
        given = {"Authorization": f"Bearer {TOKEN}"}
        path = f"{mount}/v1/chat/completions"
        assert client.post(path, json=make_request(EASY), headers=given).status_code == 200
        # The limits hold there too.
        assert client.post(path, json=make_request(EASY * 50), headers=given).status_code == 413
        described = client.get(f"{mount}/openapi.json", headers=given).json()
        assert described.get("servers", [{"url": ""}])[0]["url"] == mount + root
        read = client.get(f"{mount}/metrics", headers={"Authorization": f"Bearer {OTHER_TOKEN}"}).text
    assert 'route="/v1/chat/completions",status="200"' in read
    assert 'route="other"' not in read


def contains_text(texts: Sequence[str], hidden: str) -> bool:
    """Whether a text, or its escaped form, is in any of them."""
    forms = {hidden, json.dumps(hidden)[1:-1]}
    return any(form in text for text in texts for form in forms)


def recorded_output(server: Server, **more: Any) -> Iterator[str]:
    """Heads and bodies of all kinds of responses."""
    for model in ("bot", "careful/bot", "helped", "timed", "broken", "unscored", "undescribed", "new"):
        for question in (EASY, UNSURE, HARD, EMOJI):
            for stream in (False, True):
                body = make_request(question, model, stream=stream, **more)
                response = server.ask({**body, "cfc": {"alpha": "0.1"}} if model == "careful/bot" else body)
                yield repr(response.headers) + response.text
    for path in ("/metrics", "/openapi.json", "/v1/models", "/health/ready"):
        yield server.get(path).text


def test_naive_server_shows_rejected_candidates(
    bots: dict[str, str], upstream: tuple[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**bots, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    upstream[1].faults = ()
    # A server that returns what its chain returns.
    returned = asyncio.run(chain(show_rejected=True).ainvoke(EASY)).model_dump_json()
    assert contains_text([returned], MARK)


def test_chains_that_return_rejected_candidates_do_not_show_them(
    bots: dict[str, str], tmp_path: Path
) -> None:
    module = tmp_path / "showing.py"
    module.write_text("from integrations.server.tests.bots import chain\nbot = chain(show_rejected=True)\n")
    with run_server(
        {**bots, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"}, models="showing:bot"
    ) as server:
        texts = [server.ask(make_request(EASY, stream=stream)).text for stream in (False, True)]
        assert not contains_text([*texts, server.log_path.read_text(encoding="utf-8")], MARK)
        assert contains_text(texts, GOOD)


def test_responses_and_logs_contain_no_rejected_candidate_and_no_secret(
    server: Server, upstream: tuple[str, Script]
) -> None:
    upstream[1].faults = [Fault("status 500", on=0.1)]
    texts = list(recorded_output(server))
    upstream[1].faults = ()
    log = server.log_path.read_text(encoding="utf-8")
    assert not contains_text([*texts, log], MARK)
    # The answers that were accepted are there, so it has been looked at.
    assert contains_text(texts, GOOD)
    assert not contains_text([*texts, log], HIDDEN_TEXT)
    assert not contains_text([log], TOKEN)
    assert not contains_text([log], OTHER_TOKEN)
    for question in (EASY, UNSURE, HARD, EMOJI):
        assert not contains_text([log], question)
    assert not contains_text([log], GOOD)
    server.ask(make_request("a prompt that fails", "broken"))
    server.ask({"model": "a prompt", "messages": "a prompt"}, {**HEADERS, "X-Prompt": "a prompt"})
    server.get("/a%20prompt?a%20prompt")
    assert not contains_text([server.log_path.read_text(encoding="utf-8")], "a prompt")


def test_logs_contain_content_only_with_log_content(bots: dict[str, str]) -> None:
    with run_server(bots, "--log-content") as server:
        answered = server.logged(server.ask(make_request(EASY)).headers["x-request-id"])
        assert answered["prompt"] == [{"role": "user", "content": EASY}]
        assert answered["answer"] == GOOD
        broken = server.logged(server.ask(make_request(EASY, "broken")).headers["x-request-id"])
        assert broken["detail"] == HIDDEN_TEXT
        log = server.log_path.read_text(encoding="utf-8")
        # Clients learn no more than before, and some things are never written.
        assert not contains_text([server.ask(make_request(EASY, "broken")).text], HIDDEN_TEXT)
        assert not contains_text([log], TOKEN)
        assert not contains_text([log], MARK)


def test_unexpected_error_is_logged_with_its_origin(server: Server) -> None:
    response = server.ask(make_request(EASY, "broken"))
    assert response.status_code == 500
    assert response.json()["error"]["message"].startswith("internal error; the server's log holds")
    line = server.logged(response.headers["x-request-id"])
    assert (line["level"], line["outcome"], line["error"]) == ("error", "internal_error", ["RuntimeError"])
    assert any("bots.py" in frame for frame in line["where"])


@pytest.mark.parametrize(
    ("model", "status", "code", "error"),
    [
        ("new", 400, "prompt_not_servable", "FeatureError"),
        ("unscored", 502, "verifier_failed", "VerifierError"),
        ("undescribed", 502, "description_failed", "DescriptionError"),
        ("timed", 504, "timeout", "ServingTimeoutError"),
    ],
)
def test_each_error_of_serving_has_its_status(
    server: Server, model: str, status: int, code: str, error: str
) -> None:
    response = server.ask(make_request(EASY, model))
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert server.logged(response.headers["x-request-id"])["error"][0] == error


@pytest.mark.parametrize(
    "fault", ["status 500", "status 401", "status 429", "malformed", "truncated", "dropped", "no choices"]
)
def test_failing_model_gives_bad_gateway(server: Server, upstream: tuple[str, Script], fault: str) -> None:
    upstream[1].faults = [Fault(fault)]
    for stream in (False, True):
        response = server.ask(make_request(EASY, stream=stream))
        assert (response.status_code, response.json()["error"]["code"]) == (502, "draw_failed")
        assert server.logged(response.headers["x-request-id"])["error"][0] == "DrawError"
    upstream[1].faults = ()
    assert server.ask(make_request(EASY)).status_code == 200

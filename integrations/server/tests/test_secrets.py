"""What must stay hidden: rejected candidates, prompts in logs, tokens, what errors quote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from integrations.server.tests.bots import EASY, EMOJI, GOOD, HARD, HIDDEN_TEXT, MARK, UNSURE, chain
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, TOKEN, Server, make_request, run_server
from tests.serving.openai_server import Fault, Script


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


def test_rejected_candidates_are_not_shown_anywhere(server: Server, upstream: tuple[str, Script]) -> None:
    upstream[1].faults = [Fault("status 500", on=0.1)]
    texts = [*recorded_output(server), server.log_path.read_text(encoding="utf-8")]
    assert not contains_text(texts, MARK)
    # The answers that were accepted are there, so it has been looked at.
    assert contains_text(texts, GOOD)


async def naive_serve(question: str) -> str:
    """A server that returns what its chain returns."""
    return (await chain(show_rejected=True).ainvoke(question)).model_dump_json()


def test_naive_server_shows_rejected_candidates(
    bots: dict[str, str], upstream: tuple[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**bots, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    upstream[1].faults = ()
    assert contains_text([asyncio.run(naive_serve(EASY))], MARK)


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


def test_errors_and_logs_contain_no_secrets(server: Server) -> None:
    texts = list(recorded_output(server))
    log = server.log_path.read_text(encoding="utf-8")
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
        # Clients are told no more than before, and some things are never written.
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

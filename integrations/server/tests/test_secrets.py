"""What nobody must see: rejected candidates, prompts in logs, tokens, what errors quote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from integrations.server.tests.bots import EASY, EMOJI, GOOD, HARD, MARK, UNSAID, UNSURE, chain
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, TOKEN, Server, asking, running
from tests.serving.openai_server import Fault, Script


def shows(texts: Sequence[str], hidden: str) -> bool:
    """Whether a text, or its escaped form, is in any of them."""
    forms = {hidden, json.dumps(hidden)[1:-1]}
    return any(form in text for text in texts for form in forms)


def said(server: Server, **more: Any) -> Iterator[str]:
    """Heads and bodies of all kinds of responses."""
    for model in ("bot", "careful/bot", "helped", "timed", "broken", "unscored", "undescribed", "new"):
        for question in (EASY, UNSURE, HARD, EMOJI):
            for stream in (False, True):
                body = asking(question, model, stream=stream, **more)
                response = server.ask({**body, "cfc": {"alpha": "0.1"}} if model == "careful/bot" else body)
                yield repr(response.headers) + response.text
    for path in ("/metrics", "/openapi.json", "/v1/models", "/health/ready"):
        yield server.get(path).text


def test_no_rejected_candidate_is_shown_anywhere(server: Server, upstream: tuple[str, Script]) -> None:
    upstream[1].faults = [Fault("status 500", on=0.1)]
    texts = [*said(server), server.log_path.read_text(encoding="utf-8")]
    assert not shows(texts, MARK)
    # The answers that were accepted are there, so it has been looked at.
    assert shows(texts, GOOD)


async def naive(question: str) -> str:
    """A server that returns what its chain returns."""
    return (await chain(show_rejected=True).ainvoke(question)).model_dump_json()


def test_a_naive_server_shows_them(
    bots: dict[str, str], upstream: tuple[str, Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**bots, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    upstream[1].faults = ()
    assert shows([asyncio.run(naive(EASY))], MARK)


def test_runnables_that_show_them_to_their_caller_do_not_here(bots: dict[str, str], tmp_path: Path) -> None:
    module = tmp_path / "showing.py"
    module.write_text("from integrations.server.tests.bots import chain\nbot = chain(show_rejected=True)\n")
    with running(
        {**bots, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"}, models="showing:bot"
    ) as server:
        texts = [server.ask(asking(EASY, stream=stream)).text for stream in (False, True)]
        assert not shows([*texts, server.log_path.read_text(encoding="utf-8")], MARK)
        assert shows(texts, GOOD)


def test_errors_and_logs_say_nothing_that_is_secret(server: Server) -> None:
    texts = list(said(server))
    log = server.log_path.read_text(encoding="utf-8")
    assert not shows([*texts, log], UNSAID)
    assert not shows([log], TOKEN)
    assert not shows([log], OTHER_TOKEN)
    for question in (EASY, UNSURE, HARD, EMOJI):
        assert not shows([log], question)
    assert not shows([log], GOOD)
    server.ask(asking("a prompt that fails", "broken"))
    server.ask({"model": "a prompt", "messages": "a prompt"}, {**HEADERS, "X-Prompt": "a prompt"})
    server.get("/a%20prompt?a%20prompt")
    assert not shows([server.log_path.read_text(encoding="utf-8")], "a prompt")


def test_logs_hold_content_only_where_they_are_told_to(bots: dict[str, str]) -> None:
    with running(bots, "--log-content") as server:
        answered = server.logged(server.ask(asking(EASY)).headers["x-request-id"])
        assert answered["prompt"] == [{"role": "user", "content": EASY}]
        assert answered["answer"] == GOOD
        broken = server.logged(server.ask(asking(EASY, "broken")).headers["x-request-id"])
        assert broken["detail"] == UNSAID
        log = server.log_path.read_text(encoding="utf-8")
        # Clients are told no more than before, and some things are never written.
        assert not shows([server.ask(asking(EASY, "broken")).text], UNSAID)
        assert not shows([log], TOKEN)
        assert not shows([log], MARK)


def test_an_unexpected_error_is_logged_with_where_it_came_from(server: Server) -> None:
    response = server.ask(asking(EASY, "broken"))
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
    response = server.ask(asking(EASY, model))
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert server.logged(response.headers["x-request-id"])["error"][0] == error


@pytest.mark.parametrize(
    "fault", ["status 500", "status 401", "status 429", "malformed", "truncated", "dropped", "no choices"]
)
def test_a_model_that_fails_is_a_bad_gateway(
    server: Server, upstream: tuple[str, Script], fault: str
) -> None:
    upstream[1].faults = [Fault(fault)]
    for stream in (False, True):
        response = server.ask(asking(EASY, stream=stream))
        assert (response.status_code, response.json()["error"]["code"]) == (502, "draw_failed")
        assert server.logged(response.headers["x-request-id"])["error"][0] == "DrawError"
    upstream[1].faults = ()
    assert server.ask(asking(EASY)).status_code == 200

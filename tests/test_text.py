"""How messages quote text from outside the package."""

from __future__ import annotations

import asyncio
import time

import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import Candidate, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.errors import DrawError
from langchain_cfc.support.text import (
    escape_controls,
    escape_controls_in_json,
    quote,
    redact_addresses,
    redact_secrets,
)

KEY = "sk-proj-Zx81LmQp0Tt"


def test_escape_controls_makes_control_characters_visible() -> None:
    assert escape_controls("a\tb\nc") == "a\tb\nc"
    assert escape_controls("\x1b[2J\x9b\x00\r\x7f\u202e") == r"\x1b[2J\x9b\x00\r\x7f\u202e"
    assert escape_controls("naïve 🦙 ñ \\x1b") == "naïve 🦙 ñ \\x1b"
    assert escape_controls_in_json('"\x9b\x7f\u202e"') == r'"\u009b\u007f\u202e"'


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}. You can find",
        f"headers={{'Authorization': 'Bearer {KEY}'}}",
        "Authorization: Basic cGVyc29uOlp4ODFMbVFwMFR0",
        "{'X-Api-Key': 'Zx81LmQp0Tt'}",
        '{"api_key": "Zx81LmQp0Tt"}',
        "aws_secret_access_key=Zx81LmQp0Tt",
        "https://person:Zx81LmQp0Tt@host/v1 refused",
        "postgresql://person:p@Zx81LmQp0Tt/x@host/db",
        "Ocp-Apim-Subscription-Key: Zx81LmQp0Tt",
        "https://host/x?X-Amz-Signature=Zx81LmQp0Tt&a=1",
        "AccountKey=Zx81LmQp0Tt;EndpointSuffix=core",
        'PGPASSWORD="my Zx81LmQp0Tt phrase"',
        r"{\"token\": \"Zx81LmQp0Tt\"}",
        "[(b'x-api-key', b'Zx81LmQp0Tt'), ('accept', '*/*')]",
        "langchain-cfc --api-key Zx81LmQp0Tt",
        "Incorrect API key provided: Zx81LmQp0Tt",
        'Authorization: Digest username="a", response="Zx81LmQp0Tt"',
        "Cookie: a=1; session=Zx81LmQp0Tt; b=2",
        "lsv2_pt_Zx81LmQp0Tt_1",
        "-----BEGIN RSA PRIVATE KEY-----\nab\nZx81LmQp0Tt",
        "GET https://host/v1?alt=json&key=Zx81LmQp0Tt&x=1",
        "access_token = Zx81LmQp0Tt",
        "password: Zx81LmQp0Tt",
        "Set-Cookie: Zx81LmQp0Tt; Path=/",
        "the token eyJhbGciOi.eyJzdWIi.Zx81LmQp0Tt has expired",
        "bearer Zx81LmQp0Tt was refused",
        "person:Zx81LmQp0Tt@host:5432/db refused",
        "connect to person:p@Zx81LmQp0Tt/x@db.host.org",
        "//person:Zx81LmQp0Tt@host/db",
        "https://hooks.slack.com/services/T0/B0/Zx81LmQp0Tt",
        "https://host/bot123:Zx81LmQp0Tt/send?session=Zx81LmQp0Tt",
        "curl -s -u person:Zx81LmQp0Tt https://host",
        "whsec_Zx81LmQp0Tt",
        "the password is Zx81LmQp0Tt",
    ],
)
def test_redact_secrets_removes_secrets(text: str) -> None:
    redacted = redact_secrets(text)
    assert "Zx81LmQp0Tt" not in redacted
    assert "cGVyc29u" not in redacted
    assert "[redacted]" in redacted


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'topic'",
        "the key is missing: id; sort_key: name; unexpected token: 'Lima'",
        "https://host:8080/a@b",
        "max_tokens: 100 exceeds the limit of 64 tokens",
        "authorization failed: no access to model gpt-4o",
        "the basic programming language, bearer of news",
        "https://host/v1?model=x&n=3",
        "anthropic:claude-sonnet@20240620, python:3.12@sha256:1ab, mailto:b77@host.org, react:18.2.0@latest",
        "https://host/webhooks/about-webhooks#2023?monkey=1; monkey: 12345678; -u 1000:1000; at 12:45@UTC+2",
        "task-force-of-people and risk-management-plan",
    ],
)
def test_redact_secrets_keeps_other_words(text: str) -> None:
    assert redact_secrets(text) == text


def test_redact_addresses_leaves_names_of_keys_in_own_texts() -> None:
    text = "sign --key a1b2c3d4.pem; postgresql://a:***@host/x; https://a:Zx81@b@host/?x-token=Zx81&n=3"
    shown = (
        "sign --key a1b2c3d4.pem; postgresql://a:***@host/x; https://[redacted]@host/?x-token=[redacted]&n=3"
    )
    assert redact_addresses(text) == shown


def test_redact_secrets_knows_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVER_TOKENS", "as any words, as-others")
    assert redact_secrets("refused: as any words, as-others") == "refused: [redacted]"
    assert redact_secrets("refused: as-others") == "refused: [redacted]"


@pytest.mark.parametrize(
    "part", ["key=", "--", "--a", "://a:", "cookie=", "password='", "eyJ-", "token ", "a:b@", "/hooks/"]
)
def test_redact_secrets_takes_little_time_for_any_text(part: str) -> None:
    started = time.process_time()
    redact_secrets(part * (10_000 // len(part)))
    assert time.process_time() - started < 0.5


def test_quote_cuts_long_texts_after_redaction() -> None:
    shown = quote("x" * 1_000_000)
    assert shown == "x" * 500 + "... (1,000,000 characters)"
    assert quote("z" * 500) == "z" * 500
    # Cut first, half a key would not be known by its form.
    assert quote("y" * 489 + " " + KEY) == "y" * 489 + " [redacted]"


def test_draw_error_quotes_a_provider_redacted_and_cut() -> None:
    records = [
        PromptRecord(
            id=str(number),
            input=str(number),
            candidates=(Candidate(text="right", score=0.2 + number / 1000, correct=True),) * 2,
        )
        for number in range(60)
    ]

    def refuse(_: str) -> str:
        msg = f"401 Incorrect API key provided: {KEY}\x1b[2J" + "x" * 5000
        raise RuntimeError(msg)

    chain = CFCRunnable(
        generator=RunnableLambda(refuse),
        verifier=lambda _, candidates: [0.1] * len(candidates),
        artifact=calibrate(records, alpha=0.2, features="1"),
        show_rejected=True,
    )
    for ask in (chain.invoke, lambda prompt: asyncio.run(chain.ainvoke(prompt))):
        with pytest.raises(DrawError, match="Incorrect API key") as caught:
            ask("question")
        said = str(caught.value)
        assert KEY not in said
        assert "\x1b" not in said
        assert len(said) < 1000
    # By default nothing is quoted to the end user: the cause holds the provider's text.
    withholding = chain.model_copy(update={"show_rejected": False})
    with pytest.raises(DrawError, match="withheld") as caught:
        withholding.invoke("question")
    assert "Incorrect" not in str(caught.value)
    assert "Incorrect" in str(caught.value.__cause__)

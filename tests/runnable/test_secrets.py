"""Secrets of a model stay out of what is printed, logged and traced of a chain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.load import dumps
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI

from langchain_cfc import Candidate, CFCChatModel, CFCRunnable, PromptRecord, calibrate

SECRETS = ("sk-Zx81", "Zx82", "Zx83", "Zx84", "Zx85", "Zx86")


def judge(_: Any, candidates: Any) -> list[float]:
    return [0.1] * len(candidates)


@pytest.fixture(scope="module")
def chain() -> CFCRunnable:
    records = [
        PromptRecord(
            id=str(number),
            input=str(number),
            candidates=(Candidate(text="right", score=0.2 + number / 1000, correct=True),) * 2,
        )
        for number in range(60)
    ]
    model = ChatOpenAI(
        model="gpt-4o",
        api_key="sk-Zx81",  # type: ignore[arg-type]  # it takes text
        base_url="https://person:Zx82@127.0.0.1/v1?token=Zx83",
        default_headers={"Authorization": "Bearer Zx84", "X-Internal": "Zx85"},
        extra_body={"api_key": "Zx86"},
    )
    return CFCRunnable(generator=model, verifier=judge, artifact=calibrate(records, alpha=0.2, features="1"))


def test_repr_and_dumps_of_a_chain_hold_no_secret(chain: CFCRunnable) -> None:
    shown = [
        repr(chain),
        str(chain),
        repr(RunnablePassthrough() | chain),
        repr(chain.or_else(RunnableLambda(str))),
        repr(CFCChatModel(chain=chain)),
        str(chain.model_dump()),
        chain.model_dump_json(),
        dumps(chain),
    ]
    found = [(secret, text[:80]) for text in shown for secret in SECRETS if secret in text]
    assert found == []


def test_repr_of_a_chain_names_its_parts(chain: CFCRunnable) -> None:
    assert "generator='ChatOpenAI', verifier='judge', artifact=CalibrationArtifact(" in repr(chain)
    dumped = json.loads(chain.model_dump_json(exclude={"artifact"}))
    assert (dumped["generator"], dumped["verifier"], dumped["answer"]) == ("ChatOpenAI", "judge", None)

"""How many functions of the package a calibration and a served prompt call, as a limit to its layers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableLambda

import langchain_cfc
from langchain_cfc import Candidate, CFCRunnable, PromptRecord, calibrate

PACKAGE = str(Path(langchain_cfc.__file__).parent)

# From Python 3.12 on they have no frames of their own.
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}

# Measured on Python 3.11: 206, of which 43 read what six draws say or whether they are no answer, and 3,808,
# of which 2,000 read each of 400 records once.
MOST_OF_INVOKE = 210
MOST_OF_CALIBRATE = 4_000


def count_calls(call: Callable[[], Any]) -> int:
    """Count the calls of the package's functions, and how often its generators continue."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        del argument
        nonlocal calls
        code = frame.f_code
        calls += (
            event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS
        )

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def make_records(n: int) -> list[PromptRecord]:
    draw = np.random.default_rng(0)
    return [
        PromptRecord(
            id=str(row),
            input=f"question {row}",
            candidates=tuple(
                Candidate(text=f"answer {draw.integers(3)}", score=score, correct=bool(draw.random() < 0.6))
                for score in draw.random(6).round(3).tolist()
            ),
        )
        for row in range(n)
    ]


def score_all_equal(prompt: Any, candidates: list[str]) -> list[float]:
    del prompt
    return [0.1] * len(candidates)


def test_calibrate_and_invoke_call_few_functions() -> None:
    records = make_records(400)

    def calibrate_records() -> langchain_cfc.CalibrationArtifact:
        return calibrate(records, alpha=0.3, allow_unattainable=True)

    artifact = calibrate_records()
    calls = count_calls(calibrate_records)
    assert 1_000 < calls <= MOST_OF_CALIBRATE

    chain = CFCRunnable(
        generator=RunnableLambda(lambda _: "answer 1"),
        verifier=score_all_equal,
        artifact=artifact,
    )
    chain.invoke("What was asked?")
    calls = count_calls(lambda: chain.invoke("What was asked?"))
    assert 50 < calls <= MOST_OF_INVOKE

"""Runs the Python blocks of README.md and docs/ as tests, each page in a folder of its own.

The pages speak of a `records.jsonl`, an `artifact.json` and a hosted model; here these are real files, and a
server on this machine that replays recorded answers.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from langchain_cfc import Candidate, PromptRecord, calibrate, write_records
from langchain_cfc.demo import recording
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import Provenance
from tests.serving.openai_server import Script, serving


def _set_up(namespace: dict[str, Any]) -> None:
    stack = namespace["_stack"] = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    stack.callback(os.chdir, Path.cwd())
    os.chdir(folder)
    # README.md: the recording, with a header that names the model the page uses.
    hosted = {"model": "gpt-4o-mini", "temperature": 0.7}
    facts = [_without_answers(record) for record in recording()]
    write_records(
        "records.jsonl", facts, Provenance(n=10, generator=hosted, verifier={"id": "sequence-probability"})
    )
    url = stack.enter_context(serving(Script.of(facts)))
    stack.enter_context(mock.patch.dict(os.environ, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}))
    _capitals_artifact().save("artifact.json")
    # Hard topics of the recording are out of reach at the README's level, which `calibrate` rightly says.
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore", AttainabilityWarning)


def _without_answers(record: PromptRecord) -> PromptRecord:
    """The page serves without an answer extractor, so its records hold texts only."""
    plain = tuple(candidate.model_copy(update={"answer": None}) for candidate in record.candidates)
    return record.model_copy(update={"candidates": plain})


def _capitals_artifact() -> Any:
    """docs/serving.md: a bot whose right answers score 0.1 to 0.3, and whose wrong ones score 0.9."""
    records = [
        PromptRecord(
            id=str(number),
            input=f"question {number}",
            candidates=(
                Candidate(text="right", score=0.1 + 0.2 * (number % 10) / 10, correct=True),
                Candidate(text="wrong", score=0.9, correct=False),
            ),
        )
        for number in range(40)
    ]
    named = Provenance(n=2, generator={"id": "capitals-bot"}, verifier={"id": "capitals-judge"})
    return calibrate(records, alpha=0.1, features="1", provenance=named)


def _tear_down(namespace: dict[str, Any]) -> None:
    namespace["_stack"].close()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md"],
    setup=_set_up,
    teardown=_tear_down,
).pytest()
